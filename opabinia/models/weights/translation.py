"""Registry of other systems' weight formats, filled by the modules in ``opabinia.models.weights.FORMAT_MODULES``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Literal, NamedTuple

from torch import Tensor

from opabinia.models.weights import FORMAT_MODULES
from opabinia.runtime.text import printable

ChannelOrder = Literal["rgb", "bgr"]
Weights = Mapping[str, Tensor]

BACKBONE = "backbone.model."
"""Prefix of the parameters of timm models in our tasks."""


class WeightFormat(NamedTuple):
    """The naming scheme of another system.

    Attributes:
        prefix: prefix of a name that only this system has.
        names: description for messages, such as "MoCo's names".
        channel_order: channel order of the first convolution.
        translate: maps weights to our names.
    """

    prefix: str
    names: str
    channel_order: ChannelOrder
    translate: Callable[[Weights], dict[str, Tensor]]


ShapeAdapter = Callable[[str, Tensor, Tensor], Tensor | None]
"""Map the name of a tensor, the tensor and the one it replaces to a tensor of the latter's shape, or None."""

_formats: list[WeightFormat] = []
_adapters: list[ShapeAdapter] = []


def register_weight_format(*formats: WeightFormat) -> None:
    """Register formats. The first one with a matching prefix is used."""
    _formats.extend(formats)


def register_shape_adapter(adapter: ShapeAdapter) -> ShapeAdapter:
    """Register a function that adapts tensors of other shapes."""
    _adapters.append(adapter)
    return adapter


class Translation(NamedTuple):
    """Weights under our names, and a description of what was changed, empty if nothing was."""

    weights: dict[str, Tensor]
    description: str


def translate_weights(weights: Weights, channel_order: ChannelOrder | None = None) -> Translation:
    """Translate the weights of a registered format to our names and RGB; weights of no such format keep their names.

    Args:
        weights: by the names in their file.
        channel_order: channel order of the first convolution; None: that of the format, RGB without one.
    """
    for module in FORMAT_MODULES:
        import_module(module)
    format = next((known for known in _formats if any(name.startswith(known.prefix) for name in weights)), None)
    translated = dict(weights) if format is None else format.translate(weights)
    changes = [] if format is None else [format.names]
    if (channel_order or (format.channel_order if format else "rgb")) == "bgr":
        for name, tensor in translated.items():
            if tensor.ndim == 4 and tensor.shape[1] == 3:  # only the convolutions of images have three channels
                translated[name] = tensor.flip(1)
                changes.append(f"{name} turned from BGR to RGB")
    return Translation(translated, ", ".join(changes))


_COUNTER = ".num_batches_tracked"
"""End of the name of a counter of batch norms, which older files do not have and no result depends on."""


def translate_by_order(weights: Weights, expected: Weights) -> dict[str, Tensor]:
    """Give weights the names of a model whose tensors they are, in the same order. Counters of batch norms are dropped.

    Args:
        weights: tensors of a file.
        expected: the state dict of the model.

    Raises:
        ValueError: their number, or the shape of one, is not that of the model.
    """
    names = [name for name in expected if not name.endswith(_COUNTER)]
    given = {name: tensor for name, tensor in weights.items() if not name.endswith(_COUNTER)}
    if len(names) != len(given):
        raise ValueError(f"the file has {len(given)} tensors, the model {len(names)}")
    for name, (key, tensor) in zip(names, given.items(), strict=True):
        if tensor.shape != expected[name].shape:
            message = f"{key} has the shape {tuple(tensor.shape)}, {name} of the model {tuple(expected[name].shape)}"
            raise ValueError(printable(message))
    return dict(zip(names, given.values(), strict=True))


def adapt_shape(name: str, tensor: Tensor, target: Tensor) -> Tensor | None:
    """Adapt ``tensor`` to the shape of ``target`` by the first adapter that can; None if there is none."""
    results = (adapter(name, tensor, target) for adapter in _adapters)
    return next((result for result in results if result is not None), None)
