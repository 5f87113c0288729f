"""Exponential moving average (EMA) of a model's weights. Its decay is a pure function of the clock."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import mean

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from opabinia.config import register
from opabinia.contracts import Clock, Count, Fraction, Plan, SchedulePart, non_memory_buffers
from opabinia.runtime.durations import Duration

MAX_INITIAL_SHARE = 0.1
"""Share of the initial weights in the average at the end of a run above which the average is too slow for it."""


@register.section
@dataclass(frozen=True, kw_only=True)
class Ema:
    """Exponential moving average of the weights: ``average = decay * average + (1 - decay) * weights``.

    Args:
        decay: fraction of the average that an update keeps.
        every: optimizer steps between updates.
        start: until then the average is a copy of the weights; 0ep averages from the first step on.
        warmup: limit the decay to ``(1 + n) / (10 + n)`` after n updates, so that an average of few updates does not
            consist of the initial weights; null: unless ``start`` or ``schedule`` is given.
        schedule: multiplies ``1 - decay``: a cosine raises the decay to 1 (Grill et al. 2020, BYOL).
    """

    decay: Fraction = 0.9999
    every: Count = 1
    start: Duration = Duration(0, "ep")
    warmup: bool | None = None
    schedule: SchedulePart | None = None

    @property
    def warms_up(self) -> bool:
        """Whether the decay is limited at first."""
        by_default = self.schedule is None and not self.start.value
        return by_default if self.warmup is None else self.warmup


def decay_at(ema: Ema, clock: Clock) -> float | None:
    """Return the decay of the update after the last step; None if no update is due, 0 if the average becomes a copy.

    There is no state to save: it all follows from the clock.

    Args:
        ema: the settings.
        clock: after the optimizer step.
    """
    if clock.step % ema.every:
        return None
    start = clock.steps(ema.start)
    if clock.step <= start:
        return 0.0
    decay = ema.decay
    if ema.schedule is not None:
        decay = 1 - (1 - decay) * ema.schedule(clock)
    if ema.warms_up:
        updates = (clock.step - start) // ema.every
        decay = min(decay, (1 + updates) / (10 + updates))
    return decay


def slow_average_warning(ema: Ema, plan: Plan) -> str:
    """Return a warning that names fitting values if the average cannot catch up with the weights in a run, else "".

    Args:
        ema: the settings.
        plan: all batches of the run.
    """
    start = Clock.at(plan, 0).steps(ema.start)
    updates = range((start // ema.every + 1) * ema.every, plan.total_steps + 1, ema.every)
    clocks = [Clock.at(plan, step) for step in updates[:: max(1, len(updates) // 200)]]
    if not clocks or ema.warms_up:
        return ""
    share = math.prod(decay_at(ema, clock) or 0.0 for clock in clocks) ** (len(updates) / len(clocks))
    if share <= MAX_INITIAL_SHARE:
        return ""
    slowed = 1.0 if ema.schedule is None else mean(ema.schedule(clock) for clock in clocks)
    step = min(1.0, -math.log(MAX_INITIAL_SHARE) / len(updates) / slowed) if slowed > 0 else 1.0
    return (
        f"the EMA of the weights is too slow for the {len(updates)} updates of this run: {share:.0%} of it will still "
        f"be the initial weights; set ema.warmup=true, or ema.decay={math.floor(1e4 * (1 - step)) / 1e4}"
    )


class WeightAverage:
    """A copy of a model with averaged weights. Its memories keep their initial values.

    Args:
        model: the trained model.
        twin: a copy of the model, sharded like it; None creates one.

    Attributes:
        model: the copy; it needs no gradients and stays in evaluation mode.
    """

    def __init__(self, model: nn.Module, twin: nn.Module | None = None) -> None:
        self.model = (copy.deepcopy(model) if twin is None else twin).eval().requires_grad_(False)
        copies, originals = dict(non_memory_buffers(self.model)), dict(model.named_buffers())
        averaged = [name for name, value in copies.items() if value.is_floating_point()]
        self._averages = LocalTensors([*self.model.parameters(), *(copies[name] for name in averaged)])
        self._originals = LocalTensors([*model.parameters(), *(originals[name] for name in averaged)])
        copied = [name for name in copies if name not in averaged]
        self._copies, self._copied = [copies[name] for name in copied], [originals[name] for name in copied]

    @torch.no_grad()
    def update(self, decay: float) -> None:
        """Move towards the model's weights; with decay 0 copy them."""
        averages, originals = self._averages(), self._originals()
        if decay == 0:
            torch._foreach_copy_(averages, originals)
        else:
            torch._foreach_lerp_(averages, originals, 1 - decay)
        if self._copies:
            torch._foreach_copy_(self._copies, self._copied)


class LocalTensors:
    """Tensors detached, for kernels over all of them; of sharded ones this rank's shards.

    Shards may be other tensors in the next step, so only those are looked up in every call.
    """

    def __init__(self, values: Iterable[Tensor]) -> None:
        self._values = list(values)
        is_sharded = any(isinstance(value, DTensor) for value in self._values)
        self._whole = None if is_sharded else local_tensors(self._values)

    def __call__(self) -> list[Tensor]:
        """Return the tensors."""
        return local_tensors(self._values) if self._whole is None else self._whole


def local_tensors(values: Iterable[Tensor]) -> list[Tensor]:
    """Return the tensors detached; of sharded ones this rank's shard, which may be another tensor in the next call."""
    return [value._local_tensor if isinstance(value, DTensor) else value.detach() for value in values]
