"""Loss balancing in multi-task training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from opabinia.config import register
from opabinia.contracts import (
    Clock,
    DataMismatch,
    Hook,
    LossBalance,
    NonNegative,
    Phase,
    Positive,
    Run,
    SharedLayer,
)
from opabinia.runtime.processes import all_reduce_mean


@register.balance(name="fixed")
class FixedWeights(LossBalance):
    """The weights of the config, unchanged."""

    def __init__(self, names: Sequence[str], /) -> None:
        super().__init__(names)

    def forward(
        self, losses: Mapping[str, Tensor], share: float, shared: SharedLayer, clock: Clock
    ) -> dict[str, Tensor]:
        """Return the losses as they are."""
        return dict(losses)


@register.balance(name="uncertainty")
class UncertaintyWeights(LossBalance):
    """Weights that are learned as the uncertainty of each task (Kendall et al. 2018).

    The loss of a task is ``exp(-s) * loss + s / 2`` with the log variance ``s``, a trained parameter that begins at 0:
    equation 10 for a cross-entropy, and equation 7 for half a squared error. Other losses are weighted likewise.
    Exclude the parameter from weight decay with ``param_groups`` if the optimizer's is large.
    """

    def __init__(self, names: Sequence[str], /) -> None:
        super().__init__(names)
        self.log_variances = nn.Parameter(torch.zeros(len(self.names)))

    def forward(
        self, losses: Mapping[str, Tensor], share: float, shared: SharedLayer, clock: Clock
    ) -> dict[str, Tensor]:
        """Return the weighted losses with their regularization."""
        rows = {name: self.log_variances[self.names.index(name)] for name in losses}
        return {name: (-rows[name]).exp() * loss + rows[name] / 2 for name, loss in losses.items()}

    def weights(self) -> dict[str, Tensor]:
        """Return ``exp(-s)`` of each task."""
        return dict(zip(self.names, (-self.log_variances.detach()).exp(), strict=True))


class _MeasuredBalance(LossBalance):
    """A method that compares losses over time.

    Attributes:
        pending: loss of each task that took part in the present step, and values that belong to it; of this process.
    """

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(names)
        self.pending: dict[str, Tensor] = {}

    def forward(
        self, losses: Mapping[str, Tensor], share: float, shared: SharedLayer, clock: Clock
    ) -> dict[str, Tensor]:
        """Return the weighted losses; in training measure them, too."""
        weights = self.weights()
        if self.training and torch.is_grad_enabled():
            for name, loss in losses.items():
                measured = self.measure(name, loss, shared) * share
                self.pending[name] = self.pending[name] + measured if name in self.pending else measured
        return {name: loss * weights[name] for name, loss in losses.items()}

    def measure(self, name: str, loss: Tensor, shared: SharedLayer) -> Tensor:
        """Return the values of a loss that are summed over the micro-batches of a step, the loss first (1-d)."""
        return loss.detach().float().view(1)

    def weights(self) -> dict[str, Tensor]:
        """Return the weight of each task."""
        return dict(zip(self.names, self.current(), strict=True))

    def current(self) -> Tensor:
        """Return the weights in the order of ``names``."""
        raise NotImplementedError

    def take_pending(self) -> dict[str, Tensor]:
        """Return the values of the present step, and forget them."""
        pending, self.pending = self.pending, {}
        return pending

    def check_positive(self, name: str, loss: Tensor) -> None:
        """Raise DataMismatch if a loss is negative or 0, so that it has no ratio to later ones. Waits for the
        device."""
        if loss <= 0:
            kind = type(self).__name__
            raise DataMismatch(f"task.balance: the loss of {name} is {float(loss):g}; {kind} compares positive losses")


@register.balance(name="dwa")
class DynamicWeightAverage(_MeasuredBalance):
    """Dynamic weight averaging (Liu et al. 2019, MTAN): tasks whose loss falls slowly get larger weights.

    In each epoch the weights are a softmax of the ratios of the mean losses of the two epochs before, times the number
    of tasks. Until a task has two epochs its ratio is 1. Losses must be positive.

    Args:
        temperature: temperature of the softmax; a higher one makes the weights more alike.
    """

    sums: Tensor
    steps: Tensor
    means: Tensor

    def __init__(self, names: Sequence[str], /, *, temperature: Positive = 2.0) -> None:
        super().__init__(names)
        self.temperature = temperature
        # Of the present epoch on this process, and the means of the two epochs before; 0 is none.
        self.register_buffer("sums", torch.zeros(len(self.names)))
        self.register_buffer("steps", torch.zeros(len(self.names)))
        self.register_buffer("means", torch.zeros(2, len(self.names)))

    def current(self) -> Tensor:
        """Return the weights of the present epoch."""
        older, newer = self.means
        ratios = torch.where(older > 0, newer / older, 1.0)
        return torch.softmax(ratios / self.temperature, 0) * len(self.names)

    def add_step(self) -> None:
        """Add the losses of a step to those of the epoch."""
        for name, values in self.take_pending().items():
            self.sums[self.names.index(name)] += values[0]
            self.steps[self.names.index(name)] += 1

    def end_epoch(self) -> None:
        """Compute the mean losses of the epoch, the same on all processes; a task that was absent, or without labels,
        keeps those it has.

        Raises:
            DataMismatch: a mean is not positive.
        """
        (sums,) = all_reduce_mean([self.sums])
        for row, name in enumerate(self.names):
            if sums[row] != 0:
                mean = sums[row] / self.steps[row]
                self.check_positive(name, mean)
                self.means[:, row] = torch.stack([self.means[1, row], mean])
        self.sums.zero_()
        self.steps.zero_()

    def hooks(self) -> list[Hook]:
        """Return the hook that measures the losses."""
        return [_BalanceHook(self.add_step, self.end_epoch)]


class _BalanceHook(Hook):
    """Calls functions after each backward pass, and after each training epoch."""

    def __init__(self, step: Callable[[], None], epoch: Callable[[], None] = lambda: None) -> None:
        self._step, self._epoch = step, epoch

    def after_backward(self, run: Run) -> None:
        self._step()

    def after_phase(self, run: Run, phase: Phase) -> None:
        if phase.kind == "train":
            self._epoch()


@register.balance(name="gradnorm")
class GradNorm(_MeasuredBalance):
    """Weights with which all tasks train at similar rates (Chen et al. 2018, GradNorm, algorithm 1).

    After each step the weights follow the gradient of ``sum |G_i - mean(G) * r_i ** alpha|``. ``G_i`` is the norm of
    the gradient of the weighted loss of task i, over the global batch, with respect to the last layer that all tasks
    share; ``r_i`` is the loss relative to the task's first one, divided by the mean over tasks. A task that takes no
    part in a step, or has a loss of 0 since no sample of the batch has its labels, counts with its newest values;
    before its first loss it has a weight of 1. The weights sum to the number of tasks.

    Two details differ from the paper, so that weights stay positive whatever the scale of the gradients: the logarithms
    of the weights are updated, by gradient descent, and the sum above is divided by ``mean(G)``.

    The additional backward passes of each task end at the shared layer. Losses must be positive. Excludes ``fsdp``,
    which holds shards of the layer, and ``train.compile``.

    Args:
        alpha: strength with which tasks are pulled to a common rate; 0 makes all norms equal.
        lr: learning rate of the logarithms of the weights.
    """

    log_weights: Tensor
    first_losses: Tensor
    losses: Tensor
    norms: Tensor

    def __init__(self, names: Sequence[str], /, *, alpha: NonNegative = 1.5, lr: Positive = 0.025) -> None:
        super().__init__(names)
        self.alpha, self.lr = alpha, lr
        for name in ("log_weights", "first_losses", "losses", "norms"):
            self.register_buffer(name, torch.zeros(len(self.names)))
        self.measured: set[str] = set()  # spares a wait for the device in each step

    def current(self) -> Tensor:
        """Return the weights of the present step."""
        return self.log_weights.exp()

    def measure(self, name: str, loss: Tensor, shared: SharedLayer) -> Tensor:
        """Return the loss, followed by its gradient with respect to the shared layer, without the task's weight.

        Raises:
            DataMismatch: the loss does not depend on the shared layer.
        """
        params = shared()
        grads: Sequence[Tensor | None] = [None] * len(params)
        if params and loss.requires_grad:
            grads = torch.autograd.grad(loss, params, retain_graph=True, allow_unused=True)
        if params and all(grad is None for grad in grads):
            raise DataMismatch(
                f"task.balance: the loss of {name} does not depend on the last layer of the backbone, so gradnorm has "
                "no gradient to compare; use dwa or uncertainty"
            )
        parts = [torch.zeros_like(param) if grad is None else grad for param, grad in zip(params, grads, strict=True)]
        return torch.cat([super().measure(name, loss, shared), *(part.flatten().float() for part in parts)])

    def update(self) -> None:
        """Update the weights after the backward pass of a step, the same on all processes. They stay while the backbone
        is frozen.

        Raises:
            DataMismatch: the first loss of a task is not positive.
        """
        pending = {name: values for name, values in self.take_pending().items() if len(values) > 1}
        for name, values in zip(pending, all_reduce_mean(list(pending.values())), strict=True):
            row, is_measured = self.names.index(name), values[0] != 0
            if name not in self.measured and is_measured:
                if self.first_losses[row] == 0:
                    self.check_positive(name, values[0])
                self.measured.add(name)
            self.losses[row] = torch.where(is_measured, values[0], self.losses[row])
            self.norms[row] = torch.where(is_measured, values[1:].norm(), self.norms[row])
        if not pending:
            return
        self.first_losses.copy_(torch.where(self.first_losses > 0, self.first_losses, self.losses))
        known = self.first_losses > 0

        def over_mean(values: Tensor) -> Tensor:
            values = torch.where(known, values, 0.0)
            return values / (values.sum() / known.sum()).clamp(min=torch.finfo().tiny)

        norms, rates = over_mean(self.current() * self.norms), over_mean(self.losses / self.first_losses)
        weights = (self.log_weights - self.lr * norms * (norms - rates**self.alpha).sign()).exp()
        self.log_weights.copy_(torch.where(known, over_mean(weights), 1.0).log())

    def hooks(self) -> list[Hook]:
        """Return the hook that updates the weights."""
        return [_GradNormHook(self.update)]


class _GradNormHook(_BalanceHook):
    def start(self, run: Run) -> None:
        """Check that the gradients of the shared layer will be there.

        Raises:
            ValueError: they will not.
        """
        if any(isinstance(param, DTensor) for param in run.task.parameters()):
            raise ValueError("task.balance: gradnorm needs the gradients of a whole layer; use train.parallel: ddp")
        if any(module._compiled_call_impl is not None for module in run.task.modules()):
            raise ValueError("task.balance: gradnorm needs several backward passes; it excludes train.compile")
