"""Evaluates periodically."""

from __future__ import annotations

from collections.abc import Mapping

from opabinia.contracts import Run
from opabinia.engine.hooks.periods import Periodic, due
from opabinia.runtime.durations import Duration


class Evaluate(Periodic):
    """Periodic evaluation; the scores go into ``run.scores`` and the journal.

    Args:
        every: the period.
        own: periods of sets that have another one, by name.
    """

    def __init__(self, every: Duration, own: Mapping[str, Duration] | None = None) -> None:
        super().__init__(every)
        self._own = dict(own or {})

    def is_due(self, run: Run) -> bool:
        """Whether any set is due."""
        return super().is_due(run) or any(due(run.clock, period) for period in self._own.values())

    def act(self, run: Run) -> None:
        """Evaluate on the validation sets that are due."""
        run.evaluate(lambda name: due(run.clock, self._own.get(name, self.every)))
