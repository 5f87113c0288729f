"""What named layers of a task give of each sample, while it predicts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from opabinia.contracts import EMBEDDING, Batch, DataMismatch, Predictions, Task
from opabinia.models.capture import Layer, capture, near


def refuse_unknown(task: Task, names: Iterable[str]) -> None:
    """Tell layers that a task does not have.

    Raises:
        Unfit: there are some; near names are told.
    """
    known = {name for name, _ in task.named_modules(remove_duplicate=False) if name}
    if type(task).features is not Task.features:
        known.add(EMBEDDING)
    missing = [f"there is no layer {name!r}; near: {near(name, known)}" for name in names if name not in known]
    if missing:
        raise DataMismatch("; ".join(missing))


def with_layers(task: Task, batch: Batch, names: Sequence[str]) -> tuple[Predictions, dict[str, list[Tensor]]]:
    """Predictions, and by name the tensors of each module, all with a row for each of B samples.

    A module's first call is that of the picture itself; others may be of its mirror image. If ``embedding`` is among
    the names it is among the predictions, too; of a task that does not predict it that is a second forward pass.

    Raises:
        Unfit: the task makes no use of a layer when it predicts, or the layer does not give a row for each sample.
    """
    modules = [name for name in names if name != EMBEDDING]
    with capture(task, modules, copy=True) as seen:
        predictions = task.predict(batch)
    if EMBEDDING in names and EMBEDDING not in predictions:
        predictions = {**predictions, EMBEDDING: task.features(batch)[EMBEDDING]}
    return predictions, {name: _tensors_of(seen[name], len(batch["id"])) for name in modules}


def flattened(tensors: Sequence[Tensor]) -> Tensor:
    """All numbers of a sample in one row (B x D)."""
    return torch.cat([one.reshape(len(one), -1) for one in tensors], 1)


def averaged(tensors: Sequence[Tensor]) -> Tensor:
    """Maps (B x C x h x w, of clips B x C x t x h x w) and tokens (B x N x D) averaged over their places, vectors as
    they are, in one row."""
    return torch.cat([_vector(one) for one in tensors], 1)


def _vector(tensor: Tensor) -> Tensor:
    if tensor.ndim in (4, 5):
        return tensor.flatten(2).mean(2)
    return tensor.mean(1) if tensor.ndim == 3 else tensor.reshape(len(tensor), -1)


def _tensors_of(layer: Layer, samples: int) -> list[Tensor]:
    if not layer.calls:
        raise DataMismatch(f"the task makes no use of {layer.name!r} when it predicts")
    tensors = list(_tensors(layer.calls[0].output))
    if not tensors or any(one.ndim == 0 or len(one) != samples for one in tensors):
        raise DataMismatch(f"{layer.name!r} does not give a row for each sample")
    return tensors


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    inside = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple | list) else ()
    for one in inside:
        yield from _tensors(one)
