"""Keeps an average of the weights beside the trained ones."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from opabinia.contracts import Hook, Run, Task
from opabinia.engine.checkpointing.norm_statistics import mean_state
from opabinia.engine.checkpointing.sharded import load_state
from opabinia.optim.ema import Average, Ema, momentum_at


class EmaHook(Hook):
    """Updates the average after optimizer steps; it is saved in ``ema.safetensors``.

    Args:
        task: the model that is trained.
        twin: a copy of it, spread over processes like it; None makes one.
        ema: the settings.
        batch_size: samples of one optimizer step over all processes.
    """

    def __init__(self, task: Task, ema: Ema, batch_size: int, twin: Task | None = None) -> None:
        self._average = Average(task, ema.buffers, twin)
        self._ema, self._batch_size = ema, batch_size
        self._loaded = False

    @property
    def task(self) -> Task:
        """The task with averaged weights."""
        model = self._average.model
        assert isinstance(model, Task)
        return model

    def start(self, run: Run) -> None:
        """Begin with the weights as they are, unless an average came with the checkpoint."""
        if not self._loaded:
            self._average.update(0.0)

    def after_step(self, run: Run) -> None:
        """Update when it is time."""
        momentum = momentum_at(self._ema, run.clock, self._batch_size)
        if momentum is not None:
            self._average.update(momentum)

    def tensors(self) -> dict[str, Tensor]:
        """The averaged weights, as a state of the task."""
        return mean_state(self.task)

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """See :meth:`tensors`."""
        load_state(self.task, tensors)
        self._loaded = True
