"""``opabinia sweep``: hyperparameter search, several runs of one recipe in one table."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from opabinia.cli.errors import option_error, report_errors
from opabinia.cli.options import AsJson, Quiet, Recipe, Reid, ReidTask, Tracker
from opabinia.cli.outcome import in_json, print_json
from opabinia.cli.repeats import number_text, print_progress, stopped_in
from opabinia.runtime.quiet import quiet_terminal

if TYPE_CHECKING:
    from opabinia.training.sweep.record import Record, Trial
    from opabinia.training.sweep.trials import SearchMethod, SearchSpace, TrialParams

MAX_SCORES = 6
"""Scores in the table of a sweep; its file has all of them."""

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE", help="Changes to the config; several values to vary a key: optimizer.lr=0.1,0.3"
    ),
]
Better = Literal["max", "min"]


def sweep(
    recipe: Recipe,
    words: Words = None,
    random: Annotated[
        int | None, typer.Option("--random", metavar="N", min=1, help="Random search with N different trials.")
    ] = None,
    optuna: Annotated[
        int | None, typer.Option("--optuna", metavar="N", min=1, help="N trials chosen by Optuna's TPE sampler.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of --random and --optuna (0).")] = None,
    metric: Annotated[
        str | None, typer.Option(help="Metric to sort by; default: checkpoint.best, or the first score.")
    ] = None,
    better: Annotated[
        Better | None, typer.Option(help="Direction of the metric; default: min for losses and errors, max otherwise.")
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the sweep; its runs are NAME-000, NAME-001 ...")] = "sweep",
    out: Annotated[Path, typer.Option(help="Folder of the runs: OUT/RECIPE/NAME-000.")] = Path("runs"),
    tracker: Tracker = None,
    reid: Reid = None,
    reid_task: ReidTask = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Hyperparameter sweep: train a recipe with every combination of values, and rank the runs.

    After an interruption the same command resumes.

    opabinia sweep classification/digits optimizer.lr=0.001,0.004 train.length=2ep,4ep

    opabinia sweep classification/digits "optimizer.lr=log(1e-4..1e-1)" --random 10 --seed 1

    With the options of a tracker, nothing is trained: the tracker is evaluated on the validation data of a run.

    opabinia sweep runs/detection/mot/default tracker.match_iou=0.1,0.2,0.3 tracker.keep_lost=1,2
    """
    with report_errors(), quiet_terminal(quiet):
        from opabinia.cli.tracking import is_of_tracker, sweep_tracker
        from opabinia.training.sweep.record import Record
        from opabinia.training.sweep.trials import parse_space

        if random is not None and optuna is not None:
            raise option_error("--optuna", "cannot be combined with --random")
        how: SearchMethod = "random" if random is not None else "optuna" if optuna is not None else "grid"
        if how == "grid" and seed is not None:
            message = "is for --random and --optuna: a grid is not random (the seed of the runs is an override, seed=1)"
            raise option_error("--seed", message)
        space = parse_space(words or [])
        record = Record(recipe, list(words or []), how, None if how == "grid" else seed or 0)
        if is_of_tracker(words or [], tracker, reid or reid_task):
            options: dict[str, Any] = {"metric": metric, "better": better, "name": name, "as_json": as_json}
            options |= {"tracker": tracker, "reid": reid, "reid_task": reid_task}
            return sweep_tracker(record, space, random or optuna or 0, **options)
        trials, default_metric = _checked(record, space, random or optuna or 0)

        from opabinia.training.launch import run_folder_of

        path = run_folder_of(recipe, out, name).parent / f"{name}.json"
        record.load_runs(path)
        series = _Series(record, space, path, out, metric or default_metric, better)
        series.train(trials, optuna or len(trials))
        if as_json:
            print_json(series.outcome())
        else:
            series.show()


def _checked(record: Record, space: SearchSpace, count: int) -> tuple[list[TrialParams], str | None]:
    """Return the trials known before the first run, and ``checkpoint.best`` of the recipe.

    Raises:
        ConfigError: with every error in any config.
    """
    from opabinia.training.sweep.runs import check_configs
    from opabinia.training.sweep.trials import boundary_trials, check_count, grid_trials, import_optuna, random_trials

    trials: list[TrialParams] = []
    if record.how == "optuna":
        import_optuna()
        check_count(space, count, "--optuna")
    else:
        trials = grid_trials(space) if record.how == "grid" else random_trials(space, count, record.seed or 0)
    resolved = check_configs(record.recipe, [space.overrides(params) for params in trials or boundary_trials(space)])
    return trials, resolved[0].config["checkpoint"]["best"]


@dataclass
class _Series:
    record: Record
    space: SearchSpace
    path: Path
    out: Path
    metric: str | None
    better: Better | None

    def train(self, trials: Sequence[TrialParams], count: int) -> None:
        """Train the unfinished ones of ``count`` runs; the record is written after each."""
        for params in trials[len(self.record.runs) :]:
            self._append(params)
        for run in self.record.runs:
            self._check_same_config(run)
        self._compared_by()
        for number in range(count):
            run = self.record.runs[number] if number < len(self.record.runs) else self._append(self._suggest())
            if not run.done:
                self._check_same_config(run)
                changes = " ".join(f"{key}={text}" for key, text in run.changes.items())
                print_progress(f"run {number + 1} of {count}: {run.name} {changes}")
                with stopped_in(f"run {number + 1} of {count} ({run.name})"):
                    self._train(run)
                self._compared_by()

    def _append(self, params: TrialParams) -> Trial:
        from opabinia.training.sweep.record import Trial

        self.record.runs.append(Trial(f"{self.path.stem}-{len(self.record.runs):03d}", params))
        return self.record.runs[-1]

    def _check_same_config(self, run: Trial) -> None:
        from opabinia.training.sweep.runs import check_same_config

        overrides = self.space.overrides(run.changes)
        check_same_config(self.path.parent / run.name, self.record.recipe, overrides)

    def _train(self, run: Trial) -> None:
        from opabinia.training.sweep.runs import run_trial

        self.record.write(self.path)
        outcome = run_trial(self.record.recipe, self.space.overrides(run.changes), out=self.out, name=run.name)
        if isinstance(outcome, str):
            run.failed = outcome
            typer.echo(f"{run.name} failed: {outcome}", err=True)
        else:
            run.scores = outcome
        self.record.write(self.path)

    def _suggest(self) -> TrialParams:
        from opabinia.training.sweep.record import metric_value
        from opabinia.training.sweep.trials import suggest

        metric, better = self._compared_by()
        known = [(run.changes, metric_value(run, metric)) for run in self.record.runs]
        return suggest(self.space, known, self.record.seed or 0, better)

    def _compared_by(self) -> tuple[str | None, Better]:
        """Return the metric that runs are compared by (None while there are no scores) and its direction.

        Raises:
            ConfigError: there are scores, but not of this metric.
        """
        from opabinia.training.sweep.record import choose_metric, metric_direction

        scores = next((run.scores for run in self.record.runs if run.scores), None)
        metric = choose_metric(self.metric, scores) if scores else None
        return metric, self.better or metric_direction(metric or "")

    def show(self) -> None:
        """Print the table, best first, and the command that repeats the best run."""
        from opabinia.cli.tables import print_cells
        from opabinia.training.sweep.record import metric_value, rank_trials

        metric, better = self._compared_by()
        runs = rank_trials(self.record.runs, metric, better)
        keys = [axis.key for axis in self.space.axes]
        names = list(dict.fromkeys([metric, *(name for run in runs for name in run.scores or {})] if metric else []))
        failed = ["failed"] if any(run.failed is not None for run in runs) else []

        def rows(shown: Sequence[str]) -> Iterator[list[str]]:
            yield ["run", *keys, *shown, *failed]
            for run in runs:
                scores = [number_text((run.scores or {}).get(name)) for name in shown]
                reason = [_short(run.failed or "")] if failed else []
                yield [run.name, *(str(run.changes[key]) for key in keys), *scores, *reason]

        shown = names[:MAX_SCORES]
        room = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
        while len(shown) > 1 and sum(3 + max(map(len, column)) for column in zip(*rows(shown), strict=True)) >= room:
            shown.pop()
        head, *lines = rows(shown)
        print_cells(head, lines)
        if len(names) > len(shown):
            print(f"{len(names) - len(shown)} more scores: {self.path}")
        if metric_value(runs[0], metric) is None:
            print(f"{self.path}: no run has a score to compare by")
            raise SystemExit(1)
        print(f"best by {metric} ({better}, after its last step): {self.path.parent / runs[0].name}")
        print(f"train it again: {self._command(runs[0])}")

    def outcome(self) -> dict[str, Any]:
        """Return the runs, best first, and the metric, as JSON values."""
        from opabinia.training.sweep.record import metric_value, rank_trials

        metric, better = self._compared_by()
        runs = rank_trials(self.record.runs, metric, better)
        ranked_runs = [
            {
                "run": str(self.path.parent / run.name),
                "changes": dict(run.changes),
                "scores": None if run.scores is None else in_json(run.scores),
                "failed": run.failed,
            }
            for run in runs
        ]
        best = ranked_runs[0]["run"] if metric_value(runs[0], metric) is not None else None
        return {"record": str(self.path), "metric": metric, "better": better, "best": best, "runs": ranked_runs}

    def _command(self, run: Trial) -> str:
        """Return the command that trains ``run`` again, in another folder."""
        from opabinia.training.sweep.runs import drawn_seed

        words = ["opabinia", "train", self.record.recipe, *self.space.overrides(run.changes)]
        seed = drawn_seed(self.path.parent / run.name, self.record.recipe, self.space.overrides(run.changes))
        words += [] if seed is None else [f"seed={seed}"]
        words += ["--name", f"{run.name}-again"] + ([] if self.out == Path("runs") else ["--out", str(self.out)])
        return shlex.join(words)


def _short(text: str) -> str:
    return text if len(text) <= 80 else text[:76] + " ..."
