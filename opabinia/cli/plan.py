"""``opabinia plan``, and the recipe of a folder of data for ``opabinia train``."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opabinia.cli.benchmark import device_bytes
from opabinia.cli.errors import leave, option_error, report_errors
from opabinia.cli.options import Budget, DataLayout, DataTask, Quiet, Search
from opabinia.runtime.quiet import quiet_terminal

if TYPE_CHECKING:
    from opabinia.runtime.elastic_agent import ProcessLayout

DEFAULT_BUDGET = "1h"


def plan(
    data: Annotated[
        str,
        typer.Argument(metavar="DATA", help="A folder, annotation file or URL; with --explain a planned recipe, too."),
    ],
    budget: Budget = None,
    search: Search = None,
    out: Annotated[Path | None, typer.Option(help="File of the recipe; default: DATA.yaml in this folder.")] = None,
    task: DataTask = None,
    layout: DataLayout = None,
    gpus: Annotated[
        int | None, typer.Option(min=1, help="Plan for another machine with this number of GPUs.", show_default=False)
    ] = None,
    device_memory: Annotated[
        str | None, typer.Option(metavar="24GiB", help="Memory of each GPU of the other machine.", show_default=False)
    ] = None,
    explain: Annotated[
        str | None, typer.Option(metavar="KEY", help="Print the rule behind a value, and what would change it.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Write a recipe for a folder of data: looks at it, splits it, measures the machine, and gives the reason of each
    value.

    opabinia plan path/to/data --budget 30m --out mine.yaml

    opabinia plan path/to/data --budget 2h --search 8

    opabinia plan path/to/data --device-memory 24GiB --gpus 4 --budget 8h

    opabinia plan mine.yaml --explain optimizer.lr
    """
    with report_errors(), quiet_terminal(quiet):
        from opabinia.config.paths import data_name, holds_data

        if explain is not None and not holds_data(data):
            return _print_rule(Path(data), explain)
        file = out or Path(f"{data_name(data)}.yaml")
        if file.exists():
            raise option_error("--out", f"{file} exists; give another name")
        write_recipe(data, file, budget, task, layout, gpus, device_memory, search=search)
        if explain is not None:
            return _print_rule(file, explain)
        print(file.read_text(encoding="utf-8"), end="")
        print(f"\n# the recipe is in {file}; next: opabinia train {file}")


def _print_rule(recipe: Path, key: str) -> None:
    from opabinia.training.autoconfig.explain import explain
    from opabinia.training.autoconfig.plan import read_plan

    print(explain(read_plan(recipe), key))


def write_recipe(
    data: str,
    file: Path,
    budget: str | None = None,
    task: str | None = None,
    layout: str | None = None,
    gpus: int | None = None,
    device_memory: str | None = None,
    ranks: int | None = 1,
    overrides: Sequence[str] = (),
    search: int | None = None,
) -> None:
    """Plan a recipe; if a signal stops the search, exit with its status.

    Args:
        data, file, budget, task, layout, gpus, device_memory, search: see :func:`plan`.
        ranks: number of processes that will train on this machine; None: one for each GPU.
        overrides: ``key=value``, changes to the recipe that will be made.

    Raises:
        ConfigError: an argument is wrong, or the data is not recognized.
    """
    from opabinia.runtime.durations import parse_seconds

    try:
        seconds = parse_seconds(budget or DEFAULT_BUDGET)
    except ValueError as error:
        raise option_error("--budget", str(error)) from None
    if gpus is not None and device_memory is None:
        raise option_error("--gpus", "is for another machine: give --device-memory, too")
    memory = None if device_memory is None else device_bytes(device_memory)
    from opabinia.runtime.log import logging_to
    from opabinia.runtime.signals import Stopped
    from opabinia.training.autoconfig.plan import check_task
    from opabinia.training.autoconfig.plan import plan as plan_recipe
    from opabinia.training.autoconfig.situation import device_of, other_machine, this_machine

    chosen = check_task(task, "command line: --task")
    machine = other_machine(gpus or 1, memory) if memory is not None else this_machine(ranks, device_of(overrides))
    try:
        with logging_to(None):
            plan_recipe(
                data, file,
                budget=seconds, machine=machine, task=chosen, layout=layout, overrides=overrides, search=search,
            )  # fmt: skip
    except Stopped as stopped:
        leave(stopped.exit_status, "stopped in the search: no recipe is written")


def planned_recipe(
    data: str, write: Callable[..., None], processes: ProcessLayout | None, out: Path, name: str, resume: str | None
) -> str:
    """Plan a recipe for data, unless a run of it is resumed; return its path.

    The files of a plan are in ``<out>/<data>/<name>.plan``, next to the run folder.

    Args:
        data: the first argument of ``train``.
        write: :func:`write_recipe` with its other arguments; called with the file and the number of ranks.
        processes: processes that ``train`` launches; None: it trains in this one.
        out, name, resume: as given to ``train``.

    Raises:
        ConfigError: the data is not recognized, the run exists already, or several machines would plan.
    """
    from opabinia.config.paths import check_not_overwritten, check_run_name, folder_for, plan_file

    if int(os.environ.get("WORLD_SIZE") or 1) > 1 or (processes is not None and processes.nnodes > 1):
        message = f"is data: write a recipe first (opabinia plan {data} --out mine.yaml), then train mine.yaml"
        raise option_error("", f"{data} {message}")
    check_run_name(name)
    file = plan_file(data, out, name)
    if resume is not None and file.is_file():
        return str(file)
    if resume is None:
        check_not_overwritten(folder_for(file, out, name))
    write(file, ranks=1 if processes is None else processes.nproc)
    return str(file)
