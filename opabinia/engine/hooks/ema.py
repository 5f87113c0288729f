"""The hook that keeps an exponential moving average (EMA) of the weights."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from opabinia.contracts import Hook, Run, Task
from opabinia.engine.checkpointing.sharded import load_full_state_dict
from opabinia.engine.loop.norm_statistics import mean_state_dict
from opabinia.optim.ema import Ema, WeightAverage, decay_at


class EmaHook(Hook):
    """Updates the average after optimizer steps; it is saved in ``ema.safetensors``.

    Args:
        task: the model that is trained.
        ema: the settings.
        twin: a copy of the task, sharded like it, that holds the average; None makes one.

    Attributes:
        task: the task with averaged weights.
    """

    def __init__(self, task: Task, ema: Ema, twin: Task | None = None) -> None:
        self._average = WeightAverage(task, twin)
        assert isinstance(self._average.model, Task)
        self.task = self._average.model
        self._ema = ema
        self._loaded = False

    def start(self, run: Run) -> None:
        """Start with the present weights, unless a checkpoint had an average."""
        if not self._loaded:
            self._average.update(0.0)

    def after_step(self, run: Run) -> None:
        """Update when it is due."""
        decay = decay_at(self._ema, run.clock)
        if decay is not None:
            self._average.update(decay)

    def tensors(self) -> dict[str, Tensor]:
        """Return the averaged weights as a state dict of the task."""
        return mean_state_dict(self.task)

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore :meth:`tensors`."""
        load_full_state_dict(self.task, tensors)
        self._loaded = True
