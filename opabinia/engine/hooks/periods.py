"""Periods: when an evaluation, a checkpoint or another periodic action is due."""

from __future__ import annotations

from fractions import Fraction
from functools import cache

from opabinia.contracts import Clock, Hook, Phase, Run
from opabinia.runtime.durations import Duration


def period_ended(clock: Clock, period: Duration) -> bool:
    """Return whether the last step completed a multiple of ``period``, or the run.

    A period of 0 ends with the run only.

    Example: with 10 steps per epoch, ``1ep`` ends after steps 10, 20 ...; ``0.5ep`` after 5, 10 ...; ``3it`` after
    3, 6 ...
    """
    if clock.step == 0:
        return False
    if clock.step >= clock.total_steps:
        return True
    if not period.value or (clock.epoch_step and period.unit == "ep" and period.value == int(period.value)):
        return False  # a shortcut for almost every step
    if period.unit == "it":
        return clock.step % int(period.value) == 0
    # In integers: the number of periods in the epochs done, now and one step ago.
    numerator, denominator = _ratio(period.value)
    # Epochs may differ in length: at the end of one its own steps count.
    steps_per_epoch = clock.steps_per_epoch if clock.epoch_step else clock.length_of(clock.epoch - 1)
    done = clock.epoch * steps_per_epoch + clock.epoch_step
    length = steps_per_epoch * numerator
    return done * denominator // length != (done - 1) * denominator // length


@cache
def _ratio(value: float) -> tuple[int, int]:
    return max(Fraction(1, 10**6), Fraction(value).limit_denominator(10**6)).as_integer_ratio()


class Periodic(Hook):
    """Base class of hooks that act periodically: inside an epoch after a step, at its end after the phase.

    Args:
        every: the period, in epochs or steps.
    """

    def __init__(self, every: Duration) -> None:
        self.every = every

    def act(self, run: Run) -> None:
        """Do what is due at the end of a period."""
        raise NotImplementedError

    def is_due(self, run: Run) -> bool:
        """Return whether to act now."""
        return period_ended(run.clock, self.every)

    def after_step(self, run: Run) -> None:
        """Act inside an epoch."""
        if not run.clock.phase_ended and self.is_due(run):
            self.act(run)

    def after_phase(self, run: Run, phase: Phase) -> None:
        """Act at the end of an epoch."""
        if phase.kind == "train" and self.is_due(run):
            self.act(run)
