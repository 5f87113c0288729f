"""``opabinia bench``"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from opabinia.cli.errors import report_errors
from opabinia.cli.processes import Nproc, layout, run_in_many


def bench(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A packaged recipe, a YAML file or a run folder.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Changes to the config, such as data.workers=4")
    ] = None,
    steps: Annotated[int, typer.Option(min=2, help="Steps that are measured, behind a few to warm up.")] = 30,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON in place of the table.")] = False,
    out: Annotated[Path | None, typer.Option(metavar="FILE.json", help="Write the numbers to this file, too.")] = None,
    nproc: Nproc = None,
) -> None:
    """Measure how fast a recipe trains here, and what it waits for. Nothing of the run is kept.

    opabinia bench classification/digits

    opabinia bench classification/digits data.workers=4 train.precision=bf16 --steps 100 --json

    opabinia bench classification/digits --nproc 2 --out digits.json
    """
    with report_errors():
        many = layout(nproc, None, None, None, max_restarts=0)
        from opabinia.config import ConfigError, Problem, catalog, check, compose

        if out is not None and (out.is_dir() or not out.absolute().parent.is_dir()):
            raise ConfigError(Problem("command line", "--out", f"{out} is no file in a folder that is there"))
        tree = compose(recipe, overrides or [])
        check(tree, catalog(tree.plugins))
        if many is not None:
            shown = [*(["--json"] if as_json else []), *(["--out", str(out)] if out else [])]
            run_in_many(many, ["bench", recipe, *(overrides or []), "--steps", str(steps), *shown])
        from opabinia.runtime.slurm import told_rank
        from opabinia.training.benchmark import benchmark as measure

        found = measure(recipe, overrides or [], steps=steps)
        if told_rank(os.environ):
            return
        import json

        from opabinia.cli.tables import print_bench
        from opabinia.runtime.files import write_atomic

        text = json.dumps(found, indent=1)
        if out is not None:
            write_atomic(out, text + "\n")
        if as_json:
            print(text)
        else:
            print_bench(found)
