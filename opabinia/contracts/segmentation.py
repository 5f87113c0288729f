"""Segmentation: the ground truth of an image, and the decoders that classify pixels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from opabinia.contracts.models import ClassRows

IGNORE_LABEL = 255
"""The value of pixels without a label in a segmentation map; classes are 0 to 254."""


def class_presence(maps: Tensor) -> Tensor:
    """Return which classes, 255 included, each map has (bool, B x 256), given the class of each pixel (B x H x W)."""
    present = torch.zeros(len(maps), IGNORE_LABEL + 1, dtype=torch.bool, device=maps.device)
    present[torch.arange(len(maps), device=maps.device)[:, None], maps.flatten(1).long()] = True
    return present


@dataclass(frozen=True, eq=False)
class GroundTruthMap:
    """The segmentation of an image, in pixels of the original image, as evaluators need it.

    Attributes:
        image_id: the image's id or name.
        labels: class of each pixel; 255 for pixels that are not evaluated (uint8, H x W).
        segments: of panoptic data, the number of the segment of each pixel, from 1; 0 belongs to none (int32, H x W).
        segment_labels: of panoptic data, the class of segment 1, 2 ... (int64, S).
        crowd: of panoptic data, whether a segment stands for several objects (bool, S).
    """

    image_id: int | str
    labels: NDArray[np.uint8]
    segments: NDArray[np.int32] | None = None
    segment_labels: NDArray[np.int64] | None = None
    crowd: NDArray[np.bool_] | None = None


class MaskTargets(NamedTuple):
    """The segments of an image that mask classification is trained with.

    Attributes:
        labels: their classes (int64, N).
        masks: their pixels (uint8 of 0 and 1, N x H x W of the padded batch).
    """

    labels: Tensor
    masks: Tensor


class SegmentationDecoder(nn.Module):
    """Predicts the class of each pixel from the feature maps of a backbone. Built with the levels of the backbone and
    the number of classes K.

    Attributes:
        min_samples_per_rank: smallest number of images per process that it can train on.
        own_losses: whether :meth:`losses` replaces the losses of the task, as in mask classification; then it also has
            :meth:`query_masks`.
        compiled_modules: regular expression for the names of the modules that ``train.compile`` compiles, each by
            itself: those that :meth:`query_masks` calls with tensors alone; empty: the decoder as a whole.
        class_layers: see :class:`opabinia.contracts.ClassRows`.
    """

    min_samples_per_rank: int = 1
    own_losses: bool = False
    compiled_modules: str = ""
    class_layers: Mapping[str, ClassRows] = {"classifier": ClassRows()}

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        """Return the logits of each pixel (B x K x h x w, at any resolution; the task resizes them).

        Args:
            maps: of the levels, from fine to coarse.
        """
        raise NotImplementedError

    def losses(self, layers: Sequence[tuple[Tensor, Tensor]], segments: Sequence[MaskTargets]) -> dict[str, Tensor]:
        """Return losses (their names contain "loss") and other numbers to log, all 0-d.

        Args:
            layers: what :meth:`query_masks` returns.
            segments: of each image: in semantic segmentation one of each class, otherwise one of each object, too.
        """
        raise NotImplementedError

    def query_masks(self, maps: Sequence[Tensor]) -> Sequence[tuple[Tensor, Tensor]]:
        """Return the predictions of all layers, the last one first: logits of each query's class (B x Q x (K + 1), the
        last one is no segment) and of its pixels (B x Q x h x w).

        Args:
            maps: of the levels, from fine to coarse.
        """
        raise NotImplementedError
