"""Schedules, averages and periods in epochs, where batch shapes make epochs of unequal length."""

import math
from collections.abc import Callable
from functools import partial

import pytest

from opabinia.contracts import BatchShape, Clock, Stage
from opabinia.data.sampling.batches import StagedPlan
from opabinia.engine.hooks.periods import period_ended
from opabinia.optim.schedules import (
    composite,
    constant,
    cosine,
    cosine_restarts,
    exponential,
    inverse_sqrt,
    linear,
    multi_step,
    piecewise,
    step,
)
from opabinia.runtime.durations import Duration


def ep(value: float) -> Duration:
    return Duration(value, "ep")


STAGES = (Stage(2, (BatchShape(8), BatchShape(4))), Stage(4, (BatchShape(4), BatchShape(2))))
PLAN = StagedPlan(24, STAGES, ep(6))
"""Epochs of 4, 4, 8, 8, 8, 8 steps."""


def values(schedule: Callable[[Clock], float]) -> list[float]:
    """Return the values at the beginning of each epoch and at the end of the run."""
    return [schedule(Clock.at(PLAN, PLAN.epoch_start(epoch))) for epoch in range(7)]


def test_epochs_of_the_plan_have_unequal_lengths() -> None:
    assert [PLAN.epoch_start(epoch) for epoch in range(7)] == [0, 4, 8, 16, 24, 32, 40]
    assert PLAN.total_steps == 40


def half_cosine(done: float) -> float:
    return (1 + math.cos(math.pi * done)) / 2


PARTS = [constant, partial(multi_step, milestones=[ep(2)], gamma=0.5)]
SCHEDULES = {
    "multi_step": (partial(multi_step, milestones=[ep(2), ep(5)]), [1, 1, 0.1, 0.1, 0.1, 0.01, 0.01]),
    "step": (partial(step, every=ep(2), gamma=0.5), [1, 1, 0.5, 0.5, 0.25, 0.25, 0.125]),
    "exponential": (partial(exponential, gamma=0.5, every=ep(2)), [0.5 ** (epoch / 2) for epoch in range(7)]),
    "exponential after a warm-up": (
        partial(exponential, gamma=0.5, every=ep(1), warmup=ep(1), warmup_factor=1),
        [1, *(0.5**epoch for epoch in range(6))],
    ),
    "restarts": (partial(cosine_restarts, cycle=ep(2)), [1, 0.5, 1, 0.5, 1, 0.5, 1]),
    "longer restarts": (
        partial(cosine_restarts, cycle=ep(1), cycle_mult=2),
        [1, 1, 0.5, 1, *map(half_cosine, (0.25, 0.5, 0.75))],
    ),
    "warm-up": (partial(constant, warmup=ep(3), warmup_factor=0), [0, 4 / 16, 8 / 16, 1, 1, 1, 1]),
    "delay": (partial(linear, delay=ep(2)), [1, 1, 1, 0.75, 0.5, 0.25, 0]),
    "piecewise": (partial(piecewise, times=[ep(0), ep(2), ep(4)], values=[0, 1, 0]), [0, 0.5, 1, 0.5, 0, 0, 0]),
    "inverse_sqrt": (inverse_sqrt, [(max(1, done / 4)) ** -0.5 for done in (0, 4, 8, 16, 24, 32, 40)]),
    "a cosine counts steps": (cosine, [half_cosine(done / 40) for done in (0, 4, 8, 16, 24, 32, 40)]),
    "a composite's schedules count from their beginning": (
        partial(composite, schedules=PARTS, shares=[0.2, 0.8]),
        [1, 1, 1, 1, 0.5, 0.5, 0.5],
    ),
    "composite after a warm-up": (
        partial(composite, schedules=PARTS, shares=[0.25, 0.75], warmup=ep(2), warmup_factor=1.0),
        [1, 1, 1, 1, 1, 0.5, 0.5],
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_values_at_the_beginning_of_each_epoch(name: str) -> None:
    schedule, expected = SCHEDULES[name]
    assert values(schedule) == pytest.approx(expected)


def test_steps_of_fractions_of_an_epoch() -> None:
    tenths = StagedPlan(10, (Stage(1, (BatchShape(1),)), Stage(1, (BatchShape(2),))), ep(2))
    factors = [step(Clock.at(tenths, position), every=ep(0.3), gamma=0.5) for position in (2, 3, 6, 9, 10, 11)]
    assert factors == [1, 0.5, 0.25, 0.125, 0.125, 0.0625]
    assert [step(Clock.at(tenths, position), every=ep(0), gamma=0.5) for position in (0, 3, 10)] == [1, 0.125, 0.5**10]


def test_the_last_epoch_has_the_end_value() -> None:
    schedule = partial(linear, interval="epoch", reach_end=True)
    assert values(schedule)[:6] == pytest.approx([1 - done / 32 for done in (0, 4, 8, 16, 24, 32)])
    assert schedule(Clock.at(PLAN, 13)) == values(schedule)[2]


def test_the_fastreid_rule_needs_epochs_of_equal_length() -> None:
    with pytest.raises(ValueError, match="warmup_rule: fastreid needs epochs of equal length"):
        values(lambda clock: cosine(clock, warmup=ep(1), warmup_rule="fastreid"))


@pytest.mark.parametrize(
    ("period", "expected"),
    [
        ("1ep", [4, 8, 16, 24, 32, 40]),
        ("2ep", [8, 24, 40]),
        ("0.5ep", [2, 4, 6, 8, 12, 16, 20, 24, 28, 32, 36, 40]),
        ("1.5ep", [6, 16, 28, 40]),
        ("10it", [10, 20, 30, 40]),
        ("0ep", [40]),
    ],
)
def test_periods_in_epochs(period: str, expected: list[int]) -> None:
    steps = [step for step in range(41) if period_ended(Clock.at(PLAN, step), Duration.parse(period))]
    assert steps == expected
