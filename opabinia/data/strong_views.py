"""Weak and strong views of unlabeled images, in semi-supervised training."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torchvision import tv_tensors

from opabinia.contracts import WEAK_IMAGE, Sample, Transform
from opabinia.runtime.seeds import preserve_generators, seed_sample
from opabinia.runtime.text import error_text

_DRAWS = 16
"""Applications of a transform from which is concluded that it never moves pixels."""


class StrongView:
    """Make a strong view of an image: it replaces ``image``, and the image itself, the weak view, is ``weak_image``.

    Args:
        transforms: of the strong view. They see the image alone, without its annotations.
    """

    def __init__(self, transforms: Sequence[Transform]) -> None:
        self._transforms = list(transforms)

    def __call__(self, sample: Sample) -> Sample:
        """Return the sample with both views.

        Raises:
            ValueError: a transform fails.
        """
        view: Sample = {"image": sample["image"].clone()}  # some transforms work in place
        for number, transform in enumerate(self._transforms):
            try:
                view = transform(view)
            except Exception as error:
                raise ValueError(f"semi_supervised.strong.{number}: {error_text(error)}") from error
        return {**sample, "image": view["image"], WEAK_IMAGE: sample["image"]}


def check_keeps_positions(transforms: Sequence[Transform], channels: int) -> None:
    """Check that transforms change colors only: labels of the weak view must be those of the strong view.

    Each is applied to a test image with a segmentation map that numbers its positions.

    Args:
        transforms: of a strong view.
        channels: of the images.

    Raises:
        ValueError: one moves pixels, changes the size of the image or cannot take a segmentation map.
    """
    for number, transform in enumerate(transforms):
        with preserve_generators():
            for draw in range(_DRAWS):
                seed_sample(draw)
                try:
                    kept = _keeps_positions(transform, channels)
                except Exception as error:
                    raise ValueError(f"{number}: it must take segmentation maps: {error_text(error)}") from error
                if not kept:
                    raise ValueError(
                        f"{number}: it moves pixels, so boxes and maps of the weak view would be wrong in the strong "
                        "one; move it into semi_supervised.unlabeled.transforms"
                    )


def _keeps_positions(transform: Transform, channels: int) -> bool:
    side = 16
    positions = torch.arange(side * side, dtype=torch.uint8).view(side, side)
    image = tv_tensors.Image(positions.expand(channels, -1, -1).clone())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torchvision's RandomErasing warns that it leaves maps as they are
        changed = transform({"image": image, "mask": tv_tensors.Mask(positions.clone()), "id": ""})
    same_size = changed["image"].shape == image.shape
    return same_size and torch.equal(changed["mask"].as_subclass(torch.Tensor), positions)
