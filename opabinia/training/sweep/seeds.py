"""Repeated runs of a config, with different seeds or on different folds: seeds, and the summary of the scores."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from opabinia.config import ConfigError, Problem
from opabinia.runtime.json_files import write_json


def parse_seeds(text: str) -> list[int]:
    """Parse a list of seeds such as ``0,1,2``.

    Raises:
        ConfigError: an entry is not a seed, or occurs twice.
    """
    words = [word.strip() for word in text.split(",")]
    for word in words:
        if not re.fullmatch(r"[0-9]{1,19}", word) or int(word) >= 2**63:
            message = f"{word!r} is not a seed: give whole numbers from 0, separated by commas, such as 0,1,2"
            raise ConfigError(Problem("command line", "--seeds", message))
    seeds = [int(word) for word in words]
    duplicates = [seed for index, seed in enumerate(seeds) if seed in seeds[:index]]
    if duplicates:
        raise ConfigError(Problem("command line", "--seeds", f"{duplicates[0]} occurs twice"))
    return seeds


@dataclass(frozen=True)
class Summary:
    """A score over several runs.

    Attributes:
        values: values by seed or fold; runs without the score are omitted.
        mean: their mean.
        std: their sample standard deviation (n - 1); None for a single value.
    """

    values: dict[int, float]
    mean: float
    std: float | None


def summarize(scores: Mapping[int, Mapping[str, float]]) -> dict[str, Summary]:
    """Summarize every score over all runs.

    Args:
        scores: scores by seed or fold.
    """
    names = dict.fromkeys(name for run_scores in scores.values() for name in run_scores)
    by_name = {
        name: {run: run_scores[name] for run, run_scores in scores.items() if name in run_scores} for name in names
    }
    return {name: Summary(values, *_mean_and_std(list(values.values()))) for name, values in by_name.items()}


def _mean_and_std(values: Sequence[float]) -> tuple[float, float | None]:
    if not all(map(math.isfinite, values)):
        return sum(values) / len(values), math.nan if len(values) > 1 else None
    return statistics.mean(values), statistics.stdev(values) if len(values) > 1 else None


def write_summary(
    path: Path, about: Mapping[str, Any], scores: Mapping[int, Mapping[str, float]]
) -> dict[str, Summary]:
    """Write the summary of the runs to ``path``, after what it is ``about``, and return it.

    Raises:
        DiskError: the file cannot be written; an old one is unchanged.
    """
    summary = summarize(scores)
    write_json(path, {**about, "scores": {name: asdict(score) for name, score in summary.items()}})
    return summary
