"""The hook that limits the time of a run."""

from __future__ import annotations

import time
from typing import Annotated

from opabinia.config import register
from opabinia.contracts import Hook, Phase, Run, Stop
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
        shorten: predict the end of the run after each quarter of that time, and if it is later, shorten the run and its
            schedules to the steps for which there is time.
    """

    def __init__(
        self, *, max_time: Annotated[Duration, Units("h")], final: bool = False, shorten: bool = False
    ) -> None:
        self.max_time, self.final, self.shorten = max_time, final, shorten
        self._seconds = max_time.value * 3600
        self._first: tuple[int, float] | None = None  # number and time of the first step of this process
        self._quarters = 0  # of the time, at the last prediction

    def after_step(self, run: Run) -> None:
        """Request the stop when the time is up, or a shorter run when it will be up too early."""
        now = time.monotonic()
        used = now - run.start_time
        quarters = int(4 * used / self._seconds) if self._seconds else 4
        if used >= self._seconds:
            run.stop = run.stop or Stop(f"the time limit of {self.max_time} is reached", self.final)
        elif self._first is None:
            self._first, self._quarters = (run.clock.step, now), quarters
        elif self.shorten and quarters > self._quarters and rank() == 0:
            self._quarters, (first, started) = quarters, self._first
            self._shorten(run, self._seconds - used, (now - started) / (run.clock.step - first))

    def _shorten(self, run: Run, left: float, step_seconds: float) -> None:
        """Request a shorter run if the steps left take longer than the time left."""
        step, total_steps = run.clock.step, run.clock.total_steps
        if (total_steps - step) * step_seconds <= left:
            return
        run.ends_at = step + max(1, int(_USED_SHARE * left / step_seconds))
        message = "the run is shortened from %d to %d steps: more take longer than the time limit of %s"
        log.warning(message, total_steps, run.ends_at, self.max_time)

    def after_phase(self, run: Run, phase: Phase) -> None:
        """Log the share of the time that is used, after an evaluation of a run."""
        if phase.kind == "evaluate" and self._first is not None:
            used = time.monotonic() - run.start_time
            log.info("%s of at most %s are used", format_seconds(used), format_seconds(self._seconds))
