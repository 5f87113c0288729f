"""Exact statistics for batch norms, in place of the running ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from opabinia.config import register
from opabinia.contracts import Batch, Count, Run, Task
from opabinia.engine.hooks.periods import Periodic
from opabinia.runtime.durations import Duration
from opabinia.runtime.log import log
from opabinia.runtime.processes import gather

BatchNorm = nn.modules.batchnorm._BatchNorm


@register.hook(name="precise_norm")
class PreciseNorm(Periodic):
    """Replaces the running statistics of batch norms, before checkpoints and evaluations, by mean and variance of all
    the samples in some batches (Wu and Johnson 2021, Rethinking Batch in BatchNorm, section 3; fvcore's population
    statistics). The samples of all processes count, each norm seeing its own process's share of a batch, as in
    training; of views that stand in an image's place each counts. Averaged weights get statistics of their own.

    Only norms that learn are measured; a model without such a norm costs nothing.

    Args:
        every: the period; that of the evaluation is the one that pays.
        batches: how many batches, over all processes, are measured. They are read anew, without mixing.
        data: ``train`` for the training data, or the prefix of a validation set.
    """

    def __init__(self, *, every: Duration = Duration(1, "ep"), batches: Count = 200, data: str = "train") -> None:
        super().__init__(every)
        self.batches, self.data = batches, data

    def start(self, run: Run) -> None:
        """Tell a data set that is not there, before the first step."""
        run.batches(self.data, 1)

    def act(self, run: Run) -> None:
        """Measure and replace."""
        learning = [name for name, module in run.task.named_modules() if _learns(module)]
        if not learning:
            log.debug("precise_norm: no batch norm learns")
            return
        for task in run.models:
            modules = dict(task.named_modules())
            norms: dict[str, Any] = {name: modules[name] for name in learning}
            measure(task, norms, run.batches(self.data, self.batches))


def _learns(module: nn.Module) -> bool:
    return isinstance(module, BatchNorm) and module.training and module.track_running_stats


def measure(task: Task, norms: Mapping[str, Any], batches: Iterable[Batch]) -> None:
    """Set the running statistics of ``norms`` to the mean and the variance (biased) of all values in ``batches``.

    The norms see each batch as in training; everything else works as in evaluation, so nothing is drawn and nothing
    else changes.

    Example: a norm that sees [1, 3] and then [2, 4, 6, 8] gets mean 4 and variance 5.6667.
    """
    modes = [(module, module.training) for module in task.modules()]
    found = {name: _Moments() for name in norms}
    hooks = [norm.register_forward_pre_hook(partial(_add, found[name])) for name, norm in norms.items()]
    momenta = {name: norm.momentum for name, norm in norms.items()}
    counts = {name: norm.num_batches_tracked.clone() for name, norm in norms.items()}
    task.eval()
    try:
        for norm in norms.values():
            norm.train()
            norm.momentum = 0.0  # what runs stays as it is until all is known
        with torch.no_grad():
            for batch in batches:
                for one in _as_images(batch):
                    task.predict(one)
    finally:
        for hook in hooks:
            hook.remove()
        for name, norm in norms.items():
            norm.momentum = momenta[name]
            norm.num_batches_tracked.copy_(counts[name])
        for module, training in modes:
            module.training = training
    for name, norm in norms.items():
        total = _Moments()
        for state in gather(found[name].state()):
            total.merge(*state)
        if total.count:  # a norm that these batches do not reach keeps what it has
            norm.running_mean.copy_(total.mean)
            norm.running_var.copy_(total.squares / total.count)


def _as_images(batch: Batch) -> list[Batch]:
    """The batch, or where there are views in the place of its images a batch of each: predictions are of images."""
    return [{**batch, "image": view} for view in batch["views"]] if "views" in batch else [batch]


def _add(moments: _Moments, norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    values = inputs[0].detach().transpose(0, 1).flatten(1)
    variance, mean = torch.var_mean(values.float(), dim=1, correction=0)
    moments.merge(values.shape[1], mean.double(), variance.double() * values.shape[1])


class _Moments:
    """Count, mean and sum of squared differences of each channel (Chan, Golub and LeVeque 1979)."""

    def __init__(self) -> None:
        self.count = 0
        self.mean: Any = 0.0
        self.squares: Any = 0.0

    def merge(self, count: int, mean: Any, squares: Any) -> None:
        if not count:
            return
        both, apart = self.count + count, mean - self.mean
        self.squares = self.squares + squares + apart**2 * (self.count * count / both)
        self.mean = self.mean + apart * (count / both)
        self.count = both

    def state(self) -> tuple[int, Any, Any]:
        if not self.count:
            return 0, 0.0, 0.0
        return self.count, self.mean.cpu(), self.squares.cpu()
