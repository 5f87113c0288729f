"""``opabinia train``"""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated

import typer

from opabinia.cli.errors import leave, report_errors
from opabinia.cli.options import Overrides, Recipe
from opabinia.cli.outcome import AsJson, Quiet, words_of
from opabinia.cli.processes import Endpoint, MaxRestarts, Nnodes, NodeRank, Nproc, layout, run_in_many
from opabinia.runtime.quiet import quietly


def train(
    recipe: Recipe,
    overrides: Overrides = None,
    name: Annotated[str, typer.Option(help="Name of the run.")] = "default",
    out: Annotated[Path, typer.Option(help="Where runs lie: OUT/RECIPE/NAME.")] = Path("runs"),
    resume: Annotated[
        str | None, typer.Option(metavar="[CKPT]", help="Go on from the last (or the given) checkpoint of this run.")
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(metavar="0,1,2", help="One run for each seed, NAME-seed0 ..., and the mean of all.")
    ] = None,
    nproc: Nproc = None,
    nnodes: Nnodes = None,
    node_rank: NodeRank = None,
    rdzv_endpoint: Endpoint = None,
    max_restarts: MaxRestarts = 3,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train a recipe.

    opabinia train classification/digits

    opabinia train classification/digits optimizer.lr=0.01 train.length=5ep --name short

    opabinia train classification/digits --resume

    opabinia train classification/digits --seeds 0,1,2

    opabinia train classification/digits --quiet --json > outcome.json

    Many processes, on one machine and (the same on both, but for the number) on two:

    opabinia train classification/digits --nproc 2

    opabinia train classification/digits --nproc auto --nnodes 2 --node-rank 0 --rdzv-endpoint node0:29500
    """
    with report_errors(), quietly(quiet):
        many = layout(nproc, nnodes, node_rank, rdzv_endpoint, max_restarts)
        if seeds is not None:
            from opabinia.cli.sweep import train_seeds

            _refuse(
                "--resume", resume, "leave it out beside --seeds: the same command goes on with what is not finished"
            )
            _refuse("--nproc", many, "leave it out beside --seeds: a series runs in one process")
            return train_seeds(recipe, overrides or [], seeds, out=out, name=name, as_json=as_json)
        if resume is None:
            # Mistakes are told at once, from cached signatures, before seconds of imports.
            from opabinia.config import catalog, check, compose

            tree = compose(recipe, overrides or [])
            check(tree, catalog(tree.plugins))
        if many is not None:
            again = [] if resume is None else ["--resume", resume]
            told = words_of(quiet, as_json)
            run_in_many(many, ["train", recipe, *(overrides or []), "--name", name, "--out", str(out), *again, *told])
        from opabinia.runtime.signals import Stopped
        from opabinia.training.launch import train as run

        try:
            folder, scores = run(recipe, overrides or [], out=out, name=name, resume=resume)
        except Stopped as stopped:
            leave(stopped.exit_status)
        _end(folder, scores, quiet, as_json)


def _end(folder: Path, scores: dict[str, float], quiet: bool, as_json: bool) -> None:
    """Say how a run has ended, and what may be done with it."""
    from opabinia.cli.outcome import outcome, print_ending, print_json
    from opabinia.cli.report import leave_report
    from opabinia.cli.tables import print_scores

    if as_json:
        with redirect_stdout(sys.stderr):
            leave_report(folder)
        return print_json(outcome(folder, scores))
    print_scores(f"{folder} (after its last step; opabinia eval takes the best checkpoint)", scores)
    with redirect_stdout(io.StringIO() if quiet else sys.stdout):
        leave_report(folder)
        print_ending(folder)


def _refuse(option: str, value: object, message: str) -> None:
    from opabinia.config import ConfigError, Problem

    if value is not None:
        raise ConfigError(Problem("command line", option, message))
