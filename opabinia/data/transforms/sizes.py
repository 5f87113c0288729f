"""Sizes to which pictures are resized, the things in them with them."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from annotated_types import MinLen
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from opabinia.config import register
from opabinia.contracts import Count, Positive, Sample
from opabinia.data.transforms.instances import tidied

Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos"]


def shortest_edge(height: int, width: int, short: int, longest: int | None = None) -> tuple[int, int]:
    """Height and width when the shorter side becomes ``short``, and the longer one at most ``longest`` (detectron2).

    Example: 480 x 640 to 800 and at most 1333 is 800 x 1067.
    """
    scale = short / min(height, width)
    if longest is not None:
        # In detectron2's order: first to the short side, then down again if the long one is too long.
        sides = (short, scale * width) if height < width else (scale * height, short)
        down = min(1.0, longest / max(sides))
        return max(1, int(sides[0] * down + 0.5)), max(1, int(sides[1] * down + 0.5))
    return (short, int(scale * width + 0.5)) if height < width else (int(scale * height + 0.5), short)


@register.transform(name="resize_shortest")
class ResizeShortest:
    """Resize to a given shorter side, or one that is drawn; boxes, masks and points follow (detectron2's
    ResizeShortestEdge, with its rounding).

    Args:
        short: the shorter side, in pixels, or several.
        sampling: which of several: ``choice`` is one of them, ``range`` any between the two.
        longest: what the longer side may not exceed; then the shorter one is less than ``short``.
        interpolation: how images are resized, with antialias.

    Raises:
        ValueError: a range that is not two sizes, the smaller first.

    Example:
        ``short: [640, 800], sampling: range, longest: 1333`` is Mask R-CNN's usual training on COCO; an image of
        480 x 640 for which 800 is drawn becomes 800 x 1067.
    """

    def __init__(
        self,
        *,
        short: Count | Annotated[list[Count], MinLen(1)],
        sampling: Literal["choice", "range"] = "choice",
        longest: Count | None = None,
        interpolation: Interpolation = "bilinear",
    ) -> None:
        sizes = [short] if isinstance(short, int) else short
        if sampling == "range" and not (len(sizes) == 2 and sizes[0] <= sizes[1]):
            raise ValueError(f"short: a range is two sizes, the smaller first, such as [640, 800]; there is {short}")
        self._sizes, self._sampling, self._longest, self._interpolation = sizes, sampling, longest, interpolation

    def __call__(self, sample: Sample) -> Sample:
        """The sample at a size that is drawn for it."""
        return _resized(sample, shortest_edge(*size_of(sample), self._short(), self._longest), self._interpolation)

    def _short(self) -> int:
        if len(self._sizes) == 1:
            return self._sizes[0]
        if self._sampling == "range":
            return self._sizes[0] + drawn(self._sizes[1] - self._sizes[0] + 1)
        return self._sizes[drawn(len(self._sizes))]


def scaled_into(height: int, width: int, target: tuple[float, float]) -> tuple[int, int]:
    """Height and width of the largest image of this shape within ``target`` (height, width; detectron2's rounding).

    Example: 480 x 640 within 1536 x 1536 is 1152 x 1536.
    """
    scale = min(target[0] / height, target[1] / width)
    return max(1, round(height * scale)), max(1, round(width * scale))


@register.transform(name="resize_scale")
class ResizeScale:
    """Resize to fit into a rectangle that is scaled by a drawn factor (detectron2's ResizeScale).

    Followed by ``fixed_size_crop`` it is large-scale jitter (Ghiasi et al. 2021, Simple Copy-Paste, section 3).

    Args:
        size: height and width of the rectangle, in pixels (the paper's).
        scale: least and largest factor, drawn evenly; [0.8, 1.25] is the paper's standard jitter.
        interpolation: how images are resized, with antialias.

    Raises:
        ValueError: the least factor is above the largest.

    Example: 480 x 640 becomes 1152 x 1536 when 1.5 is drawn.
    """

    def __init__(
        self,
        *,
        size: tuple[Count, Count] = (1024, 1024),
        scale: tuple[Positive, Positive] = (0.1, 2.0),
        interpolation: Interpolation = "bilinear",
    ) -> None:
        if scale[0] > scale[1]:
            raise ValueError(f"scale: [{scale[0]}, {scale[1]}] begins above its end; write [{scale[1]}, {scale[0]}]")
        self._size, self._scale, self._interpolation = size, scale, interpolation

    def __call__(self, sample: Sample) -> Sample:
        """The sample at a size that is drawn for it."""
        factor = torch.empty(()).uniform_(*self._scale).item()
        target = self._size[0] * factor, self._size[1] * factor
        return _resized(sample, scaled_into(*size_of(sample), target), self._interpolation)


def _resized(sample: Sample, size: tuple[int, int], interpolation: str) -> Sample:
    resize = v2.Resize(list(size), interpolation=getattr(F.InterpolationMode, interpolation.upper()))
    found = resize({key: value for key, value in sample.items() if key != "masks"})
    if "masks" in sample:
        found["masks"] = tv_tensors.Mask(masks_at(sample["masks"], size))
    return tidied(found)


def masks_at(masks: Tensor, size: tuple[int, int]) -> Tensor:
    """Masks (N x H x W) at another size: a pixel is as the one that its middle lies in. torchvision's rule for masks
    moves them by up to half a pixel."""
    found: Tensor = F.resize(masks.as_subclass(Tensor), list(size), F.InterpolationMode.NEAREST_EXACT)
    return found


def size_of(sample: Sample) -> tuple[int, int]:
    """Height and width of the image."""
    height, width = sample["image"].shape[-2:]
    return height, width


def drawn(count: int) -> int:
    """A number from 0 to count - 1."""
    return int(torch.randint(count, ()))
