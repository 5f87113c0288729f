"""Inflate 2-d weights into 3-d networks (Carreira and Zisserman 2017, I3D, section 2.4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from torch import Tensor

from opabinia.models.backbones.timm import TimmBackbone, timm
from opabinia.models.backbones.video.base import ClipBackbone

Inflation = Literal["mean", "center"]
"""See :func:`inflate_kernel`."""


class InflatedWeights(NamedTuple):
    """The result of :func:`inflate_weights`.

    Attributes:
        weights: the tensors that fit, by name.
        inflated: names of the tensors that got a temporal dimension, with both shapes.
        missing: names of the target without a source tensor.
        other_shape: names of the tensors that were dropped because their shape does not fit, with both shapes.
    """

    weights: dict[str, Tensor]
    inflated: dict[str, str]
    missing: tuple[str, ...]
    other_shape: dict[str, str]


def inflate_kernel(kernel: Tensor, frames: int, inflation: Inflation = "mean") -> Tensor:
    """Inflate a 2-d kernel (M x N x h x w) to a 3-d one (M x N x frames x h x w).

    Args:
        frames: temporal size of the result.
        inflation: ``mean`` repeats the kernel for each frame and divides it by their number, so that a static clip
            gives the features of the image, except at its ends, where zero padding replaces the missing frames (for 3
            frames, a third of the sum); ``center`` puts the kernel into the middle frame and 0 elsewhere, so that each
            frame gives the features of the image, also at the ends, and only training starts to use the other frames.

    Raises:
        ValueError: the kernel does not have 4 dimensions.
    """
    if kernel.ndim != 4:
        raise ValueError(f"a 2-d kernel has 4 dimensions, not {kernel.ndim}")
    if inflation == "mean":
        return kernel[:, :, None].expand(-1, -1, frames, -1, -1) / frames
    inflated = kernel.new_zeros(*kernel.shape[:2], frames, *kernel.shape[2:])
    inflated[:, :, frames // 2] = kernel
    return inflated


def inflate_weights(
    state: Mapping[str, Tensor], target_shapes: Mapping[str, Sequence[int]], inflation: Inflation = "mean"
) -> InflatedWeights:
    """Convert the weights of an image network for a clip network with the same parameter names.

    Args:
        state: tensors by name; names that the target does not have are ignored.
        target_shapes: tensor shapes of the clip network.
        inflation: see :func:`inflate_kernel`.

    Example: ``conv1.weight`` of 64 x 3 x 7 x 7 becomes one of 64 x 3 x 5 x 7 x 7, a fifth for each frame.
    """
    weights: dict[str, Tensor] = {}
    inflated, other_shape = {}, {}
    for name, target_shape in target_shapes.items():
        if name not in state:
            continue
        tensor, shape = state[name], tuple(target_shape)
        shapes = " -> ".join("x".join(map(str, size)) or "number" for size in (tensor.shape, shape))
        if tuple(tensor.shape) == shape:
            weights[name] = tensor
        elif tensor.ndim == 4 and len(shape) == 5 and tuple(tensor.shape) == shape[:2] + shape[3:]:
            weights[name] = inflate_kernel(tensor, shape[2], inflation)
            inflated[name] = shapes
        else:
            other_shape[name] = shapes
    missing = tuple(name for name in target_shapes if name not in state)
    return InflatedWeights(weights, inflated, missing, other_shape)


def load_image_weights(net: ClipBackbone, channels: int, model: str, inflation: Inflation) -> None:
    """Fill a clip network with the inflated pretrained weights of a timm image network, and take over the
    preprocessing that these were trained with. The weights are downloaded.

    Args:
        channels: channels of the frames.
        model: timm's name of the image network.
        inflation: see :func:`inflate_kernel`.

    Raises:
        ValueError: timm has no such model, or its weights do not fill the network.
    """
    source = timm(channels, model=model, pretrained=True)
    assert isinstance(source, TimmBackbone)
    shapes = {name: tensor.shape for name, tensor in net.state_dict().items()}
    result = inflate_weights(source.model.state_dict(), shapes, inflation)
    if result.missing or result.other_shape:
        problems = [*(f"it has no {name}" for name in result.missing), *map(" ".join, result.other_shape.items())]
        more = f" ... ({len(problems) - 3} more)" if len(problems) > 3 else ""
        raise ValueError(
            f"pretrained_2d: the weights of timm's {model!r} do not fill this network: {'; '.join(problems[:3])}{more}"
        )
    net.load_state_dict(result.weights)
    net.preprocessing = source.preprocessing
