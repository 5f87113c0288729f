"""metrics.jsonl as lines of points that a page can draw."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from opabinia.visualization.report.untrusted_json import number_of

MAX_POINTS = 2000
"""Limit for a drawn line: more could not be told apart."""

_POSITION = ("step", "epoch", "samples")
"""Keys of every line of the file."""


class Point(NamedTuple):
    """A value and its position.

    Attributes:
        at: step, epoch, samples and hours.
        value: None if it was not a finite number.
    """

    at: tuple[float, float, float, float]
    value: float | None


@dataclass
class RunMetrics:
    """The metrics of a run.

    Attributes:
        lines: points by name, in the order of the file.
        broken: number of lines of the file that could not be read.
        infinite: names of metrics that were not finite somewhere.
    """

    lines: dict[str, list[Point]] = field(default_factory=dict)
    broken: int = 0
    infinite: set[str] = field(default_factory=set)

    @property
    def last(self) -> tuple[float, float, float, float]:
        """Position of the newest point."""
        return max((points[-1].at for points in self.lines.values()), default=(0.0, 0.0, 0.0, 0.0))

    def newest(self) -> dict[str, float]:
        """Return the last value of each score of an evaluation, such as ``val/top1``."""
        last = {name: points[-1].value for name, points in self.lines.items() if is_score(name)}
        return {name: value for name, value in last.items() if value is not None}

    def scores_at(self, step: str) -> dict[str, float]:
        """Return the scores of the evaluations at a step, which is given as text."""
        scores = {name: points for name, points in self.lines.items() if is_score(name)}
        at_step = [(name, point) for name, points in scores.items() for point in points if f"{point.at[0]:.0f}" == step]
        return {name: point.value for name, point in at_step if point.value is not None}


def is_score(name: str) -> bool:
    """Return whether a metric is the score of an evaluation."""
    return "/" in name and not name.startswith(("train/", "time/", "memory/"))


def read_metrics(path: Path) -> RunMetrics:
    """Read a file, possibly of a run that is in progress or was killed: incomplete lines are counted and skipped.

    ``hours`` are summed from the time of steps and evaluations, without pauses.
    """
    metrics, hours, previous = RunMetrics(), 0.0, 0.0
    for row in _rows(path, metrics):
        step, epoch, samples = (number_of(row.get(name)) for name in _POSITION)
        if step is None:
            metrics.broken += 1
            continue
        hours += number_of(_seconds(row, step - previous) / 3600) or 0.0
        previous = step
        for name, value in row.items():
            if name in _POSITION or isinstance(value, bool) or not isinstance(value, int | float):
                continue
            finite = number_of(value)
            if finite is None:
                metrics.infinite.add(name)
            metrics.lines.setdefault(name, []).append(Point((step, epoch or 0.0, samples or 0.0, hours), finite))
    return metrics


def _rows(path: Path, metrics: RunMetrics) -> Iterator[dict[str, Any]]:
    with suppress(OSError), path.open(encoding="utf-8", errors="replace") as file:
        for text in file:
            try:
                row = json.loads(text)
            except (ValueError, RecursionError):
                row = None
            if isinstance(row, dict):
                yield row
            elif text.strip():
                metrics.broken += 1


def _seconds(row: dict[str, Any], steps: float) -> float:
    """Return the duration of the steps or evaluations of a line."""
    step_time = number_of(row.get("time/step"))
    if step_time is not None:
        return step_time * max(0.0, steps)
    return sum(number_of(value) or 0.0 for name, value in row.items() if name.startswith("time/"))


def thinned(points: Sequence[Point]) -> list[Point]:
    """Return at most about :data:`MAX_POINTS` points: the lowest and the highest of each bucket of neighboring ones, so
    that no spike is lost."""
    if len(points) <= MAX_POINTS:
        return list(points)
    heights = [-math.inf if point.value is None else point.value for point in points]
    buckets = MAX_POINTS // 2
    kept = {0, len(points) - 1}
    for number in range(buckets):
        bucket = range(number * len(points) // buckets, (number + 1) * len(points) // buckets)
        order = sorted(bucket, key=heights.__getitem__)
        kept |= {order[0], order[-1]}
    return [points[index] for index in sorted(kept)]
