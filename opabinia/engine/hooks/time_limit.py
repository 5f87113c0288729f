"""The hook that limits the time of a run."""

from __future__ import annotations

import time
from typing import Annotated

from opabinia.config import register
from opabinia.contracts import Clock, Hook, Phase, Run, Stop
from opabinia.runtime.durations import Duration, Units, format_seconds
from opabinia.runtime.log import log
from opabinia.runtime.processes import rank

_USED_SHARE = 0.9
"""Share of the time left that a shortened run is given: its last evaluation may be longer than those before."""


@register.hook(name="time_limit")
class TimeLimit(Hook):
    """Stops the run after some time, counted from the start of the process, with a checkpoint to resume from.

    Args:
        max_time: such as ``1.5h``.
        final: the run then counts as complete, with its last evaluation.
        shorten: predict the end of the run after each quarter of its steps, and if it is later than that, shorten the
            run and its schedules to the steps for which there is time.
    """

    def __init__(
        self, *, max_time: Annotated[Duration, Units("h")], final: bool = False, shorten: bool = False
    ) -> None:
        self.max_time, self.final, self.shorten = max_time, final, shorten
        self._seconds = max_time.value * 3600
        self._first: tuple[int, float] | None = None  # number and time of the first step of this process

    def after_step(self, run: Run) -> None:
        """Request the stop when the time is up, or a shorter run when it will be up too early."""
        now = time.monotonic()
        left = self._seconds - (now - run.start_time)
        if left <= 0:
            run.stop = run.stop or Stop(f"the time limit of {self.max_time} is reached", self.final)
        elif self._first is None:
            self._first = run.clock.step, now
        elif self.shorten and rank() == 0 and _ends_quarter(run.clock):
            first, started = self._first
            self._shorten(run, left, (now - started) / (run.clock.step - first))

    def _shorten(self, run: Run, left: float, step_seconds: float) -> None:
        """Request a shorter run if the steps left take longer than the time left."""
        step, total_steps = run.clock.step, run.clock.total_steps
        if (total_steps - step) * step_seconds <= left:
            return
        run.ends_at = step + max(1, int(_USED_SHARE * left / step_seconds))
        message = "the run is shortened from %d to %d steps: more take longer than the time limit of %s"
        log.warning(message, total_steps, run.ends_at, self.max_time)

    def after_phase(self, run: Run, phase: Phase) -> None:
        """Log the share of the time that is used, after an evaluation."""
        if phase.kind == "evaluate":
            used = time.monotonic() - run.start_time
            log.info("%s of at most %s are used", format_seconds(used), format_seconds(self._seconds))


def _ends_quarter(clock: Clock) -> bool:
    """Return whether the last step was the last one of a quarter of the run, but not of the whole."""
    quarters = 4 * clock.step // clock.total_steps
    return quarters < 4 and quarters > 4 * (clock.step - 1) // clock.total_steps
