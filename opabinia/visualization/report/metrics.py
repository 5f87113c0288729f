"""metrics.jsonl as lines of points that a page can draw."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from opabinia.visualization.report.untrusted_json import number_of

MOST_POINTS = 2000
"""Of a line that is drawn: more could not be told apart."""

PLACES = ("step", "epoch", "samples")
"""What every line of the file tells of where it is."""


class Point(NamedTuple):
    """A value and where it was measured.

    Attributes:
        at: step, epoch, samples and hours.
        value: None where it was no finite number.
    """

    at: tuple[float, float, float, float]
    value: float | None


@dataclass
class Journal:
    """What was measured during a run.

    Attributes:
        lines: points by name, in the order of the file.
        broken: how many lines of the file could not be read.
        infinite: names of values that were not finite somewhere.
    """

    lines: dict[str, list[Point]] = field(default_factory=dict)
    broken: int = 0
    infinite: set[str] = field(default_factory=set)

    @property
    def last(self) -> tuple[float, float, float, float]:
        """Where the newest point is."""
        return max((points[-1].at for points in self.lines.values()), default=(0.0, 0.0, 0.0, 0.0))

    def newest(self) -> dict[str, float]:
        """The last value of each score that an evaluation gave, such as ``val/top1``."""
        return {
            name: points[-1].value
            for name, points in self.lines.items()
            if is_score(name) and points[-1].value is not None
        }


def is_score(name: str) -> bool:
    """Whether an evaluation gave it."""
    return "/" in name and not name.startswith(("train/", "time/", "memory/"))


def read_journal(path: Path) -> Journal:
    """Read a file that may be of a run that goes on, or was killed: what is no whole line is counted and left out.

    ``hours`` are summed from the time of steps and evaluations; pauses are not in them.
    """
    metrics_log, hours, before = Journal(), 0.0, 0.0
    for row in _rows(path, metrics_log):
        step, epoch, samples = (number_of(row.get(name)) for name in PLACES)
        if step is None:
            metrics_log.broken += 1
            continue
        hours += _seconds(row, step - before) / 3600
        before = step
        at = (step, epoch or 0.0, samples or 0.0, hours)
        for name, value in row.items():
            if name in PLACES or isinstance(value, bool) or not isinstance(value, int | float):
                continue
            found = number_of(value)
            if found is None:
                metrics_log.infinite.add(name)
            metrics_log.lines.setdefault(name, []).append(Point(at, found))
    return metrics_log


def _rows(path: Path, metrics_log: Journal) -> Iterator[dict[str, Any]]:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            for text in file:
                try:
                    row = json.loads(text)
                except (ValueError, RecursionError):
                    row = None
                if isinstance(row, dict):
                    yield row
                elif text.strip():
                    metrics_log.broken += 1
    except FileNotFoundError:
        return


def _seconds(row: dict[str, Any], steps: float) -> float:
    """How long what a line tells of took."""
    a_step = number_of(row.get("time/step"))
    if a_step is not None:
        return a_step * max(0.0, steps)
    sets = {name.split("/")[0] for name in row if is_score(name)}
    return sum(number_of(row.get(f"time/{name}")) or 0.0 for name in sets)


def thinned(points: Sequence[Point], most: int = MOST_POINTS) -> list[Point]:
    """At most about so many points: of each stretch the lowest and the highest, so that no spike is lost."""
    if len(points) <= most:
        return list(points)
    parts = most // 2
    kept = {0, len(points) - 1}
    for number in range(parts):
        stretch = range(number * len(points) // parts, (number + 1) * len(points) // parts)
        kept |= set(_extremes(stretch, points))
    return [points[number] for number in sorted(kept)]


def _extremes(stretch: Iterable[int], points: Sequence[Point]) -> tuple[int, int]:
    order = sorted(stretch, key=lambda number: _height(points[number]))
    return order[0], order[-1]


def _height(point: Point) -> float:
    return -math.inf if point.value is None else point.value
