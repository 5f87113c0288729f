"""Ends a run whose score no longer gets better."""

from __future__ import annotations

import math
from typing import Any, Literal

from opabinia.config import register
from opabinia.contracts import Count, Hook, NonNegative, Phase, Run, Stop
from opabinia.engine.loggers.metrics_log import read_from_json, told_in_json


@register.hook(name="early_stop")
class EarlyStop(Hook):
    """The run is over, as if it had come to its end, when the score has not become better for some evaluations.

    Args:
        metric: the score, such as ``val/top1``.
        patience: evaluations in a row without a better score, after which it ends.
        by: how much better is better.
        better: which way is better.
    """

    def __init__(
        self, *, metric: str, patience: Count = 10, by: NonNegative = 0.0, better: Literal["max", "min"] = "max"
    ) -> None:
        self.metric, self.patience, self.by = metric, patience, by
        self._sign = 1 if better == "max" else -1
        self._best, self._waited = -math.inf, 0

    def start(self, run: Run) -> None:
        """A run that was ended stays so, unless there is more patience now.

        Raises:
            ValueError: no evaluation of this run gives the score.
        """
        if run.loader is not None and run.offered and self.metric not in run.offered:
            raise ValueError(f"no evaluation gives the score {self.metric!r}; scores: {', '.join(run.offered)}")
        self._end(run)

    def after_phase(self, run: Run, phase: Phase) -> None:
        """Look at the score when it has been measured.

        Raises:
            ValueError: no evaluation of the data set gives it.
        """
        if phase.kind != "evaluate" or phase.name != self.metric.partition("/")[0]:
            return
        if self.metric not in run.scores:
            raise ValueError(f"early_stop: there is no score {self.metric!r}; scores: {', '.join(run.scores)}")
        score = self._sign * run.scores[self.metric]
        if score > self._best + self.by:  # a score that is not a number is none
            self._best, self._waited = score, 0
        else:
            self._waited += 1
        self._end(run)

    def _end(self, run: Run) -> None:
        if self._waited >= self.patience and run.loader is not None:
            best = self._sign * self._best
            reason = f"{self.metric} has not become better than {best:.4f} for {self._waited} evaluations"
            run.stop = run.stop or Stop(reason, over=True)

    def state_dict(self) -> dict[str, Any]:
        """The best score so far, and how many evaluations came after it."""
        return {**told_in_json({"best": self._best}), "waited": self._waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See :meth:`state_dict`."""
        self._best, self._waited = read_from_json({"best": state["best"]})["best"], state["waited"]
