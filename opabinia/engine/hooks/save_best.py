"""The hook that keeps the checkpoint with the best score."""

from __future__ import annotations

import math
from typing import Any

from opabinia.contracts import Hook, Phase, Run
from opabinia.engine.checkpointing.checkpoint import BestState
from opabinia.engine.loggers.metrics_log import to_json_numbers
from opabinia.runtime.json_files import check_fields
from opabinia.runtime.log import log
from opabinia.runtime.weighted_scores import weighted_score


class SaveBest(Hook):
    """Points ``checkpoints/best`` to the checkpoint with the best value of one score; the first of equal ones stays.

    Args:
        metric: the score, such as ``val/top1``, or a weighted sum: ``0.5*val/rank1 + 0.5*val/mAP``.
        better: "max" or "min".
    """

    def __init__(self, metric: str, better: str) -> None:
        self.metric, self.better = metric, better
        self._best: float | None = None
        self._step: int | None = None
        self._new_score: float | None = None

    def start(self, run: Run) -> None:
        """Restore the pointer: a run may have been killed between saving the best checkpoint and pointing to it.

        After a rollback to an older checkpoint the best one may be gone; then the search starts again.
        """
        assert run.checkpoints is not None
        if self._step is not None and not run.checkpoints.has(self._step):
            lost, self._best, self._step = self._step, None, None
            if run.checkpoints.best_step() == run.clock.step:
                return  # this checkpoint became the best after it was saved; now its evaluation is repeated
            log.warning("the best checkpoint so far (step %d) is gone: the next one counts as the best", lost)
        if self._step is None:
            run.checkpoints.forget_best()
        else:
            run.checkpoints.point_to_best(self._step)

    def after_step(self, run: Run) -> None:
        """Compare scores of an evaluation inside an epoch."""
        self._compare(run)

    def after_phase(self, run: Run, phase: Phase) -> None:
        """Record a new score; compare it when all evaluations of this step are done."""
        if phase.kind == "evaluate":
            self._new_score = weighted_score(self.metric, run.scores)
        else:
            self._compare(run)

    def _compare(self, run: Run) -> None:
        score, self._new_score = self._new_score, None
        if score is None or math.isnan(score):
            return
        if self._best is not None and (score <= self._best if self.better == "max" else score >= self._best):
            return
        self._best, self._step = score, run.clock.step
        assert run.checkpoints is not None
        run.checkpoints.mark_best(run.clock.step)

    def finish(self, run: Run, how: str | BaseException) -> None:
        """Log the best score; of a complete run the command prints it, with the checkpoint."""
        if self._best is not None:
            extra = {"file_only": how == "done"}
            log.info("best %s %.4f at step %d", self.metric, self._best, self._step, extra=extra)

    def state_dict(self) -> dict[str, Any]:
        """Return the best score so far, its step, a score that is not compared yet, and the name of the score."""
        values = {"best": self._best, "step": self._step, "fresh": self._new_score}
        numbers = to_json_numbers({name: value for name, value in values.items() if value is not None})
        return {**numbers, "metric": self.metric, "better": self.better}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore :meth:`state_dict`.

        Raises:
            InvalidFile: a field is wrong.
        """
        saved = check_fields(state, BestState, "state.json: hooks: save_best")
        self._best, self._step, self._new_score = saved.get("best"), saved.get("step"), saved.get("fresh")
