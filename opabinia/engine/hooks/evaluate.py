"""The hook that evaluates periodically."""

from __future__ import annotations

from collections.abc import Mapping

from opabinia.contracts import Run
from opabinia.engine.hooks.periods import Periodic, period_ended
from opabinia.runtime.durations import Duration


class Evaluate(Periodic):
    """Evaluates periodically; scores go to ``run.scores`` and the metrics log.

    Args:
        every: the period.
        own: periods of the validation sets that have their own, by name.
    """

    def __init__(self, every: Duration, own: Mapping[str, Duration] | None = None) -> None:
        super().__init__(every)
        self._own = dict(own or {})

    def is_due(self, run: Run) -> bool:
        """Return whether any set is due."""
        return super().is_due(run) or any(period_ended(run.clock, period) for period in self._own.values())

    def act(self, run: Run) -> None:
        """Evaluate on the sets that are due."""
        run.evaluate(lambda name: period_ended(run.clock, self._own.get(name, self.every)))
