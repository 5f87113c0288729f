"""A hook for tasks that keep features of earlier batches."""

from __future__ import annotations

from collections.abc import Callable

from opabinia.contracts import Hook, Run


class UpdateQueue(Hook):
    """Update a task's queue or memory bank once per optimizer step, so that forward passes that are recomputed or
    belong to no step change nothing.

    Args:
        update: stores what the newest forward pass of the task has left for it.
    """

    def __init__(self, update: Callable[[], None]) -> None:
        self._update = update

    def after_step(self, run: Run) -> None:
        """Update the queue."""
        self._update()
