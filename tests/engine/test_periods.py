"""Periods: each multiple ends once, and the end of the run counts."""

from fractions import Fraction
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from opabinia.contracts import Clock
from opabinia.data.sampling.batches import ConstantPlan
from opabinia.engine.hooks.evaluate import Evaluate
from opabinia.engine.hooks.periods import period_ended
from opabinia.runtime.durations import Duration


def due_steps(steps_per_epoch: int, total: int, period: str) -> list[int]:
    plan = ConstantPlan(steps_per_epoch, 1, Duration(total, "it"))
    return [step for step in range(total + 1) if period_ended(Clock.at(plan, step), Duration.parse(period))]


@pytest.mark.parametrize(
    ("steps_per_epoch", "total", "period", "expected"),
    [
        (10, 30, "1ep", [10, 20, 30]),
        (10, 30, "0.5ep", [5, 10, 15, 20, 25, 30]),
        (10, 30, "3it", [3, 6, 9, 12, 15, 18, 21, 24, 27, 30]),
        (10, 25, "1ep", [10, 20, 25]),
        (10, 25, "7it", [7, 14, 21, 25]),
        (10, 30, "0ep", [30]),
        (10, 30, "0it", [30]),
        (10, 30, "2ep", [20, 30]),
        (10, 30, "1.5ep", [15, 30]),
        (15, 30, "0.5ep", [8, 15, 23, 30]),  # 7.5 and 22.5 are over after 8 and 23
        (3, 9, "0.1ep", list(range(1, 10))),  # shorter than a step
        (7, 21, "0.3ep", [3, 5, 7, 9, 11, 13, 15, 17, 19, 21]),
        (10, 12, "100ep", [12]),
        (1, 4, "1ep", [1, 2, 3, 4]),
        (10, 20, "0.0000001ep", list(range(1, 21))),
    ],
)
def test_due(steps_per_epoch: int, total: int, period: str, expected: list[int]) -> None:
    assert due_steps(steps_per_epoch, total, period) == expected


@given(st.integers(1, 400), st.integers(1, 60), st.integers(1, 400))
def test_step_periods_are_due_once_at_each_multiple(total: int, period: int, steps_per_epoch: int) -> None:
    assert due_steps(steps_per_epoch, total, f"{period}it") == sorted({*range(period, total + 1, period), total})


@given(st.integers(1, 60), st.integers(1, 300), st.integers(1, 4000))
def test_epoch_periods_are_due_once_at_each_multiple(steps_per_epoch: int, total: int, thousandths: int) -> None:
    """The number of completed multiples changes at each due step and not in between."""
    period = Fraction(thousandths, 1000)
    assume(period * steps_per_epoch >= 1)
    due = due_steps(steps_per_epoch, total, f"{thousandths / 1000}ep")
    multiples = [int(Fraction(step, steps_per_epoch) / period) for step in range(total + 1)]
    expected = [step for step in range(1, total + 1) if multiples[step] > multiples[step - 1]]
    assert all(multiples[next_step] - multiples[step] == 1 for step, next_step in pairwise([0, *expected]))
    assert due == sorted({*expected, total})


def test_nothing_is_due_before_the_first_step() -> None:
    assert not period_ended(Clock(step=0, total_steps=0), Duration(1, "it"))


def test_evaluations_after_given_epochs() -> None:
    plan = ConstantPlan(2, 1, Duration(5, "ep"))
    hook = Evaluate(Duration(1, "ep"), {"views": Duration(2, "ep")}, epochs=(3,))
    evaluated: dict[int, list[str]] = {}
    for step in range(11):

        def evaluate(accepts: Any, step: int = step) -> None:
            evaluated[step] = [name for name in ("val", "views") if accepts(name)]

        run: Any = SimpleNamespace(clock=Clock.at(plan, step), evaluate=evaluate)
        if hook.is_due(run):
            hook.act(run)
    assert evaluated == {4: ["views"], 6: ["val"], 8: ["views"], 10: ["val", "views"]}
