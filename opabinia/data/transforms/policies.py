"""Augmentation policies of timm, which most published recipes of ResNets, ConvNeXts and ViTs use."""

from __future__ import annotations

from functools import cache
from typing import Any

from torchvision import tv_tensors
from torchvision.transforms.v2.functional import to_pil_image

from opabinia.config import register
from opabinia.contracts import Sample
from opabinia.data.sample_keys import has_annotations

_FILL = (124, 116, 104)  # ImageNet's mean, as in timm


@register.transform(name="timm_policy")
def timm_policy(sample: Sample, /, *, policy: str, translate: int = 100) -> Sample:
    """Apply timm's RandAugment, AutoAugment, 3-Augment or AugMix, by timm's name of the policy.

    torchvision's ``RandAugment``, ``AutoAugment``, ``AugMix`` and ``TrivialAugmentWide`` are separate transforms; their
    magnitudes and the variation of these differ.

    Args:
        policy: such as ``rand-m9-mstd0.5-inc1`` (RandAugment of magnitude 9 +- 0.5, every operation stronger with it),
            ``original``, ``3a``, ``augmix-m3-w3``.
        translate: maximum shift in pixels.

    Raises:
        ValueError: timm has no such policy, the image has neither 1 nor 3 channels, or the sample has boxes or masks.
    """
    if has_annotations(sample):
        raise ValueError(
            "timm transforms only the image, and boxes and masks would not follow; take single transforms, such as "
            "RandomAffine"
        )
    pixels = sample["image"]
    if pixels.shape[0] not in (1, 3):
        raise ValueError(f"a policy needs images with 1 or 3 channels, not {pixels.shape[0]}")
    image = _policy(policy, translate)(to_pil_image(pixels).convert("RGB"))
    return {**sample, "image": tv_tensors.Image(image.convert("L") if pixels.shape[0] == 1 else image)}


@cache
def _policy(policy: str, translate: int) -> Any:
    from timm.data.auto_augment import augment_and_mix_transform, auto_augment_transform, rand_augment_transform

    options = {"translate_const": translate, "img_mean": _FILL}
    factories = {"rand": rand_augment_transform, "augmix": augment_and_mix_transform}
    factory = factories.get(policy.partition("-")[0], auto_augment_transform)
    try:
        return factory(policy, options)
    except (AssertionError, ValueError, KeyError, IndexError) as error:
        raise ValueError(f"policy: timm has no policy {policy!r} ({type(error).__name__} {error})") from error
