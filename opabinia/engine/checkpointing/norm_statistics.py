"""Running statistics (batch norm) with several processes: each has its own, and their mean is evaluated and saved."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b

import torch
from torch import Tensor, nn

from opabinia.contracts import non_memory_buffers
from opabinia.runtime.processes import all_reduce_mean, gather, rank, world_size

_FILE = "statistics"
"""The file of a checkpoint with the running statistics of every process."""


def running_statistics(model: nn.Module) -> dict[str, Tensor]:
    """Return the persistent floating point buffers of a model by name, without memories (queues of features)."""
    persistent = model.state_dict(keep_vars=True).keys()
    buffers = non_memory_buffers(model)
    return {name: buffer for name, buffer in buffers if name in persistent and buffer.is_floating_point()}


def mean_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """Return the state dict of a model, with its running statistics averaged over processes."""
    state: dict[str, Tensor] = model.state_dict()
    own = running_statistics(model) if world_size() > 1 else {}
    return {**state, **dict(zip(own, all_reduce_mean(list(own.values())), strict=True))}


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
        for buffer, own in zip(buffers, saved, strict=True):
            buffer.copy_(own)


def gather_statistics(models: Sequence[nn.Module]) -> dict[str, dict[str, Tensor]]:
    """Return the running statistics of every process where they differ (processes x values), by model number and name,
    as a file of a checkpoint; nothing if they are the same everywhere.

    A run resumed with the same number of processes is exact with them; with another number each starts with the mean.
    """
    if world_size() == 1:
        return {}
    own = _by_key(models)
    # Buffers that are the same everywhere may be large (a queue of features): only their digests are exchanged.
    digests = gather({key: _digest(buffer) for key, buffer in own.items()})
    differing = [key for key in own if any(digest[key] != digests[0][key] for digest in digests)]
    ranks = gather({key: own[key].detach().cpu().double() for key in differing})
    statistics = {key: torch.stack([values[key] for values in ranks]) for key in differing}
    return {_FILE: statistics} if statistics else {}


def load_statistics(models: Sequence[nn.Module], files: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Restore :func:`gather_statistics` with the same number of processes; with another number do nothing."""
    for key, buffer in _by_key(models).items():
        ranks = files.get(_FILE, {}).get(key)
        if ranks is not None and len(ranks) == world_size():
            buffer.copy_(ranks[rank()])


def _digest(tensor: Tensor) -> bytes:
    return blake2b(tensor.detach().cpu().flatten().view(torch.uint8).numpy().tobytes(), digest_size=16).digest()


def _by_key(models: Sequence[nn.Module]) -> dict[str, Tensor]:
    return {
        f"{number}/{name}": buffer
        for number, model in enumerate(models)
        for name, buffer in running_statistics(model).items()
    }
