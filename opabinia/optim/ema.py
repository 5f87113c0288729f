"""An exponential moving average of a model's weights. Its momentum is a pure function of the clock."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from opabinia.config import register
from opabinia.contracts import Clock, Count, Fraction, SchedulePart, buffers_beside_memories
from opabinia.runtime.durations import Duration


@register.section
@dataclass(frozen=True, kw_only=True)
class Ema:
    """An average of the weights: ``average = momentum * average + (1 - momentum) * weights``.

    Args:
        momentum: share of the average that an update keeps.
        every: optimizer steps from one update to the next.
        alpha: in place of ``momentum``, pycls' rule, which gives about the same average for any batch size and period:
            ``max(0, 1 - alpha * batch size / epochs of the run * every)``.
        start: until then the average is a copy of the weights; 0ep averages from the first step on.
        warmup: let the momentum rise, ``(1 + n) / (10 + n)`` after n updates, up to its value.
        schedule: multiplies ``1 - momentum``: a cosine takes the momentum to 1 (Grill et al. 2020, BYOL).
        buffers: what is done with running statistics and other buffers of floating point numbers.
    """

    momentum: Fraction = 0.9999
    every: Count = 1
    alpha: Annotated[float, Ge(0)] | None = None
    start: Duration = Duration(0, "ep")
    warmup: bool = False
    schedule: SchedulePart | None = None
    buffers: Literal["average", "copy"] = "average"


def pycls_momentum(alpha: float, batch_size: int, epochs: float, every: int) -> float:
    """The momentum by pycls' rule (see :class:`Ema`).

    Example: ``pycls_momentum(1e-5, 1024, 100, 32)`` is 0.9967232.
    """
    return max(0.0, 1 - alpha * batch_size / epochs * every)


def momentum_at(ema: Ema, clock: Clock, batch_size: int) -> float | None:
    """The momentum of the update after the step that ``clock`` has just counted; None when none is due.

    0 makes the average a copy. There is nothing to save: it all follows from the clock.

    Args:
        ema: the settings.
        clock: after the optimizer step.
        batch_size: samples of one optimizer step over all processes.
    """
    if clock.step % ema.every:
        return None
    start = clock.steps(ema.start)
    if clock.step <= start:
        return 0.0
    momentum = ema.momentum
    if ema.alpha is not None:
        epochs = clock.epochs_at(clock.total_steps)
        momentum = pycls_momentum(ema.alpha, batch_size, epochs, ema.every)
    if ema.schedule is not None:
        momentum = 1 - (1 - momentum) * ema.schedule(clock)
    if ema.warmup:
        updates = (clock.step - start) // ema.every
        momentum = min(momentum, (1 + updates) / (10 + updates))
    return momentum


class Average:
    """A model of averaged weights beside one that is trained. Its memories stay as they were at first.

    Args:
        model: the one that is trained.
        buffers: see :class:`Ema`.
        twin: a copy of it, spread over processes like it; None makes one.

    Attributes:
        model: the copy; it takes no gradients and stays in evaluation mode.
    """

    def __init__(
        self, model: nn.Module, buffers: Literal["average", "copy"] = "average", twin: nn.Module | None = None
    ) -> None:
        self.model = (copy.deepcopy(model) if twin is None else twin).eval().requires_grad_(False)
        own, others = dict(buffers_beside_memories(self.model)), dict(model.named_buffers())
        averaged = [name for name, value in own.items() if value.is_floating_point() and buffers == "average"]
        self._pairs: list[tuple[Tensor, Tensor]] = [*zip(self.model.parameters(), model.parameters(), strict=True)]
        self._pairs += [(own[name], others[name]) for name in averaged]
        self._whole = None if any(isinstance(one, DTensor) for one, _ in self._pairs) else self._values()
        self._copies = [(own[name], others[name]) for name in own if name not in averaged]

    @torch.no_grad()
    def update(self, momentum: float) -> None:
        """Move towards the model's weights; with momentum 0 take them over."""
        own, of = self._whole or self._values()
        if momentum == 0:
            torch._foreach_copy_(own, of)
        else:
            torch._foreach_lerp_(own, of, 1 - momentum)
        for one, other in self._copies:
            one.copy_(other)

    def _values(self) -> tuple[list[Tensor], list[Tensor]]:
        return local(own for own, _ in self._pairs), local(other for _, other in self._pairs)


def local(values: Iterable[Tensor]) -> list[Tensor]:
    """The tensors without their history; of sharded ones this process's part, which is another one now and then."""
    return [value._local_tensor if isinstance(value, DTensor) else value.detach() for value in values]
