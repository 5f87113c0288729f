"""A run folder as plain data. The run may be incomplete, of another version, or damaged: notes say what is missing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from opabinia.config import Problem, flatten
from opabinia.config.datasets import validation_sets
from opabinia.config.paths import check_run_folder
from opabinia.config.text import describe_source
from opabinia.config.tree import read_file
from opabinia.runtime.text import plural
from opabinia.visualization.report.dataset_profile import FILE as PROFILE
from opabinia.visualization.report.metrics import RunMetrics, is_score, read_metrics
from opabinia.visualization.report.untrusted_json import dict_of, dicts_of, number_of, read_json, read_text, texts_of

FORMAT = 1
"""Latest known format of checkpoints."""

MAX_WARNINGS = 30


@dataclass
class RunData:
    """The content of a run folder.

    Attributes:
        folder: its path.
        name: such as ``classification/digits/default``.
        task: the name of its task; empty if unknown.
        config: values by dotted path; empty if there is no config.
        origins: origin of each value, likewise.
        metrics: lines of metrics.jsonl.
        scores: the final ones, or the newest if the run is not finished.
        evaluated_scores: scores of ``opabinia eval``, by checkpoint (and overrides); without overrides also those that
            training computed at the same step.
        evaluations: validation sets and evaluations, with their ``scores``, ``data``, ``samples`` and so on.
        finished: whether the run ended.
        total_steps: planned; None if no checkpoint says.
        dataset_info: description of the training data.
        profile: the profile of the dataset, of a run that ``opabinia plan`` has planned; else empty.
        environment: versions and machine, by name.
        details: tables of evaluations, by dataset.
        warnings: in its log.
        notes: missing or unreadable content.
        compared_with: for a single-task run the task of a multi-task run that it is compared with; else empty.
    """

    folder: Path
    name: str
    task: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    metrics: RunMetrics = field(default_factory=RunMetrics)
    scores: dict[str, float] = field(default_factory=dict)
    evaluated_scores: dict[str, dict[str, float]] = field(default_factory=dict)
    evaluations: list[dict[str, str]] = field(default_factory=list)
    finished: bool = False
    total_steps: int | None = None
    dataset_info: dict[str, Any] = field(default_factory=dict)
    profile: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    details: dict[str, dict[str, Any]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    compared_with: str = ""

    @property
    def subtasks(self) -> list[str]:
        """The tasks of a multi-task run, of a run that is compared with one of them that one; of other runs none."""
        if self.compared_with:
            return [self.compared_with]
        names = [key.split(".")[2] for key in self.config if re.match(r"task\.tasks\.[^.]+\.task\b", key)]
        return list(dict.fromkeys(names))

    def classes_of(self, dataset: str) -> list[str]:
        """Return the classes of the training data, of a validation set of a multi-task run those of its task."""
        task = dataset.partition("/")[0]
        streams = dict_of(self.dataset_info.get("streams"))
        stream = streams.get(str(self.config.get(f"task.tasks.{task}.stream") or task), self.dataset_info)
        return texts_of(dict_of(stream).get("classes"))

    @property
    def comparisons(self) -> dict[str, Path]:
        """The folders of the single-task runs that the config names (``task.tasks.NAME.compare``), by task."""
        named = {name: self.config.get(f"task.tasks.{name}.compare") for name in self.subtasks}
        return {name: Path(run) for name, run in named.items() if isinstance(run, str)}


def read_run(folder: Path) -> RunData:
    """Read what a report needs of a run folder.

    Raises:
        ConfigError: it is no run folder.
    """
    if not holds_run(folder):
        check_run_folder(folder)
    run = RunData(folder, name_of(folder))
    _read_config(run)
    run.metrics = read_metrics(folder / "metrics.jsonl")
    _read_scores(run)
    _read_state(run)
    _read_log(run)
    run.profile = dict_of(read_json(folder / PROFILE, run.notes))
    for dataset, path in _evaluation_files(run, "details.json"):
        if not _is_outdated(run, dataset) and (tables := dict_of(read_json(path, run.notes))):
            run.details[dataset] = tables
    _note_missing(run)
    return run


def name_of(folder: Path) -> str:
    """Return the name of a run by its folder, such as ``classification/digits/default``."""
    return "/".join(folder.resolve().parts[-3:])


def as_subtask(run: RunData, name: str) -> RunData:
    """Return a single-task run with its values named as those of a task of a multi-task run: ``val/AP`` becomes
    ``boxes/val/AP``, ``train/loss`` becomes ``train/boxes/loss``."""

    def renamed(key: str) -> str:
        first, _, rest = key.partition("/")
        if first in ("train", "time") and key not in ("time/step", "time/data", "time/read"):
            return f"{first}/{name}/{rest}"
        return f"{name}/{key}" if is_score(key) else key

    metrics = replace(run.metrics, lines={renamed(key): points for key, points in run.metrics.lines.items()})
    return replace(
        run,
        metrics=metrics,
        scores={renamed(key): score for key, score in run.scores.items()},
        evaluated_scores={
            column: {renamed(key): score for key, score in scores.items()}
            for column, scores in run.evaluated_scores.items()
        },
        evaluations=[{**row, "scores": f"{name}/{row['scores']}"} for row in run.evaluations],
        compared_with=name,
    )


def holds_run(folder: Path) -> bool:
    """Return whether a folder holds a run."""
    return (folder / "config.yaml").is_file() or (folder / "metrics.jsonl").is_file()


def _evaluation_files(run: RunData, name: str) -> list[tuple[str, Path]]:
    """Return the files of this name in ``eval/<set>`` of each dataset; names of sets may have a slash."""
    paths = sorted(run.folder.glob(f"eval/*/**/{name}"))
    files = [(path.parent.relative_to(run.folder / "eval").as_posix(), path) for path in paths]
    return [(dataset, path) for dataset, path in files if not re.search("/step-[0-9]+$", dataset)]


def _read_config(run: RunData) -> None:
    problems: list[Problem] = []
    tree = read_file(run.folder / "config.yaml", problems)
    run.notes += [str(problem) for problem in problems]
    config = dict_of(tree.plain()) if tree is not None and not problems else {}
    run.config = flatten(config)
    val = dict_of(config.get("data")).get("val")
    sets = val if isinstance(val, list) else [val]
    with suppress(AttributeError, KeyError, TypeError):  # an edited config may lack keys
        sets = validation_sets(config)
    for section in dicts_of(sets):
        source = dict_of(section.get("source"))
        data = describe_source(source) if "name" in source else ""
        run.evaluations.append({"scores": str(section.get("prefix", "val")), "data": data, "checkpoint": "in training"})
    task = config.get("task")
    run.task = str(task.get("name", "")) if isinstance(task, dict) else str(task or "")
    origins = dict_of(read_json(run.folder / "origins.json", run.notes))
    run.origins = {key: str(value) for key, value in origins.items()}


def _read_scores(run: RunData) -> None:
    results = dict_of(read_json(run.folder / "results.json", run.notes))
    run.finished = bool(results)
    scores = _numbers(results) or run.metrics.newest()
    run.scores = {name: score for name, score in scores.items() if not _is_outdated(run, name.rpartition("/")[0])}
    scored = {name.rpartition("/")[0] for name in run.scores}
    in_training = [(row, name) for row in run.evaluations for name in (row["scores"], f"{row['scores']}_ema")]
    run.evaluations = [{**row, "scores": name} for row, name in in_training if name in scored]
    pointer = run.folder / "checkpoints" / "best"
    best = pointer.read_text("utf-8", errors="replace").strip() if pointer.is_file() else ""
    steps: dict[str, str] = {}
    for dataset, path in _evaluation_files(run, "scores.json"):
        newest = dict_of(read_json(path, run.notes))
        for result in [newest, *dicts_of(newest.get("earlier"))]:
            about = {key: str(result.get(key, "")) for key in ("data", "samples", "checkpoint", "weights")}
            step = re.sub("^step-0*(?=[0-9])", "step ", about["checkpoint"])
            about["checkpoint"] = f"best ({step})" if about["checkpoint"] == best else step
            overrides = " ".join(texts_of(result.get("overrides")))
            run.evaluations.append({"scores": dataset, **about, "overrides": overrides})
            scores = {name: value for name, value in _numbers(result).items() if "/" in name}
            column = " ".join(filter(None, (about["checkpoint"], overrides)))
            run.evaluated_scores[column] = {**scores, **run.evaluated_scores.get(column, {})}  # the newest counts
            if not overrides:
                steps[column] = step.removeprefix("step ")
    for column, step in steps.items():
        scores = {name: score for name, score in run.metrics.scores_at(step).items() if name in run.scores}
        run.evaluated_scores[column] = scores | run.evaluated_scores[column]


def _is_outdated(run: RunData, dataset: str) -> bool:
    """Return whether an evaluation was of EMA weights that the config no longer has: the run was resumed without."""
    without_ema = run.config.get("ema", 0) is None or run.config.get("evaluate.weights") == "raw"
    return without_ema and re.search("_ema(_|$)", dataset) is not None


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    numbers = {name: number_of(value) for name, value in values.items()}
    return {name: value for name, value in numbers.items() if value is not None}


def _read_state(run: RunData) -> None:
    """Read the state of the newest checkpoint."""
    states = sorted(run.folder.glob("checkpoints/step-*/state.json"))
    state = dict_of(read_json(states[-1], run.notes)) if states else {}
    run.dataset_info = dict_of(state.get("facts"))
    total = number_of(state.get("total_steps"))
    run.total_steps = None if total is None else int(total)
    version = number_of(state.get("format"))
    if version is not None and version > FORMAT:
        run.notes.append(
            f"a newer version wrote this run (format {version:g}; {FORMAT} is known): unknown content is not shown"
        )


_LOG_LINE = re.compile(r"\d\d-\d\d \d\d:\d\d:\d\d ([A-Z]) (.*)")


def _read_log(run: RunData) -> None:
    """Read the environment of the last attempt, and the warnings of all."""
    in_environment = False
    for line in (read_text(run.folder / "train.log", run.notes) or "").splitlines():
        if match := _LOG_LINE.match(line):
            in_environment = match[2] == "environment"
            run.environment = {} if in_environment else run.environment
            if match[1] in "WE":
                run.warnings.append(match[2])
        elif in_environment and line.startswith("  "):
            name, _, value = line.strip().partition(" ")
            run.environment[name] = value.strip()
    if len(run.warnings) > MAX_WARNINGS:
        run.warnings = [*run.warnings[:MAX_WARNINGS], f"and {len(run.warnings) - MAX_WARNINGS} more in train.log"]


def _note_missing(run: RunData) -> None:
    metrics = run.metrics
    for name, folder in run.comparisons.items():
        if not holds_run(folder):
            run.notes.append(f"task.tasks.{name}.compare: {folder} holds no run")
    if not metrics.lines:
        run.notes.append("there are no metrics yet: metrics.jsonl is missing or empty")
    elif not run.finished:
        total = f" of {run.total_steps}" if run.total_steps else ""
        run.notes.append(f"the run is not finished: it is at step {metrics.last[0]:.0f}{total}")
    if metrics.broken:
        run.notes.append(f"{plural(metrics.broken, 'line')} of metrics.jsonl could not be read: omitted")
    if metrics.infinite:
        run.notes.append(f"not finite somewhere: {', '.join(sorted(metrics.infinite))}")
