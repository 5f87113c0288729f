"""Evaluation of trackers: ``opabinia eval RUN --tracker NAME`` and ``opabinia sweep RUN tracker.KEY=a,b``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opabinia.cli.errors import option_error
from opabinia.cli.outcome import in_json, print_json
from opabinia.cli.weights import local_run, open_run
from opabinia.runtime.slurm import launched_rank

if TYPE_CHECKING:
    from opabinia.inference.load import RunModel
    from opabinia.training.sweep.record import Record, Trial
    from opabinia.training.sweep.trials import Better, SearchSpace, TrialParams
    from opabinia.training.tracking import Tracking
    from opabinia.training.trained_model import Weights

KEYS = ("tracker", "per_class", "camera_motion")
"""Keys of overrides that concern the tracker, not the config of the run; also ``tracker.KEY``."""

SCORES = ("HOTA", "DetA", "AssA", "LocA", "IDF1", "MOTA", "IDSW", "Frag", "FP", "FN")
"""Columns of tables; the files have all scores."""
LOWER_IS_BETTER = ("FN", "FP", "IDSW", "Frag", "ML", "MLR")

MAX_SEQUENCES = 20


def split_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the overrides of the tracker, and the others."""
    keys = [word.removeprefix("--").partition("=")[0].partition(".")[0] for word in words]
    tracker = [word for word, key in zip(words, keys, strict=True) if key in KEYS]
    return tracker, [word for word, key in zip(words, keys, strict=True) if key not in KEYS]


def default_tracker(reid: str | None) -> str:
    """Return the name of the tracker where none is given: one that uses embeddings if there are some."""
    return "bytetrack" if reid is None else "botsort"


def split_options(
    words: Sequence[str],
    tracker: str | None,
    reid: str | None,
    evaluators: Sequence[str] | None,
    intervals: bool,
    reid_task: str | None,
) -> tuple[list[str], list[str]]:
    """Return the overrides of the tracker, and the others, of ``opabinia eval``.

    Raises:
        ConfigError: options do not fit together.
    """
    of_tracker, others = split_words(words)
    _check_reid_task(reid, reid_task)
    if tracker is None and (reid is not None or of_tracker):
        message = f"is for trackers: add --tracker, such as {default_tracker(reid)}"
        raise option_error("--reid" if reid else of_tracker[0], message)
    if tracker is not None and (evaluators or intervals):
        message = "is not for tracks: remove --tracker or this"
        raise option_error("--evaluator" if evaluators else "--confidence-intervals", message)
    return of_tracker, others


def _check_reid_task(reid: str | None, task: str | None) -> None:
    if task is not None and reid is None:
        raise option_error("--reid-task", "is a task of --reid RUN: add it")


def resolve_words(run: Path, tracker: str, words: Sequence[str], changes: Sequence[str] = ()) -> Tracking:
    """Return a tracker with its options; it may be of a plug-in of the run.

    Args:
        run: run folder of the detector.
        tracker: name of the tracker.
        words: overrides of its options.
        changes: overrides of the config of the run.

    Raises:
        ConfigError: there is no such tracker or option, or a value does not fit.
    """
    from opabinia.training.run_folder import resolve
    from opabinia.training.tracking import resolve_tracking

    plugins = resolve(run, changes).config.get("plugins") or ()
    return resolve_tracking({"tracker": {}}, [f"tracker.name={tracker}", *words], plugins)


def reid_model(reid: str | None, task: str | None = None, device: str | None = None) -> RunModel | None:
    """Return the model of embeddings; None without a run.

    Args:
        reid: the run.
        task: its task, if it is a multi-task run; None: its only one for re-identification.
        device: where the model computes.

    Raises:
        ConfigError: there is no such run or task, or there are several.
    """
    _check_reid_task(reid, task)
    if reid is None:
        return None
    folder = open_run(reid, None, None)[0]
    from opabinia.inference.load import RunModel
    from opabinia.training.run_folder import resolve
    from opabinia.training.tracked_tasks import embedding_task

    return RunModel(folder, device=device, task=embedding_task(resolve(folder).config, task))


# --- eval -------------------------------------------------------------------------------------------------------------


def evaluate_tracks(
    model: tuple[Path, Sequence[str], str, Weights | None],
    data: tuple[Sequence[str], Path | None, str | None],
    tracker: str,
    words: Sequence[str],
    reid: str | None,
    reid_task: str | None = None,
    *,
    as_json: bool,
) -> None:
    """Evaluate a tracker on the validation data of a run, and print the scores.

    Args:
        model: the detector: run folder, overrides, checkpoint and weights.
        data: validation sets, path of other data and name of its scores, as given.
        tracker: name of the tracker.
        words: its options.
        reid: folder of the run of the model of embeddings.
        reid_task: its task, see :func:`reid_model`.
        as_json: print JSON instead of tables.
    """
    (run, overrides, checkpoint, weights), (splits, path, name) = model, data
    tracking, embedder = resolve_words(run, tracker, words), reid_model(reid, reid_task)
    from opabinia.inference.load import RunModel
    from opabinia.inference.tracking.evaluation import evaluate_tracker

    given = [f"tracker={tracker}", *words, *([f"reid={reid}"] if reid else [])]
    given += [f"reid_task={reid_task}"] if reid_task else []
    detector = RunModel(run, overrides, checkpoint, weights)
    tables = evaluate_tracker(detector, tracking, given, embedder, splits=splits, data=path, name=name)
    if as_json:
        rows = {
            name: {row: in_json(table["class_averaged"]) for row, table in of_rows.items()}
            for name, of_rows in tables.items()
        }
        return print_json({"run": str(run), "tracking": tracking.config, "scores": rows})
    if launched_rank(os.environ):
        return
    for name, of_rows in tables.items():
        _print_tables(run / "eval" / name, tracker, of_rows)


def _print_tables(folder: Path, tracker: str, rows: Mapping[str, Mapping[str, Any]]) -> None:
    """Print the compared rows, and the classes and sequences of the last one."""
    print(f"{tracker}, mean over classes")
    _print_rows("detections", ((name, tables["class_averaged"]) for name, tables in rows.items()))
    name, tables = list(rows.items())[-1]
    print(f"\n{name}, by class")
    classes = [(row["class"], row) for row in tables["per_class"]]
    _print_rows("class", [*classes, ("all boxes together", tables["detection_averaged"])])
    sequences = sorted(tables["per_sequence"], key=lambda row: row["AssA"])
    print(f"\n{name}, by sequence, worst association first")
    _print_rows("sequence", ((row["sequence"], row) for row in sequences[:MAX_SEQUENCES]))
    more = f"{len(sequences) - MAX_SEQUENCES} more sequences and " if len(sequences) > MAX_SEQUENCES else ""
    print(f"{more}all scores: {folder}; opabinia report shows the identity switches")


def _print_rows(title: str, rows: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
    from opabinia.cli.tables import print_cells

    print_cells((title, *SCORES), [[name, *(_text(scores.get(score)) for score in SCORES)] for name, scores in rows])


def _text(value: Any) -> str:
    return "-" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)


# --- sweep ------------------------------------------------------------------------------------------------------------


def is_of_tracker(words: Sequence[str], tracker: str | None, reid: str | None) -> bool:
    """Return whether a sweep is of a tracker, not of a training."""
    return tracker is not None or reid is not None or bool(split_words(words)[0])


def sweep_tracker(
    record: Record,
    space: SearchSpace,
    count: int,
    *,
    tracker: str | None,
    reid: str | None,
    reid_task: str | None,
    metric: str | None,
    better: Better | None,
    name: str,
    as_json: bool,
) -> None:
    """Evaluate a tracker with several options on the detections of a run, and print a table, best first.

    Args:
        record: the search; its recipe is the run folder of the detector.
        space: values of the options.
        count: number of trials of a random search.
        tracker: name of the tracker.
        reid, reid_task: the model of embeddings, see :func:`reid_model`.
        metric, better: score to sort by (HOTA), and its direction.
        name: name of the record in ``tracking`` of the run folder.
        as_json: print JSON instead of a table.

    Raises:
        ConfigError: there is no such run, tracker or option.
    """
    from opabinia.config.paths import check_run_data
    from opabinia.evaluation.tracking import scores as known
    from opabinia.training.sweep.record import Trial, choose_metric, rank_trials

    metric = choose_metric(metric, dict.fromkeys((*known.SCORES, *known.COUNTS), 0.0)) or "HOTA"
    options, changes = split_words(space.shared)
    if other := [axis.key for axis in space.axes if not split_words([f"{axis.key}="])[0]]:
        raise option_error(other[0], "is no option of a tracker: with those, only these are varied")
    run, embedder = local_run(record.recipe), reid_model(reid, reid_task)
    tracker = tracker or default_tracker(reid)
    check_run_data(run, changes, ["data.val"])
    trials = _trials(record, space, count)
    trackings = {
        str(number): resolve_words(run, tracker, [*options, *(f"{key}={text}" for key, text in trial.items())])
        for number, trial in enumerate(trials)
    }
    from opabinia.inference.load import RunModel
    from opabinia.inference.tracking.evaluation import FOLDER, sweep

    scores = sweep(RunModel(run, changes), trackings, embedder)
    record.runs = [Trial(number, trial, scores[number]) for number, trial in zip(trackings, trials, strict=True)]
    path = run / FOLDER / f"{name}.json"
    record.write(path)
    ranked = rank_trials(record.runs, metric, better or ("min" if metric in LOWER_IS_BETTER else "max"))
    if as_json:
        rows = [{"changes": dict(trial.changes), "scores": in_json(trial.scores or {})} for trial in ranked]
        return print_json({"record": str(path), "metric": metric, "runs": rows})
    keys = [axis.key for axis in space.axes]
    _print_trials(keys, list(dict.fromkeys([metric, *SCORES])), ranked)
    compared = "trackers" if "tracker.name" in keys else tracker
    how = f"{compared} {'with re-ID' if reid else 'by motion only'}"
    print(f"{path}: {how}; scores on the validation data that the options are compared on")


def _trials(record: Record, space: SearchSpace, count: int) -> list[TrialParams]:
    from opabinia.training.sweep.trials import grid_trials, random_trials

    if record.how == "optuna":
        raise option_error("--optuna", "is for training runs: trackers are evaluated in a grid, or with --random N")
    return grid_trials(space) if record.how == "grid" else random_trials(space, count, record.seed or 0)


def _print_trials(keys: Sequence[str], scores: Sequence[str], trials: Iterable[Trial]) -> None:
    from opabinia.cli.tables import print_cells

    rows = [
        [*(trial.changes[key] for key in keys), *(_text((trial.scores or {}).get(score)) for score in scores)]
        for trial in trials
    ]
    print_cells([*keys, *scores], rows)
