"""NaN and infinity in training: locate the layer, name the samples, and skip the update.

Numbers are checked in one of two ways. The host reads the losses of every step (always on the CPU; on a GPU with
``train.check_losses``), so that an error names the layer and the samples, and no weight has changed. Or the check stays
on the GPU (``any_non_finite`` and the fused optimizers' ``found_inf``), so that the host does not wait; the metrics log
then finds the number when it writes its next line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from opabinia.contracts import Batch, Clock, Task, non_memory_buffers
from opabinia.engine.loop.layer_outputs import nested_tensors
from opabinia.runtime.processes import all_gather, world_size
from opabinia.runtime.text import first_of

GRAD_NORM = "grad_norm"
"""The norm of all gradients; the only scalar of a step that is logged without the prefix ``train/``."""
_MAX_SAMPLES = 16
"""Sample ids that an error lists."""


@cache
def log_name(name: str) -> str:
    """Return the name under which the metrics log writes a scalar of a step."""
    return name if name == GRAD_NORM else f"train/{name}"


class NonFiniteError(FloatingPointError):
    """A loss or a gradient is NaN or infinite. The message names the step, the value, the layer and the samples.

    Attributes:
        step: the number of the failed step, from 1 on.
    """

    exit_status = 1

    def __init__(self, message: str, step: int) -> None:
        super().__init__(message)
        self.step = step

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.step)

    @classmethod
    def from_all_ranks(
        cls, step: int, values: Mapping[str, float], ids: Sequence[Any], layer: str = ""
    ) -> NonFiniteError:
        """Build the same error on every process. All processes must call this.

        Args:
            step: see :class:`NonFiniteError`.
            values: the values of this process that are not finite, by logged name.
            ids: ids of this process's samples.
            layer: a description of this process's first layer with a non-finite output.
        """
        ranks = [rank for rank in all_gather((dict(values), list(map(str, ids)), layer)) if rank[0]]
        # Gradients are averaged over processes: only those with a non-finite loss have caused it.
        causes = [rank for rank in ranks if set(rank[0]) - {GRAD_NORM}] or ranks
        all_values: dict[str, float] = {}
        for rank_values, _, _ in causes:
            all_values = {**rank_values, **all_values}
        if len(all_values) > 1:
            all_values.pop(GRAD_NORM, None)
        samples = list(dict.fromkeys(sample for _, rank_ids, _ in causes for sample in rank_ids))
        layers = list(dict.fromkeys(rank_layer for _, _, rank_layer in causes if rank_layer))
        texts = [", ".join(f"{name} is {value}" for name, value in all_values.items()) + f" at step {step}", *layers]
        if samples:
            texts.append(f"samples: {first_of(samples, _MAX_SAMPLES)}")
        return cls("; ".join(texts), step)


# --- locating the cause -----------------------------------------------------------------------------------------------


def find_non_finite_layer(
    task: Task, batch: Batch, clock: Clock, context: Callable[[], AbstractContextManager[Any]] = nullcontext
) -> str | None:
    """Repeat the forward pass of ``batch`` and describe the first layer with a NaN or infinite output, if any.

    Waits for the device after every layer. Every process must call it, and the pass always runs to its end, because
    layers may communicate (synchronized batch norm, FSDP).
    """
    broken = [name for name, value in batch.items() if not all(map(_is_finite, nested_tensors(value)))]
    causes = [f"the batch itself is not finite: {', '.join(broken)}"] if broken else []

    def check(name: str, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if causes or all(map(_is_finite, nested_tensors(output))):
            return
        shapes = ", ".join(" x ".join(map(str, tensor.shape)) or "a number" for tensor in nested_tensors(inputs))
        kind = type(module).__name__.removeprefix("FSDP")
        weights = "" if all(map(_is_finite, module.parameters(recurse=False))) else "; its weights are not finite"
        causes.append(f"first not finite after layer {name} ({kind}, input {shapes}){weights}")

    handles = [module.register_forward_hook(partial(check, name)) for name, module in task.named_modules() if name]
    try:
        with torch.no_grad(), context():
            task(batch, clock)
    finally:
        for handle in handles:
            handle.remove()
    return causes[0] if causes else None


def suspect_samples(batch: Batch) -> list[Any]:
    """Return the ids of samples with non-finite inputs; all ids if there are none."""
    ids = list(batch.get("id", ()))
    values = [view for value in batch.values() for view in (value if isinstance(value, tuple) else (value,))]
    columns = [value for value in values if isinstance(value, Tensor) and len(value) == len(ids)]
    broken = [id_ for row, id_ in enumerate(ids) if not all(_is_finite(column[row]) for column in columns)]
    return broken or ids


def _is_finite(value: Tensor) -> bool:
    if isinstance(value, DTensor):
        value = value.to_local()  # checking the full tensor would be a collective operation
    return not value.is_floating_point() or bool(value.isfinite().all())


# --- skipping the update ----------------------------------------------------------------------------------------------


def any_non_finite(values: Mapping[str, Any]) -> Tensor:
    """Return 1 if any of these 0-d tensors is not finite on any process, else 0 (float, 0-d, on their device)."""
    flag = (~torch.stack([value.detach().float() for value in values.values()]).isfinite()).any().float()
    if world_size() > 1:
        dist.all_reduce(flag, dist.ReduceOp.MAX)
    return flag


def init_momentum_buffers(optimizer: torch.optim.Optimizer) -> None:
    """Give fused SGD momentum buffers of zeros, if it has none yet.

    torch 2.15 allocates them uninitialized in the first step and fills them in the kernel, which does nothing when the
    update is skipped: uninitialized memory is then used as momentum. It also cannot update parameters with and without
    a buffer together. With zeros the first update is the same, unless momentum is dampened; then nothing is done here.
    """
    if not isinstance(optimizer, torch.optim.SGD):
        return
    for group in optimizer.param_groups:
        if group["fused"] and group["momentum"] != 0 and group["dampening"] == 0:
            for param in group["params"]:
                if param.requires_grad:
                    optimizer.state[param].setdefault("momentum_buffer", torch.zeros_like(param))


class UpdateGuard:
    """Skips an update: weights, optimizer state, loss scale and buffers stay as they were before the step.

    A non-finite forward pass also reaches running statistics, so buffers are saved before the step and restored. Hooks
    run as after any step: averages and momentum teachers move towards the unchanged weights, and memories drop what is
    not finite (:class:`opabinia.contracts.Memory`).

    Args:
        model: its buffers are guarded, except memories: hooks write those, not forward passes.
    """

    def __init__(self, model: nn.Module) -> None:
        by_dtype: dict[torch.dtype, list[Tensor]] = {}
        for _, buffer in non_memory_buffers(model):
            by_dtype.setdefault(buffer.dtype, []).append(buffer)
        self._saved = [_SavedTensors(buffers) for buffers in by_dtype.values()]

    def save_buffers(self) -> None:
        """Remember the present values of the buffers."""
        for saved in self._saved:
            saved.save()

    def restore_buffers(self) -> None:
        """Restore the values of :meth:`save_buffers`."""
        for saved in self._saved:
            saved.restore()

    def update_unless(self, skip: Tensor, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler) -> None:
        """Do the optimizer's step, and update the loss scale, unless ``skip`` (0-d, on the device) is 1.

        Fused optimizers read the flag on the device; with others the host waits for it.
        """
        if scaler.is_enabled():
            _scaled_update_unless(skip, optimizer, scaler)
        elif getattr(optimizer, "_step_supports_amp_scaling", False):
            optimizer.found_inf = skip  # type: ignore[attr-defined]
            try:
                optimizer.step()
            finally:
                del optimizer.found_inf  # type: ignore[attr-defined]
        elif not skip.item():
            optimizer.step()
        for saved in self._saved:
            saved.restore_if(skip)


def _scaled_update_unless(skip: Tensor, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler) -> None:
    """Do the step of an optimizer whose gradients are unscaled, and update the loss scale, unless ``skip`` is 1.

    torch's scaler has no public way to do this on the device: it gives the optimizer a flag of its own, that of
    overflows, so ``skip`` is merged into it. A skipped step says nothing about the loss scale, which therefore stays.
    """
    internals: Any = scaler
    state = [internals._scale, internals._growth_tracker]
    before = [value.clone() for value in state]
    for found_inf in internals._found_inf_per_device(optimizer).values():
        torch.maximum(found_inf, skip, out=found_inf)  # fused kernels skip the update at exactly 1
    scaler.step(optimizer)
    scaler.update()
    for value, previous in zip(state, before, strict=True):
        value.copy_(torch.where(skip.bool(), previous, value))


class _SavedTensors:
    """Values of tensors of one type, in flat copies: a model may have hundreds, and each call is a few kernels."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = list(tensors)
        self._saved, self._newest = (torch.cat([tensor.flatten() for tensor in tensors]) for _ in range(2))
        self._saved_parts, self._newest_parts = map(self._split, (self._saved, self._newest))

    def _split(self, flat: Tensor) -> list[Tensor]:
        values = torch.split(flat, [tensor.numel() for tensor in self._tensors])
        return [value.view(tensor.shape) for value, tensor in zip(values, self._tensors, strict=True)]

    @torch.no_grad()
    def save(self) -> None:
        torch._foreach_copy_(self._saved_parts, self._tensors)

    @torch.no_grad()
    def restore(self) -> None:
        torch._foreach_copy_(self._tensors, self._saved_parts)

    @torch.no_grad()
    def restore_if(self, flag: Tensor) -> None:
        """Restore if ``flag`` is 1, without reading it on the host."""
        torch._foreach_copy_(self._newest_parts, self._tensors)
        torch.where(flag.bool(), self._saved, self._newest, out=self._newest)
        torch._foreach_copy_(self._tensors, self._newest_parts)
