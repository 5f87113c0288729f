"""A multi-task run beside single-task runs: scores, images and time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from opabinia.config import ConfigError, Problem
from opabinia.config.errors import listing
from opabinia.visualization.report.run_data import RunData, as_subtask, holds_run, read_run

NONE: Mapping[str, Path] = MappingProxyType({})

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
"""Names of the runs of a report, which limit their number."""


def compared_runs(folders: Sequence[Path], compare: Mapping[str, Path] = NONE) -> dict[str, Path]:
    """Return the folder of the single-task run of each task that is compared with one.

    Args:
        folders: folders of multi-task runs, whose configs may name such runs (``task.tasks.NAME.compare``); those that
            do not exist are skipped.
        compare: folders by task, which replace those of the configs.

    Raises:
        ConfigError: no run has such a task, a folder holds no run, or there are too many.
    """
    runs = [read_run(folder) for folder in folders]
    tasks = list(dict.fromkeys(name for run in runs for name in run.subtasks))
    if unknown := next((name for name in compare if name not in tasks), None):
        known = listing(tasks) or "none, for this is no multi-task run"
        message = f"{unknown}: there is no task of this name; tasks: {known}"
        raise ConfigError(Problem("command line", "--compare", message))
    for folder in compare.values():
        read_run(folder)  # an error before any work is done
    named = [item for run in runs for item in run.comparisons.items() if holds_run(item[1])]
    singles = {**dict(named), **compare}
    singles = {name: singles[name] for name in tasks if name in singles}
    if (number := len(folders) + len(singles)) > len(LETTERS):
        raise ConfigError(Problem("command line", "", f"{number} runs; a report is of at most {len(LETTERS)}"))
    return singles


def differences(run: RunData, single: RunData) -> dict[str, float]:
    """Return the scores of a task of a multi-task run minus those of a single-task run (:func:`as_subtask`)."""
    return {name: run.scores[name] - score for name, score in single.scores.items() if name in run.scores}


def total_cost(runs: Sequence[RunData]) -> tuple[float, float]:
    """Return the images that runs were trained on, and the minutes of their steps and evaluations."""
    ends = [run.metrics.last for run in runs]
    return sum(end[2] for end in ends), 60 * sum(end[3] for end in ends)


def comparison_rows(folder: Path, compare: Mapping[str, Path]) -> list[tuple[str, str, str, str]]:
    """Return a row for each score that a multi-task run and a single-task run have: its name, both values and their
    difference; then images and minutes, with those of the multi-task run in percent of all single-task runs.

    Raises:
        ConfigError: a folder holds no run.
    """
    run, singles = read_run(folder), [as_subtask(read_run(single), name) for name, single in compare.items()]
    rows = [
        (name, f"{run.scores[name]:.4f}", f"{single.scores[name]:.4f}", f"{difference:+.4f}")
        for single in singles
        for name, difference in differences(run, single).items()
    ]
    names, costs = ("images trained on", "minutes"), zip(total_cost([run]), total_cost(singles), strict=True)
    for name, (multi, single) in zip(names, costs, strict=True):
        rows.append((name, f"{multi:,.4g}", f"{single:,.4g}", f"{multi / single:.0%}" if single else ""))
    return rows
