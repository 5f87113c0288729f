"""Schedules: pure functions of the clock, evaluated before every step.

As a learning rate schedule the value multiplies the optimizer's ``lr``. Warm-up rises linearly from
``warmup_factor`` to 1 times the schedule; the main curve begins where the warm-up ends and reaches its end
with the run.
"""

from __future__ import annotations

import math
from bisect import bisect_right

from opabinia.config import register
from opabinia.contracts import Clock, Fraction, Positive
from opabinia.runtime.durations import Duration

NONE = Duration(0, "it")


def warm(clock: Clock, warmup: Duration, factor: float) -> float:
    """The warm-up's multiplier at this step: ``factor`` at the first step, 1 from the end of ``warmup`` on."""
    length = clock.steps(warmup)
    if clock.step >= length:
        return 1.0
    return factor + (1 - factor) * clock.step / length


def after(clock: Clock, warmup: Duration) -> float:
    """Progress of what follows the warm-up, from 0 to 1."""
    length = clock.steps(warmup)
    return min(1.0, max(0, clock.step - length) / max(1, clock.total_steps - length))


@register.schedule
def constant(clock: Clock, /, *, warmup: Duration = NONE, warmup_factor: Fraction = 0.001) -> float:
    """Always 1, after an optional linear warm-up.

    Args:
        warmup: length of the warm-up.
        warmup_factor: the value at the first step.
    """
    return warm(clock, warmup, warmup_factor)


@register.schedule
def cosine(clock: Clock, /, *, end: Fraction = 0.0, warmup: Duration = NONE, warmup_factor: Fraction = 0.001) -> float:
    """Half a cosine from 1 to ``end`` (Loshchilov and Hutter 2017, no restarts), after an optional linear warm-up.

    Args:
        end: the value at the run's end.
        warmup: length of the warm-up; the curve begins where it ends.
        warmup_factor: what the curve is multiplied by at the first step.
    """
    curve = end + (1 - end) * (1 + math.cos(math.pi * after(clock, warmup))) / 2
    return warm(clock, warmup, warmup_factor) * curve


@register.schedule
def multi_step(
    clock: Clock,
    /,
    *,
    milestones: list[Duration],
    gamma: Positive = 0.1,
    warmup: Duration = NONE,
    warmup_factor: Fraction = 0.001,
) -> float:
    """Times ``gamma`` at each milestone, counted from the run's start, after an optional linear warm-up.

    Args:
        milestones: when the value drops, such as ``[30ep, 60ep, 90ep]``; one at or after the run's end never acts.
        gamma: the factor at each milestone.
        warmup: length of the warm-up.
        warmup_factor: what the value is multiplied by at the first step.
    """
    passed = bisect_right(sorted(clock.steps(milestone) for milestone in milestones), clock.step)
    return warm(clock, warmup, warmup_factor) * gamma**passed
