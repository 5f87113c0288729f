"""Detectors: what finds things in the feature maps of a backbone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor, nn

from opabinia.contracts.models import Level


class Neck(nn.Module):
    """Feature maps of a backbone to those that a detector looks at, all with the same channels.

    Attributes:
        out_levels: what it gives, from fine to coarse.
    """

    out_levels: tuple[Level, ...]

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        """Maps (B x M x h x w) of the backbone, from fine to coarse, to those of ``out_levels``."""
        raise NotImplementedError


class Target(NamedTuple):
    """What is to be found in one image, in its pixels.

    Attributes:
        boxes: left, top, right, bottom (float32, N x 4), of positive width and height; N may be 0.
        labels: class numbers from 0 (int64, N).
        masks: uint8 of 0 and 1, N x H x W of the padded batch; None where they are not known.
        keypoints: x, y, visibility (float32, N x P x 3); visibility above 0 is trained. None where they are not known.
    """

    boxes: Tensor
    labels: Tensor
    masks: Tensor | None = None
    keypoints: Tensor | None = None


class Detections(NamedTuple):
    """What was found in one image, in its pixels, best first.

    Attributes:
        boxes: D x 4, left, top, right, bottom.
        scores: D, from 0 to 1.
        labels: class numbers from 0 (int64, D).
        masks: D x S x S, see :data:`Predictions`; None where the detector gives none.
        keypoints: D x P x 3: x, y, score; None where the detector gives none.
    """

    boxes: Tensor
    scores: Tensor
    labels: Tensor
    masks: Tensor | None = None
    keypoints: Tensor | None = None


Sizes = Sequence[tuple[int, int]]
"""Height and width of each image of a padded batch."""


class Detector(nn.Module):
    """Feature maps of a backbone to things in their boxes. What it does never depends on ``self.training``, apart from
    layers such as dropout and batch norm.

    Attributes:
        size_multiple: padded images have sides that are multiples of this.
        most: D, how many things it finds in an image at most.
        masks: whether it tells the pixels of things.
        keypoints: whether it tells their points.
    """

    size_multiple: int = 32
    most: int = 100
    masks: bool = False
    keypoints: bool = False

    def pyramid(self, maps: Sequence[Tensor]) -> list[Tensor]:
        """What the methods below look at, made once for a batch of the backbone's maps (from fine to coarse)."""
        return list(maps)

    def losses(
        self, maps: Sequence[Tensor], shape: tuple[int, int], sizes: Sizes, targets: Sequence[Target]
    ) -> dict[str, Tensor]:
        """Losses (their names contain "loss") and other numbers to log, all 0-d. Every parameter takes part in every
        step, also when no image has anything in it.

        Args:
            maps: see :meth:`pyramid`.
            shape: height and width of the padded batch.
            sizes: of the images within it.
            targets: one for each image.
        """
        raise NotImplementedError

    def detect(self, maps: Sequence[Tensor], shape: tuple[int, int], sizes: Sizes) -> list[Detections]:
        """Things in each image: boxes, scores and labels, after suppression, at most ``most``. No masks, no keypoints:
        see :meth:`describe`."""
        raise NotImplementedError

    def describe(
        self, maps: Sequence[Tensor], shape: tuple[int, int], sizes: Sizes, found: Sequence[Detections]
    ) -> list[Detections]:
        """Adds masks and keypoints to what was found, where the detector knows such."""
        return list(found)
