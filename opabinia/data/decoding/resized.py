"""Resized crops that are decoded where the batch needs them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate
from torchvision.transforms.v2 import functional as F

from opabinia.contracts import Sample, channel_count
from opabinia.data.decoding.images import Box, DeferredImage, LazyImage, decode_sample


@dataclass(frozen=True)
class ResizedCrop(DeferredImage):
    """A crop of an image, resized and possibly mirrored when it is decoded.

    A batch draws all its crops first and decodes them afterwards, each straight into its place: the small calls of the
    first loop and the pixels of the second would evict each other from the processor's caches.

    Attributes:
        image: has a ``size``.
        box: the crop, in pixels of the image.
        size: height and width of the result.
        interpolation: used to resize the crop, with antialiasing.
        is_mirrored: left to right.
    """

    image: LazyImage
    box: Box
    size: tuple[int, int]
    interpolation: Any
    is_mirrored: bool = False

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of the result."""
        return channel_count(self.image.channels), *self.size

    def mirror(self) -> ResizedCrop:
        """Return the mirror image, left to right."""
        return replace(self, is_mirrored=not self.is_mirrored)

    def decode(self) -> Tensor:
        """Return the crop (uint8, C x H x W), channel by channel in memory.

        Raises:
            ValueError: the image is broken.
        """
        pixels = np.empty(self.shape, dtype=np.uint8)
        self.decode_into(pixels)
        return torch.from_numpy(pixels)

    def decode_into(self, pixels: NDArray[np.uint8]) -> None:
        """Write the crop into ``pixels`` (C x H x W).

        Raises:
            ValueError: the image is broken.
        """
        crop = self.image.crop(self.box, self.size)
        resized = resize_pixels(crop, self.size, self.interpolation, antialias=True).numpy()
        pixels[:] = resized[:, :, ::-1] if self.is_mirrored else resized


def decode_large(sample: Sample) -> Sample:
    """Decode the sample's image if it is a :class:`ResizedCrop` that takes more memory than its result.

    Raises:
        ValueError: the image is broken.
    """
    image = sample["image"]
    is_large = isinstance(image, ResizedCrop) and image.image.held_bytes > math.prod(image.shape)
    return decode_sample(sample) if is_large else sample


def resize_pixels(pixels: Tensor, size: Sequence[int], interpolation: Any, antialias: bool | None) -> Tensor:
    """Resize an image (uint8, C x H x W) to a height and width, as torchvision does."""
    bilinear = interpolation in ("bilinear", F.InterpolationMode.BILINEAR)
    if bilinear and antialias and pixels.stride()[0] == 1 and _RESIZES_UINT8:
        # What torchvision does if the channels of a pixel are adjacent in memory, in a third of the calls.
        batch = pixels.as_strided((1, *pixels.shape), (pixels.numel(), *pixels.stride()))
        return interpolate(batch, tuple(size), mode="bilinear", antialias=True)[0]
    resized: Tensor = F.resize_image(pixels, list(size), interpolation=interpolation, antialias=antialias)
    return resized


# Whether torch resizes uint8 directly; through floating point numbers values are rounded differently.
_RESIZES_UINT8 = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
