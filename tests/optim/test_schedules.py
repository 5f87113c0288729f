import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opabinia.contracts import Clock
from opabinia.data.sampling.batches import ConstantPlan
from opabinia.optim.schedules import constant, cosine, multi_step
from opabinia.runtime.durations import Duration


def steps(number: int) -> Duration:
    return Duration(number, "it")


def clock(step: int, total: int = 90_000, epoch: int = 1000) -> Clock:
    return Clock.at(ConstantPlan(samples=epoch, batch_size=1, length=steps(total)), step)


DETECTRON2 = {0: 2e-5, 1: 3.998e-5, 19: 0.00039962, 39: 0.00079922, 100: 0.002018, 500: 0.01001, 999: 0.01998002}
DETECTRON2 |= {1000: 0.02, 59_999: 0.02, 60_000: 0.002, 79_999: 0.002, 80_000: 0.0002, 89_999: 0.0002}


@pytest.mark.parametrize(("step", "lr"), DETECTRON2.items())
def test_multi_step_is_detectron2s_1x(step: int, lr: float) -> None:
    """Learning rates of detectron2: base 0.02, drops at 60,000 and 80,000 of 90,000, linear warm-up of 1,000 steps."""
    factor = multi_step(clock(step), milestones=[steps(60_000), steps(80_000)], warmup=steps(1000), warmup_factor=0.001)
    assert 0.02 * factor == pytest.approx(lr, rel=1e-12)


def test_milestones_in_epochs_and_out_of_order() -> None:
    factors = [multi_step(clock(s, 40, 10), milestones=[Duration(3, "ep"), steps(10)], gamma=0.5) for s in range(41)]
    assert factors == [1.0] * 10 + [0.5] * 20 + [0.25] * 11


def test_a_milestone_at_or_after_the_end_never_acts() -> None:
    factors = {multi_step(clock(s, 40, 10), milestones=[steps(40), steps(99)]) for s in range(40)}
    assert factors == {1.0}


def test_cosine() -> None:
    values = [cosine(clock(step, 100), end=0.2) for step in (0, 25, 50, 75, 100)]
    quarter = 0.4 * math.sqrt(0.5)
    assert values == pytest.approx([1, 0.6 + quarter, 0.6, 0.6 - quarter, 0.2])


def test_the_curve_begins_where_the_warm_up_ends() -> None:
    def value(step: int) -> float:
        return cosine(clock(step, 110), warmup=steps(10), warmup_factor=0.1)

    assert [value(step) for step in (0, 5, 10)] == pytest.approx([0.1, 0.55, 1])
    assert [value(step) for step in (60, 110)] == pytest.approx([0.5, 0], abs=1e-15)


def test_constant() -> None:
    assert {constant(clock(step, 30)) for step in range(31)} == {1.0}
    warm = [constant(clock(step, 30), warmup=steps(4), warmup_factor=0.2) for step in range(6)]
    assert warm == pytest.approx([0.2, 0.4, 0.6, 0.8, 1, 1])


def test_a_warm_up_in_epochs() -> None:
    assert constant(clock(5, 30, 10), warmup=Duration(1, "ep"), warmup_factor=0) == pytest.approx(0.5)


@given(st.data())
def test_between_0_and_1_rising_first_and_then_falling(data: st.DataObject) -> None:
    total = data.draw(st.integers(1, 60))
    length = data.draw(st.integers(0, 80))
    factor, end = data.draw(st.floats(0, 1)), data.draw(st.floats(0, 1))
    drops = data.draw(st.lists(st.integers(length + 1, 99), max_size=3))
    warmup = {"warmup": steps(length), "warmup_factor": factor}
    for schedule in (
        lambda now: constant(now, **warmup),  # type: ignore[arg-type]
        lambda now: cosine(now, end=end, **warmup),  # type: ignore[arg-type]
        lambda now: multi_step(now, milestones=[steps(drop) for drop in drops], gamma=0.3, **warmup),  # type: ignore[arg-type]
    ):
        values = [schedule(clock(step, total, 7)) for step in range(total + 1)]
        assert all(0 <= value <= 1 + 1e-12 for value in values)
        rising, falling = values[: length + 1], values[length:]
        assert rising == sorted(rising)
        assert all(after <= before + 1e-12 for before, after in pairwise(falling))
