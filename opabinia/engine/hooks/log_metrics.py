"""Writes the journal's pending numbers as a line, every few steps and at the end of every epoch."""

from __future__ import annotations

from typing import Any

from opabinia.contracts import Batch, Hook, Run
from opabinia.engine.loop.memory import memory_in_use
from opabinia.runtime.processes import gather


class LogMetrics(Hook):
    """The journal's pulse.

    Args:
        every: steps in a line. A non-finite loss is found when its line is due, or before a save.
    """

    def __init__(self, every: int) -> None:
        self.every = every

    def after_step(self, run: Run) -> None:
        """Write a line when it is time."""
        if run.clock.step % self.every == 0 or run.clock.phase_ended:
            run.metrics_log.flush(run.clock, self._memory(run))

    def _memory(self, run: Run) -> dict[str, float]:
        return memory_in_use(next(run.task.parameters()).device)

    def finish(self, run: Run, how: str | BaseException) -> None:
        """Close the journal, whatever happened. What is pending then is in the newest checkpoint or after it."""
        run.metrics_log.close()


class LogSamples(LogMetrics):
    """Writes a line for every step, with the ids of its batch in order (``sample_ids``)."""

    def __init__(self) -> None:
        super().__init__(1)
        self._ids: list[Any] = []
        self._samples = 0

    def before_step(self, run: Run, batch: Batch) -> None:
        """Note the ids."""
        self._ids, self._samples = list(batch["id"]), run.clock.samples

    def after_step(self, run: Run) -> None:
        """Write the line."""
        ids = [one for process in gather(self._ids) for one in process]
        # Of a batch with fewer samples than processes each has all.
        ids = ids[: run.clock.samples - self._samples]
        run.metrics_log.flush(run.clock, {**self._memory(run), "sample_ids": ids})
        self._ids = []  # a batch that is left out has no before_step
