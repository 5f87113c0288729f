"""Heads of R-CNNs on queries: they read the features inside the boxes that queries predict."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor
from torchvision.ops import box_convert

from opabinia.contracts import DatasetInfo, Detections, Level, Neck, Target
from opabinia.models.detectors.keypoints import KeypointHead, KeypointOptions
from opabinia.models.detectors.masks import MaskHead, MaskOptions
from opabinia.models.detectors.query_heads import MatchedObjects, Queries, QueryHead, sides_of
from opabinia.models.detectors.regions import PoolingOptions, Regions
from opabinia.models.necks import Pyramid


class QueryRegionHead(QueryHead):
    """The head of Mask R-CNN or Keypoint R-CNN (He et al. 2017) on the boxes of queries. It is trained on the boxes
    that matched queries predict, whatever their overlap with the objects. Features are pooled from a pyramid on the
    feature maps, as in R-CNNs.

    Losses are the head's (:meth:`opabinia.models.detectors.masks.MaskHead.losses`,
    :meth:`opabinia.models.detectors.keypoints.KeypointHead.losses`), which are means over the regions of a process,
    weighted by the share of these in the batch of all processes: those of masks average to the loss of the whole batch,
    those of keypoints only if each process has the same share of keypoints within regions.

    Args:
        label_key: what it learns, ``masks`` or ``keypoints``.
        neck: the pyramid.
        head: the head, on the levels of the pyramid.
    """

    def __init__(self, label_key: str, neck: Neck, head: MaskHead | KeypointHead) -> None:
        super().__init__()
        self.label_keys = (label_key,)
        self.neck, self.head = neck, head

    def losses(
        self,
        queries: Queries,
        objects: MatchedObjects,
        maps: Sequence[Tensor],
        shape: tuple[int, int],
        targets: Sequence[Target],
        count: Tensor,
    ) -> dict[str, Tensor]:
        """See :meth:`QueryHead.losses`."""
        boxes = box_convert(queries.boxes.float(), "cxcywh", "xyxy") * sides_of(shape, queries.boxes.device)
        counts, regions = list(objects.counts), []
        first_objects = accumulate((len(target.labels) for target in targets), initial=0)
        parts = torch.split(boxes, counts), torch.split(objects.indices, counts)
        images = zip(targets, *parts, first_objects, strict=False)
        for target, predicted, indices, first in images:
            rows = indices - first
            regions.append(Regions(predicted, target.labels[rows], rows, target.boxes[rows]))
        values = self.head.losses(self.neck(maps), [regions], targets)
        share = len(boxes) / count
        return {name: value * share if name.startswith("loss") else value for name, value in values.items()}

    def describe(
        self, queries: Queries, maps: Sequence[Tensor], shape: tuple[int, int], detections: Detections
    ) -> Detections:
        """Add masks (B x D x S x S) or keypoints (B x D x P x 3), see :meth:`QueryHead.describe`."""
        return self.head.describe_batch(self.neck(maps), shape, detections)


def region_masks(levels: Sequence[Level], dataset_info: DatasetInfo, options: MaskOptions) -> QueryRegionHead:
    """Return a mask head for the classes of the data, on levels of which the encoder's is the last."""
    neck, pooling = _pyramid(levels, options.channels), PoolingOptions(num_levels=len(levels))
    return QueryRegionHead("masks", neck, MaskHead(neck.out_levels, len(dataset_info.classes), options, pooling))


def region_keypoints(levels: Sequence[Level], dataset_info: DatasetInfo, options: KeypointOptions) -> QueryRegionHead:
    """Return a keypoint head for the classes and keypoints of the data, see :func:`region_masks`."""
    neck, pooling = _pyramid(levels, options.channels), PoolingOptions(num_levels=len(levels))
    sizes = len(dataset_info.classes), len(dataset_info.keypoints)
    return QueryRegionHead("keypoints", neck, KeypointHead(neck.out_levels, *sizes, options, pooling))


def _pyramid(levels: Sequence[Level], channels: int) -> Pyramid:
    """Return a pyramid of as many channels as its inputs or the head have, whichever are fewer."""
    channels = min(channels, levels[-1].channels)
    return Pyramid(levels, [level.stride for level in levels], channels, "none", None, ())
