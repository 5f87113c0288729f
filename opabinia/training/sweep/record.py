"""What came of a sweep, kept in one file."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from opabinia.config import ConfigError, Problem
from opabinia.config.errors import listing, nearest, show
from opabinia.runtime.files import disk_errors, write_atomic
from opabinia.training.sweep.trials import Better, How, Point


@dataclass
class Tried:
    """A run of a sweep.

    Attributes:
        name: of its folder.
        changes: its point.
        scores: what it reached.
        failed: why it reached nothing.
    """

    name: str
    changes: Point
    scores: dict[str, float] | None = None
    failed: str | None = None

    @property
    def done(self) -> bool:
        """Whether there is nothing left to do."""
        return self.scores is not None or self.failed is not None


@dataclass
class Record:
    """A sweep as it is kept in ``<out>/<recipe>/<name>.json``.

    Attributes:
        recipe: as given.
        space: the words that tell the space, as given.
        how: the points are chosen.
        seed: of that choice; None for a grid.
        runs: in the order of their numbers.
    """

    recipe: str
    space: list[str]
    how: How
    seed: int | None
    runs: list[Tried] = field(default_factory=list)

    def write(self, path: Path) -> None:
        """Write it aside, then rename it into place.

        Raises:
            DiskError: nothing was changed.
        """
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps(asdict(self), indent=1) + "\n")

    def take_over(self, path: Path) -> None:
        """The runs of an earlier command for the same sweep, which is at ``path`` if there was one.

        Raises:
            ConfigError: it is the record of another sweep, or none at all.
        """
        if not path.exists():
            return
        saved = read_json(path)
        for key in ("recipe", "space", "how", "seed"):
            if saved.get(key) != getattr(self, key):
                there, here = _said(saved.get(key)), _said(getattr(self, key))
                message = f"is a sweep with another {key} ({there} there, {here} here): --name begins another"
                raise ConfigError(Problem(str(path), "", message))
        try:
            self.runs = [Tried(**one) for one in saved["runs"]]
        except (KeyError, TypeError) as error:
            raise ConfigError(Problem(str(path), "", "is not the record of a sweep")) from error


def _said(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        ConfigError: it cannot be read, or holds something else.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(Problem(str(path), "", f"cannot be read: {error}")) from error
    if not isinstance(content, dict):
        raise ConfigError(Problem(str(path), "", f"cannot be read: it holds no object but {show(content)}"))
    return content


def better_way(metric: str) -> Better:
    """Which way a score is better, told by its name: losses and errors down, all else up."""
    return "min" if re.search(r"(loss|error|err|ece|nll|mae|mse|rmse|fid|perplexity)$", metric.lower()) else "max"


def chosen_metric(metric: str | None, scores: Mapping[str, float], option: str = "--metric") -> str | None:
    """The score to compare by; without one the first. None: there are no scores.

    Raises:
        ConfigError: there is no score of that name.
    """
    if metric is None or metric in scores:
        return metric or next(iter(scores), None)
    message = f"the runs give no score {metric!r}"
    known = f"scores: {listing(list(scores)) or 'none'}"
    raise ConfigError(Problem("command line", option, message, "", nearest(metric, scores), known))


def ranked(runs: Iterable[Tried], metric: str | None, better: Better) -> list[Tried]:
    """The best first; then what has no number, then what failed."""

    def place(run: Tried) -> tuple[int, float]:
        value = value_of(run, metric)
        if value is None:
            return (2 if run.scores is None else 1), 0.0
        return 0, -value if better == "max" else value

    return sorted(runs, key=place)


def value_of(run: Tried, metric: str | None) -> float | None:
    """What a run scored; None: no number."""
    value = (run.scores or {}).get(metric) if metric else None
    return value if value is not None and math.isfinite(value) else None
