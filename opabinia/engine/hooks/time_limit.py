"""Ends a run after some time, saved and ready to be resumed."""

from __future__ import annotations

import time
from typing import Annotated

from opabinia.config import register
from opabinia.contracts import Hook, Run, Stop
from opabinia.runtime.durations import Duration, Units


@register.hook(name="time_limit")
class TimeLimit(Hook):
    """Asks the run to stop once it has taken this long, counted from this start; it saves and can be resumed.

    Args:
        after: such as ``1.5h``.
    """

    def __init__(self, *, after: Annotated[Duration, Units("h")]) -> None:
        self.after = after

    def after_step(self, run: Run) -> None:
        """Ask to stop when the time is over."""
        if time.monotonic() - run.began >= self.after.value * 3600:
            run.stop = run.stop or Stop(f"the time limit of {self.after} is over")
