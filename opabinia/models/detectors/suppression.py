"""Non-maximum suppression of upright and rotated boxes, and counterparts with static shapes for exported graphs."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.ops import batched_nms, nms

from opabinia.contracts import Detections, Sizes
from opabinia.contracts.rotated_boxes import MAX_PAIRS, aligned_iou, box_corners, enclosing_boxes, overlapping
from opabinia.models.scan import scan
from opabinia.runtime.device import move_tensor, true_indices


class Candidates(NamedTuple):
    """The best predictions for B images before suppression: scores and labels (B x D), boxes (B x D x 4)."""

    scores: Tensor
    labels: Tensor
    boxes: Tensor


def suppress(
    levels: Sequence[Candidates], sizes: Sizes, score_threshold: float, nms_threshold: float, max_detections: int
) -> list[Detections]:
    """Suppress overlapping candidates per class; upright ones are clipped to the images. This waits for the device.

    Scores that are NaN are kept, so that they are noticed.

    Args:
        levels: candidates of each level.
        sizes: sizes of the images.
        score_threshold: candidates with this score or less are dropped.
        nms_threshold: IoU of two boxes of one class above which the one with the lower score is dropped.
        max_detections: maximum number per image.
    """
    scores, labels, boxes = (torch.cat(parts, dim=1) for parts in zip(*levels, strict=True))
    boxes = clip_boxes(boxes, move_tensor(torch.tensor(sizes), boxes.device))
    results = []
    above = true_indices(list(~(scores <= score_threshold)))
    for rows, *image in zip(above, boxes, scores, labels, strict=True):
        image_boxes, image_scores, image_labels = (values[rows] for values in image)
        kept = box_nms(image_boxes, image_scores, image_labels, nms_threshold)[:max_detections]
        results.append(Detections(image_boxes[kept], image_scores[kept], image_labels[kept]))
    return results


def clip_boxes(boxes: Tensor, sizes: Tensor) -> Tensor:
    """Clip the boxes of B images (B x N x 4) to their heights and widths (int64, B x 2); rotated boxes (B x N x 5) are
    returned as they are."""
    if boxes.shape[-1] == 5:
        return boxes
    ends = sizes.flip(1).repeat(1, 2).unsqueeze(1).to(boxes.dtype)
    return boxes.clamp(min=0).minimum(ends)


def nms_batch(boxes: Tensor, scores: Tensor, nms_threshold: float) -> Tensor:
    """Return which boxes of B images remain after suppression (bool, B x N), with static shapes.

    One call of :func:`torchvision.ops.nms`, with the boxes of each image shifted away from those of the others; its
    time grows with the square of the number of images.

    Args:
        boxes: clipped to the images (B x N x 4).
        scores: B x N.
        nms_threshold: IoU of two boxes above which the one with the lower score is dropped.
    """
    shifts = torch.arange(boxes.shape[0], device=boxes.device).view(-1, 1, 1) * (boxes.max() + 1)
    # torchvision's declaration of nms for graphs promises at least two boxes: two empty ones are added.
    rows, row_scores = F.pad((boxes + shifts).flatten(0, 1), (0, 0, 0, 2)), F.pad(scores.flatten(), (0, 2), value=-inf)
    kept = nms(rows, row_scores, nms_threshold)
    return torch.zeros_like(row_scores, dtype=torch.bool).index_fill(0, kept, True)[:-2].view_as(scores)


def suppress_static(
    levels: Sequence[Candidates],
    sizes: Tensor,
    score_threshold: float,
    nms_threshold: float,
    max_detections: int,
    min_size: float = -1.0,
) -> Detections:
    """Suppress candidates as :func:`suppress` does; each image has ``max_detections``, padded with label -1.

    So many times the best remaining candidate is taken and those of its class that overlap with it are suppressed.
    This keeps what :func:`torchvision.ops.batched_nms` keeps first, without shapes that depend on the scores.

    Args:
        levels: candidates of each level.
        sizes: height and width of each image (int64, B x 2).
        score_threshold, nms_threshold, max_detections: see :func:`suppress`.
        min_size: candidates whose width or height, in pixels, is not larger are dropped; none if it is negative.

    Returns:
        boxes B x D x 4, or x 5 as they are given, scores B x D, labels int64 B x D.
    """
    scores, labels, boxes = (torch.cat(parts, dim=1).detach() for parts in zip(*levels, strict=True))
    boxes = clip_boxes(boxes, sizes)

    dropped, corners = scores <= score_threshold, list[Tensor]()
    if boxes.shape[2] == 4:
        dropped = dropped | ~exceeds_size(boxes, min_size)
    else:
        corners = [box_corners(boxes).flatten(2)]
    remaining = scores.masked_fill(dropped, -1.0)
    candidates = torch.cat([remaining.unsqueeze(2), labels.unsqueeze(2).to(boxes), boxes, *corners], dim=2)

    # OpenVINO's Scan takes neither tensors from outside its body nor values to scan that the body does not read.
    def take_best(state: Tensor, none: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        index = state[..., 0].argmax(1, keepdim=True)
        best = state.gather(1, index.unsqueeze(2).expand(-1, -1, state.shape[2]))
        suppressed = (_iou(best[..., 2:], state[..., 2:]) > nms_threshold) & (state[..., 1] == best[..., 1])
        taken = torch.where(best[..., 0] < 0, none[0], index)
        remaining = state[..., 0].masked_fill(suppressed, -1.0).scatter(1, index, -1.0)
        return torch.cat([remaining.unsqueeze(2), state[..., 1:]], dim=2), taken

    _, taken = scan(take_best, candidates, (labels.new_full((max_detections, 1), -1),))
    indices = taken.squeeze(2).t()
    valid, indices = indices >= 0, indices.clamp(min=0)
    return Detections(
        boxes.gather(1, indices.unsqueeze(2).expand(-1, -1, boxes.shape[2])) * valid.unsqueeze(2),
        scores.gather(1, indices) * valid,
        labels.gather(1, indices).masked_fill(~valid, -1),
    )


def _iou(box: Tensor, boxes: Tensor) -> Tensor:
    """Return the IoU of one box per image (B x 1 x 4) with others (B x N x 4): B x N. Rotated boxes have 13 columns,
    with their corners."""
    if boxes.shape[2] > 4:
        corners: Tensor = boxes[..., 5:].unflatten(2, (4, 2))  # type: ignore[no-untyped-call]
        return aligned_iou(corners, box[..., :5])
    sides = torch.minimum(box[..., 2:], boxes[..., 2:]) - torch.maximum(box[..., :2], boxes[..., :2])
    intersections: Tensor = sides.clamp(min=0).prod(2)
    areas = (boxes[..., 2:] - boxes[..., :2]).prod(2)
    return intersections / ((box[..., 2:] - box[..., :2]).prod(2) + areas - intersections)


def exceeds_size(boxes: Tensor, min_size: float) -> Tensor:
    """Return which boxes (... x 4) are wider and higher than ``min_size`` pixels. NaN counts as larger, so that it is
    noticed later."""
    return ~((boxes[..., 2:] - boxes[..., :2]) <= min_size).any(dim=-1)


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


def rotated_nms(boxes: Tensor, scores: Tensor, labels: Tensor, iou_threshold: float) -> Tensor:
    """Return which rotated boxes remain after greedy non-maximum suppression per class, best first (int64).

    Only pairs of a class whose upright boxes overlap are compared. They are resolved in rounds until nothing changes,
    which gives the greedy result (Zheng et al. 2021, Cluster-NMS). The host waits for the device once in each round.

    Args:
        boxes: N x 5.
        scores: N.
        labels: classes (int64, N).
        iou_threshold: IoU of two boxes of a class above which the one with the lower score is dropped.
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
