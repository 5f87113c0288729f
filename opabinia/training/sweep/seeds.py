"""The same config with other seeds."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from opabinia.config import ConfigError, Problem
from opabinia.runtime.files import write_atomic


def parse_seeds(text: str) -> list[int]:
    """``0,1,2``.

    Raises:
        ConfigError: naming what is no seed, or there twice.
    """
    words = [word.strip() for word in text.split(",")]
    for word in words:
        if not re.fullmatch(r"[0-9]{1,19}", word) or int(word) >= 2**63:
            message = f"{word!r} is no seed: whole numbers from 0 with commas between them, such as 0,1,2"
            raise ConfigError(Problem("command line", "--seeds", message))
    seeds = [int(word) for word in words]
    twice = [seed for number, seed in enumerate(seeds) if seed in seeds[:number]]
    if twice:
        raise ConfigError(Problem("command line", "--seeds", f"{twice[0]} is there twice"))
    return seeds


@dataclass(frozen=True)
class Summary:
    """One score over several runs.

    Attributes:
        values: by seed; a run without that score is missing.
        mean: of the values.
        std: the sample's standard deviation (n - 1); None for a single value.
    """

    values: dict[int, float]
    mean: float
    std: float | None


def summarise(scores: Mapping[int, Mapping[str, float]]) -> dict[str, Summary]:
    """Each score over all seeds.

    Args:
        scores: by seed.
    """
    names = dict.fromkeys(name for one in scores.values() for name in one)
    found = {name: {seed: one[name] for seed, one in scores.items() if name in one} for name in names}
    return {name: Summary(values, *_mean_and_std(list(values.values()))) for name, values in found.items()}


def _mean_and_std(values: Sequence[float]) -> tuple[float, float | None]:
    if not all(map(math.isfinite, values)):
        return sum(values) / len(values), math.nan if len(values) > 1 else None
    return statistics.mean(values), statistics.stdev(values) if len(values) > 1 else None


def write_seeds(
    path: Path, recipe: str, overrides: Sequence[str], scores: Mapping[int, Mapping[str, float]]
) -> dict[str, Summary]:
    """Write the summary of a series to ``path`` and return it.

    Raises:
        DiskError: nothing was changed.
    """
    summary = summarise(scores)
    content = {
        "recipe": recipe,
        "overrides": list(overrides),
        "seeds": list(scores),
        "scores": {name: asdict(one) for name, one in summary.items()},
    }
    write_atomic(path, json.dumps(content, indent=1) + "\n")
    return summary
