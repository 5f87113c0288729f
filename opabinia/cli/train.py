"""``opabinia train``"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opabinia.cli.errors import leave, option_error, report_errors
from opabinia.cli.options import (
    AsJson,
    Budget,
    DataLayout,
    DataTask,
    ElasticNodes,
    Endpoint,
    Folds,
    GroupBy,
    MaxRestarts,
    NodeRank,
    Nproc,
    Overrides,
    Quiet,
    Recipe,
    RunsFolder,
    Search,
    Seeds,
)
from opabinia.cli.outcome import words_of
from opabinia.cli.processes import layout, run_in_many
from opabinia.runtime.quiet import quiet_terminal
from opabinia.runtime.slurm import is_step, launched_rank

LONG_BUDGET = 3600.0
"""Seconds of a budget from which on the end of a planned run says whether more data would help."""

if TYPE_CHECKING:
    from opabinia.cli.conclusion import Conclusion
    from opabinia.config import Resolved
    from opabinia.runtime.elastic_agent import ProcessLayout


def train(
    recipe: Recipe,
    overrides: Overrides = None,
    name: Annotated[str, typer.Option(help="Name of the run.")] = "default",
    out: RunsFolder = Path("runs"),
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="[CKPT]",
            help="Resume from the last (or the given) checkpoint of this run; auto: begin it if it does not exist yet.",
        ),
    ] = None,
    seeds: Seeds = None,
    folds: Folds = None,
    group_by: GroupBy = None,
    nproc: Nproc = None,
    nnodes: ElasticNodes = None,
    node_rank: NodeRank = None,
    rdzv_endpoint: Endpoint = None,
    max_restarts: MaxRestarts = 3,
    budget: Budget = None,
    search: Search = None,
    task: DataTask = None,
    data_layout: DataLayout = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train a recipe, or on a folder of data with a recipe that is planned for it (opabinia plan).

    opabinia train path/to/data --budget 30m

    opabinia train path/to/data --budget 2h --search 8

    opabinia train classification/digits

    opabinia train classification/digits optimizer.lr=0.01 train.length=5ep --name short

    opabinia train classification/digits --resume

    opabinia train classification/digits --seeds 0,1,2

    opabinia train classification/digits --folds 5

    opabinia train classification/digits --quiet --json > outcome.json

    Multi-GPU training on one machine, and on two (the same command on both, except for --node-rank):

    opabinia train classification/digits --nproc 2

    opabinia train classification/digits --nproc auto --nnodes 2 --node-rank 0 --rdzv-endpoint node0:29500
    """
    with report_errors(), quiet_terminal(quiet):
        many = layout(nproc, nnodes, node_rank, rdzv_endpoint, max_restarts)
        train_all = _repeated(seeds, folds, group_by, resume, many)
        planned = resume if train_all is None else "auto"  # the same command finds the plan of unfinished runs
        recipe = _recipe_of(recipe, budget, search, task, data_layout, many, overrides or [], out, name, planned)
        if train_all is not None:
            return train_all(recipe, overrides or [], out=out, name=name, as_json=as_json)
        if many is not None and many.is_elastic and resume != "auto":
            raise option_error("--resume", "give auto: with --nnodes MIN:MAX any machine may begin or resume the run")
        resolved = _check_at_once(recipe, overrides or [], out, name, resume, many.node_rank if many else 0)
        if many is not None:
            resume_words = [] if resume is None else ["--resume", resume]
            output = words_of(quiet, as_json)
            run_in_many(
                many, ["train", recipe, *(overrides or []), "--name", name, "--out", str(out), *resume_words, *output]
            )
        from opabinia.runtime.signals import Stopped
        from opabinia.training.launch import train as run

        try:
            folder, scores = run(recipe, overrides or [], out=out, name=name, resume=resume, resolved=resolved)
        except Stopped as stopped:
            leave(stopped.exit_status)
        _print_result(folder, scores, _conclusion(recipe, folder), quiet, as_json)


def _recipe_of(
    recipe: str,
    budget: str | None,
    search: int | None,
    task: str | None,
    data_layout: str | None,
    many: ProcessLayout | None,
    overrides: list[str],
    out: Path,
    name: str,
    resume: str | None,
) -> str:
    """Return the recipe to train: the given one, or that which is planned for data.

    Raises:
        ConfigError: the data is not recognized, options for data are given with a recipe, or there is neither.
    """
    from opabinia.config.compose import packaged_names
    from opabinia.config.paths import holds_data
    from opabinia.runtime.files import describe_missing

    options: dict[str, Any] = {"budget": budget, "search": search, "task": task, "layout": data_layout}
    if holds_data(recipe):
        from opabinia.cli.plan import planned_recipe, write_recipe

        write = partial(write_recipe, recipe, overrides=overrides, **options)
        return planned_recipe(recipe, write, many, out, name, resume)
    given = [f"--{option}" for option, value in options.items() if value is not None]
    if given and not Path(recipe).exists() and recipe not in packaged_names():
        raise option_error("", f"there is no file or folder {recipe}; {describe_missing(Path(recipe))}")
    if given:
        raise option_error(given[0], f"is for a folder of data, and {recipe} is a recipe; remove it")
    return recipe


def _repeated(
    seeds: str | None, folds: int | None, group_by: str | None, resume: str | None, many: ProcessLayout | None
) -> Callable[..., None] | None:
    """Return what trains several runs, one for each seed or fold; None if neither is given.

    Raises:
        ConfigError: an option does not fit.
    """
    if group_by is not None and folds is None:
        raise option_error("--group-by", "it belongs to --folds: add it")
    if folds is not None and seeds is not None:
        raise option_error("--folds", "cannot be combined with --seeds")
    from opabinia.cli.repeats import train_folds, train_seeds

    if folds is not None:
        option, train_all = "--folds", partial(train_folds, count=folds, group_by=group_by)
    elif seeds is not None:
        option, train_all = "--seeds", partial(train_seeds, seeds=seeds)
    else:
        return None
    if resume is not None:
        raise option_error("--resume", f"remove it: with {option} the same command resumes unfinished runs")
    if many is not None:
        raise option_error("--nproc", f"remove it: {option} trains in one process")
    return train_all


def _conclusion(recipe: str, folder: Path) -> Conclusion | None:
    """Return the conclusion of a planned run, whose profile is written beside it; None for other runs."""
    from opabinia.config.paths import facts_file

    if not facts_file(Path(recipe)).is_file():
        return None
    from opabinia.cli.conclusion import conclude
    from opabinia.training.autoconfig.plan import read_plan, save_profile

    if launched_rank(os.environ):
        return None
    save_profile(Path(recipe), folder)
    budget = read_plan(Path(recipe)).situation.budget
    # The runs on parts of the data take a tenth of a budget that has time for them.
    return conclude(folder, curve_seconds=0.1 * budget if budget >= LONG_BUDGET else 0.0)


def _check_at_once(
    recipe: str, overrides: list[str], out: Path, name: str, resume: str | None, node_rank: int | None
) -> Resolved | None:
    """Report errors before seconds of imports; return the config of a new run, from cached signatures.

    Raises:
        ConfigError: the config of a new run is wrong, its data is missing, its folder holds a run, or there is no run
            to resume.
    """
    from opabinia.config import catalog, check, compose
    from opabinia.config.paths import (
        check_not_overwritten,
        check_paths,
        check_resumable,
        check_run,
        folder_for,
        holds_run,
    )

    leads = launched_rank(os.environ) == node_rank == 0
    if resume is None:
        tree = compose(recipe, overrides)
        parts = catalog(tree.plugins)
        resolved = check(tree, parts)
        check_paths(resolved, parts)
        check_run(resolved)
        # Others of several processes would wait for one that ends here: they check together, in the run.
        if leads and "WORLD_SIZE" not in os.environ and not is_step(os.environ):
            check_not_overwritten(folder_for(recipe, out, name))
        return resolved
    folder = Path(recipe) if holds_run(Path(recipe)) else folder_for(recipe, out, name)
    if resume != "auto" and leads and not folder.is_dir():
        tree = compose(recipe, overrides)
        if check(tree, catalog(tree.plugins)).config["checkpoint"]["upload"] is None:  # otherwise it may be there
            check_resumable(folder)
    return None


def _print_result(
    folder: Path, scores: dict[str, float], conclusion: Conclusion | None, quiet: bool, as_json: bool
) -> None:
    """Print how a run has ended, of a planned one with its conclusion, and the next commands."""
    from opabinia.cli.conclusion import print_conclusion
    from opabinia.cli.outcome import outcome, print_ending, print_json, training_metrics
    from opabinia.cli.report import leave_report
    from opabinia.cli.tables import print_scores

    if as_json:
        with redirect_stdout(sys.stderr):
            leave_report(folder)
        return print_json({**outcome(folder, scores), **({"conclusion": conclusion.plain()} if conclusion else {})})
    if scores:
        print_scores(f"{folder} (after its last step)", scores)
    else:
        print_scores(f"{folder} (no validation data: metrics of the last training steps)", training_metrics(folder))
    with redirect_stdout(io.StringIO() if quiet else sys.stdout):
        leave_report(folder)
        if conclusion is None:
            print_ending(folder)
        else:
            print_conclusion(folder, conclusion)
