"""Set prediction, its matching and losses: each object is matched with one query, and the other queries learn to find
nothing (Carion et al. 2020, DETR).

Boxes are center, width and height as fractions of the image (N x 4). Every loss is a sum divided by ``count``, the
number of objects; :func:`opabinia.runtime.collectives.mean_over_samples` gives that of the batch of all processes.
Losses are computed in float32 from logits and boxes of any type: CUDA's autocast computes other operations in float32
than the CPU's, so their types could not be relied on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.ops import box_convert, generalized_box_iou, sigmoid_focal_loss

from opabinia.models.detectors.anchors import iou_loss
from opabinia.runtime.device import move_tensor


class Prediction(NamedTuple):
    """Predictions of the Q queries of B images by one layer.

    Attributes:
        logits: B x Q x K.
        boxes: B x Q x 4.
    """

    logits: Tensor
    boxes: Tensor


class Objects(NamedTuple):
    """The N objects of all images of a batch, image by image.

    Attributes:
        labels: int64, N.
        boxes: N x 4.
        counts: number of objects of each image.
    """

    labels: Tensor
    boxes: Tensor
    counts: Sequence[int]


class Pairs(NamedTuple):
    """M pairs of a query and an object.

    Attributes:
        images, queries: the indices of the query (int64, M).
        objects: index of the object among those of all images (int64, M).
    """

    images: Tensor
    queries: Tensor
    objects: Tensor


ClassCost = Callable[[Tensor, Tensor], Tensor]
"""Maps logits (M x K) and labels (N) to the cost of assigning each object to each query (M x N)."""


def focal_class_cost(logits: Tensor, labels: Tensor, alpha: float = 0.25, gamma: float = 2.0) -> Tensor:
    """Difference of the focal losses (without the constant) of a query that is the object's class, and that is nothing
    (Zhu et al. 2021, Deformable DETR).

    Args:
        logits: M x K.
        labels: int64, N.
        alpha, gamma: of the focal loss.
    """
    probabilities = logits.sigmoid()[:, labels]
    positive = alpha * (1 - probabilities) ** gamma * -(probabilities + 1e-8).log()
    negative = (1 - alpha) * probabilities**gamma * -(1 - probabilities + 1e-8).log()
    return positive - negative


def softmax_class_cost(logits: Tensor, labels: Tensor) -> Tensor:
    """Negative probability of the object's class (DETR, section 3.1); the last class of the logits is "no object"."""
    return -logits.softmax(-1)[:, labels]


class Costs(NamedTuple):
    """Weights of the costs of matching: of the class, the L1 distance of the boxes and their generalized IoU."""

    label: float = 2.0
    box: float = 5.0
    giou: float = 2.0


COSTS = Costs()
"""Of Deformable DETR and its successors."""


@torch.no_grad()
def match_queries(
    layers: Sequence[Prediction],
    objects: Objects,
    costs: Costs = COSTS,
    class_cost: ClassCost = focal_class_cost,
    groups: int = 1,
) -> list[Pairs]:
    """Match queries and objects so that the sum of the costs is minimal, separately for each layer (DETR, equation 1).
    The costs of all layers are moved to the CPU at once, and the pairs are left there: see :func:`move_pairs`.

    Args:
        layers: with the same number of queries.
        objects: of the batch.
        costs: of a pair.
        class_cost: of a pair.
        groups: queries are divided into this number of groups of the same size, and each object is matched with one
            query of every group (Chen et al. 2023, Group DETR).
    """
    from scipy.optimize import linear_sum_assignment

    corners, matrices = box_convert(objects.boxes.float(), "cxcywh", "xyxy"), []
    for logits, boxes in layers:
        flat = boxes.flatten(0, 1).float()
        matrix = costs.label * class_cost(logits.flatten(0, 1).float(), objects.labels)
        matrix = matrix + costs.box * torch.cdist(flat, objects.boxes.float(), p=1)
        matrix = matrix - costs.giou * generalized_box_iou(box_convert(flat, "cxcywh", "xyxy"), corners)
        matrices.append(matrix.nan_to_num(*[torch.finfo(matrix.dtype).max] * 3).view(*boxes.shape[:2], -1))
    ends = np.cumsum([0, *objects.counts])
    matches = []
    for layer in torch.stack(matrices).cpu().numpy():
        size, found = layer.shape[1] // groups, []
        for image, (start, end) in enumerate(pairwise(ends)):
            for first in range(0, size * groups, size):
                queries, numbers = linear_sum_assignment(layer[image, first : first + size, start:end])
                found.append(np.stack([np.full_like(queries, image), queries + first, numbers + start]))
        matches.append(Pairs(*torch.from_numpy(np.concatenate(found, 1))))
    return matches


def unite_pairs(matches: Sequence[Pairs]) -> Pairs:
    """Unite the pairs of several layers: each query gets the object with which most layers match it (Peng et al. 2024,
    D-FINE, whose code regresses the boxes of all layers towards these). On the CPU."""
    counted = Counter(pair for pairs in matches for pair in zip(*(values.tolist() for values in pairs), strict=True))
    best: dict[tuple[int, int], int] = {}
    for (image, query, number), _ in counted.most_common():
        best.setdefault((image, query), number)
    rows = [(*place, number) for place, number in best.items()]
    return Pairs(*torch.tensor(rows, dtype=torch.int64).view(-1, 3).T)


def move_pairs(matches: Sequence[Pairs], device: torch.device) -> list[Pairs]:
    """Return the pairs on a device, by one copy that the host does not wait for."""
    rows = move_tensor(torch.cat([torch.stack(pairs) for pairs in matches], 1), device)
    return [Pairs(*part) for part in torch.split(rows, [len(pairs.objects) for pairs in matches], 1)]


def matched_iou(boxes: Tensor, expected: Tensor) -> Tensor:
    """Return the IoU of each box with its expected one (M); without a gradient."""
    first, second = (box_convert(values.detach().float(), "cxcywh", "xyxy") for values in (boxes, expected))
    inner = (torch.minimum(first[:, 2:], second[:, 2:]) - torch.maximum(first[:, :2], second[:, :2])).clamp(min=0)
    areas = [(values[:, 2:] - values[:, :2]).prod(1) for values in (first, second)]
    shared = inner.prod(1)
    iou: Tensor = shared / (areas[0] + areas[1] - shared)
    return iou


def varifocal_loss(
    prediction: Prediction, pairs: Pairs, objects: Objects, count: Tensor, alpha: float = 0.75, gamma: float = 2.0
) -> Tensor:
    """Binary cross entropy towards the IoU of the matched box, weighted by that IoU for the object's class and by
    alpha p^gamma for all others (Zhang et al. 2021, VarifocalNet, equation 2)."""
    logits = prediction.logits.float()
    labels = objects.labels[pairs.objects]
    iou = matched_iou(prediction.boxes[pairs.images, pairs.queries], objects.boxes[pairs.objects])
    targets, weights = torch.zeros_like(logits), alpha * logits.detach().sigmoid() ** gamma
    targets[pairs.images, pairs.queries, labels] = iou
    weights[pairs.images, pairs.queries, labels] = iou
    return F.binary_cross_entropy_with_logits(logits, targets, weights, reduction="sum") / count


def query_focal_loss(
    prediction: Prediction, pairs: Pairs, objects: Objects, count: Tensor, alpha: float = 0.25, gamma: float = 2.0
) -> Tensor:
    """Focal loss of all queries and classes (Deformable DETR)."""
    logits = prediction.logits.float()
    targets = torch.zeros_like(logits)
    targets[pairs.images, pairs.queries, objects.labels[pairs.objects]] = 1
    total: Tensor = sigmoid_focal_loss(logits, targets, alpha, gamma, reduction="sum")
    return total / count


def iou_aware_loss(
    prediction: Prediction, pairs: Pairs, objects: Objects, count: Tensor, alpha: float = 0.25, gamma: float = 2.0
) -> Tensor:
    """Binary cross entropy whose target for the object's class is p^alpha IoU^(1 - alpha), of at least 0.01, and whose
    other terms have the weight p^gamma (Cai et al. 2024, Align-DETR; as in LW-DETR and RF-DETR)."""
    logits = prediction.logits.float()
    labels = objects.labels[pairs.objects]
    iou = matched_iou(prediction.boxes[pairs.images, pairs.queries], objects.boxes[pairs.objects])
    probabilities = logits.sigmoid()
    matched = probabilities[pairs.images, pairs.queries, labels]
    quality = (matched**alpha * iou ** (1 - alpha)).clamp(min=0.01).detach()
    positive_weights, negative_weights = torch.zeros_like(logits), probabilities**gamma
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


def box_losses(prediction: Prediction, pairs: Pairs, objects: Objects, count: Tensor) -> tuple[Tensor, Tensor]:
    """Return the L1 loss and the generalized IoU loss of the matched boxes (DETR, equation 2), each divided by
    ``count``."""
    boxes, expected = prediction.boxes[pairs.images, pairs.queries].float(), objects.boxes[pairs.objects]
    giou = iou_loss(box_convert(boxes, "cxcywh", "xyxy"), box_convert(expected, "cxcywh", "xyxy"), "giou")
    return F.l1_loss(boxes, expected, reduction="sum") / count, giou.sum() / count
