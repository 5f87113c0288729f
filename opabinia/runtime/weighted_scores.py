"""Scores that are weighted sums of others, written as text: ``0.5*val/rank1 + 0.5*val/mAP``."""

from __future__ import annotations

import re
from collections.abc import Mapping

_TERM = re.compile(r"(?:([0-9]*\.?[0-9]+(?:e[-+]?[0-9]+)?)\s*\*\s*)?([^\s*]+)")


def score_weights(metric: str) -> dict[str, float]:
    """Return the weight of each score in a weighted sum; a name alone has the weight 1.

    Example: ``val/mAP - 0.1*val/loss`` gives ``{"val/mAP": 1.0, "val/loss": -0.1}``.

    Raises:
        ValueError: the text is not such a sum.
    """
    first, *rest = re.split(r"\s+([-+])\s+", metric.strip())
    weights: dict[str, float] = {}
    for sign, term in zip(["+", *rest[::2]], [first, *rest[1::2]], strict=True):
        match = _TERM.fullmatch(term)
        if match is None:
            raise ValueError(f"{metric!r} is neither a score nor a sum such as 0.5*val/rank1 + 0.5*val/mAP")
        weight = float(match[1] or 1) * (-1 if sign == "-" else 1)
        weights[match[2]] = weights.get(match[2], 0.0) + weight
    return weights


def weighted_score(metric: str, scores: Mapping[str, float]) -> float | None:
    """Return the value of a score or weighted sum (:func:`score_weights`); None if a score of it is missing, or the
    text is no such sum."""
    try:
        weights = score_weights(metric)
    except ValueError:
        return None
    if not weights.keys() <= scores.keys():
        return None
    return sum(weight * scores[name] for name, weight in weights.items())
