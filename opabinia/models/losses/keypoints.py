"""Losses of keypoints."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def keypoint_similarity(shifts: Tensor, areas: Tensor, sigmas: Tensor) -> Tensor:
    """Return the similarity of M x P keypoints with their true positions, from 0 to 1: COCO's OKS before the mean over
    the keypoints of an object.

    Args:
        shifts: differences from the true positions, in pixels (M x P x 2).
        areas: areas of the objects (M).
        sigmas: standard deviations of annotators, in units of the root of the area (P).

    Example: a keypoint that is off by two sigmas times the root of the area has exp(-1/2) = 0.607.
    """
    variances = (2 * sigmas).square() * areas.clamp(min=1)[:, None]
    return (-shifts.square().sum(-1) / (2 * variances)).exp()


def keypoint_losses(
    shifts: Tensor, logits: Tensor, visible: Tensor, similarity: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the sums over M objects of three losses: the L1 distances of visible keypoints, summed over these; 1 -
    OKS, the mean over them (Maji et al. 2022, YOLO-Pose, section 3.3); and the cross entropy of the visibility, the
    mean over all keypoints. Objects without a visible keypoint have no part.

    Args:
        shifts: differences from the true positions (M x P x 2).
        logits: logits of the visibility (M x P).
        visible: 1 for labelled keypoints, 0 for others (M x P).
        similarity: see :func:`keypoint_similarity` (M x P).
    """
    distance = (shifts.abs().sum(-1) * visible).sum()
    oks = (((1 - similarity) * visible).sum(1) / visible.sum(1).clamp(min=1)).sum()
    entropies = F.binary_cross_entropy_with_logits(logits, visible, reduction="none").mean(1)
    return distance, oks, (entropies * (visible.sum(1) > 0)).sum()
