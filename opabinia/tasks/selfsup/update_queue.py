"""What a method keeps of the batches that it has seen."""

from __future__ import annotations

from collections.abc import Callable

from opabinia.contracts import Hook, Run


class Remember(Hook):
    """Lets a task keep what it saw, once per optimizer step: a forward pass that is done again, or for no step, changes
    nothing.

    Args:
        keep: puts what the newest forward pass left behind into the task's memory.
    """

    def __init__(self, keep: Callable[[], None]) -> None:
        self._keep = keep

    def after_step(self, run: Run) -> None:
        """Keep the step's."""
        self._keep()
