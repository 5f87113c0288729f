"""Preprocessing of images for evaluation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from opabinia.config import register
from opabinia.contracts import Count, Positive, Sample
from opabinia.data.sample_keys import has_annotations
from opabinia.data.transforms.sizes import Interpolation


def resize_side(size: int, crop: float) -> int:
    """Return the length of the shorter side of which a crop of ``size`` is the share ``crop``; an even number
    (basecls).

    Example: 224 of 0.875 is a crop out of 256.
    """
    return int(size / crop / 2 + 0.5) * 2


@register.transform(name="resize_and_crop")
def resize_and_crop(
    sample: Sample, /, *, size: Count, crop: Positive = 0.875, interpolation: Interpolation = "bilinear"
) -> Sample:
    """Resize the shorter side and crop the center: the usual evaluation on ImageNet.

    Args:
        size: height and width of the crop, in pixels.
        crop: the crop's share of the resized shorter side; 0.875 resizes to 256 for 224.
        interpolation: used to resize.
    """
    return _resize_and_crop(sample, size, crop, interpolation, lambda image: F.center_crop(image, [size, size]))


@register.transform(name="resize_and_crops")
def resize_and_crops(
    sample: Sample,
    /,
    *,
    size: Count,
    crop: Positive = 0.875,
    crops: Literal[5, 10] = 10,
    interpolation: Interpolation = "bilinear",
) -> Sample:
    """Resize the shorter side and take several crops, whose predictions are averaged (Krizhevsky et al. 2012).

    The image becomes V x C x H x W; tasks that support views average their predictions over V.

    Args:
        size: height and width of each crop, in pixels.
        crop: the crop's share of the resized shorter side.
        crops: 5: the corners and the center; 10: these and their mirror images.
        interpolation: used to resize.
    """
    make_crops = v2.FiveCrop(size) if crops == 5 else v2.TenCrop(size)
    return _resize_and_crop(sample, size, crop, interpolation, lambda image: torch.stack(make_crops(image)))


def _resize_and_crop(
    sample: Sample, size: int, crop: float, interpolation: str, make_crops: Callable[[Any], torch.Tensor]
) -> Sample:
    if has_annotations(sample):
        raise ValueError("boxes and masks would not follow; take resize_shortest_edge, or Resize with CenterCrop")
    image = F.resize(sample["image"], [resize_side(size, crop)], F.InterpolationMode(interpolation))
    return {**sample, "image": tv_tensors.Image(make_crops(image))}
