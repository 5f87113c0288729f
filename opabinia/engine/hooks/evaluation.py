"""Evaluates periodically."""

from __future__ import annotations

from opabinia.contracts import Run
from opabinia.engine.hooks.periods import Periodic


class Evaluate(Periodic):
    """Periodic evaluation; the scores go into ``run.scores`` and the journal."""

    def act(self, run: Run) -> None:
        """Evaluate on all validation sets."""
        run.evaluate()
