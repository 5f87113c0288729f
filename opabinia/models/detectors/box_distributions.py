"""Losses of boxes whose sides are distributions over bins (Peng et al. 2024, D-FINE)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.ops import box_convert


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
        logits: of the distances of each side (M x 4 x N).
        distances: expected, M x 4; those outside of the bins count as the first or last bin.
        weights: of each box, M: its IoU.
        bins: ascending distances, N.
    """
    distances = distances.clamp(bins[0], bins[-1])
    left = (torch.searchsorted(bins, distances.contiguous(), right=True) - 1).clamp(0, len(bins) - 2)
    share = (distances - bins[left]) / (bins[left + 1] - bins[left])
    losses = -F.log_softmax(logits.float(), -1)
    both = losses.gather(2, torch.stack([left, left + 1], 2))
    return ((both[..., 0] * (1 - share) + both[..., 1] * share) * weights.unsqueeze(1)).sum()


def localization_distillation_losses(
    logits: Tensor, teacher: Tensor, weights: Tensor, temperature: float = 5.0
) -> Tensor:
    """Kullback-Leibler divergence of the last layer's distributions from an earlier layer's, times the squared
    temperature (D-FINE, equation 8, "DDF"); the sum over the four sides of each box (...).

    Args:
        logits: of the earlier layer (... x 4 x N).
        teacher: of the last layer, likewise; without a gradient.
        weights: of each box (...): the IoU of matched ones, and the score of all others.
        temperature: divides both.
    """
    expected = (teacher.detach().float() / temperature).softmax(-1)
    divergence = F.kl_div((logits.float() / temperature).log_softmax(-1), expected, reduction="none").sum((-1, -2))
    return divergence * weights * temperature**2
