"""Compares a run's final scores with what is expected of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated

from annotated_types import MinLen

from opabinia.config import register
from opabinia.contracts import Hook, Run


class UnexpectedScore(Exception):
    """Final scores are not what was expected; the run itself is complete.

    Attributes:
        scores: the scores.
    """

    exit_status = 1

    def __init__(self, message: str, scores: Mapping[str, float]) -> None:
        super().__init__(message)
        self.scores = dict(scores)


@register.hook(name="expected")
class Expected(Hook):
    """A run that is done ends with exit status 1 when a score is out of its tolerance, or missing.

    Args:
        scores: by name the expected value and the tolerance: ``{val/top1: [0.99, 0.005]}``.
    """

    def __init__(self, *, scores: Annotated[dict[str, tuple[float, float]], MinLen(1)]) -> None:
        self.scores = scores

    def finish(self, run: Run, how: str | BaseException) -> None:
        """Compare.

        Raises:
            Unexpected: naming every score that is not as expected.
        """
        if how == "done" and (wrong := differences(run.scores, self.scores)):
            raise UnexpectedScore("not the expected scores: " + "; ".join(wrong), run.scores)


def differences(scores: Mapping[str, float], expected: Mapping[str, tuple[float, float]]) -> list[str]:
    """One line for each score that is missing, not finite, or further off than its tolerance; the edge is within.

    Compared as the decimal numbers that people wrote: 38.7 is 38.5 +- 0.2 (in binary it would not be).
    """
    wrong = []
    for name, (value, tolerance) in expected.items():
        found = scores.get(name)
        if found is None:
            wrong.append(f"{name} is missing (scores: {', '.join(scores) or 'none'})")
        elif not math.isfinite(found) or abs(_decimal(found) - _decimal(value)) > _decimal(tolerance):
            wrong.append(f"{name} is {found}, expected {value} +- {tolerance}")
    return wrong


def _decimal(value: float) -> Decimal:
    return Decimal(repr(float(value)))
