"""The hook that saves checkpoints periodically; the trainer saves the last step of a run that is stopped."""

from __future__ import annotations

import time

from opabinia.contracts import Run
from opabinia.engine.hooks.periods import Periodic
from opabinia.runtime.durations import Duration
from opabinia.runtime.processes import any_rank


class SaveCheckpoint(Periodic):
    """Saves checkpoints periodically.

    Args:
        every: the period; hours count from the previous save.
    """

    def __init__(self, every: Duration) -> None:
        super().__init__(every)
        self._saved_at = time.monotonic()

    def is_due(self, run: Run) -> bool:
        """Return whether to save: hours by the wall clock, everything else by the run's clock."""
        if self.every.unit == "h":
            # Clocks of processes differ: all save if it is due on one.
            (is_due,) = any_rank(time.monotonic() - self._saved_at >= self.every.value * 3600)
            return is_due or run.clock.step >= run.clock.total_steps
        return super().is_due(run)

    def act(self, run: Run) -> None:
        """Save."""
        assert run.checkpoints is not None
        run.checkpoints.save()
        self._saved_at = time.monotonic()

    def after_step(self, run: Run) -> None:
        """Save inside an epoch; raise the error of a previous save that failed."""
        assert run.checkpoints is not None
        run.checkpoints.check()
        super().after_step(run)
