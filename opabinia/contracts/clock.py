"""Time: where a run stands, and what changes with it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from opabinia.contracts.plans import Plan, Row
from opabinia.runtime.durations import Duration


@dataclass(frozen=True)
class Clock:
    """Where the run stands. Everything that changes over time is a function of it.

    Attributes:
        step: optimizer steps done.
        epoch: whole epochs done (0 during the first).
        epoch_step: steps done in the present epoch; 0 right after the last step of an epoch.
        samples: training samples seen.
        total_steps: length of the whole run.
        steps_per_epoch: steps of the present epoch.
        starts: step of the first batch of an epoch, where epochs differ in length; None where they do not.
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
        """The clock after ``step`` optimizer steps of ``plan``."""
        epoch = 0
        if step:
            last = plan.row(step - 1).epoch
            epoch = last + (plan.epoch_start(last + 1) == step)
        start = plan.epoch_start(epoch)
        present = min(epoch, max(0, plan.epochs - 1))
        length = plan.epoch_start(present + 1) - plan.epoch_start(present) if plan.epochs else 1
        starts = None if getattr(plan, "steps_per_epoch", None) else plan.epoch_start
        return cls(step, epoch, step - start, plan.samples_before(step), plan.total_steps, length, starts)

    def following(self, plan: Plan, row: Row) -> Clock:
        """The clock one step later, ``row`` being the batch of that step; as :meth:`at`, and quicker."""
        if self.epoch_step + 1 >= self.steps_per_epoch:
            return Clock.at(plan, self.step + 1)
        clock = object.__new__(Clock)  # once a step, and a frozen dataclass takes its time to fill in what changes
        samples = self.samples + row.count
        clock.__dict__.update(self.__dict__, step=self.step + 1, epoch_step=self.epoch_step + 1, samples=samples)
        return clock

    @property
    def progress(self) -> float:
        """From 0 (nothing done) to 1 (all done)."""
        return self.step / self.total_steps if self.total_steps else 1.0

    @property
    def epochs_done(self) -> float:
        """Epochs done, with the present one as a fraction: 2.5 in the middle of the third."""
        return self.epoch + self.epoch_step / self.steps_per_epoch

    @property
    def phase_ended(self) -> bool:
        """Whether the newest step was the last of its epoch or of the run."""
        return self.step > 0 and (self.epoch_step == 0 or self.step >= self.total_steps)

    def steps(self, duration: Duration) -> int:
        """Length of ``duration`` in optimizer steps, from the run's start: where epochs differ, 3ep are the first
        three."""
        if self.starts is not None and duration.unit == "ep":
            return duration.steps_along(self.starts)
        return duration.steps(self.steps_per_epoch)

    def epochs_at(self, step: int) -> float:
        """Epochs done after ``step`` steps of the run, with the one that is not over as a fraction."""
        if self.starts is None:
            return step / self.steps_per_epoch
        behind = 1
        while self.starts(behind) <= step:
            behind *= 2
        epoch = bisect_right(range(behind), step, key=self.starts) - 1
        start = self.starts(epoch)
        return epoch + (step - start) / (self.starts(epoch + 1) - start)

    def length_of(self, epoch: int) -> int:
        """Steps of an epoch, numbered from 0."""
        return self.steps_per_epoch if self.starts is None else self.starts(epoch + 1) - self.starts(epoch)


Schedule = Callable[[Clock], float]
"""A pure function of the clock. Its value multiplies what it is a schedule of: the optimizer's ``lr``, say."""

Schedules = Mapping[str, Schedule]
"""By the option of the optimizer's groups that they change: ``lr``, ``weight_decay``, ``momentum``."""
