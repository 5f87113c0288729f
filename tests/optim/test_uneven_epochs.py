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


def test_milestones_in_epochs() -> None:
    factors = values(lambda clock: multi_step(clock, milestones=[ep(2), ep(5)]))
    assert factors == pytest.approx([1, 1, 0.1, 0.1, 0.1, 0.01, 0.01])


def test_step_schedule_in_epochs() -> None:
    assert values(lambda clock: step(clock, every=ep(2), gamma=0.5)) == [1, 1, 0.5, 0.5, 0.25, 0.25, 0.125]
    tenths = StagedPlan(10, (Stage(1, (BatchShape(1),)), Stage(1, (BatchShape(2),))), ep(2))
    factors = [step(Clock.at(tenths, position), every=ep(0.3), gamma=0.5) for position in (2, 3, 6, 9, 10, 11)]
    assert factors == [1, 0.5, 0.25, 0.125, 0.125, 0.0625]
    assert [step(Clock.at(tenths, position), every=ep(0), gamma=0.5) for position in (0, 3, 10)] == [1, 0.125, 0.5**10]


def test_exponential_schedule_in_epochs() -> None:
    factors = values(lambda clock: exponential(clock, gamma=0.5, every=ep(2)))
    assert factors == pytest.approx([0.5 ** (epoch / 2) for epoch in range(7)])
    warm = values(lambda clock: exponential(clock, gamma=0.5, every=ep(1), warmup=ep(1), warmup_factor=1))
    assert warm == pytest.approx([1, *(0.5**epoch for epoch in range(6))])


def test_cosine_restarts_in_epochs() -> None:
    factors = values(lambda clock: cosine_restarts(clock, cycle=ep(2)))
    assert factors == pytest.approx([1, 0.5, 1, 0.5, 1, 0.5, 1])
    longer = values(lambda clock: cosine_restarts(clock, cycle=ep(1), cycle_mult=2))
    assert longer == pytest.approx(
        [1, 1, 0.5, 1, *((1 + math.cos(math.pi * share)) / 2 for share in (0.25, 0.5, 0.75))]
    )


def test_warm_up_and_delay_in_epochs() -> None:
    factors = values(lambda clock: constant(clock, warmup=ep(3), warmup_factor=0))
    assert factors == pytest.approx([0, 4 / 16, 8 / 16, 1, 1, 1, 1])
    assert values(lambda clock: linear(clock, delay=ep(2))) == pytest.approx([1, 1, 1, 0.75, 0.5, 0.25, 0])


def test_progress_counts_steps() -> None:
    """A cosine falls further in an epoch with more steps; it ends with the run."""
    factors = values(lambda clock: cosine(clock))
    assert factors == pytest.approx([(1 + math.cos(math.pi * done / 40)) / 2 for done in (0, 4, 8, 16, 24, 32, 40)])


def test_the_last_epoch_has_the_end_value() -> None:
    factors = values(lambda clock: linear(clock, interval="epoch", reach_end=True))
    assert factors[:6] == pytest.approx([1 - done / 32 for done in (0, 4, 8, 16, 24, 32)])
    inside = linear(Clock.at(PLAN, 13), interval="epoch", reach_end=True)
    assert inside == factors[2]


def test_piecewise_schedule_in_epochs() -> None:
    factors = values(lambda clock: piecewise(clock, times=[ep(0), ep(2), ep(4)], values=[0, 1, 0]))
    assert factors == pytest.approx([0, 0.5, 1, 0.5, 0, 0, 0])


def test_inverse_sqrt_counts_epochs() -> None:
    assert values(inverse_sqrt)[:3] == pytest.approx([1, 1, 1 / math.sqrt(2)])


def test_parts_of_a_composite_count_epochs_from_their_beginning() -> None:
    parts = [constant, partial(multi_step, milestones=[ep(2)], gamma=0.5)]
    assert values(lambda clock: composite(clock, schedules=parts, shares=[0.2, 0.8])) == [1, 1, 1, 1, 0.5, 0.5, 0.5]
    warm = partial(composite, schedules=parts, shares=[0.25, 0.75], warmup=ep(2), warmup_factor=1.0)
    assert values(warm) == [1, 1, 1, 1, 1, 0.5, 0.5]


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
