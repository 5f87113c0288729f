"""Transforms that resize images together with their annotations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import MinLen
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from opabinia.config import register
from opabinia.contracts import Count, Positive, Sample
from opabinia.data.transforms.instances import drop_empty_objects

Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos"]


def shortest_edge_size(height: int, width: int, short: int, max_size: int | None = None) -> tuple[int, int]:
    """Return height and width so that the shorter side is ``short`` and the longer one at most ``max_size``
    (detectron2).

    Example: 480 x 640 to 800 and at most 1333 is 800 x 1067.
    """
    scale = short / min(height, width)
    sides = (short, scale * width) if height < width else (scale * height, short)
    # In detectron2's order: first to the short side, then down again if the long one is too long.
    down = 1.0 if max_size is None else min(1.0, max_size / max(sides))
    return max(1, int(sides[0] * down + 0.5)), max(1, int(sides[1] * down + 0.5))


@register.transform(name="resize_shortest_edge")
@dataclass(frozen=True, kw_only=True)
class ResizeShortestEdge:
    """Resize the shorter side to a given or random length; boxes, masks and keypoints follow (detectron2's
    ResizeShortestEdge, with its rounding).

    Args:
        short_edge_length: the shorter side, in pixels, or several.
        sampling: with several: ``choice`` draws one of them, ``range`` any length between the two.
        max_size: maximum of the longer side, in pixels; it may make the shorter side less than ``short_edge_length``.
        interpolation: used for images, with antialiasing.

    Raises:
        ValueError: a range that is not two lengths, the smaller first.

    Example:
        ``short_edge_length: [640, 800], sampling: range, max_size: 1333`` is Mask R-CNN's usual training on COCO; an
        image of 480 x 640 for which 800 is drawn becomes 800 x 1067.
    """

    short_edge_length: Count | Annotated[list[Count], MinLen(1)]
    sampling: Literal["choice", "range"] = "choice"
    max_size: Count | None = None
    interpolation: Interpolation = "bilinear"

    def __post_init__(self) -> None:
        lengths = self.short_edge_length
        ascending = isinstance(lengths, list) and len(lengths) == 2 and lengths[0] <= lengths[1]
        if self.sampling == "range" and not ascending:
            message = "a range is two lengths, the smaller first, such as [640, 800], not"
            raise ValueError(f"short_edge_length: {message} {lengths}")

    def __call__(self, sample: Sample) -> Sample:
        """Return the sample at a random size."""
        lengths = [self.short_edge_length] if isinstance(self.short_edge_length, int) else self.short_edge_length
        if len(lengths) == 1:
            length = lengths[0]
        elif self.sampling == "range":
            length = lengths[0] + random_below(lengths[1] - lengths[0] + 1)
        else:
            length = lengths[random_below(len(lengths))]
        return _resize(sample, shortest_edge_size(*image_size(sample), length, self.max_size), self.interpolation)


def fit_within(height: int, width: int, target: tuple[float, float]) -> tuple[int, int]:
    """Return the largest size with this aspect ratio within ``target`` (height, width; detectron2's rounding).

    Example: 480 x 640 within 1536 x 1536 is 1152 x 1536.
    """
    scale = min(target[0] / height, target[1] / width)
    return max(1, round(height * scale)), max(1, round(width * scale))


@register.transform(name="resize_scale")
@dataclass(frozen=True, kw_only=True)
class ResizeScale:
    """Resize to fit into a rectangle that is scaled by a random factor (detectron2's ResizeScale).

    Followed by ``fixed_size_crop`` it is large-scale jitter (Ghiasi et al. 2021, Simple Copy-Paste, section 3).

    Args:
        size: height and width of the rectangle, in pixels (default: the paper's).
        scale: minimum and maximum factor, drawn uniformly; [0.8, 1.25] is the paper's standard jitter.
        interpolation: used for images, with antialiasing.

    Raises:
        ValueError: the minimum is above the maximum.

    Example: 480 x 640 becomes 1152 x 1536 when 1.5 is drawn.
    """

    size: tuple[Count, Count] = (1024, 1024)
    scale: tuple[Positive, Positive] = (0.1, 2.0)
    interpolation: Interpolation = "bilinear"

    def __post_init__(self) -> None:
        check_range("scale", self.scale)

    def __call__(self, sample: Sample) -> Sample:
        """Return the sample at a random size."""
        factor = torch.empty(()).uniform_(*self.scale).item()
        target = self.size[0] * factor, self.size[1] * factor
        return _resize(sample, fit_within(*image_size(sample), target), self.interpolation)


def check_range(name: str, values: tuple[float, float]) -> None:
    """Check that the minimum of a range comes first.

    Raises:
        ValueError: it does not; the text begins with ``name``.
    """
    low, high = values
    if low > high:
        raise ValueError(f"{name}: the minimum of [{low}, {high}] is above the maximum; write [{high}, {low}]")


def _resize(sample: Sample, size: tuple[int, int], interpolation: str) -> Sample:
    resize = v2.Resize(list(size), F.InterpolationMode(interpolation))
    masks = {key: value for key, value in sample.items() if isinstance(value, tv_tensors.Mask)}
    result = resize({key: value for key, value in sample.items() if key not in masks})
    result |= {key: tv_tensors.Mask(resize_masks(value, size)) for key, value in masks.items()}
    return drop_empty_objects(result)


def resize_masks(masks: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize masks (N x H x W, or a map H x W): each pixel takes the value of the pixel that its center lies in.

    torchvision's rule for masks shifts them by up to half a pixel.
    """
    planes = masks.as_subclass(Tensor).reshape(-1, *masks.shape[-2:])
    resized: Tensor = F.resize(planes, list(size), F.InterpolationMode.NEAREST_EXACT)
    return resized.reshape(*masks.shape[:-2], *size)


def image_size(sample: Sample) -> tuple[int, int]:
    """Return height and width of the image."""
    height, width = sample["image"].shape[-2:]
    return height, width


def random_below(count: int) -> int:
    """Draw an integer from 0 to count - 1 from torch's global generator."""
    return int(torch.randint(count, ()))
