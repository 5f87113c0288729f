"""Fusion of the detections of several models (Solovyev et al. 2021, Weighted boxes fusion: Ensembling boxes from
different object detection models)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from opabinia.contracts import Detections, Predictions
from opabinia.contracts.rotated_boxes import pairwise_iou
from opabinia.models.detectors.suppression import box_nms
from opabinia.tasks.detection.tiles import concat_detections, select_detections

IOU = 0.55
"""Overlap of two boxes of one class above which they are one object, as in the paper."""


def fuse_detections(models: Sequence[Detections], iou: float = IOU) -> Detections:
    """Return the detections of several models in one image as those of one, best first.

    Boxes of a class that overlap are a cluster. The score of a cluster is the sum of each model's best score in it,
    divided by the number of models: an object that few of them see has a low score. Its box is the mean of its boxes,
    weighted by their scores; with an angle, or masks or keypoints, which lie in a box, it is the best box with its own.

    The clusters are those of non-maximum suppression, around the best boxes; in the paper the center of a cluster moves
    with each box that it gets.

    Args:
        models: detections of each model, with boxes of one kind.
        iou: overlap above which boxes are of one cluster.
    """
    rows = concat_detections(models)
    owners = torch.cat([torch.full_like(own.labels, number) for number, own in enumerate(models)])
    kept = box_nms(rows.boxes, rows.scores, rows.labels, iou)
    fused = select_detections(rows, kept)
    if not len(kept):
        return fused
    overlaps = pairwise_iou(rows.boxes, fused.boxes).where(rows.labels[:, None] == fused.labels, 0)
    overlaps[kept, torch.arange(len(kept), device=kept.device)] = 1.1  # a box is of its own cluster
    overlap, clusters = overlaps.max(1)
    members = overlap > iou
    best = rows.scores.new_zeros(len(kept), len(models))
    places = clusters[members] * len(models) + owners[members]
    best = best.flatten().scatter_reduce(0, places, rows.scores[members], "amax").view_as(best)
    fused = fused._replace(scores=best.sum(1) / len(models))
    if fused.masks is None and fused.keypoints is None and fused.boxes.shape[1] == 4:
        weights = rows.scores[members, None]
        sums = torch.zeros_like(fused.boxes).index_add(0, clusters[members], weights * rows.boxes[members])
        totals = torch.zeros_like(fused.boxes[:, :1]).index_add(0, clusters[members], weights)
        fused = fused._replace(boxes=torch.where(totals > 0, sums / totals.clamp(min=1e-12), fused.boxes))
    return select_detections(fused, fused.scores.argsort(descending=True, stable=True))


def unstack_detections(predictions: Predictions) -> list[Detections]:
    """Return the detections of each image without padding, see :data:`opabinia.contracts.Predictions`."""
    columns: list[Tensor | None] = [predictions.get(name) for name in Detections._fields]
    valid = predictions["labels"] >= 0
    return [
        Detections(*(None if column is None else column[row][mask] for column in columns))  # type: ignore[arg-type]
        for row, mask in enumerate(valid)
    ]
