"""Exponential moving average (EMA) of a model's weights. Its decay is a pure function of the clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import mean
from typing import Literal

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from opabinia.config import register
from opabinia.contracts import Clock, Count, Fraction, Hook, Plan, Run, SchedulePart, non_memory_buffers
from opabinia.runtime.durations import Duration
from opabinia.runtime.processes import all_reduce_mean, world_size

MAX_INITIAL_FRACTION = 0.1
"""Fraction of the initial weights in the average at the end of a run above which the average is too slow for it."""


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

    def weight_at(self, clock: Clock) -> float | None:
        """Return the weight of the model, ``1 - decay``, in the update after the last step; None if no update is due, 1
        if the average becomes a copy. There is no state to save: it all follows from the clock.

        Args:
            clock: after the optimizer step.
        """
        if clock.step % self.every:
            return None
        start = clock.steps(self.start)
        if clock.step <= start:
            return 1.0
        decay = self.decay
        if self.schedule is not None:
            decay = 1 - (1 - decay) * self.schedule(clock)
        if self.warms_up:
            updates = (clock.step - start) // self.every
            decay = min(decay, (1 + updates) / (10 + updates))
        return 1 - decay


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
    fraction = math.prod(1 - (ema.weight_at(clock) or 0.0) for clock in clocks) ** (len(updates) / len(clocks))
    if fraction <= MAX_INITIAL_FRACTION:
        return ""
    slowed = 1.0 if ema.schedule is None else mean(ema.schedule(clock) for clock in clocks)
    step = min(1.0, -math.log(MAX_INITIAL_FRACTION) / len(updates) / slowed) if slowed > 0 else 1.0
    return (
        f"the EMA of the weights is too slow for the {len(updates)} updates of this run: {fraction:.0%} of it will "
        f"still be the initial weights; set ema.warmup=true, or ema.decay={math.floor(1e4 * (1 - step)) / 1e4}"
    )


class WeightAverage(Hook):
    """Moves an average of a model's weights towards them after optimizer steps: ``average += weight * (model -
    average)``. Queues and other memories keep their initial values.

    Args:
        average: modules of the model under the same names, sharded like them.
        model: the trained model.
        weight: weight of the model in the update after a step, by the clock; None: no update is due.
        buffers: those of the average: ``kept`` as they are; ``averaged`` like weights if they are floating point,
            otherwise copied; ``synchronized``: averaged, and then their mean over ranks, since each rank trains with
            running statistics of its own.
    """

    def __init__(
        self,
        average: nn.Module,
        model: nn.Module,
        weight: Callable[[Clock], float | None],
        buffers: Literal["kept", "averaged", "synchronized"] = "averaged",
    ) -> None:
        params = dict(average.named_parameters())
        changing = {} if buffers == "kept" else dict(non_memory_buffers(average))
        self._statistics = {name: buffer for name, buffer in changing.items() if buffer.is_floating_point()}
        self._averages = LocalTensors([*params.values(), *self._statistics.values()])
        self._originals = LocalTensors([*map(model.get_parameter, params), *map(model.get_buffer, self._statistics)])
        copied = [name for name in changing if name not in self._statistics]
        self._copies, self._copied = [changing[name] for name in copied], [model.get_buffer(name) for name in copied]
        self._synchronizes, self._weight = buffers == "synchronized", weight

    def after_step(self, run: Run) -> None:
        """Update the average if it is due."""
        weight = self._weight(run.clock)
        if weight is not None:
            self.update(weight)

    @torch.no_grad()
    def update(self, weight: float) -> None:
        """Move the average towards the model; with weight 1 copy it."""
        averages, originals = self._averages(), self._originals()
        if weight == 1:
            torch._foreach_copy_(averages, originals)
        else:
            torch._foreach_lerp_(averages, originals, weight)
        if self._copies:
            torch._foreach_copy_(self._copies, self._copied)
        if self._synchronizes and self._statistics and world_size() > 1:
            statistics = [*self._statistics.values()]
            torch._foreach_copy_(statistics, all_reduce_mean(statistics))


class SavedAverage(WeightAverage):
    """The EMA of a run: it starts as a copy of the model, is in evaluation mode, and is saved by this hook.

    Args:
        average, model, weight, buffers: see :class:`WeightAverage`.
    """

    def __init__(
        self,
        average: nn.Module,
        model: nn.Module,
        weight: Callable[[Clock], float | None],
        buffers: Literal["averaged", "synchronized"] = "averaged",
    ) -> None:
        super().__init__(average.eval().requires_grad_(False), model, weight, buffers)
        self._average = average
        self._loaded = False

    def start(self, run: Run) -> None:
        """Start with the present weights, unless a checkpoint had an average."""
        if not self._loaded:
            self.update(1.0)

    def tensors(self) -> dict[str, Tensor]:
        """Return the state dict of the average, with running statistics averaged over ranks."""
        state: dict[str, Tensor] = self._average.state_dict()
        means = zip(self._statistics, all_reduce_mean([*self._statistics.values()]), strict=True)
        return state | {name: mean for name, mean in means if name in state}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore :meth:`tensors`, whole ones also where each rank holds a shard."""
        from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

        set_model_state_dict(self._average, dict(tensors), options=StateDictOptions(full_state_dict=True))
        self._loaded = True


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
