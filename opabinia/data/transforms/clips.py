"""Clips of videos: resizing and cropping of all frames alike, after :mod:`opabinia.data.transforms.frame_sampling`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge, MinLen
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional as F

from opabinia.config import register
from opabinia.contracts import Count, Fraction, Positive, Sample
from opabinia.data.transforms.sizes import Interpolation, check_range, image_size, random_below, shortest_edge_size

# --- in space ---------------------------------------------------------------------------------------------------------


@register.transform(name="scale_jitter")
@dataclass(frozen=True, kw_only=True)
class ShortSideJitter:
    """Resize the shorter side to a random length and crop a square at a random position, for all frames of a clip alike
    (Simonyan and Zisserman 2014, Very Deep Networks, section 3.1; SlowFast's rules).

    If the batch needs a shape (``shapes``), that has the size of the crop. The minimum of ``scale`` then shrinks with
    it and the maximum does not, so that small crops show as much of the frame (SlowFast's multigrid).

    Args:
        size: height and width of the crop, in pixels.
        scale: minimum and maximum of the shorter side, in pixels; null takes 8/7 and 10/7 of ``size``, SlowFast's for
            224.
        inverse_uniform: draw 1 / side uniformly, not the side: small sides are drawn more often.
        interpolation: used to resize, with antialiasing.

    Raises:
        ValueError: the minimum of the scale is above its maximum, or below the size of the crop.

    Example: a crop of 112 instead of 224 is taken from a shorter side of 128 to 320.
    """

    size: Count
    scale: tuple[Count, Count] | None = None
    inverse_uniform: bool = False
    interpolation: Interpolation = "bilinear"

    def __post_init__(self) -> None:
        check_range("scale", self._sides)
        if (low := self._sides[0]) < self.size:
            size = self.size
            raise ValueError(f"scale: a crop of {size} does not fit into a shorter side of {low}; begin at {size}")

    @property
    def _sides(self) -> tuple[int, int]:
        return self.scale or (round(self.size * 8 / 7), round(self.size * 10 / 7))

    def __call__(self, sample: Sample) -> Sample:
        """Return a random crop of the sample."""
        shape = sample.get("shape")
        height, width = shape[-2:] if shape else (self.size, self.size)
        sides = _covering_size(image_size(sample), self._random_side(min(height, width)), (height, width))
        image = F.resize(sample["image"], list(sides), F.InterpolationMode(self.interpolation))
        top, left = random_below(sides[0] - height + 1), random_below(sides[1] - width + 1)
        return {**sample, "image": F.crop(image, top, left, height, width)}

    def _random_side(self, crop: int) -> int:
        low, high = self._sides
        low = round(low * crop / self.size)
        share = float(torch.rand(()))
        if self.inverse_uniform:
            return round(1 / (1 / high + share * (1 / low - 1 / high)))
        return round(low + share * (high - low))


@register.transform(name="multi_scale_crop")
@dataclass(frozen=True, kw_only=True)
class MultiScaleCrop:
    """Crop a rectangle whose sides are random fractions of the shorter side, at a random one of some positions, and
    resize it (Wang et al. 2016, Temporal Segment Networks, section 3.2: corner cropping and scale jittering).

    If the batch needs a shape (``shapes``), that has the size of the output.

    Args:
        size: height and width of the output, in pixels.
        scales: fractions of the shorter side; height and width are drawn separately.
        max_distort: how many places in ``scales`` height and width may differ by.
        positions: ``corners``: the four corners and the center; ``grid``: these, the middles of the edges and the
            centers of the quarters (13 in all); ``random``: any.
        interpolation: used to resize, with antialiasing.

    Example: of a frame of 240 x 320 crops of 240, 210, 180 or 158 pixels, of sides at most one place apart.
    """

    size: Count
    scales: Annotated[Sequence[Positive], MinLen(1)] = (1.0, 0.875, 0.75, 0.66)
    max_distort: Annotated[int, Ge(0)] = 1
    positions: Literal["corners", "grid", "random"] = "corners"
    interpolation: Interpolation = "bilinear"

    def __call__(self, sample: Sample) -> Sample:
        """Return a random crop of the sample."""
        size, shape = image_size(sample), sample.get("shape")
        places = range(len(self.scales))
        pairs = [(row, column) for row in places for column in places if abs(row - column) <= self.max_distort]
        crop = [min(side, int(min(size) * self.scales[i])) for side, i in zip(size, _draw(pairs), strict=True)]
        margins = [whole - side for whole, side in zip(size, crop, strict=True)]
        if self.positions == "random":
            top, left = (random_below(margin + 1) for margin in margins)
        else:
            top, left = (
                quarters * (margin // 4)
                for quarters, margin in zip(_draw(_POSITIONS[self.positions]), margins, strict=True)
            )
        output = list(shape[-2:] if shape else (self.size, self.size))
        mode = F.InterpolationMode(self.interpolation)
        return {**sample, "image": F.resized_crop(sample["image"], top, left, *crop, output, mode)}


_CORNERS = ((0, 0), (0, 4), (4, 0), (4, 4), (2, 2))
_POSITIONS = {"corners": _CORNERS, "grid": (*_CORNERS, (2, 0), (2, 4), (4, 2), (0, 2), (1, 1), (1, 3), (3, 1), (3, 3))}
"""Rows and columns in quarters of the margins."""


def _draw(pairs: Sequence[tuple[int, int]]) -> tuple[int, int]:
    return pairs[random_below(len(pairs))]


@register.transform(name="three_crop")
def three_crop(
    sample: Sample, /, *, size: Count, short_side: Count | None = None, interpolation: Interpolation = "bilinear"
) -> Sample:
    """Resize the shorter side and crop a square: the center, or, for several views of a video (``video_views``), crop j
    of m along the longer side: with three left, center and right, or top, center and bottom (Wang et al. 2018,
    Non-local Neural Networks).

    Args:
        size: height and width of the crop, in pixels.
        short_side: the shorter side, in pixels; null takes ``size``, so that three crops cover the usual videos.
        interpolation: used to resize, with antialiasing.

    Raises:
        ValueError: ``short_side`` is less than ``size``.
    """
    if short_side is not None and short_side < size:
        raise ValueError(f"short_side: a crop of {size} does not fit into a shorter side of {short_side}")
    sides = shortest_edge_size(*image_size(sample), short_side or size)
    image = F.resize(sample["image"], list(sides), F.InterpolationMode(interpolation))
    view = sample.get("view")
    number, crops = view[1] if view else (0, 1)
    margins = [side - size for side in sides]
    center = [-(-margin // 2) for margin in margins]  # rounded up, as in SlowFast
    along = [-(-number * margin // (crops - 1)) for margin in margins] if crops > 1 else center
    top, left = (along[0], center[1]) if sides[0] > sides[1] else (center[0], along[1])
    return {**sample, "image": F.crop(image, top, left, size, size)}


@register.transform(name="clip_flip")
def clip_flip(sample: Sample, /, *, probability: Fraction = 0.5) -> Sample:
    """Mirror all frames left to right, unless the mirrored clip would belong to another class: samples have
    ``flip_changes_label`` for the classes that their source lists.

    Args:
        probability: of mirroring.
    """
    if float(torch.rand(())) >= probability or sample.get("flip_changes_label", False):
        return sample
    return {**sample, "image": F.horizontal_flip(sample["image"])}


@register.transform(name="frame_differences")
def frame_differences(sample: Sample, /) -> Sample:
    """Replace each frame of a clip by its difference to the frame before (Wang et al. 2016, TSN, section 3.2: RGB
    difference): half of it plus 128, so that 128 is no motion. The first frame becomes 128. After ``clip``, before
    changes of color.

    Raises:
        ValueError: the sample is no clip of uint8.
    """
    image = sample["image"]
    if image.ndim != 4 or image.dtype != torch.uint8:
        raise ValueError("frame_differences takes clips (uint8, T x C x H x W); put clip before it")
    frames = image.to(torch.int16)
    differences = torch.cat([torch.zeros_like(frames[:1]), frames[1:] - frames[:-1]])
    halved = (differences.div(2, rounding_mode="floor") + 128).to(torch.uint8)
    return {**sample, "image": tv_tensors.wrap(halved.as_subclass(torch.Tensor), like=image)}


def _covering_size(size: tuple[int, int], short: int, crop: tuple[int, int]) -> tuple[int, int]:
    """Return height and width with a shorter side of ``short``, or more if the crop would not fit."""
    sides = shortest_edge_size(*size, short)
    factor = max(1.0, *(wanted / side for wanted, side in zip(crop, sides, strict=True)))
    height, width = (max(wanted, round(side * factor)) for wanted, side in zip(crop, sides, strict=True))
    return height, width
