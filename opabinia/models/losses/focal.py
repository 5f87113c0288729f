"""Losses of the classes of detections: focal loss and its successors.

Those of queries are sums divided by ``count``, the number of objects in the batch of all processes
(:func:`opabinia.models.losses.matching.global_count`).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.ops import sigmoid_focal_loss

from opabinia.models.losses.matching import Objects, Pairs, Prediction, matched_iou


def focal_loss(logits: Tensor, classes: Tensor, alpha: float, gamma: float) -> Tensor:
    """Compute the focal loss of each anchor, summed over classes (B x N, float32; Lin et al. 2017, Focal loss, equation
    5).

    Args:
        logits: B x N x K.
        classes: targets (int64, B x N); -1 is background.
        alpha: weight of the true class; the others have 1 - alpha.
        gamma: focusing exponent, which reduces the weight of easy examples; 0 is cross entropy.

    Example: with 0.25 and 2 the logits 0, 2 and -2 for a true, a true and a false class: 0.0433, 0.0005, 0.0014.
    """
    numbers = torch.arange(logits.shape[-1], device=logits.device)
    targets = (classes.unsqueeze(-1) == numbers).float()
    losses: Tensor = sigmoid_focal_loss(logits.float(), targets, alpha, gamma)
    return losses.sum(dim=-1)


def varifocal_loss(
    prediction: Prediction, pairs: Pairs, objects: Objects, count: Tensor, class_weights: Tensor | None = None
) -> Tensor:
    """Binary cross entropy towards the IoU of the matched box, weighted by that IoU for the object's class and by
    0.75 p^2 for all others (Zhang et al. 2021, VarifocalNet, equation 2). The terms of a query with an object are
    multiplied by the weight of its class (:func:`opabinia.models.losses.class_weights.class_weight_table`)."""
    logits = prediction.logits.float()
    labels = objects.labels[pairs.objects]
    iou = matched_iou(prediction.boxes[pairs.images, pairs.queries], objects.boxes[pairs.objects])
    targets, weights = torch.zeros_like(logits), 0.75 * logits.detach().sigmoid() ** 2.0
    targets[pairs.images, pairs.queries, labels] = iou
    weights[pairs.images, pairs.queries, labels] = iou
    if class_weights is not None:
        weights[pairs.images, pairs.queries] *= class_weights[labels].unsqueeze(1)
    return F.binary_cross_entropy_with_logits(logits, targets, weights, reduction="sum") / count


def query_focal_loss(prediction: Prediction, pairs: Pairs, objects: Objects, count: Tensor) -> Tensor:
    """Focal loss of all queries and classes, with alpha 0.25 and gamma 2 (Deformable DETR)."""
    logits = prediction.logits.float()
    targets = torch.zeros_like(logits)
    targets[pairs.images, pairs.queries, objects.labels[pairs.objects]] = 1
    total: Tensor = sigmoid_focal_loss(logits, targets, alpha=0.25, gamma=2.0, reduction="sum")
    return total / count


def iou_aware_loss(prediction: Prediction, pairs: Pairs, objects: Objects, count: Tensor) -> Tensor:
    """Binary cross entropy whose target for the object's class is p^0.25 IoU^0.75, of at least 0.01, and whose other
    terms have the weight p^2 (Cai et al. 2024, Align-DETR; as in LW-DETR and RF-DETR)."""
    logits = prediction.logits.float()
    labels = objects.labels[pairs.objects]
    iou = matched_iou(prediction.boxes[pairs.images, pairs.queries], objects.boxes[pairs.objects])
    probabilities = logits.sigmoid()
    matched = probabilities[pairs.images, pairs.queries, labels]
    quality = (matched**0.25 * iou**0.75).clamp(min=0.01).detach()
    positive_weights, negative_weights = torch.zeros_like(logits), probabilities**2.0
    positive_weights[pairs.images, pairs.queries, labels] = quality
    negative_weights = negative_weights.index_put((pairs.images, pairs.queries, labels), 1 - quality)
    losses = -positive_weights * F.logsigmoid(logits) - negative_weights * F.logsigmoid(-logits)
    return losses.sum() / count


def no_object_cross_entropy(
    prediction: Prediction, pairs: Pairs, objects: Objects, no_object_weight: float = 0.1
) -> tuple[Tensor, Tensor]:
    """Cross entropy of K classes and "no object", the last one, for the queries without an object (DETR, section 3.1).

    Returns:
        the sum over the queries, and the sum of their weights, by which it is to be divided.
    """
    logits = prediction.logits
    nothing = logits.shape[-1] - 1
    targets = torch.full(logits.shape[:2], nothing, dtype=torch.int64, device=logits.device)
    targets[pairs.images, pairs.queries] = objects.labels[pairs.objects]
    weights = torch.where(targets == nothing, no_object_weight, 1.0)
    losses = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="none")
    return (losses * weights.flatten()).sum(), weights.sum()
