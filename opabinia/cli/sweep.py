"""``opabinia sweep``, and the series of ``opabinia train --seeds``: one recipe, several runs, one table."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from opabinia.cli.errors import report_errors
from opabinia.cli.options import Recipe
from opabinia.cli.outcome import AsJson, Quiet, in_json, print_json
from opabinia.runtime.quiet import is_quiet, quietly

if TYPE_CHECKING:
    from opabinia.training.sweep import How, Point, Record, Space, Tried

SHOWN = 6
"""Scores in the table of a sweep; all of them stand in its file."""

Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="Changes to the config; what varies has several: optimizer.lr=0.1,0.3"),
]
Better = Literal["max", "min"]


def sweep(
    recipe: Recipe,
    words: Words = None,
    random: Annotated[
        int | None, typer.Option("--random", metavar="N", min=1, help="Draw N different points instead of taking all.")
    ] = None,
    optuna: Annotated[
        int | None, typer.Option("--optuna", metavar="N", min=1, help="Let Optuna's TPE choose N points.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Of --random and --optuna; 0 unless told.")] = None,
    metric: Annotated[
        str | None, typer.Option(help="Score to sort by; else checkpoint.best, else the first score.")
    ] = None,
    better: Annotated[
        Better | None, typer.Option(help="Which way it is better; else min for losses and errors, max for the rest.")
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the sweep; its runs are NAME-000, NAME-001 ...")] = "sweep",
    out: Annotated[Path, typer.Option(help="Where runs lie: OUT/RECIPE/NAME-000.")] = Path("runs"),
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train a recipe with every combination of values, and show which is best.

    The same command goes on where it was stopped.

    opabinia sweep classification/digits optimizer.lr=0.001,0.004 train.length=2ep,4ep

    opabinia sweep classification/digits "optimizer.lr=log(1e-4..1e-1)" --random 10 --seed 1
    """
    with report_errors(), quietly(quiet):
        from opabinia.training.sweep import Record, parse_space

        how = _how(random, optuna, seed)
        space = parse_space(words or [])
        record = Record(recipe, list(words or []), how, None if how == "grid" else seed or 0)
        points, usual = _checked(record, space, random or optuna or 0)

        from opabinia.training.launch import run_folder_of

        path = run_folder_of(recipe, out, name).parent / f"{name}.json"
        record.take_over(path)
        series = _Series(record, space, path, out, metric or usual, better)
        series.train(points, optuna or len(points))
        if as_json:
            print_json(series.outcome())
        else:
            series.show()


def _how(random: int | None, optuna: int | None, seed: int | None) -> How:
    from opabinia.config import ConfigError, Problem

    if random is not None and optuna is not None:
        raise ConfigError(Problem("command line", "--optuna", "either this or --random"))
    if random is None and optuna is None and seed is not None:
        message = "is for --random and --optuna: a grid draws nothing (the seed of the runs is an override, seed=1)"
        raise ConfigError(Problem("command line", "--seed", message))
    return "random" if random is not None else "optuna" if optuna is not None else "grid"


def _checked(record: Record, space: Space, count: int) -> tuple[list[Point], str | None]:
    """The points, as far as they are known before the first run, and the score that the recipe calls the best by.

    Raises:
        ConfigError: with every mistake in any config.
    """
    from opabinia.training.sweep import check_all, draw, grid, import_optuna, probes, refuse_too_many

    points: list[Point] = []
    if record.how == "optuna":
        import_optuna()
        refuse_too_many(space, count, "--optuna")
    else:
        points = grid(space) if record.how == "grid" else draw(space, count, record.seed or 0)
    resolved = check_all(record.recipe, [space.overrides(point) for point in points or probes(space)])
    best: str | None = resolved[0].config["checkpoint"]["best"]
    return points, best


@dataclass
class _Series:
    record: Record
    space: Space
    path: Path
    out: Path
    metric: str | None
    better: Better | None

    def train(self, points: Sequence[Point], count: int) -> None:
        """Train what is left to do of ``count`` runs; the record is written after each."""
        for run in self.record.runs:
            self._refuse_other(run)
        for point in points[len(self.record.runs) :]:
            self._refuse_other(self._append(point))
        self._compared_by()
        for number in range(count):
            run = self.record.runs[number] if number < len(self.record.runs) else self._append(self._proposed())
            if not run.done:
                self._refuse_other(run)
                _tell_progress(f"run {number + 1} of {count}: {run.name} {' '.join(_words(run.changes))}")
                self._train(run, f"{number + 1} of {count}")
                self._compared_by()

    def _append(self, point: Point) -> Tried:
        from opabinia.training.sweep import Tried

        self.record.runs.append(Tried(f"{self.path.stem}-{len(self.record.runs):03d}", point))
        return self.record.runs[-1]

    def _refuse_other(self, run: Tried) -> None:
        from opabinia.training.sweep import refuse_other_config

        overrides = self.space.overrides(run.changes)
        refuse_other_config(self.path.parent / run.name, self.record.recipe, overrides)

    def _train(self, run: Tried, number: str) -> None:
        from opabinia.runtime.signals import Stopped
        from opabinia.training.sweep import try_run

        self.record.write(self.path)
        try:
            outcome = try_run(self.record.recipe, self.space.overrides(run.changes), out=self.out, name=run.name)
        except Stopped as stopped:
            _tell(f"stopped in run {number} ({run.name}): the same command goes on from there")
            raise SystemExit(stopped.exit_status) from None
        if isinstance(outcome, str):
            run.failed = outcome
            _tell(f"{run.name} failed: {outcome}")
        else:
            run.scores = outcome
        self.record.write(self.path)

    def _proposed(self) -> Point:
        from opabinia.training.sweep import propose, value_of

        metric, better = self._compared_by()
        known = [(run.changes, value_of(run, metric)) for run in self.record.runs]
        return propose(self.space, known, self.record.seed or 0, better)

    def _compared_by(self) -> tuple[str | None, Better]:
        """The score that runs are compared by, None while there are no scores, and which way it is better.

        Raises:
            ConfigError: there are scores, but not this one.
        """
        from opabinia.training.sweep import better_way, chosen_metric

        scores = next((run.scores for run in self.record.runs if run.scores), None)
        metric = chosen_metric(self.metric, scores) if scores else None
        return metric, self.better or better_way(metric or "")

    def show(self) -> None:
        """Print the table, best first, and how to repeat the best run."""
        from opabinia.training.sweep import ranked, value_of

        metric, better = self._compared_by()
        runs = ranked(self.record.runs, metric, better)
        keys = [axis.key for axis in self.space.axes]
        names = list(dict.fromkeys([metric, *(name for run in runs for name in run.scores or {})] if metric else []))
        shown = names[:SHOWN]
        failed = ["failed"] if any(run.failed is not None for run in runs) else []
        rows = [
            [
                run.name,
                *(run.changes[key] for key in keys),
                *(_number((run.scores or {}).get(name)) for name in shown),
                *(_short(run.failed or "") for _ in failed),
            ]
            for run in runs
        ]
        _print_table(["run", *keys, *shown, *failed], rows)
        if len(names) > len(shown):
            print(f"{len(names) - len(shown)} more scores: {self.path}")
        if value_of(runs[0], metric) is None:
            print(f"{self.path}: no run has a score to compare by")
            raise SystemExit(1)
        print(f"best by {metric} ({better}, after its last step): {self.path.parent / runs[0].name}")
        print(f"again: {self._command(runs[0])}")

    def outcome(self) -> dict[str, Any]:
        """The runs, best first, and what they are compared by."""
        from opabinia.training.sweep import ranked, value_of

        metric, better = self._compared_by()
        runs = ranked(self.record.runs, metric, better)
        told = [
            {
                "run": str(self.path.parent / run.name),
                "changes": dict(run.changes),
                "scores": None if run.scores is None else in_json(run.scores),
                "failed": run.failed,
            }
            for run in runs
        ]
        best = told[0]["run"] if value_of(runs[0], metric) is not None else None
        return {"record": str(self.path), "metric": metric, "better": better, "best": best, "runs": told}

    def _command(self, run: Tried) -> str:
        """What trains ``run`` once more, in a folder of its own."""
        from opabinia.training.sweep import seed_of

        words = ["opabinia", "train", self.record.recipe, *self.space.overrides(run.changes)]
        seed = seed_of(self.path.parent / run.name, self.record.recipe, self.space.overrides(run.changes))
        words += [] if seed is None else [f"seed={seed}"]
        words += ["--name", f"{run.name}-again"] + ([] if self.out == Path("runs") else ["--out", str(self.out)])
        return shlex.join(words)


def train_seeds(
    recipe: str,
    overrides: Sequence[str],
    seeds: str,
    *,
    out: Path,
    name: str,
    as_json: bool = False,
) -> None:
    """What ``opabinia train --seeds`` does: a run for each seed, then their scores in one table.

    Raises:
        ConfigError: a seed or a config is wrong, or a folder holds a run of another config.
    """
    from opabinia.config import ConfigError, Problem
    from opabinia.training.sweep import check_all, parse_seeds, refuse_other_config, write_seeds

    numbers = parse_seeds(seeds)
    changes = {seed: [*overrides, f"seed={seed}"] for seed in numbers}
    given = [word for word in overrides if word.removeprefix("--").partition("=")[0].strip() == "seed"]
    if given:
        raise ConfigError(Problem(f"command line: {given[0]}", "", "--seeds gives every run its seed: leave this out"))
    check_all(recipe, changes.values())

    from opabinia.runtime.signals import Stopped
    from opabinia.training.launch import run_folder_of
    from opabinia.training.sweep import clean_up, train_or_go_on

    folders = {seed: run_folder_of(recipe, out, f"{name}-seed{seed}") for seed in numbers}
    for seed, folder in folders.items():
        refuse_other_config(folder, recipe, changes[seed])
    scores = {}
    for number, (seed, folder) in enumerate(folders.items(), 1):
        _tell_progress(f"run {number} of {len(numbers)}: {folder}")
        try:
            scores[seed] = train_or_go_on(recipe, changes[seed], out=out, name=folder.name)
        except Stopped as stopped:
            _tell(f"stopped in run {number} of {len(numbers)} (seed {seed}): the same command goes on from there")
            raise SystemExit(stopped.exit_status) from None
        finally:
            clean_up()
    path = folders[numbers[0]].parent / f"{name}-seeds.json"
    together = write_seeds(path, recipe, overrides, scores)
    if as_json:
        runs = {str(folder): in_json(scores[seed]) for seed, folder in folders.items()}
        means = {one: {"mean": found.mean, "std": found.std} for one, found in together.items()}
        return print_json({"record": str(path), "runs": runs, "scores": means})
    rows = [
        [one, _number(found.mean), _number(found.std), *(_number(found.values.get(seed)) for seed in numbers)]
        for one, found in together.items()
    ]
    _print_table(["score", "mean", "std", *(f"seed {seed}" for seed in numbers)], rows)
    print(f"{path} (after the last step of each run)")


def _words(changes: Mapping[str, str]) -> list[str]:
    return [f"{key}={text}" for key, text in changes.items()]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _short(text: str, limit: int = 80) -> str:
    return text if len(text) <= limit else text[: limit - 4] + " ..."


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _tell_progress(text: str) -> None:
    if not is_quiet():
        _tell(text)


def _print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table to stdout in full, wider than the terminal if it must be: a number cut off is no number."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*head)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console = Console(highlight=False)
    console.width = max(console.width, Console(width=10_000).measure(table).maximum)
    console.print(table)
