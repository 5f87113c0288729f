"""Running statistics on many processes: each trains with its own, and what is evaluated and saved is their mean."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b

import torch
from torch import Tensor, nn

from opabinia.contracts import buffers_beside_memories
from opabinia.runtime.processes import all_reduce_mean, gather, rank, world_size


def statistics(model: nn.Module) -> dict[str, Tensor]:
    """Buffers of floating point numbers that are saved with a model, by name; memories are none."""
    saved = model.state_dict(keep_vars=True).keys()
    own = buffers_beside_memories(model)
    return {name: one for name, one in own if name in saved and one.is_floating_point()}


def mean_state(model: nn.Module) -> dict[str, Tensor]:
    """The state of a model with the mean over processes of its statistics."""
    state: dict[str, Tensor] = model.state_dict()
    own = statistics(model) if world_size() > 1 else {}
    return {**state, **dict(zip(own, all_reduce_mean(list(own.values())), strict=True))}


@contextmanager
def mean_statistics(models: Iterable[nn.Module]) -> Iterator[None]:
    """Inside, models have the mean over processes of their statistics; afterwards each process has its own again."""
    buffers = [one for model in models for one in statistics(model).values()] if world_size() > 1 else []
    before = [one.clone() for one in buffers]
    for one, mean in zip(buffers, all_reduce_mean(buffers), strict=True):
        one.copy_(mean)
    try:
        yield
    finally:
        for one, own in zip(buffers, before, strict=True):
            one.copy_(own)


def statistics_of_all(models: Sequence[nn.Module]) -> dict[str, Tensor]:
    """The statistics of every process, where they differ: processes x values, by number of the model and name.

    With them a run is resumed exactly on as many processes; on other numbers each begins with the mean.
    """
    if world_size() == 1:
        return {}
    own = _by_key(models)
    # What is the same everywhere, a queue of features say, may be large: only its digest travels.
    digests = gather({key: _digest(one) for key, one in own.items()})
    differing = [key for key in own if any(one[key] != digests[0][key] for one in digests)]
    everybody = gather({key: own[key].detach().cpu().double() for key in differing})
    return {key: torch.stack([one[key] for one in everybody]) for key in differing}


def load_statistics(models: Sequence[nn.Module], saved: Mapping[str, Tensor]) -> None:
    """Undo :func:`statistics_of_all` on as many processes; on another number do nothing."""
    for key, one in _by_key(models).items():
        everybody = saved.get(key)
        if everybody is not None and len(everybody) == world_size():
            one.copy_(everybody[rank()])


def _digest(tensor: Tensor) -> bytes:
    return blake2b(tensor.detach().cpu().flatten().view(torch.uint8).numpy().tobytes(), digest_size=16).digest()


def _by_key(models: Sequence[nn.Module]) -> dict[str, Tensor]:
    return {f"{number}/{name}": one for number, model in enumerate(models) for name, one in statistics(model).items()}
