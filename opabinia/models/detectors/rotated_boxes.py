"""Suppression and the loss of rotated boxes; their geometry is in :mod:`opabinia.contracts.rotated_boxes`."""

from __future__ import annotations

import torch
from torch import Tensor
from torchvision.ops import batched_nms, nms

from opabinia.contracts.rotated_boxes import MAX_PAIRS, aligned_iou, box_corners, enclosing_boxes, overlapping


def rotated_nms(boxes: Tensor, scores: Tensor, labels: Tensor, iou_threshold: float) -> Tensor:
    """Return which rotated boxes remain after greedy non-maximum suppression per class, best first (int64).

    Only pairs of a class whose upright boxes overlap are compared. They are resolved in rounds until nothing changes,
    which gives the greedy result (Zheng et al. 2021, Cluster-NMS). The host waits for the device once in each round.

    Args:
        boxes: N x 5.
        scores: N.
        labels: classes (int64, N).
        iou_threshold: of two boxes of a class with a higher IoU the one with the lower score is dropped.
    """
    order = scores.argsort(descending=True, stable=True)
    boxes, labels = boxes[order].float(), labels[order]
    polygons = box_corners(boxes)
    upright = enclosing_boxes(polygons)
    near = (overlapping(upright, upright) & (labels[:, None] == labels)).triu(1)
    better, worse = near.nonzero().unbind(1)
    chunks = zip(torch.split(better, MAX_PAIRS), torch.split(worse, MAX_PAIRS), strict=True)
    overlaps = torch.cat([aligned_iou(polygons[others], boxes[rows]) > iou_threshold for rows, others in chunks])
    kept, previous = torch.ones_like(labels, dtype=torch.bool), None
    while previous is None or not torch.equal(kept, previous):
        suppressing = torch.zeros_like(labels).index_add(0, worse, (overlaps & kept[better]).to(labels))
        kept, previous = suppressing == 0, kept
    return order[kept]


def box_nms(boxes: Tensor, scores: Tensor, labels: Tensor, iou_threshold: float) -> Tensor:
    """Return which boxes (N x 4 or N x 5) remain after non-maximum suppression per class, best first (int64)."""
    if boxes.shape[-1] == 5:
        return rotated_nms(boxes, scores, labels, iou_threshold)
    boxes, scores = boxes.float(), scores.float()
    kept: Tensor
    if 0 < boxes.numel() <= (4000 if boxes.device.type == "cpu" else 100_000):
        # batched_nms does the same with so few boxes, but copies a constant to the device, and waits for that.
        shifts = labels.to(boxes) * (boxes.max() + 1)
        kept = nms(boxes + shifts[:, None], scores, iou_threshold)
    else:
        kept = batched_nms(boxes, scores, labels, iou_threshold)
    return kept


def rotated_iou_loss(boxes: Tensor, targets: Tensor) -> Tensor:
    """Compute -log IoU of predicted and ground-truth rotated boxes (... x 5 each; ...), of at least 1e-6: MMRotate's
    ``RotatedIoULoss``, the loss of its rotated FCOS (Zhou et al. 2019, IoU Loss for 2D/3D Object Detection).

    Unlike losses of Gaussian boxes (ProbIoU, KLD) it sees the angle of squares, too.
    """
    return -aligned_iou(box_corners(boxes), targets).clamp(min=1e-6).log()
