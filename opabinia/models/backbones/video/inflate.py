"""Weights of networks for images in networks for clips (Carreira and Zisserman 2017, I3D, section 2.4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from opabinia.models.backbones.timm import TimmBackbone, timm
from opabinia.models.backbones.video.base import ClipBackbone

Inflation = Literal["mean", "centre"]


class Inflated(NamedTuple):
    """What became of weights.

    Attributes:
        weights: what fits, by name.
        inflated: names of those that got a side in time, with both shapes.
        missing: names that nothing was there for.
        other_shape: names of those that fit in no way, with both shapes; they are left out.
    """

    weights: dict[str, Tensor]
    inflated: dict[str, str]
    missing: tuple[str, ...]
    other_shape: dict[str, str]


def inflated_kernel(kernel: Tensor, frames: int, inflation: Inflation = "mean") -> Tensor:
    """A kernel over places (M x N x h x w) over frames, too (M x N x frames x h x w).

    Args:
        frames: its side in time.
        inflation: ``mean``: the same for each frame, divided by their number, so that a clip that stands still gives
            what the image gives, save near its ends, where there is no frame before or behind (with zeros around a
            clip, a third is missing at the ends for 3 frames); ``centre``: in the middle, and 0 elsewhere, so that
            every frame gives what the image gives, at the ends, too, and only training makes use of the others.

    Raises:
        ValueError: the kernel is none over places.
    """
    if kernel.ndim != 4:
        raise ValueError(f"a kernel over places has 4 dimensions, not {kernel.ndim}")
    if inflation == "mean":
        return kernel[:, :, None].expand(-1, -1, frames, -1, -1) / frames
    made = kernel.new_zeros(*kernel.shape[:2], frames, *kernel.shape[2:])
    made[:, :, frames // 2] = kernel
    return made


def inflated(
    state: Mapping[str, Tensor], target_shapes: Mapping[str, Sequence[int]], inflation: Inflation = "mean"
) -> Inflated:
    """Weights of a network for images as those of a network for clips that has the same names.

    Args:
        state: tensors by name; what the target does not have is not looked at.
        target_shapes: of the network for clips.
        inflation: see :func:`inflated_kernel`.

    Example: ``conv1.weight`` of 64 x 3 x 7 x 7 becomes one of 64 x 3 x 5 x 7 x 7, a fifth for each frame.
    """
    weights: dict[str, Tensor] = {}
    grown, other_shape = {}, {}
    for name, shape in target_shapes.items():
        if name not in state:
            continue
        tensor, wanted = state[name], tuple(shape)
        shapes = f"{_told(tensor.shape)} -> {_told(wanted)}"
        if tuple(tensor.shape) == wanted:
            weights[name] = tensor
        elif tensor.ndim == 4 and len(wanted) == 5 and tuple(tensor.shape) == wanted[:2] + wanted[3:]:
            weights[name] = inflated_kernel(tensor, wanted[2], inflation)
            grown[name] = shapes
        else:
            other_shape[name] = shapes
    missing = tuple(name for name in target_shapes if name not in state)
    return Inflated(weights, grown, missing, other_shape)


def begin_with_images(net: ClipBackbone, channels: int, model: str, inflation: Inflation) -> None:
    """Fill a network for clips with the weights that timm has for a network for images, and with what these were
    trained on. They are downloaded.

    Args:
        channels: channels of the frames.
        model: timm's name of it.

    Raises:
        ValueError: timm knows no such model, or its weights do not fill the network.
    """
    images = timm(channels, model=model, pretrained=True)
    assert isinstance(images, TimmBackbone)
    found = inflated(images.model.state_dict(), {name: one.shape for name, one in net.state_dict().items()}, inflation)
    if found.missing or found.other_shape:
        wrong = [*(f"it has no {name}" for name in found.missing), *map(" ".join, found.other_shape.items())]
        more = f" ... ({len(wrong) - 3} more)" if len(wrong) > 3 else ""
        raise ValueError(
            f"images: the weights of timm's {model!r} do not fill this network: {'; '.join(wrong[:3])}{more}"
        )
    net.load_state_dict(found.weights)
    net.preprocessing = images.preprocessing


def _told(shape: Sequence[int] | torch.Size) -> str:
    return "x".join(str(side) for side in shape) or "number"
