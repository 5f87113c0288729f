"""The record of a sweep: its search space and the results of its trials, in one JSON file."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from typing_extensions import TypedDict

from opabinia.config import ConfigError, Problem
from opabinia.config.errors import listing, nearest
from opabinia.runtime.json_files import check_fields, read_json, write_json
from opabinia.runtime.weighted_scores import weighted_score
from opabinia.training.sweep.trials import Better, SearchMethod, TrialParams


@dataclass
class Trial:
    """A run of a sweep.

    Attributes:
        name: name of its folder.
        changes: its parameters.
        scores: its scores when it is finished.
        failed: the reason if it failed.
    """

    name: str
    changes: TrialParams
    scores: dict[str, float] | None = None
    failed: str | None = None

    @property
    def done(self) -> bool:
        """True if the run is finished or has failed."""
        return self.scores is not None or self.failed is not None


class _Runs(TypedDict):
    runs: list[Trial]


@dataclass
class Record:
    """A sweep as it is kept in ``<out>/<recipe>/<name>.json``.

    Attributes:
        recipe: name or path of the recipe, as given.
        space: the words of the search space, as given.
        how: the search method.
        seed: its seed; None for a grid search.
        runs: the trials in order.
    """

    recipe: str
    space: list[str]
    how: SearchMethod
    seed: int | None
    runs: list[Trial] = field(default_factory=list)

    def write(self, path: Path) -> None:
        """Write the file atomically.

        Raises:
            DiskError: the file cannot be written; an old one is unchanged.
        """
        write_json(path, asdict(self))

    def load_runs(self, path: Path) -> None:
        """Load the trials of the same sweep from ``path``, if the file exists.

        Raises:
            ConfigError: the file belongs to another sweep.
            InvalidFile: it is damaged.
        """
        if not path.exists():
            return
        saved = read_json(path, dict[str, Any])
        for key in ("recipe", "space", "how", "seed"):
            if saved.get(key) != getattr(self, key):
                old, new = _as_text(saved.get(key)), _as_text(getattr(self, key))
                name = "search method" if key == "how" else key
                message = f"belongs to a sweep with another {name} ({old}, not {new}): choose another --name"
                raise ConfigError(Problem(str(path), "", message))
        self.runs = check_fields(saved, _Runs, str(path))["runs"]


def _as_text(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def metric_direction(metric: str) -> Better:
    """Return the direction of a metric by its name: "min" for losses and errors, else "max"."""
    return "min" if re.search(r"(loss|error|err|ece|nll|mae|mse|rmse|fid|perplexity)$", metric.lower()) else "max"


def choose_metric(metric: str | None, scores: Mapping[str, float]) -> str | None:
    """Return the metric to rank by: the given one, or the first score, or None without scores.

    Raises:
        ConfigError: no score has this name.
    """
    if metric is None or weighted_score(metric, scores) is not None:
        return metric or next(iter(scores), None)
    message = f"the runs have no score {metric!r}"
    known = f"scores: {listing(list(scores)) or 'none'}"
    raise ConfigError(Problem("command line", "--metric", message, "", nearest(metric, scores), known))


def rank_trials(runs: Iterable[Trial], metric: str | None, better: Better) -> list[Trial]:
    """Sort trials: the best first, then those without a finite value, then the failed ones."""

    def sort_key(run: Trial) -> tuple[int, float]:
        value = metric_value(run, metric)
        if value is None:
            return (2 if run.scores is None else 1), 0.0
        return 0, -value if better == "max" else value

    return sorted(runs, key=sort_key)


def metric_value(run: Trial, metric: str | None) -> float | None:
    """Return the value of a metric; None if it is missing or not finite."""
    value = weighted_score(metric, run.scores or {}) if metric else None
    return value if value is not None and math.isfinite(value) else None
