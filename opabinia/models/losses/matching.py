"""Matching of predictions with ground truth: anchors by their IoU, queries by costs (Carion et al. 2020, DETR).

Each object is matched with one query, and the other queries learn to find nothing. Boxes of queries are center, width
and height as fractions of the image (N x 4). Costs and losses of queries are computed in float32 from logits and boxes
of any type: CUDA's autocast computes other operations in float32 than the CPU's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchvision.ops import box_convert, generalized_box_iou

from opabinia.runtime.collectives import mean_over_samples
from opabinia.runtime.device import move_tensor
from opabinia.runtime.processes import world_size

# --- anchors ----------------------------------------------------------------------------------------------------------

POSITIVE, NEGATIVE, IGNORED = 1, 0, -1


class Matches(NamedTuple):
    """The index of the ground-truth box that each of A anchors overlaps most (int64, A), and the ``labels`` of the
    anchors (int64, A): 1 for those assigned to that box, 0 for background, -1 for those that are ignored."""

    indices: Tensor
    labels: Tensor


def match_anchors(iou: Tensor, low: float, high: float, *, low_quality: bool = False) -> Matches:
    """Assign each anchor to one of N ground-truth boxes, or none (Ren et al. 2015, section 3.1.2).

    Args:
        iou: IoU of ground-truth boxes and anchors (N x A), from 0 to 1; N may be 0.
        low: an anchor whose highest IoU is below is background.
        high: an anchor whose highest IoU is this or more is positive; those in between are ignored.
        low_quality: the anchors with the highest IoU of a box (several if equal), if above 0, are positive, too. They
            are still assigned to the box that they overlap most themselves.

    Example: [[0.1, 0.5, 0.6], [0.8, 0.2, 0.29]] with 0.3, 0.7 and ``low_quality`` gives the labels [1, -1, 1] and the
    indices [1, 0, 0].
    """
    if not len(iou):
        zeros = iou.new_zeros(iou.shape[1], dtype=torch.int64)
        return Matches(zeros, zeros)
    best, indices = iou.max(dim=0)
    labels = (best >= high).long() - ((best >= low) & (best < high)).long()
    if low_quality:
        highest = iou.amax(dim=1, keepdim=True)
        labels = labels.masked_fill(((iou == highest) & (iou > 0)).any(dim=0), POSITIVE)
    return Matches(indices, labels)


# --- queries ----------------------------------------------------------------------------------------------------------


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


def focal_class_cost(logits: Tensor, labels: Tensor) -> Tensor:
    """Difference of the focal losses (without the constant) of a query that is the object's class, and that is nothing
    (Zhu et al. 2021, Deformable DETR).

    Args:
        logits: M x K.
        labels: int64, N.
    """
    probabilities = logits.sigmoid()[:, labels]
    alpha, gamma = 0.25, 2.0
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
        objects: objects of the batch.
        costs: weights of the costs of a pair.
        class_cost: class cost of a pair.
        groups: queries are divided into this number of groups of the same size, and each object is matched with one
            query of every group (Chen et al. 2023, Group DETR).
    """
    corners, matrices = box_convert(objects.boxes.float(), "cxcywh", "xyxy"), []
    for logits, boxes in layers:
        flat = boxes.flatten(0, 1).float()
        matrix = costs.label * class_cost(logits.flatten(0, 1).float(), objects.labels)
        matrix = matrix + costs.box * torch.cdist(flat, objects.boxes.float(), p=1)
        matrix = matrix - costs.giou * generalized_box_iou(box_convert(flat, "cxcywh", "xyxy"), corners)
        matrices.append(matrix.nan_to_num(*[torch.finfo(matrix.dtype).max] * 3).view(*boxes.shape[:2], -1))
    spans = list(pairwise(np.cumsum([0, *objects.counts])))
    layer_costs = torch.stack(matrices).cpu().numpy()
    return [
        assign_queries([image[:, start:end] for image, (start, end) in zip(layer, spans, strict=True)], groups)
        for layer in layer_costs
    ]


def assign_queries(costs: Sequence[NDArray[np.float32]], groups: int = 1) -> Pairs:
    """Return the pairs with the minimal sum of costs (Hungarian algorithm), on the CPU.

    Args:
        costs: costs of assigning each object of an image to each query (Q x N), of each image.
        groups: see :func:`match_queries`.
    """
    from scipy.optimize import linear_sum_assignment

    matched, first_object = [], 0
    for image, cost in enumerate(costs):
        size = len(cost) // groups
        for first_query in range(0, size * groups, size):
            queries, numbers = linear_sum_assignment(cost[first_query : first_query + size])
            matched.append(np.stack([np.full_like(queries, image), queries + first_query, numbers + first_object]))
        first_object += cost.shape[1]
    return Pairs(*torch.from_numpy(np.concatenate(matched, 1)))


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


def global_count(count: Tensor, images: int) -> Tensor:
    """Return the number of objects, or pairs, by which the losses of this process are divided, so that their mean over
    processes is the sum over the global batch divided by the number in it, or by 1.

    Args:
        count: number of objects of this process (0-d).
        images: number of images of this process.
    """
    least = 1 / world_size() if torch.is_grad_enabled() else 1
    number: Tensor = mean_over_samples(count, images) * images
    return number.clamp(min=least)
