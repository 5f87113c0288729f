"""The hook for early stopping."""

from __future__ import annotations

import math
from typing import Any, Literal

from typing_extensions import TypedDict

from opabinia.config import register
from opabinia.contracts import Count, Hook, NonNegative, Phase, Run, Stop
from opabinia.engine.loggers.metrics_log import to_json_numbers
from opabinia.runtime.json_files import check_fields
from opabinia.runtime.weighted_scores import score_weights, weighted_score


class _State(TypedDict):
    best: float
    waited: int


@register.hook(name="early_stop")
class EarlyStopping(Hook):
    """Ends the run, as if it were complete, when a score has not improved for some evaluations.

    Args:
        metric: the score, such as ``val/top1``, or a weighted sum: ``0.5*val/rank1 + 0.5*val/mAP``.
        patience: number of consecutive evaluations without improvement after which the run ends.
        min_delta: smallest change that counts as an improvement.
        better: the better direction.
    """

    def __init__(
        self, *, metric: str, patience: Count = 10, min_delta: NonNegative = 0.0, better: Literal["max", "min"] = "max"
    ) -> None:
        self.metric, self.patience, self.min_delta = metric, patience, min_delta
        self._names = list(score_weights(metric))
        self._sign = 1 if better == "max" else -1
        self._best, self._waited = -math.inf, 0

    def start(self, run: Run) -> None:
        """Stop a resumed run that has ended already, unless it has more patience now.

        Raises:
            ValueError: no evaluation of this run computes the score.
        """
        unknown = [name for name in self._names if name not in run.available_scores]
        if run.loader is not None and run.available_scores and unknown:
            known = ", ".join(run.available_scores)
            raise ValueError(f"no evaluation computes the score {unknown[0]!r}; scores: {known}")
        self._stop_if_due(run)

    def after_phase(self, run: Run, phase: Phase) -> None:
        """Check the score after an evaluation of its dataset; that of the last score of a sum.

        Raises:
            ValueError: the evaluation has not computed it.
        """
        if phase.kind != "evaluate" or not self._names[-1].startswith(f"{phase.name}/"):
            return
        value = weighted_score(self.metric, run.scores)
        if value is None:
            raise ValueError(f"early_stop: there is no score {self.metric!r}; scores: {', '.join(run.scores)}")
        score = self._sign * value
        if score > self._best + self.min_delta:  # false for NaN
            self._best, self._waited = score, 0
        else:
            self._waited += 1
        self._stop_if_due(run)

    def _stop_if_due(self, run: Run) -> None:
        if self._waited >= self.patience and run.loader is not None:
            best = self._sign * self._best
            reason = f"early stopping: {self.metric} has not improved on {best:.4f} for {self._waited} evaluations"
            run.stop = run.stop or Stop(reason, final=True)

    def state_dict(self) -> dict[str, Any]:
        """Return the best score so far, and the number of evaluations since."""
        return {**to_json_numbers({"best": self._best}), "waited": self._waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore :meth:`state_dict`.

        Raises:
            InvalidFile: a field is missing or wrong.
        """
        saved = check_fields(state, _State, "state.json: hooks: early_stop")
        self._best, self._waited = saved["best"], saved["waited"]
