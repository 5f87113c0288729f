"""The hook that limits the time of a run."""

from __future__ import annotations

import time
from typing import Annotated

from opabinia.config import register
from opabinia.contracts import Hook, Phase, Run, Stop
from opabinia.runtime.durations import Duration, Units, format_seconds
from opabinia.runtime.log import log


@register.hook(name="time_limit")
class TimeLimit(Hook):
    """Stops the run after some time, counted from the start of the process, with a checkpoint to resume from.

    Args:
        max_time: such as ``1.5h``.
        final: the run then counts as complete, with its last evaluation.
    """

    def __init__(self, *, max_time: Annotated[Duration, Units("h")], final: bool = False) -> None:
        self.max_time, self.final = max_time, final
        self._seconds = max_time.value * 3600

    def after_step(self, run: Run) -> None:
        """Request the stop when the time is up."""
        if time.monotonic() - run.start_time >= self._seconds:
            run.stop = run.stop or Stop(f"the time limit of {self.max_time} is reached", self.final)

    def after_phase(self, run: Run, phase: Phase) -> None:
        """Log the share of the time that is used, after an evaluation."""
        if phase.kind == "evaluate":
            used = time.monotonic() - run.start_time
            log.info("%s of at most %s are used", format_seconds(used), format_seconds(self._seconds))
