"""``opabinia benchmark``"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from opabinia.cli.errors import report_errors
from opabinia.cli.options import Nproc, Overrides, Recipe
from opabinia.cli.processes import layout, run_in_many


def benchmark(
    recipe: Recipe,
    overrides: Overrides = None,
    steps: Annotated[int, typer.Option(min=2, help="Steps to measure, after some warm-up steps.")] = 30,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of the table.")] = False,
    out: Annotated[Path | None, typer.Option(metavar="FILE.json", help="Also write the numbers to this file.")] = None,
    nproc: Nproc = None,
) -> None:
    """Measure training throughput, its bottleneck and memory on this machine. Nothing of the run is kept.

    opabinia benchmark classification/digits

    opabinia benchmark classification/digits data.num_workers=4 train.precision=bf16 --steps 100 --json

    opabinia benchmark classification/digits --nproc 2 --out digits.json
    """
    with report_errors():
        ranks = layout(nproc, None, None, None, max_restarts=0)
        from opabinia.config import ConfigError, Problem, catalog, check, compose

        if out is not None and (out.is_dir() or not out.absolute().parent.is_dir()):
            raise ConfigError(Problem("command line", "--out", f"{out} is not a file in an existing folder"))
        tree = compose(recipe, overrides or [])
        check(tree, catalog(tree.plugins))
        words = [*(["--json"] if as_json else []), *(["--out", str(out)] if out else [])]
        run_in_many(ranks, ["benchmark", recipe, *(overrides or []), "--steps", str(steps), *words])
        from opabinia.runtime.slurm import launched_rank
        from opabinia.training.benchmark import benchmark as run_benchmark

        result = run_benchmark(recipe, overrides or [], steps=steps)
        if launched_rank(os.environ):
            return
        import json

        from opabinia.cli.tables import print_benchmark
        from opabinia.runtime.files import write_atomic

        text = json.dumps(result, indent=1)
        if out is not None:
            write_atomic(out, text + "\n")
        if as_json:
            print(text)
        else:
            print_benchmark(result)
