"""The clock: the progress of a run, and schedules that depend on it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from opabinia.contracts.plans import GlobalBatch, Plan
from opabinia.runtime.durations import Duration


@dataclass(frozen=True)
class Clock:
    """The progress of a run. Everything that changes over time is a function of it.

    Attributes:
        step: optimizer steps done.
        epoch: whole epochs done (0 during the first).
        epoch_step: steps done in the current epoch; 0 right after the last step of an epoch.
        samples: training samples seen.
        total_steps: length of the whole run.
        steps_per_epoch: steps of the current epoch.
        starts: returns the step of the first batch of an epoch; None if all epochs have the same length.
    """

    step: int = 0
    epoch: int = 0
    epoch_step: int = 0
    samples: int = 0
    total_steps: int = 0
    steps_per_epoch: int = 1
    starts: Callable[[int], int] | None = field(default=None, compare=False, repr=False)

    @classmethod
    def at(cls, plan: Plan, step: int) -> Clock:
        """Return the clock after ``step`` optimizer steps of ``plan``."""
        epoch = 0
        if step:
            last = plan.global_batch(step - 1).epoch
            epoch = last + (plan.epoch_start(last + 1) == step)
        start = plan.epoch_start(epoch)
        current = min(epoch, max(0, plan.epochs - 1))
        length = plan.epoch_start(current + 1) - plan.epoch_start(current) if plan.epochs else 1
        starts = plan.epoch_start if plan.steps_per_epoch is None else None
        return cls(step, epoch, step - start, plan.samples_before(step), plan.total_steps, length, starts)

    def following(self, plan: Plan, global_batch: GlobalBatch) -> Clock:
        """Return the clock one step later, like :meth:`at` but faster. ``global_batch`` is the batch of that step."""
        if self.epoch_step + 1 >= self.steps_per_epoch:
            return Clock.at(plan, self.step + 1)
        clock = object.__new__(Clock)  # called every step; __init__ of a frozen dataclass is slow
        samples = self.samples + global_batch.count
        clock.__dict__.update(self.__dict__, step=self.step + 1, epoch_step=self.epoch_step + 1, samples=samples)
        return clock

    @property
    def progress(self) -> float:
        """The completed fraction of the run, from 0 to 1."""
        return self.step / self.total_steps if self.total_steps else 1.0

    @property
    def epochs_done(self) -> float:
        """Epochs done, the current one as a fraction: 2.5 in the middle of the third."""
        return self.epoch + self.epoch_step / self.steps_per_epoch

    @property
    def phase_ended(self) -> bool:
        """Whether the last step ended its epoch or the run."""
        return self.step > 0 and (self.epoch_step == 0 or self.step >= self.total_steps)

    def steps(self, duration: Duration) -> int:
        """Return ``duration`` in optimizer steps from the start of the run; if epochs differ in length, 3ep are the
        first three."""
        if self.starts is not None and duration.unit == "ep":
            return duration.steps_from(self.starts)
        return duration.steps(self.steps_per_epoch)

    def epochs_at(self, step: int) -> float:
        """Return the epochs done after ``step`` steps of the run, the unfinished one as a fraction."""
        if self.starts is None:
            return step / self.steps_per_epoch
        upper = 1
        while self.starts(upper) <= step:
            upper *= 2
        epoch = bisect_right(range(upper), step, key=self.starts) - 1
        start = self.starts(epoch)
        return epoch + (step - start) / (self.starts(epoch + 1) - start)

    def length_of(self, epoch: int) -> int:
        """Return the number of steps of an epoch, numbered from 0."""
        return self.steps_per_epoch if self.starts is None else self.starts(epoch + 1) - self.starts(epoch)


Schedule = Callable[[Clock], float]
"""A pure function of the clock. Its value multiplies an option of the optimizer, such as ``lr``."""

Schedules = Mapping[str, Schedule]
"""Schedules by the option of the optimizer's parameter groups that they change: ``lr``, ``weight_decay`` ..."""
