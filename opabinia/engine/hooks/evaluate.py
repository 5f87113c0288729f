"""The hook that evaluates periodically."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from opabinia.contracts import Clock, Run
from opabinia.engine.hooks.periods import Periodic, period_ended
from opabinia.runtime.durations import Duration


class Evaluate(Periodic):
    """Evaluates periodically; scores go to ``run.scores`` and the metrics log.

    Args:
        every: the period.
        set_periods: periods of the validation sets that have one, by name; ``every`` is that of the others.
        epochs: the other sets are evaluated after these epochs and at the end, instead of periodically; None: all as
            the periods say.
    """

    def __init__(
        self, every: Duration, set_periods: Mapping[str, Duration] | None = None, epochs: Collection[int] | None = None
    ) -> None:
        super().__init__(every)
        self._set_periods = dict(set_periods or {})
        self._epochs = None if epochs is None else frozenset(epochs)

    def is_due(self, run: Run) -> bool:
        """Return whether any set is due."""
        return self._ended(run.clock) or any(period_ended(run.clock, period) for period in self._set_periods.values())

    def act(self, run: Run) -> None:
        """Evaluate on the sets that are due."""
        clock, periods = run.clock, self._set_periods
        run.evaluate(lambda name: period_ended(clock, periods[name]) if name in periods else self._ended(clock))

    def _ended(self, clock: Clock) -> bool:
        """Return whether the sets without a period of their own are due."""
        if self._epochs is None:
            return period_ended(clock, self.every)
        return (clock.step > 0 and clock.step >= clock.total_steps) or (
            clock.epoch_step == 0 and clock.epoch in self._epochs
        )
