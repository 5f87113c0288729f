"""Running statistics on many processes: each trains with its own, and what is evaluated and saved is their mean."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from opabinia.runtime.processes import gather, mean_of, rank, world_size


def statistics(model: nn.Module) -> dict[str, Tensor]:
    """Buffers of floating point numbers that are saved with a model, by name."""
    saved = model.state_dict(keep_vars=True).keys()
    return {name: one for name, one in model.named_buffers() if name in saved and one.is_floating_point()}


def mean_state(model: nn.Module) -> dict[str, Tensor]:
    """The state of a model with the mean over processes of its statistics."""
    state: dict[str, Tensor] = model.state_dict()
    own = statistics(model) if world_size() > 1 else {}
    return {**state, **dict(zip(own, mean_of(list(own.values())), strict=True))}


@contextmanager
def mean_statistics(models: Iterable[nn.Module]) -> Iterator[None]:
    """Inside, models have the mean over processes of their statistics; afterwards each process has its own again."""
    buffers = [one for model in models for one in statistics(model).values()] if world_size() > 1 else []
    before = [one.clone() for one in buffers]
    for one, mean in zip(buffers, mean_of(buffers), strict=True):
        one.copy_(mean)
    try:
        yield
    finally:
        for one, own in zip(buffers, before, strict=True):
            one.copy_(own)


def statistics_of_all(models: Sequence[nn.Module]) -> dict[str, Tensor]:
    """The statistics of every process, where they differ: by number of the model, processes x values.

    With them a run is resumed exactly on as many processes; on other numbers each begins with the mean.
    """
    if world_size() == 1:
        return {}
    found = {}
    for number, model in enumerate(models):
        own = list(statistics(model).values())
        if own:
            everybody = torch.stack(gather(torch.cat([one.detach().cpu().double().flatten() for one in own])))
            if not torch.equal(everybody, everybody[:1].expand_as(everybody)):
                found[str(number)] = everybody
    return found


def load_statistics(models: Sequence[nn.Module], saved: Mapping[str, Tensor]) -> None:
    """Undo :func:`statistics_of_all` on as many processes; on another number do nothing."""
    for number, model in enumerate(models):
        everybody = saved.get(str(number))
        if everybody is None or len(everybody) != world_size():
            continue
        buffers = list(statistics(model).values())
        parts = torch.split(everybody[rank()], [one.numel() for one in buffers])
        for one, part in zip(buffers, parts, strict=True):
            one.copy_(part.view(one.shape))
