"""The hook for precise batch norm: statistics of the population in place of running averages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from opabinia.config import register
from opabinia.contracts import Batch, Count, Run, Task
from opabinia.engine.hooks.periods import Periodic
from opabinia.engine.loop.evaluate import evaluation_mode
from opabinia.engine.loop.layer_outputs import observe_inputs
from opabinia.runtime.durations import Duration
from opabinia.runtime.log import log
from opabinia.runtime.processes import all_gather

BatchNorm = nn.modules.batchnorm._BatchNorm


@register.hook(name="precise_bn")
class PreciseBN(Periodic):
    """Replaces the running statistics of batch norms, before checkpoints and evaluations, by mean and variance of all
    samples in some batches (Wu and Johnson 2021, Rethinking Batch in BatchNorm, section 3; fvcore's population
    statistics). The samples of all processes count; each norm sees its own process's share of a batch, as in training.
    If a sample has several views instead of an image, each view counts. An EMA of the weights gets its own statistics.

    Only norms in training mode are measured; a model without one costs nothing.

    Args:
        every: the period; that of the evaluation is sufficient.
        batches: number of batches to measure, over all processes. They are read separately, without batch mixing.
        data: ``train`` for the training data, or the prefix of a validation set.
    """

    def __init__(self, *, every: Duration = Duration(1, "ep"), batches: Count = 200, data: str = "train") -> None:
        super().__init__(every)
        self.batches, self.data = batches, data

    def start(self, run: Run) -> None:
        """Check that the dataset exists, before the first step."""
        run.batches(self.data, 1)

    def act(self, run: Run) -> None:
        """Measure and replace."""
        names = [
            name
            for name, module in run.task.named_modules()
            if isinstance(module, BatchNorm) and module.training and module.track_running_stats
        ]
        if not names:
            log.debug("precise_bn: no batch norm is in training mode")
            return
        for task in run.models:
            norms = {name: task.get_submodule(name) for name in names}
            with run.autocast():
                set_statistics(task, norms, run.batches(self.data, self.batches))


def set_statistics(task: Task, norms: Mapping[str, Any], batches: Iterable[Batch]) -> None:
    """Set the running statistics of ``norms`` to the mean and the (biased) variance of all values in ``batches``.

    The norms are in training mode; everything else is in evaluation mode, so no random numbers are drawn and nothing
    else changes.

    Example: a norm that sees [1, 3] and then [2, 4, 6, 8] gets mean 4 and variance 5.6667.
    """
    moments = {name: _Moments() for name in norms}
    momentums = {name: norm.momentum for name, norm in norms.items()}
    counts = {name: norm.num_batches_tracked.clone() for name, norm in norms.items()}
    with evaluation_mode(task), torch.no_grad():
        try:
            for norm in norms.values():
                norm.train()
                norm.momentum = 0.0  # running statistics stay as they are until all batches are measured
            observe_inputs(task, {name: values.add_input for name, values in moments.items()}, batches)
        finally:
            for name, norm in norms.items():
                norm.momentum = momentums[name]
                norm.num_batches_tracked.copy_(counts[name])
    for name, norm in norms.items():
        total = _Moments()
        for state in all_gather(moments[name].state()):
            total.merge(*state)
        if total.count:  # a norm that these batches do not reach keeps its statistics
            norm.running_mean.copy_(total.mean)
            norm.running_var.copy_(total.squares / total.count)


class _Moments:
    """Count, mean and sum of squared deviations of each channel (Chan, Golub and LeVeque 1979)."""

    def __init__(self) -> None:
        self.count = 0
        self.mean: Any = 0.0
        self.squares: Any = 0.0

    def add_input(self, norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        values = inputs[0].detach().transpose(0, 1).flatten(1)
        variance, mean = torch.var_mean(values.float(), dim=1, correction=0)
        dtype = torch.float32 if values.device.type == "mps" else torch.float64  # GPUs of Apple have no float64
        self.merge(values.shape[1], mean.to(dtype), variance.to(dtype) * values.shape[1])

    def merge(self, count: int, mean: Any, squares: Any) -> None:
        if not count:
            return
        total, delta = self.count + count, mean - self.mean
        self.squares = self.squares + squares + delta**2 * (self.count * count / total)
        self.mean = self.mean + delta * (count / total)
        self.count = total

    def state(self) -> tuple[int, Any, Any]:
        return (self.count, self.mean.cpu(), self.squares.cpu()) if self.count else (0, 0.0, 0.0)
