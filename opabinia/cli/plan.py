"""``opabinia plan``, and the recipe of a folder of data for ``opabinia train``."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from opabinia.cli.errors import option_error, report_errors
from opabinia.cli.options import Quiet
from opabinia.runtime.quiet import quiet_terminal

DEFAULT_BUDGET = "1h"

Budget = Annotated[
    str | None,
    typer.Option(metavar="30m|8h", help="Wall time of training with its evaluations; default: 1h.", show_default=False),
]
TaskOption = Annotated[
    str | None,
    typer.Option(
        "--task",
        metavar="TASK",
        help="classification, detection, instance_segmentation, keypoints, segmentation, panoptic, reid, video or "
        "selfsup; default: what the data is for.",
        show_default=False,
    ),
]
LayoutOption = Annotated[
    str | None, typer.Option("--layout", metavar="NAME", help="Layout of the data, if it has several.")
]


def plan(
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="A folder, annotation file or URL; with --explain a planned recipe, too.")
    ],
    budget: Budget = None,
    out: Annotated[Path | None, typer.Option(help="File of the recipe; default: DATA.yaml in this folder.")] = None,
    task: TaskOption = None,
    layout: LayoutOption = None,
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

    opabinia plan path/to/data --device-memory 24GiB --gpus 4 --budget 8h

    opabinia plan mine.yaml --explain optimizer.lr
    """
    with report_errors(), quiet_terminal(quiet):
        if explain is not None and Path(data).suffix in (".yaml", ".yml") and not holds_data(data):
            from opabinia.training.autoconfig.plan import explain as text_of
            from opabinia.training.autoconfig.plan import read_plan

            return print(text_of(read_plan(Path(data)), explain))
        file = out or Path(f"{data_name(data)}.yaml")
        if file.exists() and explain is None:
            raise option_error("--out", f"{file} exists; give another name")
        write_recipe(data, file, budget, task, layout, gpus, device_memory)
        if explain is not None:
            from opabinia.training.autoconfig.plan import explain as text_of
            from opabinia.training.autoconfig.plan import read_plan

            return print(text_of(read_plan(file), explain))
        print(file.read_text(encoding="utf-8"), end="")
        print(f"the recipe is in {file}; next: opabinia train {file}")


def write_recipe(
    data: str,
    file: Path,
    budget: str | None = None,
    task: str | None = None,
    layout: str | None = None,
    gpus: int | None = None,
    device_memory: str | None = None,
    overrides: list[str] | None = None,
) -> None:
    """Plan a recipe; see :func:`plan` for the arguments.

    Raises:
        ConfigError: an argument is wrong, or the data is not recognized.
    """
    from opabinia.config.errors import listing, nearest
    from opabinia.data.layouts.layout import TASK_NAMES

    if task is not None and task not in TASK_NAMES:
        suggestion = nearest(task, TASK_NAMES)
        from opabinia.config import ConfigError, Problem

        problem = Problem("command line", "--task", f"there is no task {task!r}", "", suggestion, listing(TASK_NAMES))
        raise ConfigError(problem)
    seconds = read_budget(budget or DEFAULT_BUDGET)
    memory = None if device_memory is None else read_memory(device_memory)
    from opabinia.runtime.log import logging_to
    from opabinia.training.autoconfig.plan import plan as plan_recipe
    from opabinia.training.autoconfig.situation import GIB, other_machine, this_machine

    machine = this_machine() if gpus is None and memory is None else other_machine(gpus or 1, memory or 24 * GIB)
    with logging_to(None):
        plan_recipe(
            data, file, budget=seconds, machine=machine, task=task, layout=layout, overrides=overrides or ()  # type: ignore[arg-type]
        )  # fmt: skip


def read_budget(text: str) -> float:
    """Return the seconds of ``30m``, ``1.5h`` or ``90s``.

    Raises:
        ConfigError: it is none, or less than 30 seconds.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|d)", text.strip())
    if match is None:
        raise option_error("--budget", f"not a time such as 30m, 1.5h or 2d (found {text!r})")
    seconds = float(match[1]) * {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}[match[2]]
    if seconds < 30:
        raise option_error("--budget", f"at least 30s are needed (found {text!r})")
    return seconds


def read_memory(text: str) -> int:
    """Return the bytes of ``24GiB`` or ``16GB``.

    Raises:
        ConfigError: it is none.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(GiB|GB|G)", text.strip(), re.IGNORECASE)
    if match is None or float(match[1]) <= 0:
        raise option_error("--device-memory", f"not a size such as 24GiB (found {text!r})")
    return int(float(match[1]) * (10**9 if match[2].upper() == "GB" else 2**30))


def data_name(data: str) -> str:
    """Return a name for a dataset, from its path."""
    name = Path(data.rstrip("/")).expanduser()
    stem = name.stem if name.suffix else name.name
    return re.sub(r"[^\w.-]+", "_", stem or Path(data).resolve().name).strip("._") or "data"


def holds_data(recipe: str) -> bool:
    """Return whether the argument of a command is data rather than a recipe or a run."""
    from opabinia.config.compose import packaged_names
    from opabinia.config.paths import holds_run
    from opabinia.runtime.storage import is_url

    path = Path(recipe).expanduser()
    if recipe in packaged_names() or holds_run(path):
        return False
    if is_url(recipe) or path.is_dir():
        return True
    if path.suffix in (".yaml", ".yml"):
        return path.is_file() and bool(re.search(r"^names\s*:", path.read_text(errors="replace")[:100_000], re.MULTILINE))
    return path.is_file()


def planned_recipe(
    recipe: str, options: Mapping[str, str | None], overrides: list[str], out: Path, name: str, resume: str | None
) -> str:
    """Return the recipe to train: that which is planned for data, or the given one.

    The files of a plan are in ``<out>/<data>/<name>.plan``, beside the run folder.

    Args:
        recipe: the first argument of ``train``.
        options: ``--budget``, ``--task`` and ``--layout``.
        overrides, out, name, resume: as given to ``train``.

    Raises:
        ConfigError: the data is not recognized, the run exists already, or options do not fit.
    """
    if not holds_data(recipe):
        for option, value in options.items():
            if value is not None:
                raise option_error(option, f"is for a folder of data, and {recipe} is a recipe; remove it")
        return recipe
    if int(os.environ.get("WORLD_SIZE") or 1) > 1:
        message = f"is data: write a recipe first (opabinia plan {recipe} --out mine.yaml), then train mine.yaml"
        raise option_error("", f"{recipe} {message}")
    from opabinia.config.paths import check_not_overwritten, check_run_name, folder_for

    check_run_name(name)
    title = data_name(recipe)
    file = out / title / f"{name}.plan" / f"{title}.yaml"
    if resume is not None and file.is_file():
        return str(file)
    folder = folder_for(file, out, name)
    if resume is None:
        check_not_overwritten(folder)
    write_recipe(recipe, file, *options.values(), overrides=overrides)
    return str(file)
