"""Augmentation policies of timm, with which most recipes of ResNets, ConvNeXts and ViTs were published."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from PIL import Image
from torchvision import tv_tensors

from opabinia.config import register
from opabinia.contracts import Sample

_FILL = (124, 116, 104)  # ImageNet's mean, as in timm


@register.transform(name="timm_policy")
def timm_policy(sample: Sample, /, *, policy: str, translate: int = 100) -> Sample:
    """Timm's RandAugment, AutoAugment, 3-Augment or AugMix, by its own name for them.

    torchvision's ``RandAugment``, ``AutoAugment``, ``AugMix`` and ``TrivialAugmentWide`` are transforms of their own;
    these differ in strengths and in their spread.

    Args:
        policy: such as ``rand-m9-mstd0.5-inc1`` (RandAugment of magnitude 9 +- 0.5, each operation stronger with it),
            ``original``, ``3a``, ``augmix-m3-w3``.
        translate: largest shift in pixels.

    Raises:
        ValueError: timm knows no such policy, the image has neither one nor three channels, or there are boxes in it.
    """
    if "boxes" in sample:
        raise ValueError("timm moves pixels, and boxes would not follow; take single transforms, such as RandomAffine")
    pixels = sample["image"]
    if pixels.shape[0] not in (1, 3):
        raise ValueError(f"a policy works on pictures of 1 or 3 channels, not {pixels.shape[0]}")
    grey = pixels.shape[0] == 1
    array = pixels.permute(1, 2, 0).contiguous().numpy()
    image = Image.fromarray(array[:, :, 0]).convert("RGB") if grey else Image.fromarray(array)
    changed = _policy(policy, translate)(image)
    found = np.array(changed.convert("L") if grey else changed)
    return {**sample, "image": tv_tensors.Image(torch.from_numpy(found.reshape(*array.shape)).permute(2, 0, 1))}


@cache
def _policy(policy: str, translate: int) -> Any:
    from timm.data.auto_augment import augment_and_mix_transform, auto_augment_transform, rand_augment_transform

    options = {"translate_const": translate, "img_mean": _FILL}
    makers = {"rand": rand_augment_transform, "augmix": augment_and_mix_transform}
    make = makers.get(policy.partition("-")[0], auto_augment_transform)
    try:
        return make(policy, options)
    except (AssertionError, ValueError, KeyError, IndexError) as error:
        raise ValueError(f"policy: timm knows no {policy!r} ({type(error).__name__} {error})") from error
