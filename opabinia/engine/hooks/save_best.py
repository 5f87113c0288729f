"""Keeps the checkpoint with the best score."""

from __future__ import annotations

import math
from typing import Any

from opabinia.contracts import Hook, Phase, Run
from opabinia.engine.loggers.metrics_log import read_from_json, told_in_json
from opabinia.runtime.log import log


class SaveBest(Hook):
    """Points ``checkpoints/best`` to the checkpoint with the best value of one score; the first of equals stays.

    Args:
        metric: the score, such as ``val/top1``.
        better: "max" or "min".
    """

    def __init__(self, metric: str, better: str) -> None:
        self.metric, self.better = metric, better
        self._best: float | None = None
        self._step: int | None = None
        self._fresh: float | None = None

    def start(self, run: Run) -> None:
        """Point to the best again: a kill may have come between saving it and pointing to it.

        After going back to an older checkpoint the best of that time may be gone; then the search begins anew.
        """
        assert run.checkpoints is not None
        if self._step is not None and not run.checkpoints.has(self._step):
            log.warning("the best checkpoint so far (step %d) is gone: the next one counts as the best", self._step)
            self._best = self._step = None
        if self._step is None:
            run.checkpoints.forget_best()
        else:
            run.checkpoints.point_to_best(self._step)

    def after_step(self, run: Run) -> None:
        """Look at scores measured in the middle of an epoch."""
        self._look(run)

    def after_phase(self, run: Run, phase: Phase) -> None:
        """Note scores when they are measured; look at them when all evaluations of the moment are over."""
        if phase.kind == "evaluate":
            self._fresh = run.scores.get(self.metric)
        else:
            self._look(run)

    def _look(self, run: Run) -> None:
        score, self._fresh = self._fresh, None
        if score is None or math.isnan(score):
            return
        if self._best is not None and (score <= self._best if self.better == "max" else score >= self._best):
            return
        self._best, self._step = score, run.clock.step
        assert run.checkpoints is not None
        run.checkpoints.mark_best(run.clock.step)

    def finish(self, run: Run, how: str | BaseException) -> None:
        """Tell the best."""
        if self._best is not None:
            log.info("best %s: %.4f at step %d", self.metric, self._best, self._step)

    def state_dict(self) -> dict[str, Any]:
        """The best score so far and its step, and a score that is still to be looked at."""
        values = {"best": self._best, "step": self._step, "fresh": self._fresh}
        return told_in_json({name: value for name, value in values.items() if value is not None})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See :meth:`state_dict`."""
        values = read_from_json(state)
        self._best, self._step, self._fresh = (values.get(name) for name in ("best", "step", "fresh"))
