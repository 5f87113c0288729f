"""Transforms of images that are not 8-bit gray or color, and which transforms are for those alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2

from opabinia.config import register
from opabinia.contracts import Channels, Fraction, NonNegative, Sample, Transform, are_8bit_images
from opabinia.data.transforms.augment import lighting
from opabinia.data.transforms.instances import DropEmptyObjects
from opabinia.data.transforms.policies import timm_policy
from opabinia.data.transforms.views import Views

_OF_8BIT_IMAGES: tuple[Any, ...] = (
    v2.AugMix,
    v2.AutoAugment,
    v2.ColorJitter,
    v2.Grayscale,
    v2.JPEG,
    v2.RandAugment,
    v2.RandomAdjustSharpness,
    v2.RandomAutocontrast,
    v2.RandomEqualize,
    v2.RandomGrayscale,
    v2.RandomPhotometricDistort,
    v2.RandomPosterize,
    v2.RandomSolarize,
    v2.RGB,
    v2.TrivialAugmentWide,
)
_FUNCTIONS_OF_8BIT_IMAGES = (lighting, timm_policy)
_CONTAINERS = (v2.RandomApply, v2.RandomChoice, v2.RandomOrder)


def check_transforms(transforms: Sequence[Transform], channels: Channels) -> None:
    """Check that transforms are defined for images that are read with these channels.

    Raises:
        ValueError: some are for 8-bit gray or color only; all of them are named.
    """
    if are_8bit_images(channels):
        return
    if names := list(dict.fromkeys(_of_8bit_images(transforms))):
        raise ValueError(
            f"{', '.join(names)}: defined for 8-bit gray or color images, and the data has channels: {channels}; "
            "channel_jitter changes brightness, contrast and noise of any channels"
        )


def _of_8bit_images(transforms: Sequence[Transform]) -> Iterator[str]:
    for transform in transforms:
        if isinstance(transform, DropEmptyObjects):
            yield from _of_8bit_images([transform.transform])
        elif isinstance(transform, _CONTAINERS):
            yield from _of_8bit_images(transform.transforms)
        elif isinstance(transform, Views):
            for view in transform.each:
                yield from _of_8bit_images(view)
        elif isinstance(transform, _OF_8BIT_IMAGES):
            yield type(transform).__name__
        else:
            function = transform.func if isinstance(transform, partial) else transform
            if function in _FUNCTIONS_OF_8BIT_IMAGES:
                yield "timm_policy" if function is timm_policy else "pca_lighting"


@register.transform(name="channel_jitter")
@dataclass(frozen=True, kw_only=True)
class ChannelJitter:
    """Change brightness and contrast of each channel by factors of its own, and add noise: ColorJitter for images with
    any number of channels, of 8 bits or in 0..1.

    A channel x becomes (x - m) * contrast + m * brightness + noise, where m is its mean, clipped to the range.

    Args:
        brightness: the factor is drawn from 1 - ``brightness`` to 1 + ``brightness``.
        contrast: the factor is drawn from 1 - ``contrast`` to 1 + ``contrast``.
        noise: standard deviation of Gaussian noise, as a share of the range.
        probability: of changing an image.
    """

    brightness: Fraction = 0.2
    contrast: Fraction = 0.2
    noise: NonNegative = 0.0
    probability: Fraction = 1.0

    def __call__(self, sample: Sample) -> Sample:
        """Return the sample, with its image changed or unchanged."""
        if torch.rand(()) >= self.probability:
            return sample
        image = sample["image"].as_subclass(Tensor)
        high = 1.0 if image.is_floating_point() else 255.0
        shape = (*image.shape[-3:-2], 1, 1)
        brightness = 1 + self.brightness * (2 * torch.rand(shape) - 1)
        contrast = 1 + self.contrast * (2 * torch.rand(shape) - 1)
        values = image.float()
        mean = values.mean((-2, -1), keepdim=True)
        changed = (values - mean) * contrast + mean * brightness
        if self.noise:
            changed += high * self.noise * torch.randn(changed.shape)
        changed = changed.clamp_(0, high)
        result = changed if image.is_floating_point() else changed.round_().to(image.dtype)
        return {**sample, "image": tv_tensors.wrap(result, like=sample["image"])}
