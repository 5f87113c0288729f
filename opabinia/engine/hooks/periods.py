"""When something periodic is due."""

from __future__ import annotations

from fractions import Fraction
from functools import cache

from opabinia.contracts import Clock, Hook, Phase, Run
from opabinia.runtime.durations import Duration


def due(clock: Clock, period: Duration) -> bool:
    """Whether the newest step completed a multiple of ``period``; at the run's end always.

    A period of 0 is due at the end only.

    Example: with 10 steps an epoch, ``1ep`` is due after steps 10, 20 ...; ``0.5ep`` after 5, 10 ...; ``3it`` after
    3, 6 ...
    """
    if clock.step == 0:
        return False
    if clock.step >= clock.total_steps:
        return True
    if not period.value or (clock.epoch_step and period.unit == "ep" and period.value == int(period.value)):
        return False  # the usual case, at almost every step
    if period.unit == "it":
        return clock.step % int(period.value) == 0
    # In whole numbers: how many periods fit into the epochs done, now and one step ago.
    above, below = _ratio(period.value)
    # Epochs may differ in length: at the end of one it is that one's steps that count.
    steps = clock.steps_per_epoch if clock.epoch_step else clock.length_of(clock.epoch - 1)
    now = clock.epoch * steps + clock.epoch_step
    length = steps * above
    return now * below // length != (now - 1) * below // length


@cache
def _ratio(value: float) -> tuple[int, int]:
    return max(Fraction(1, 10**6), Fraction(value).limit_denominator(10**6)).as_integer_ratio()


class Periodic(Hook):
    """Acts every so often: in the middle of an epoch after a step, at its end after the phase.

    Args:
        every: the period, in epochs or steps.
    """

    def __init__(self, every: Duration) -> None:
        self.every = every

    def act(self, run: Run) -> None:
        """What is done when the period is over."""
        raise NotImplementedError

    def is_due(self, run: Run) -> bool:
        """Whether to act now."""
        return due(run.clock, self.every)

    def after_step(self, run: Run) -> None:
        """Act in the middle of an epoch."""
        if not run.clock.phase_ended and self.is_due(run):
            self.act(run)

    def after_phase(self, run: Run, phase: Phase) -> None:
        """Act at the end of an epoch."""
        if phase.kind == "train" and self.is_due(run):
            self.act(run)
