"""The hook that limits the time of a run."""

from __future__ import annotations

import time
from typing import Annotated

from opabinia.config import register
from opabinia.contracts import Hook, Run, Stop
from opabinia.runtime.durations import Duration, Units


@register.hook(name="time_limit")
class TimeLimit(Hook):
    """Stops the run after some time, counted from the start of the process, with a checkpoint to resume from.

    Args:
        max_time: such as ``1.5h``.
    """

    def __init__(self, *, max_time: Annotated[Duration, Units("h")]) -> None:
        self.max_time = max_time

    def after_step(self, run: Run) -> None:
        """Request the stop when the time is up."""
        if time.monotonic() - run.start_time >= self.max_time.value * 3600:
            run.stop = run.stop or Stop(f"the time limit of {self.max_time} is reached")
