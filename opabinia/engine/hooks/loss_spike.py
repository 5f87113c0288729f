"""The hook that warns of loss spikes."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from statistics import median
from typing import Annotated, Any

from annotated_types import Ge, Gt

from opabinia.config import register
from opabinia.contracts import Hook, Run
from opabinia.runtime.json_files import check_fields
from opabinia.runtime.log import log


@register.hook(name="loss_spike")
class LossSpike(Hook):
    """Warns when a line of the metrics log has a loss far above the lines before it.

    Args:
        factor: warn above this multiple of the median of the previous lines.
        window: number of lines in the median; the first lines are only collected.
        metric: name of the loss.
    """

    def __init__(
        self, *, factor: Annotated[float, Gt(1)] = 3.0, window: Annotated[int, Ge(3)] = 20, metric: str = "train/loss"
    ) -> None:
        self.factor, self.metric = factor, metric
        self._past: deque[float] = deque(maxlen=window)
        self._last_line: Mapping[str, Any] | None = None

    def after_step(self, run: Run) -> None:
        """Check the newest line, once."""
        line = run.metrics_log.newest
        if line is self._last_line or line is None or line.get(self.metric) is None:
            return
        self._last_line, loss = line, line[self.metric]
        if len(self._past) >= 3 and loss > self.factor * (usual := median(self._past)):
            log.warning("%s is %.4g at step %d; its recent median is %.4g", self.metric, loss, line["step"], usual)
        self._past.append(loss)

    def state_dict(self) -> dict[str, Any]:
        """Return the losses in the window."""
        return {"past": list(self._past)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore :meth:`state_dict`.

        Raises:
            InvalidFile: a field is wrong.
        """
        past = check_fields(state, dict[str, list[float]], "state.json: hooks: loss_spike").get("past", [])
        self._past = deque(past, self._past.maxlen)
