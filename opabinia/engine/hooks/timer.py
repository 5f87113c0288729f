"""The hook that logs where the time went."""

from __future__ import annotations

import time

from opabinia.contracts import Hook, Phase, Run
from opabinia.runtime.log import log
from opabinia.runtime.text import plural


class Timer(Hook):
    """Logs at the end how long steps and evaluations took."""

    def start(self, run: Run) -> None:
        """Start the clock."""
        self._started, self._first_step = time.monotonic(), run.clock.step
        self._evaluating = 0.0
        self._evaluation_started: float | None = None

    def before_phase(self, run: Run, phase: Phase) -> None:
        """Record the start of an evaluation."""
        if phase.kind == "evaluate":
            self._evaluation_started = time.monotonic()

    def after_phase(self, run: Run, phase: Phase) -> None:
        """Add the time of an evaluation."""
        if self._evaluation_started is not None:
            self._evaluating += time.monotonic() - self._evaluation_started
            self._evaluation_started = None

    def finish(self, run: Run, how: str | BaseException) -> None:
        """Log the times."""
        steps = run.clock.step - getattr(self, "_first_step", run.clock.step)  # a run may fail before its start
        if steps:
            self.after_phase(run, Phase("evaluate", ""))  # one that was interrupted
            total = time.monotonic() - self._started
            per_step = (total - self._evaluating) / steps
            count = plural(steps, "step")
            log.info("%s in %.1f s, %.1f s of it evaluation; %.4f s per step", count, total, self._evaluating, per_step)
