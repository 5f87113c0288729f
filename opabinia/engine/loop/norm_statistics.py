"""Running statistics (batch norm) with several processes: each has its own, and their mean is evaluated and saved."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from opabinia.contracts import non_memory_buffers
from opabinia.runtime.processes import all_reduce_mean, world_size


def running_statistics(model: nn.Module) -> dict[str, Tensor]:
    """Return the persistent floating point buffers of a model by name, without memories (queues of features)."""
    persistent = model.state_dict(keep_vars=True).keys()
    buffers = non_memory_buffers(model)
    return {name: buffer for name, buffer in buffers if name in persistent and buffer.is_floating_point()}


def mean_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """Return the state dict of a model, with its running statistics averaged over processes."""
    state: dict[str, Tensor] = model.state_dict()
    local = running_statistics(model) if world_size() > 1 else {}
    return {**state, **dict(zip(local, all_reduce_mean(list(local.values())), strict=True))}


@contextmanager
def use_mean_statistics(models: Iterable[nn.Module]) -> Iterator[None]:
    """Inside the block models have the mean running statistics of all processes; after it each process has its own."""
    buffers = [buffer for model in models for buffer in running_statistics(model).values()] if world_size() > 1 else []
    saved = [buffer.clone() for buffer in buffers]
    for buffer, mean in zip(buffers, all_reduce_mean(buffers), strict=True):
        buffer.copy_(mean)
    try:
        yield
    finally:
        for buffer, local in zip(buffers, saved, strict=True):
            buffer.copy_(local)
