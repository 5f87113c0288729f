"""The hook that compares a run's final scores with expected ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Annotated

from annotated_types import MinLen

from opabinia.config import register
from opabinia.contracts import Hook, Run


class UnexpectedScore(Exception):
    """Final scores are not as expected; the run itself is complete.

    Attributes:
        scores: the final scores.
    """

    exit_status = 1

    def __init__(self, message: str, scores: Mapping[str, float]) -> None:
        super().__init__(message)
        self.scores = dict(scores)


@register.hook(name="expected_scores")
class ExpectedScores(Hook):
    """Ends a complete run with exit status 1 if a score is missing or not within its tolerance.

    Args:
        scores: expected value and tolerance by name: ``{val/top1: [0.99, 0.005]}``.
    """

    def __init__(self, *, scores: Annotated[dict[str, tuple[float, float]], MinLen(1)]) -> None:
        self.scores = scores

    def finish(self, run: Run, how: str | BaseException) -> None:
        """Compare.

        Raises:
            UnexpectedScore: it names every score that is not as expected.
        """
        if how == "done":
            check_scores(run.scores, self.scores)


def check_scores(scores: Mapping[str, float], expected: Mapping[str, Sequence[float]]) -> None:
    """Compare final scores with expected values and tolerances.

    Numbers are compared as the decimals that people wrote: 38.7 is 38.5 +- 0.2, which it is not in binary.

    Raises:
        UnexpectedScore: it names every score that is missing, not finite, or differs by more than its tolerance.
    """
    wrong = []
    for name, (value, tolerance) in expected.items():
        score = scores.get(name)
        if score is None:
            wrong.append(f"{name} is missing (scores: {', '.join(scores) or 'none'})")
        elif not math.isfinite(score) or abs(_decimal(score) - _decimal(value)) > _decimal(tolerance):
            wrong.append(f"{name} is {score}, expected {value} +- {tolerance}")
    if wrong:
        raise UnexpectedScore("unexpected scores: " + "; ".join(wrong), scores)


def _decimal(value: float) -> Decimal:
    return Decimal(repr(float(value)))
