"""What evaluations do to an image before a model sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from opabinia.config import register
from opabinia.contracts import Count, Positive, Sample
from opabinia.data.transforms.sizes import Interpolation


def resized_side(size: int, crop: float) -> int:
    """Length of the shorter side from which a crop of ``size`` takes the share ``crop``; an even number (basecls).

    Example: 224 of 0.875 is a crop out of 256.
    """
    return int(size / crop / 2 + 0.5) * 2


@register.transform(name="resize_and_crop")
def resize_and_crop(
    sample: Sample, /, *, size: Count, crop: Positive = 0.875, interpolation: Interpolation = "bilinear"
) -> Sample:
    """Resize the shorter side and take the centre: the usual evaluation on ImageNet.

    Args:
        size: height and width of the crop, in pixels.
        crop: share of the resized shorter side that the crop takes; 0.875 resizes to 256 for 224.
        interpolation: how it is resized, with antialias.
    """
    return _cropped(sample, size, crop, interpolation, lambda image: F.center_crop(image, [size, size]))


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
    """Resize the shorter side and take several crops, which a model predicts together (Krizhevsky et al. 2012).

    The image becomes V x C x H x W; tasks that know views take the mean of what they say of each.

    Args:
        size: height and width of each crop, in pixels.
        crop: share of the resized shorter side that a crop takes.
        crops: 5: the corners and the centre; 10: they and their mirror images.
        interpolation: how it is resized, with antialias.
    """
    cut = v2.FiveCrop(size) if crops == 5 else v2.TenCrop(size)
    return _cropped(sample, size, crop, interpolation, lambda image: torch.stack(cut(image)))


def _cropped(sample: Sample, size: int, crop: float, interpolation: str, cut: Callable[[Any], torch.Tensor]) -> Sample:
    if "boxes" in sample:
        raise ValueError("boxes would not follow; take resize_shortest, or Resize with CenterCrop")
    side = resized_side(size, crop)
    image = F.resize(sample["image"], [side], interpolation=getattr(F.InterpolationMode, interpolation.upper()))
    return {**sample, "image": tv_tensors.Image(cut(image))}
