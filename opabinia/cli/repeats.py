"""``opabinia train --seeds`` and ``--folds``: several runs of one recipe, one table."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import typer

from opabinia.cli.errors import option_error
from opabinia.cli.outcome import in_json, print_json
from opabinia.runtime.quiet import is_quiet

PREDICTIONS = "predictions.jsonl"


def train_seeds(
    recipe: str, overrides: Sequence[str], *, seeds: str, out: Path, name: str, as_json: bool = False
) -> None:
    """Train one run per seed and print their scores in one table.

    Raises:
        ConfigError: a seed or a config is wrong, or a folder holds a run of another config.
    """
    from opabinia.training.sweep.runs import check_configs
    from opabinia.training.sweep.seeds import parse_seeds

    numbers = parse_seeds(seeds)
    changes = {seed: [*overrides, f"seed={seed}"] for seed in numbers}
    given = [word for word in overrides if word.removeprefix("--").partition("=")[0].strip() == "seed"]
    if given:
        raise option_error(given[0], "--seeds sets the seed of every run: remove this")
    check_configs(recipe, changes.values())
    repeats = _Repeats("seed", recipe, changes, out, name)
    scores = repeats.train()
    about = {"recipe": recipe, "overrides": list(overrides), "seeds": numbers}
    repeats.summarize(repeats.folders[numbers[0]].parent / f"{name}-seeds.json", about, scores, as_json=as_json)


def train_folds(
    recipe: str,
    overrides: Sequence[str],
    *,
    count: int,
    group_by: str | None,
    out: Path,
    name: str,
    as_json: bool = False,
) -> None:
    """Cross-validation: train a run on all but each fold of the training data, and print their scores in one table;
    then predict each sample with the run that has not seen it.

    Raises:
        ConfigError: the config is wrong, its data cannot be divided, or a folder holds a run of another config or other
            folds.
    """
    from opabinia.config.paths import FOLDS_FILE
    from opabinia.training.sweep.folds import Folds, fold_changes, make_folds, split_files
    from opabinia.training.sweep.runs import check_configs

    (resolved,) = check_configs(recipe, [overrides])
    from opabinia.runtime.log import logging_to
    from opabinia.training.launch import run_folder_of

    folder, numbers = run_folder_of(recipe, out, f"{name}-folds"), range(1, count + 1)
    runs = [f"../{name}-fold{number}" for number in numbers]
    with logging_to(None):
        folds = make_folds(folder, Folds(recipe, count, group_by, resolved.config["seed"] or 0, runs), resolved)
    files = dict(zip(numbers, split_files(folder, count), strict=True))
    changes = {number: fold_changes(resolved, overrides, file, folds) for number, file in files.items()}
    repeats = _Repeats("fold", recipe, changes, out, name)
    scores = repeats.train()
    over_all = _out_of_fold(folder)
    about = {**asdict(folds), "overrides": list(overrides), "out_of_fold": over_all}
    repeats.summarize(folder / FOLDS_FILE, about, scores, over_all, as_json=as_json)
    from opabinia.cli.report import leave_report

    with redirect_stdout(sys.stderr) if as_json else nullcontext():
        print(f"{folder / PREDICTIONS}: each sample, predicted by the run that has not seen it")
        leave_report(folder)


def _out_of_fold(folder: Path) -> dict[str, float]:
    """Return the scores over the out-of-fold predictions, which are written unless those of these runs are there."""
    from opabinia.config.paths import FOLDS_FILE, member_runs
    from opabinia.runtime.json_files import read_json
    from opabinia.runtime.log import logging_to
    from opabinia.training.out_of_fold import predict_out_of_fold
    from opabinia.training.sweep.folds import FoldScores

    runs, file = member_runs(folder), folder / PREDICTIONS
    trained = max((run / "results.json").stat().st_mtime for run in runs)
    saved = read_json(folder / FOLDS_FILE, FoldScores)
    if saved.scores and file.is_file() and file.stat().st_mtime >= trained:
        return saved.out_of_fold
    with logging_to(None):
        return predict_out_of_fold(runs, file)


@dataclass
class _Repeats:
    """Runs of a recipe, one for each seed or fold: ``NAME-seed0`` ...

    Attributes:
        kind: what they differ in.
        recipe: the recipe.
        changes: overrides of each run, by its number.
        out, name: see :func:`opabinia.training.launch.train`.
    """

    kind: Literal["seed", "fold"]
    recipe: str
    changes: Mapping[int, Sequence[str]]
    out: Path
    name: str

    @cached_property
    def folders(self) -> dict[int, Path]:
        """The run folders by number."""
        from opabinia.training.launch import run_folder_of

        return {
            number: run_folder_of(self.recipe, self.out, f"{self.name}-{self.kind}{number}") for number in self.changes
        }

    def train(self) -> dict[int, dict[str, float]]:
        """Train the unfinished runs; return the scores of all.

        Raises:
            ConfigError: a folder holds a run of another config.
        """
        from opabinia.training.sweep.runs import check_same_config, release_memory, train_or_resume

        for number, folder in self.folders.items():
            check_same_config(folder, self.recipe, self.changes[number])
        scores = {}
        for position, (number, folder) in enumerate(self.folders.items(), 1):
            of_all = f"run {position} of {len(self.folders)}"
            print_progress(f"{of_all}: {folder}")
            with stopped_in(f"{of_all} ({self.kind} {number})"):
                scores[number] = train_or_resume(self.recipe, self.changes[number], out=self.out, name=folder.name)
            release_memory()
        return scores

    def summarize(
        self,
        path: Path,
        about: Mapping[str, Any],
        scores: Mapping[int, Mapping[str, float]],
        over_all: Mapping[str, float] | None = None,
        *,
        as_json: bool,
    ) -> None:
        """Write the summary of the scores to ``path``, after what it is ``about``, and print it.

        Args:
            path: the file.
            about: what to write before it.
            scores: scores of each run.
            over_all: scores over the samples of all runs.
            as_json: print JSON instead of a table.
        """
        from opabinia.training.sweep.seeds import write_summary

        summaries = write_summary(path, about, scores)
        if as_json:
            runs = {str(folder): in_json(scores[number]) for number, folder in self.folders.items()}
            means = {metric: {"mean": summary.mean, "std": summary.std} for metric, summary in summaries.items()}
            together = {} if over_all is None else {"out_of_fold": in_json(over_all)}
            return print_json({"record": str(path), "runs": runs, "scores": means, **together})
        from opabinia.cli.tables import print_cells

        rows = [
            [
                metric,
                *map(number_text, [summary.mean, summary.std]),
                *([number_text(over_all.get(metric))] if over_all else []),
                *(number_text(summary.values.get(number)) for number in self.folders),
            ]
            for metric, summary in summaries.items()
        ]
        columns = ["score", "mean", "std", *(["out of fold"] if over_all else [])]
        print_cells([*columns, *(f"{self.kind} {number}" for number in self.folders)], rows)
        print(f"{path} (after the last step of each run)")


@contextmanager
def stopped_in(run: str) -> Iterator[None]:
    """Name the run that a signal has stopped, and exit."""
    from opabinia.runtime.signals import Stopped

    try:
        yield
    except Stopped as stopped:
        typer.echo(f"stopped in {run}: the same command resumes", err=True)
        raise SystemExit(stopped.exit_status) from None


def number_text(value: float | None) -> str:
    """Return a score for a table, ``-`` if there is none."""
    return "-" if value is None else f"{value:.4f}"


def print_progress(text: str) -> None:
    """Print which run begins to stderr, unless the command is quiet."""
    if not is_quiet():
        typer.echo(text, err=True)
