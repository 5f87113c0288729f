"""Split a list of transforms into a part for the workers and a part for batches on the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torchvision.transforms import v2

from opabinia.contracts import Sample, Transform
from opabinia.data.device_transforms.recorded import RECORDED_OPS, RecordedImage
from opabinia.data.errors import part_name
from opabinia.data.transforms.augment import RandomErase, RandomGaussianBlur, lighting
from opabinia.data.transforms.instances import DropEmptyObjects
from opabinia.data.transforms.patch_masks import block_patch_mask, random_patch_mask
from opabinia.data.transforms.views import Views

BATCHABLE = (
    RandomErase,
    RandomGaussianBlur,
    v2.AutoAugment,
    v2.ColorJitter,
    v2.RandAugment,
    v2.RandomAdjustSharpness,
    v2.RandomAutocontrast,
    v2.RandomChannelPermutation,
    v2.RandomEqualize,
    v2.RandomErasing,
    v2.RandomGrayscale,
    v2.RandomHorizontalFlip,
    v2.RandomInvert,
    v2.RandomPhotometricDistort,
    v2.RandomPosterize,
    v2.RandomSolarize,
    v2.RandomVerticalFlip,
    v2.TrivialAugmentWide,
)
"""Transforms that keep the size of an image and of which every operation can be recorded."""

CONTAINERS = (v2.RandomApply, v2.RandomChoice, v2.RandomOrder)
"""Transforms that apply others."""

BATCHABLE_FUNCTIONS: tuple[Callable[..., Any], ...] = (lighting, random_patch_mask, block_patch_mask)
"""Transforms that are functions; patch masks do not change the image."""


def is_batchable(transform: Transform) -> bool:
    """Return whether the operations of a transform can be applied later, to a batch."""
    if isinstance(transform, DropEmptyObjects):
        return is_batchable(transform.transform)
    if isinstance(transform, partial):
        return transform.func in BATCHABLE_FUNCTIONS
    if isinstance(transform, CONTAINERS):
        return all(map(is_batchable, transform.transforms))
    if isinstance(transform, v2.RandomErasing):
        return transform.value is not None  # otherwise it draws noise for every pixel
    return isinstance(transform, BATCHABLE) or transform in BATCHABLE_FUNCTIONS


def split_transforms(transforms: Sequence[Transform]) -> tuple[list[Transform], list[Transform]]:
    """Return the transforms for workers, and those at the end that are batchable. ``views`` is one for workers; the
    transforms of each view are split themselves."""
    first = len(transforms)
    while first and is_batchable(transforms[first - 1]):
        first -= 1
    return list(transforms[:first]), list(transforms[first:])


def with_recording(transforms: Sequence[Transform]) -> list[Transform]:
    """Return transforms for workers that record the operations of the batchable ones."""
    workers, batchable = split_transforms(transforms)
    if batchable:
        return [*workers, RecordTransforms(batchable)]
    if workers and isinstance(workers[-1], Views):  # all views have operations, or none has
        return [*workers[:-1], workers[-1].with_transforms(_view_with_recording)]
    return workers


def _view_with_recording(transforms: Sequence[Transform]) -> list[Transform]:
    workers, batchable = split_transforms(transforms)
    return [*workers, RecordTransforms(batchable)]


@dataclass(frozen=True)
class RecordTransforms:
    """Record the operations of transforms; the image itself is unchanged.

    Attributes:
        transforms: batchable ones.
    """

    transforms: Sequence[Transform]

    def __call__(self, sample: Sample) -> Sample:
        """Return the sample with ``recorded_ops``, a list of :class:`ImageOp`.

        Raises:
            ValueError: the image is not uint8, or an operation could not be recorded.
        """
        image = sample["image"]
        if image.dtype != torch.uint8:
            raise ValueError(f"transforms on the device need images of uint8, not {image.dtype}")
        recorded: Sample = {**sample, "image": RecordedImage.like(image)}
        for transform in self.transforms:
            recorded = transform(recorded)
            if not isinstance(recorded["image"], RecordedImage):
                raise ValueError(
                    f"{part_name(transform)} cannot be applied on the device; set data.augment_on to workers"
                )
        return {**recorded, "image": image, RECORDED_OPS: list(recorded["image"].ops)}
