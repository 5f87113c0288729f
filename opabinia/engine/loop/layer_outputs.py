"""Inputs and outputs of named layers, observed while a task predicts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from opabinia.contracts import EMBEDDING, Batch, DataMismatch, Predictions, Task
from opabinia.models.capture import Layer, capture, nearest_names


def has_features(task: Task) -> bool:
    """Return whether a task has an embedding of images."""
    return type(task).features is not Task.features


def check_layer_names(task: Task, names: Iterable[str]) -> None:
    """Check that a task has these layers.

    Raises:
        DataMismatch: it does not; the message lists similar names.
    """
    known = {name for name, _ in task.named_modules(remove_duplicate=False) if name}
    if has_features(task):
        known.add(EMBEDDING)
    missing = [f"there is no layer {name!r}; near: {nearest_names(name, known)}" for name in names if name not in known]
    if missing:
        raise DataMismatch("; ".join(missing))


def observe_inputs(
    task: Task, observers: Mapping[str, Callable[[nn.Module, tuple[Any, ...]], None]], batches: Iterable[Batch]
) -> None:
    """Predict batches, and call the observer of each named layer with the layer and its inputs. If a batch has views
    instead of images, each view is predicted, because ``predict`` needs images."""
    handles = [task.get_submodule(name).register_forward_pre_hook(observer) for name, observer in observers.items()]
    try:
        for batch in batches:
            for images in [{**batch, "image": view} for view in batch.get("views", ())] or [batch]:
                task.predict(images)
    finally:
        for handle in handles:
            handle.remove()


def predict_with_layers(task: Task, batch: Batch, names: Sequence[str]) -> tuple[Predictions, dict[str, list[Tensor]]]:
    """Return the predictions of a batch, and by layer name its output tensors, each with one row per sample.

    Only the first call of a module counts: it is that of the image itself, later ones may be of its mirror image. If
    ``embedding`` is requested it is added to the predictions; a task that does not predict it needs a second forward
    pass for that.

    Raises:
        DataMismatch: ``predict`` does not use a layer, or the layer does not output one row per sample.
    """
    modules = [name for name in names if name != EMBEDDING]
    with capture(task, modules, copy=True) as layers:
        predictions = task.predict(batch)
    if EMBEDDING in names and EMBEDDING not in predictions:
        predictions = {**predictions, EMBEDDING: task.features(batch)[EMBEDDING]}
    return predictions, {name: _output_tensors(layers[name], len(batch["id"])) for name in modules}


def flatten_outputs(tensors: Sequence[Tensor]) -> Tensor:
    """Concatenate all values of a sample in one row (B x D)."""
    return torch.cat([tensor.reshape(len(tensor), -1) for tensor in tensors], 1)


def average_outputs(tensors: Sequence[Tensor]) -> Tensor:
    """Average feature maps (B x C x h x w, of clips B x C x t x h x w) and tokens (B x N x D) over positions, keep
    vectors, and concatenate them in one row (B x D)."""
    return torch.cat([_average(tensor) for tensor in tensors], 1)


def _average(tensor: Tensor) -> Tensor:
    if tensor.ndim in (4, 5):
        return tensor.flatten(2).mean(2)
    return tensor.mean(1) if tensor.ndim == 3 else tensor.reshape(len(tensor), -1)


def _output_tensors(layer: Layer, samples: int) -> list[Tensor]:
    if not layer.calls:
        raise DataMismatch(f"the task does not use layer {layer.name!r} in predict")
    tensors = list(nested_tensors(layer.calls[0].output))
    if not tensors or any(tensor.ndim == 0 or len(tensor) != samples for tensor in tensors):
        raise DataMismatch(f"layer {layer.name!r} does not output one row per sample")
    return tensors


def nested_tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested dictionaries, lists and tuples."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping | tuple | list):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from nested_tensors(item)
