"""One training step: forward and backward passes, gradient clipping, and the optimizer's update."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_

from opabinia.config import register
from opabinia.contracts import (
    Batch,
    Clock,
    GlobalBatch,
    NormOrder,
    ParallelTask,
    Positive,
    Scalars,
    Schedules,
    StepOptions,
    Task,
    total_loss,
)
from opabinia.engine.loop.gradient_clipping import clip_each, global_norm
from opabinia.engine.loop.nonfinite import (
    GRAD_NORM,
    NonFiniteError,
    UpdateGuard,
    any_non_finite,
    find_non_finite_layer,
    init_momentum_buffers,
    log_name,
    suspect_samples,
)
from opabinia.runtime.device import autocast
from opabinia.runtime.log import log
from opabinia.runtime.processes import any_rank, rank, world_size
from opabinia.runtime.seeds import seed_model


def split_micro_batches(batch: Batch, size: int | None, largest: int | None = None) -> Iterator[tuple[Batch, int]]:
    """Split a batch into micro-batches; yield each with the number of its samples that count.

    Args:
        batch: the batch of this process.
        size: samples of a micro-batch, at most; None yields the batch as it is.
        largest: samples of the process with the largest batch. Every process has as many micro-batches as that one, of
            about equal size, because layers may communicate (synchronized batch norm). A process with too few samples
            repeats one, and that one counts 0.
    """
    count = len(batch.get("id", ()))
    largest = count if largest is None else largest
    if size is None or largest <= size:
        yield batch, count
        return
    micro_batches = -(-largest // size)
    if "streams" in batch:
        yield from _split_streams(batch, micro_batches)
        return
    for number in range(micro_batches):
        start, stop = number * count // micro_batches, (number + 1) * count // micro_batches
        if count == largest:
            start, stop = number * size, min(count, (number + 1) * size)
        samples = slice(start, stop) if start < stop else slice(0, 1)
        yield {key: _take(value, samples) for key, value in batch.items()}, stop - start


def _split_streams(batch: Batch, micro_batches: int) -> Iterator[tuple[Batch, int]]:
    """Split the batch of a multi-task step; every micro-batch has samples of every stream, since their losses may
    communicate. A stream with too few samples repeats one, and that one counts 0."""
    for number in range(micro_batches):
        streams, counts = {}, {}
        for name, stream_batch in batch["streams"].items():
            start, stop = (position * len(stream_batch["id"]) // micro_batches for position in (number, number + 1))
            samples = slice(start, stop) if start < stop else slice(0, 1)
            streams[name] = {key: _take(value, samples) for key, value in stream_batch.items()}
            counts[name] = stop - start
        ids = [sample_id for stream_batch in streams.values() for sample_id in stream_batch["id"]]
        yield {**batch, "streams": streams, "id": ids, "counts": counts}, sum(counts.values())


def _take(value: Any, samples: slice) -> Any:
    """Slice a value of a batch; several views of the samples are a tuple."""
    if isinstance(value, tuple):
        return tuple(_take(view, samples) for view in value)
    return value[samples] if isinstance(value, Tensor | list) else value


@register.step(name="standard")
class StandardStep:
    """Forward, backward, clip, update; with gradient accumulation if a batch exceeds the micro-batch size.

    Gradients are those of the mean over the global batch, however it is split over processes and micro-batches: each
    micro-batch is weighted by its samples. Weights stay in full precision. fp16 scales the loss so that small gradients
    do not underflow; an update whose gradients overflow is skipped and still counts as a step.

    The scalar ``grad_norm`` is the norm of all gradients before clipping. At most one kind of clipping can be chosen.

    On a GPU nothing here waits for the device: the host queues kernels of the next step while it computes this one. Two
    exceptions: the host checks the losses (``StepOptions.check_losses``), or an optimizer that is not fused makes an
    update that may be skipped (fp16, ``StepOptions.skip_non_finite``).

    Args:
        clip_norm: maximum norm of all gradients taken as one vector; longer ones are scaled down to it.
        clip_each: maximum norm of each parameter's gradient.
        clip_norm_type: p of these norms; ``.inf`` takes the largest absolute value.
        clip_value: largest absolute value in a gradient; larger ones are clamped.

    Raises:
        ValueError: two kinds of clipping, or a schedule of an option that the optimizer does not have.
    """

    def __init__(
        self,
        task: Task | ParallelTask,
        optimizer: torch.optim.Optimizer,
        schedules: Schedules,
        options: StepOptions,
        /,
        *,
        clip_norm: Positive | None = None,
        clip_each: Positive | None = None,
        clip_norm_type: NormOrder = 2.0,
        clip_value: Positive | None = None,
    ) -> None:
        if sum(limit is not None for limit in (clip_norm, clip_each, clip_value)) > 1:
            raise ValueError("clip_norm, clip_each and clip_value exclude each other: choose one")
        self.task, self.optimizer, self.options = task, optimizer, options
        self.clip_norm, self.clip_each, self.clip_norm_type = clip_norm, clip_each, clip_norm_type
        self.clip_value = clip_value
        self._schedulers = [_GroupScheduler(group, schedules) for group in optimizer.param_groups]
        self._parameters = [param for group in optimizer.param_groups for param in group["params"]]
        self._device = self._parameters[0].device
        self._scaler = torch.amp.GradScaler(self._device.type, enabled=options.precision == "fp16")
        self._rank, self._world = rank(), world_size()
        self._model: Task = task if isinstance(task, Task) else task.module
        self._no_sync = nullcontext if isinstance(task, Task) else task.no_sync
        self._autocast = partial(autocast, self._device, options.precision)
        # On the CPU reading a loss does not wait for anything, and Python floats need less memory than tensors.
        self._checks_losses = options.check_losses or self._device.type == "cpu"
        self._guard = UpdateGuard(self._model) if options.skip_non_finite else None
        init_momentum_buffers(optimizer)

    def __call__(
        self, batch: Batch, global_batch: GlobalBatch, clock: Clock, after_backward: Callable[[], None]
    ) -> Scalars:
        """Train on ``batch``; return the losses and ``grad_norm`` as 0-d tensors on the device, or floats if checked.

        With several processes they are this one's share: their mean over processes is that of the global batch.

        Raises:
            NonFiniteError: a checked loss or gradient is infinite or NaN; no weight was changed.
        """
        # 1. Learning rate, weight decay and momentum of this step.
        for group, scheduler in zip(self.optimizer.param_groups, self._schedulers, strict=True):
            scheduler.apply(group, clock, global_batch.lr_factor)
        # 2. Gradients. optimizer.zero_grad also clears them, but its profiling wrappers cost 30 us.
        for param in self._parameters:
            param.grad = None
        if self._guard is not None:
            self._guard.save_buffers()
        scalars = self._forward_and_backward(batch, global_batch, clock)
        if self._scaler.is_enabled():
            scale: Any = self._scaler._get_scale_async()  # get_scale() would wait for the device
            scalars["loss_scale"] = scale.item() if self._checks_losses else scale.clone()
            self._scaler.unscale_(self.optimizer)  # before hooks and clipping read the gradients
        after_backward()
        scalars[GRAD_NORM] = self._clip_gradients()
        # 3. The update, unless a number is not finite.
        if self._guard is not None and not self._checks_losses:
            scalars["skipped"] = skip = any_non_finite(self._checked_scalars(scalars))
            self._guard.update_unless(skip, self.optimizer, self._scaler)
            return scalars
        skips = self._checks_losses and self._must_skip(scalars, batch, global_batch, clock)
        if self._guard is not None:
            scalars["skipped"] = float(skips)
        if not skips:
            self._scaler.step(self.optimizer)
        if self._scaler.is_enabled():
            # A skipped step says nothing about the loss scale: keep it.
            self._scaler.update(self._scaler.get_scale() if skips else None)
        return scalars

    def _forward_and_backward(self, batch: Batch, global_batch: GlobalBatch, clock: Clock) -> dict[str, Tensor | float]:
        """Accumulate the gradients of the mean over the global batch; return the task's scalars, averaged likewise."""
        if self._world == 1 and self.options.micro_batch is None:
            return self._accumulate(batch, 0, 1.0, clock)
        from opabinia.runtime.collectives import counted_samples  # predictions import this module without it

        scalars: dict[str, Tensor | float] = {}
        micro_batches = self._micro_batches(batch, global_batch)
        for number, (micro_batch, count) in enumerate(micro_batches):
            # Gradients are averaged over processes, so a micro-batch is weighted by its share of an average process.
            is_whole = micro_batch is batch and self._world == 1
            weight = 1.0 if is_whole else count * self._world / global_batch.num_processed(self._world)
            # Gradients are all-reduced only in the last backward pass. A repeated sample must not enter normalizers.
            sync = nullcontext() if number == len(micro_batches) - 1 else self._no_sync()
            with sync, counted_samples(float(count > 0)):
                values = self._accumulate(micro_batch, number, weight, clock)
            for name, value in values.items():
                scalars[name] = value + scalars[name] if name in scalars else value
        return scalars

    def _accumulate(self, micro_batch: Batch, number: int, weight: float, clock: Clock) -> dict[str, Tensor | float]:
        """Add the gradients of micro-batch ``number``, times ``weight``; return its scalars, times ``weight``."""
        # Dropout and the like depend on these numbers only, so a resumed run draws the same.
        seed_model(self.options.seed, clock.step, number, self._rank, self._device)
        with self._autocast():
            loss, logged = total_loss(self.task(micro_batch, clock))
        loss = loss if weight == 1 else loss * weight
        self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        read = Tensor.item if self._checks_losses else Tensor.detach
        values = {name: read(value) if isinstance(value, Tensor) else value for name, value in logged.items()}
        return values if weight == 1 else {name: value * weight for name, value in values.items()}

    def _micro_batches(self, batch: Batch, global_batch: GlobalBatch) -> list[tuple[Batch, int]]:
        largest = -(-global_batch.num_processed(self._world) // self._world) if self._world > 1 else None
        return list(split_micro_batches(batch, self.options.micro_batch, largest))

    def _checked_scalars(self, scalars: Mapping[str, Tensor | float]) -> dict[str, Any]:
        """Select the scalars that must be finite: losses, and the gradient norm except in fp16, where overflow is part
        of finding the loss scale."""
        values = {name: value for name, value in scalars.items() if "loss" in name and name != "loss_scale"}
        if not self._scaler.is_enabled():
            values[GRAD_NORM] = scalars[GRAD_NORM]
        return values

    def _must_skip(
        self, scalars: dict[str, Tensor | float], batch: Batch, global_batch: GlobalBatch, clock: Clock
    ) -> bool:
        """Check the scalars on the host; return whether the update must be skipped, on this or another process.

        Raises:
            NonFiniteError: it must, and that is an error (no guard).
        """
        scalars[GRAD_NORM] = float(scalars[GRAD_NORM])
        if self._world == 1 and math.isfinite(sum(scalars.values())):
            return False  # the sum is finite only if every term is
        checked = self._checked_scalars(scalars)
        wrong = {log_name(name): value for name, value in checked.items() if not math.isfinite(value)}
        if not any_rank(bool(wrong))[0]:
            return False
        # The error needs the layer: repeat the forward passes, on all processes.
        micro_batches = self._micro_batches(batch, global_batch)
        layers = [find_non_finite_layer(self._model, each, clock, self._autocast) for each, _ in micro_batches]
        layer = next(filter(None, layers), "every layer's output is finite: check the loss and its gradient")
        error = NonFiniteError.from_all_ranks(clock.step + 1, wrong, suspect_samples(batch), layer)
        if self._guard is None:
            raise NonFiniteError(f"{error}; the weights were not changed", error.step)
        self._guard.restore_buffers()
        log.warning("%s: this update is skipped", error)
        return True

    def _clip_gradients(self) -> Tensor:
        """Clip the gradients; return the norm of all of them before clipping, 0 if there are none."""
        gradients = [param.grad for param in self._parameters if param.grad is not None]
        if not gradients:
            return torch.zeros((), device=self._device)
        norm = global_norm(gradients, self.clip_norm_type)
        if self.clip_norm is not None:
            clip_grads_with_norm_(self._parameters, self.clip_norm, norm)
        elif self.clip_each is not None:
            clip_each(gradients, self.clip_each, self.clip_norm_type)
        elif self.clip_value is not None:
            torch._foreach_clamp_min_(gradients, -self.clip_value)
            torch._foreach_clamp_max_(gradients, self.clip_value)
        return norm

    def state_dict(self) -> dict[str, Any]:
        """Return the loss scale of fp16; the optimizer is saved separately."""
        return {"scaler": self._scaler.state_dict()} if self._scaler.is_enabled() else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore :meth:`state_dict`; the state of another precision is ignored."""
        if self._scaler.is_enabled() and "scaler" in state:
            self._scaler.load_state_dict(state["scaler"])


class _GroupScheduler:
    """Applies schedules to the options of one parameter group."""

    def __init__(self, group: dict[str, Any], schedules: Schedules) -> None:
        # Base values are read once. The group is not kept: an optimizer that loads a state makes new ones.
        self._options = []
        for name, schedule in schedules.items():
            option = "betas" if name == "momentum" and "momentum" not in group else name
            if option not in group:
                known = ", ".join(sorted(key for key, value in group.items() if isinstance(value, float)))
                raise ValueError(f"schedules: the optimizer has no option {name!r}; its options: {known}")
            base = group[option][0] if option == "betas" else group[option]
            self._options.append((name, option, float(base), schedule))

    def apply(self, group: dict[str, Any], clock: Clock, lr_factor: float) -> None:
        """Set the options for the step that follows ``clock``."""
        for name, option, base, schedule in self._options:
            value = base if name == "lr" and group.get("constant_lr") else base * schedule(clock)
            if name == "lr":
                value *= lr_factor
            group[option] = value if option != "betas" else (value, *group["betas"][1:])
