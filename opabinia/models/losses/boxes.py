"""Coding of bounding boxes, and losses of boxes: smooth L1, IoU losses, and distributions of sides.

Boxes are left, top, right, bottom in pixels, float32, unless noted otherwise. Nothing here waits for the device.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.ops import box_convert

from opabinia.contracts.rotated_boxes import aligned_iou, box_corners
from opabinia.models.losses.matching import Objects, Pairs, Prediction

BoxWeights = tuple[float, float, float, float]
"""Factors of the four numbers of an encoded box: shifts to the right and down, width and height."""

IouLoss = Literal["iou", "giou", "diou", "ciou"]
BoxLoss = Literal["smooth_l1", "iou", "giou", "diou", "ciou"]

# --- box coding -------------------------------------------------------------------------------------------------------


def encode_boxes(boxes: Tensor, anchors: Tensor, weights: BoxWeights = (1.0, 1.0, 1.0, 1.0)) -> Tensor:
    """Encode boxes relative to anchors (N x 4 each): the shift of the center in widths and heights of the anchor, and
    the logarithms of the ratios of width and height, times ``weights`` (Girshick et al. 2014, appendix C).

    Example: from [0, 0, 10, 10] to [2, 2, 12, 14] with the weights 10, 10, 5, 5 is [2, 3, 0, 0.9116].
    """
    # torchvision's BoxCoder does the same, but copies constants to the device each time, and waits for that.
    size, base = boxes[:, 2:] - boxes[:, :2], anchors[:, 2:] - anchors[:, :2]
    shift = (boxes[:, :2] + 0.5 * size - (anchors[:, :2] + 0.5 * base)) / base
    columns = torch.cat([shift, (size / base).log()], dim=1).unbind(1)
    return torch.stack([weight * column for weight, column in zip(weights, columns, strict=True)], dim=1)


_MAX_LOG_RATIO = math.log(1000 / 16)


def decode_boxes(deltas: Tensor, anchors: Tensor, weights: BoxWeights = (1.0, 1.0, 1.0, 1.0)) -> Tensor:
    """Invert :func:`encode_boxes` (N x 4, or N x 4K with K boxes of each anchor; float32). Width and height are at most
    1000 / 16 times the anchor's: the logarithms are clamped to log(1000 / 16) = 4.135 (detectron2)."""
    size = anchors[:, 2:] - anchors[:, :2]
    center = anchors[:, :2] + 0.5 * size
    shift_x, shift_y, width, height = (deltas[:, i::4].float() / weight for i, weight in enumerate(weights))
    x, y = shift_x * size[:, :1] + center[:, :1], shift_y * size[:, 1:] + center[:, 1:]
    half_width = 0.5 * width.clamp(max=_MAX_LOG_RATIO).exp() * size[:, :1]
    half_height = 0.5 * height.clamp(max=_MAX_LOG_RATIO).exp() * size[:, 1:]
    return torch.stack([x - half_width, y - half_height, x + half_width, y + half_height], dim=2).flatten(1)


# --- losses -----------------------------------------------------------------------------------------------------------


def box_regression_loss(
    deltas: Tensor,
    anchors: Tensor,
    boxes: Tensor,
    kind: BoxLoss = "smooth_l1",
    *,
    beta: float = 0.0,
    weights: BoxWeights = (1.0, 1.0, 1.0, 1.0),
) -> Tensor:
    """Compute the regression loss of encoded boxes (N, float32).

    Args:
        deltas: predictions, encoded as in :func:`encode_boxes` (N x 4).
        anchors: their anchors (N x 4).
        boxes: ground truth (N x 4), of positive width and height.
        kind: ``smooth_l1`` compares the encoded boxes; the others are functions of the IoU, see :func:`iou_loss`.
        beta: threshold of ``smooth_l1``: errors below count as error^2 / (2 beta), those above as error - beta / 2. 0:
            L1.
        weights: weights of the coding.

    Example: an error of 0.05 with ``beta`` 0.1 is 0.0125, one of 1 is 0.95.
    """
    if kind == "smooth_l1":
        target = encode_boxes(boxes, anchors, weights)
        return F.smooth_l1_loss(deltas.float(), target, reduction="none", beta=beta).sum(dim=1)
    return iou_loss(decode_boxes(deltas, anchors, weights), boxes, kind)


_EPS = 1e-7
"""Added to divisors."""


def iou_loss(boxes: Tensor, targets: Tensor, kind: IouLoss) -> Tensor:
    """Compute 1 - IoU of predicted and ground-truth boxes (... x 4 each, to ...) plus a penalty, or -log IoU.

    The numbers are torchvision's, whose functions select the overlapping boxes, which waits for the device.

    Args:
        boxes: predictions.
        targets: ground truth, of positive width and height.
        kind: ``iou``, -log IoU, of at least 1e-6 (Yu et al. 2016); or the penalty: ``giou`` (Rezatofighi et al. 2019),
            the share of the smallest enclosing box that neither covers; ``diou`` (Zheng et al. 2020), the squared
            distance of the centers over the squared diagonal of that box; ``ciou`` (the same), plus the difference of
            the aspect ratios.

    Example: [0, 0, 2, 2] for [1, 1, 3, 3] is 1.9459 as ``iou``, 1.0794 as ``giou`` and 0.9683 as ``diou`` and
    ``ciou``.
    """
    size, target_size = boxes[..., 2:] - boxes[..., :2], targets[..., 2:] - targets[..., :2]
    ends, starts = torch.minimum(boxes[..., 2:], targets[..., 2:]), torch.maximum(boxes[..., :2], targets[..., :2])
    hull_size = torch.maximum(boxes[..., 2:], targets[..., 2:]) - torch.minimum(boxes[..., :2], targets[..., :2])
    intersection = _area((ends - starts).clamp(min=0))
    union = _area(size) + _area(target_size) - intersection
    iou = intersection / (union + _EPS)
    if kind == "iou":
        return -iou.clamp(min=1e-6).log()
    if kind == "giou":
        hull = _area(hull_size)
        return 1 - iou + (hull - union) / (hull + _EPS)
    shift = (boxes[..., :2] + boxes[..., 2:] - targets[..., :2] - targets[..., 2:]) / 2
    loss = 1 - iou + shift.square().sum(-1) / (hull_size.square().sum(-1) + _EPS)
    if kind == "diou":
        return loss
    difference = (target_size[..., 0] / target_size[..., 1]).atan() - (size[..., 0] / size[..., 1]).atan()
    aspect = (2 / math.pi * difference).square()
    with torch.no_grad():
        weight = aspect / (1 - iou + aspect + _EPS)
    return loss + weight * aspect


def _area(size: Tensor) -> Tensor:
    # Not prod(): its gradient checks for zeros on the host.
    return size[..., 0] * size[..., 1]


def rotated_iou_loss(boxes: Tensor, targets: Tensor) -> Tensor:
    """Compute -log IoU of predicted and ground-truth rotated boxes (... x 5 each; ...), of at least 1e-6: MMRotate's
    ``RotatedIoULoss``, the loss of its rotated FCOS (Zhou et al. 2019, IoU Loss for 2D/3D Object Detection).

    Unlike losses of Gaussian boxes (ProbIoU, KLD) it sees the angle of squares, too.
    """
    return -aligned_iou(box_corners(boxes), targets).clamp(min=1e-6).log()


def angle_loss(boxes: Tensor, targets: Tensor) -> Tensor:
    """Compute 1 - cos 2(a - b) of the angles a and b of predicted rotated boxes and of those with width >= height that
    are expected (N x 5 each; N), times (width - height) / (width + height): the longer side of a square is arbitrary.

    Example: a box of 3 x 1 whose width and height are exchanged costs 2 * (3 - 1) / (3 + 1) = 1.
    """
    width, height = targets[:, 2], targets[:, 3]
    return (1 - torch.deg2rad(2 * (boxes[:, 4] - targets[:, 4])).cos()) * (width - height) / (width + height)


def box_losses(prediction: Prediction, pairs: Pairs, objects: Objects, count: Tensor) -> tuple[Tensor, Tensor]:
    """Return the L1 loss and the generalized IoU loss of the matched boxes (DETR, equation 2), each divided by
    ``count``."""
    boxes, expected = prediction.boxes[pairs.images, pairs.queries].float(), objects.boxes[pairs.objects]
    giou = iou_loss(box_convert(boxes, "cxcywh", "xyxy"), box_convert(expected, "cxcywh", "xyxy"), "giou")
    return F.l1_loss(boxes, expected, reduction="sum") / count, giou.sum() / count


# --- sides as distributions over bins (Peng et al. 2024, D-FINE) ------------------------------------------------------


def side_distances(references: Tensor, boxes: Tensor, scale: float) -> Tensor:
    """Return by how much the sides of boxes exceed those of their references, in the units of the bins (M x 4: left,
    top, right, bottom).

    Args:
        references: initial boxes: center, width and height (M x 4).
        boxes: expected, likewise.
        scale: a side of the reference is this many units long.
    """
    corners = box_convert(boxes, "cxcywh", "xyxy")
    centers, sides = references[:, :2], references[:, 2:] / scale + 1e-16
    return torch.cat([(centers - corners[:, :2]) / sides, (corners[:, 2:] - centers) / sides], 1) - 0.5 * scale


def fine_grained_localization_loss(logits: Tensor, distances: Tensor, weights: Tensor, bins: Tensor) -> Tensor:
    """Cross entropy of the two bins around the expected distance, weighted by how near it is to each (D-FINE, equation
    6, "FGL"); the sum over the sides of all boxes.

    Args:
        logits: logits of the distances of each side (M x 4 x N).
        distances: expected, M x 4; those outside of the bins count as the first or last bin.
        weights: weights of each box, M: its IoU.
        bins: ascending distances, N.
    """
    distances = distances.clamp(bins[0], bins[-1])
    left = (torch.searchsorted(bins, distances.contiguous(), right=True) - 1).clamp(0, len(bins) - 2)
    nearness = (distances - bins[left]) / (bins[left + 1] - bins[left])
    losses = -F.log_softmax(logits.float(), -1)
    both = losses.gather(2, torch.stack([left, left + 1], 2))
    return ((both[..., 0] * (1 - nearness) + both[..., 1] * nearness) * weights.unsqueeze(1)).sum()


def localization_distillation_losses(logits: Tensor, teacher: Tensor, weights: Tensor) -> Tensor:
    """Kullback-Leibler divergence of the last layer's distributions from an earlier layer's, at temperature 5 and times
    its square (D-FINE, equation 8, "DDF"); the sum over the four sides of each box (...).

    Args:
        logits: logits of the earlier layer (... x 4 x N).
        teacher: logits of the last layer, likewise; without a gradient.
        weights: weights of each box (...): the IoU of matched ones, and the score of all others.
    """
    temperature = 5.0
    expected = (teacher.detach().float() / temperature).softmax(-1)
    divergence = F.kl_div((logits.float() / temperature).log_softmax(-1), expected, reduction="none").sum((-1, -2))
    return divergence * weights * temperature**2
