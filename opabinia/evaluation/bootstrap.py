"""Bootstrap confidence intervals: percentiles of a score over resamples of the evaluated data (Efron 1979)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from opabinia.contracts import Resampling

LEVEL = 0.95
"""Probability of an interval."""

_MAX_RESAMPLES, _MIN_RESAMPLES = 1000, 100
_MAX_NUMBERS = 200_000_000
"""Numbers to compute for an interval, some seconds: scores with more per resample get fewer resamples."""

_NUMBERS_AT_ONCE = 4_000_000


@dataclass(frozen=True)
class Interval:
    """A confidence interval of a score.

    Attributes:
        low, high: its bounds.
        level: its probability of holding the score on other data like this.
        unit: what was resampled: ``images``, ``videos``, ``identities``.
        count: their number.
        resamples: number of resamples.
    """

    low: float
    high: float
    level: float
    unit: str
    count: int
    resamples: int


def confidence_interval(resampling: Resampling) -> Interval | None:
    """Return an interval from the percentiles of resampled scores; None if no resample has a score.

    The percentiles are moved by the difference of the score and the resamples' mean, which is near 0 for means such as
    accuracy. Average precision is higher in resamples, because copies of an image rank alike: without this the interval
    of a low one would not hold the score itself. So it is an interval of the score's mean over datasets of this size.

    It covers the choice of the evaluated data only, not the randomness of training. If all resamples have the score 0
    or 1, the other bound is that of the exact binomial interval (Clopper and Pearson 1934).

    Args:
        resampling: a score from 0 to 1.

    Example: 90 of 100 images are right: 0.84 to 0.95.
    """
    count, tail = resampling.count, (1 - LEVEL) / 2
    numbers = max(1, count + resampling.cost)
    resamples = min(_MAX_RESAMPLES, max(_MIN_RESAMPLES, _MAX_NUMBERS // numbers))
    rows = max(1, _NUMBERS_AT_ONCE // numbers)
    generator, parts = np.random.default_rng(0), []
    for start in range(0, resamples if count else 0, rows):
        size = min(rows, resamples - start)
        cells = generator.integers(0, count, (size, count)) + count * np.arange(size)[:, None]
        weights = np.bincount(cells.ravel(), minlength=size * count).reshape(size, count)
        parts.append(resampling.scores(weights.astype(np.float64)))
    scores = np.concatenate([np.zeros(0), *parts])
    scores = scores[~np.isnan(scores)]
    if not len(scores):
        return None
    moved = scores + (resampling.scores(np.ones((1, count)))[0] - scores.mean())
    low, high = np.quantile(moved, [tail, 1 - tail]).clip(0, 1).tolist()
    if scores.min() == scores.max() == 1:
        low = tail ** (1 / count)
    elif scores.min() == scores.max() == 0:
        high = 1 - tail ** (1 / count)
    return Interval(low, high, LEVEL, resampling.unit, count, resamples)
