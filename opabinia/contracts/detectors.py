"""Detectors and the necks that feed them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor, nn

from opabinia.contracts.masks import InstanceMasks
from opabinia.contracts.models import Level


class Neck(nn.Module):
    """Maps a backbone's multi-scale feature maps to those of a detector, all with the same number of channels.

    Attributes:
        out_levels: its output levels, from fine to coarse.
    """

    out_levels: tuple[Level, ...]

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        """Return the feature maps of ``out_levels``, given those of the backbone (B x M x h x w), from fine to
        coarse."""
        raise NotImplementedError


class Target(NamedTuple):
    """The annotated objects of one image, in its pixels.

    Attributes:
        boxes: left, top, right, bottom (float32, N x 4), of positive width and height; N may be 0. Oriented ones N x 5,
            see :data:`Sample`.
        labels: class labels from 0 (int64, N).
        masks: of the size of the padded batch; none if those of this image are unknown; None if those of the dataset
            are.
        keypoints: x, y, visibility (float32, N x P x 3); those with visibility above 0 are trained. None if unknown.
    """

    boxes: Tensor
    labels: Tensor
    masks: InstanceMasks | None = None
    keypoints: Tensor | None = None


class Detections(NamedTuple):
    """The D detections of one image, in its pixels, best first.

    Attributes:
        boxes: left, top, right, bottom (D x 4); oriented ones D x 5, see :data:`Sample`.
        scores: from 0 to 1 (D).
        labels: class labels from 0 (int64, D).
        masks: D x S x S, see :data:`Predictions`; None if the detector predicts none.
        keypoints: x, y, score (D x P x 3); None if the detector predicts none.
    """

    boxes: Tensor
    scores: Tensor
    labels: Tensor
    masks: Tensor | None = None
    keypoints: Tensor | None = None


Sizes = Sequence[tuple[int, int]]
"""Height and width of each image of a padded batch."""


class Detector(nn.Module):
    """Detects objects in the feature maps of a backbone. It does not depend on ``self.training``, apart from layers
    such as dropout and batch norm.

    Attributes:
        size_multiple: the sides of padded images are multiples of this.
        max_detections: maximum number of detections per image.
        masks: whether it predicts instance masks.
        keypoints: whether it predicts keypoints.
        keypoints_from_boxes: whether :meth:`describe` adds them to boxes; otherwise :meth:`detect` gives both.
        oriented: whether its boxes are oriented (rotated).
        label_keys: see :class:`opabinia.contracts.Task`.
        last_stage_on_regions: whether the backbone's last stage is to run on regions: see :meth:`use_last_stage`.
        compiled_modules: regular expression for the names of the modules that ``train.compile`` compiles, each by
            itself: those that it calls with tensors alone.
        pyramid_levels: of the feature maps that :meth:`pyramid` returns; empty if other parts must not use them.
    """

    last_stage_on_regions: bool = False
    pyramid_levels: Sequence[Level] = ()
    compiled_modules: str = "neck"
    size_multiple: int = 32
    max_detections: int = 100
    masks: bool = False
    keypoints: bool = False
    keypoints_from_boxes: bool = True
    oriented: bool = False
    label_keys: tuple[str, ...] = ("boxes",)

    def use_last_stage(self, stage: nn.Module) -> None:
        """Take the backbone's last stage. It stays a child of the backbone, and is not one of the detector."""
        raise NotImplementedError

    def pyramid(self, maps: Sequence[Tensor]) -> list[Tensor]:
        """Return the feature maps that the methods below take, given those of the backbone (from fine to coarse): the
        output of ``neck``, if the detector has one."""
        neck = getattr(self, "neck", None)
        pyramid: list[Tensor] = list(maps) if neck is None else neck(maps)
        return pyramid

    def losses(
        self, maps: Sequence[Tensor], shape: tuple[int, int], sizes: Sizes, targets: Sequence[Target]
    ) -> dict[str, Tensor]:
        """Return losses (their names contain "loss") and other numbers to log, all 0-d. Every parameter takes part in
        every step, even if no image has an object.

        Args:
            maps: see :meth:`pyramid`.
            shape: height and width of the padded batch.
            sizes: of the images within it.
            targets: one per image.
        """
        raise NotImplementedError

    def detect(self, maps: Sequence[Tensor], shape: tuple[int, int], sizes: Sizes) -> list[Detections]:
        """Return the detections of each image after non-maximum suppression, if the detector needs it, at most
        ``max_detections``, without the masks and keypoints that :meth:`describe` adds."""
        raise NotImplementedError

    def describe(
        self, maps: Sequence[Tensor], shape: tuple[int, int], sizes: Sizes, detections: Sequence[Detections]
    ) -> list[Detections]:
        """Return the detections with masks and keypoints, if the detector predicts them from boxes."""
        return list(detections)
