"""A run folder as plain data. It may be half a run, of another version, or damaged: notes tell what is missing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opabinia.config import Problem, flatten
from opabinia.config.tree import read_file
from opabinia.visualization.report.metrics import Journal, read_journal
from opabinia.visualization.report.untrusted_json import dict_of, number_of, read_json, read_text

FORMAT = 1
"""Of checkpoints that this version knows."""

MOST_WARNINGS = 30


class NoRun(Exception):
    """There is nothing to report on. The text says all."""

    exit_status = 2


@dataclass
class RunData:
    """What a run folder tells.

    Attributes:
        folder: where it is.
        name: for people, such as ``classification/digits/default``.
        task: the name of its task; empty where the config does not tell.
        config: values by dotted path; empty where there is no config.
        origins: where each value comes from, likewise.
        journal: what was measured.
        scores: the final ones, or the newest where the run is not finished.
        of_best: scores of the checkpoint that ``opabinia eval`` took, and its name under ``checkpoint``.
        finished: whether the run came to its end.
        total_steps: that it is to have; None where no checkpoint tells.
        facts: what the training data told.
        environment: versions and machine, by name.
        details: tables of evaluations, by data set.
        warnings: of its log.
        notes: what is missing or could not be read.
    """

    folder: Path
    name: str
    task: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    metrics_log: Journal = field(default_factory=Journal)
    scores: dict[str, float] = field(default_factory=dict)
    of_best: dict[str, Any] = field(default_factory=dict)
    finished: bool = False
    total_steps: int | None = None
    dataset_info: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    details: dict[str, dict[str, Any]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read_run(folder: Path) -> RunData:
    """Read what a report needs of a run folder.

    Raises:
        NoRun: it holds no run.
    """
    refuse_missing(folder)
    run = RunData(folder, "/".join(folder.resolve().parts[-3:]))
    _read_config(run)
    run.metrics_log = read_journal(folder / "metrics.jsonl")
    _read_scores(run)
    _read_state(run)
    _read_log(run)
    _read_details(run)
    _tell_what_is_missing(run)
    return run


def refuse_missing(folder: Path) -> None:
    """Tell that a folder holds no run.

    Raises:
        NoRun: so it is.
    """
    if not (folder / "config.yaml").is_file() and not (folder / "metrics.jsonl").is_file():
        raise NoRun(_why_none(folder))


def _why_none(folder: Path) -> str:
    if not folder.exists():
        return f"there is no folder {folder}"
    inside = sorted(str(path.parent) for path in folder.glob("*/config.yaml"))
    return f"{folder} holds no run (no config.yaml in it)" + (f"; runs in it: {', '.join(inside)}" if inside else "")


def _read_config(run: RunData) -> None:
    problems: list[Problem] = []
    tree = read_file(run.folder / "config.yaml", problems)
    run.notes += [str(problem) for problem in problems]
    config = dict_of(tree.plain()) if tree is not None and not problems else {}
    run.config = flatten(config)
    task = config.get("task")
    run.task = str(task.get("name", "")) if isinstance(task, dict) else str(task or "")
    origins = dict_of(read_json(run.folder / "origins.json", run.notes))
    run.origins = {key: str(value) for key, value in origins.items()}


def _read_scores(run: RunData) -> None:
    results = dict_of(read_json(run.folder / "results.json", run.notes))
    run.finished = bool(results)
    run.scores = _numbers(results) or run.metrics_log.newest()
    for path in sorted(run.folder.glob("eval/*/scores.json")):
        found = dict_of(read_json(path, run.notes))
        run.of_best |= {"checkpoint": str(found.get("checkpoint", "")), **_numbers(found)}


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    found = {name: number_of(value) for name, value in values.items()}
    return {name: value for name, value in found.items() if value is not None}


def _read_state(run: RunData) -> None:
    """What the newest checkpoint tells beside weights."""
    states = sorted(run.folder.glob("checkpoints/step-*/state.json"))
    state = dict_of(read_json(states[-1], run.notes)) if states else {}
    run.dataset_info = dict_of(state.get("facts"))
    total = number_of(state.get("total_steps"))
    run.total_steps = None if total is None else int(total)
    form = number_of(state.get("format"))
    if form is not None and form > FORMAT:
        run.notes.append(
            f"a newer version wrote this run (format {form:g}; {FORMAT} is known): only what is understood is shown"
        )


_STAMP = re.compile(r"\d\d-\d\d \d\d:\d\d:\d\d ([A-Z]) (.*)")


def _read_log(run: RunData) -> None:
    """The environment of the last attempt, and the warnings of all."""
    inside = False
    for line in (read_text(run.folder / "train.log", run.notes) or "").splitlines():
        stamped = _STAMP.match(line)
        if stamped:
            inside = stamped[2] == "environment"
            run.environment = {} if inside else run.environment
            if stamped[1] in "WE":
                run.warnings.append(stamped[2])
        elif inside and line.startswith("  "):
            name, _, value = line.strip().partition(" ")
            run.environment[name] = value.strip()
    if len(run.warnings) > MOST_WARNINGS:
        run.warnings = [*run.warnings[:MOST_WARNINGS], f"and {len(run.warnings) - MOST_WARNINGS} more in train.log"]


def _read_details(run: RunData) -> None:
    for path in sorted(run.folder.glob("eval/*/details.json")):
        if found := dict_of(read_json(path, run.notes)):
            run.details[path.parent.name] = found


def _tell_what_is_missing(run: RunData) -> None:
    metrics_log = run.metrics_log
    if not metrics_log.lines:
        run.notes.append("nothing was measured yet: metrics.jsonl is missing or empty")
    elif not run.finished:
        of = f" of {run.total_steps}" if run.total_steps else ""
        run.notes.append(f"the run is not finished: it is at step {metrics_log.last[0]:.0f}{of}")
    if metrics_log.broken:
        run.notes.append(f"{metrics_log.broken} lines of metrics.jsonl could not be read and are left out")
    if metrics_log.infinite:
        run.notes.append(f"not finite somewhere: {', '.join(sorted(metrics_log.infinite))}")
