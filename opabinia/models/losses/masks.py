"""Losses of instance and segment masks.

In mask classification each segment is matched with one query, which learns its class and its mask (Cheng et al. 2021,
MaskFormer; the points and weights are those of Cheng et al. 2022, Mask2Former, sections 3.3 and 4.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from opabinia.contracts import IGNORE_LABEL, MaskTargets
from opabinia.contracts.segmentation import class_presence
from opabinia.models.losses.matching import Pairs, assign_queries, global_count, move_pairs
from opabinia.runtime.device import true_indices

_PIXELS_AT_ONCE = 2**22


def masks_at_once(height: int, width: int) -> int:
    """Return how many masks to convert to float32 at a time: those of 16 MiB, at least one. Larger tensors take longer
    on the CPU, too."""
    return max(1, _PIXELS_AT_ONCE // max(1, height * width))


class QueryMasks(NamedTuple):
    """Predictions of the Q queries of B images by one layer.

    Attributes:
        logits: logits of K classes and "no segment" (B x Q x (K + 1)).
        masks: logits of the pixels (B x Q x h x w).
    """

    logits: Tensor
    masks: Tensor


@dataclass(frozen=True)
class MaskCriterion:
    """Weights and points of the losses.

    Attributes:
        class_weight, mask_weight, dice_weight: weights of the losses, and of their costs in matching.
        no_object_weight: weight of "no segment" in the cross entropy.
        num_points: at which masks are compared.
    """

    class_weight: float = 2.0
    mask_weight: float = 5.0
    dice_weight: float = 5.0
    no_object_weight: float = 0.1
    num_points: int = 12544

    def losses(self, layers: Sequence[QueryMasks], segments: Sequence[MaskTargets]) -> list[dict[str, Tensor]]:
        """Return ``loss_ce``, ``loss_mask`` and ``loss_dice`` of each layer (0-d), with their weights.

        The masks' losses are divided by the number of segments in the batch of all processes, the cross entropy by the
        weights of all queries in it.

        Args:
            layers: with the same queries.
            segments: segments of each image.
        """
        matches = self.match(layers, segments)
        of_batch = MaskTargets(*map(torch.cat, zip(*segments, strict=True)))
        return [self._layer(layer, pairs, of_batch) for layer, pairs in zip(layers, matches, strict=True)]

    @torch.no_grad()
    def match(self, layers: Sequence[QueryMasks], segments: Sequence[MaskTargets]) -> list[Pairs]:
        """Match queries and segments of each layer so that the sum of the costs is minimal. The costs of all layers are
        moved to the CPU at once. The objects of a pair are counted over the batch, image by image."""
        # Sums over thousands of points overflow in FP16, and BF16 rounds them.
        with torch.autocast(layers[0].masks.device.type, enabled=False):
            costs = [self._cost(layer, image, row) for layer in layers for image, row in enumerate(segments)]
        flat = torch.cat([cost.flatten() for cost in costs]).cpu()
        parts = torch.split(flat, [cost.numel() for cost in costs])
        matrices = [part.view(cost.shape).numpy() for part, cost in zip(parts, costs, strict=True)]
        matches = [assign_queries(matrices[i : i + len(segments)]) for i in range(0, len(matrices), len(segments))]
        return move_pairs(matches, layers[0].logits.device)

    def _cost(self, layer: QueryMasks, image: int, segments: MaskTargets) -> Tensor:
        """Return the cost of assigning each of N segments of an image to each query (Q x N)."""
        masks = layer.masks[image].float()
        points = torch.rand(1, self.num_points, 2, device=masks.device)
        predicted = sample_points(masks[None], points)[0]
        few = torch.split(segments.masks, masks_at_once(*segments.masks.shape[1:]))
        true = torch.cat([sample_points(part[None].float(), points)[0] for part in few])
        positive, negative = F.softplus(-predicted), F.softplus(predicted)
        mask_cost = (positive @ true.T + negative @ (1 - true).T) / self.num_points
        probabilities = predicted.sigmoid()
        overlap = 2 * probabilities @ true.T
        dice_cost = 1 - (overlap + 1) / (probabilities.sum(1)[:, None] + true.sum(1)[None] + 1)
        class_cost = -layer.logits[image].float().softmax(-1)[:, segments.labels]
        cost = self.mask_weight * mask_cost + self.class_weight * class_cost + self.dice_weight * dice_cost
        return cost.nan_to_num(*[torch.finfo(cost.dtype).max] * 3)

    def _layer(self, layer: QueryMasks, pairs: Pairs, segments: MaskTargets) -> dict[str, Tensor]:
        labels = segments.labels
        logits = layer.logits.float()
        classes = torch.full(logits.shape[:2], logits.shape[2] - 1, dtype=torch.int64, device=logits.device)
        classes[pairs.images, pairs.queries] = labels[pairs.objects]
        weights = torch.ones(logits.shape[2], device=logits.device)
        weights[-1] = self.no_object_weight
        entropies = F.cross_entropy(logits.flatten(0, 1), classes.flatten(), weights, reduction="sum")
        cross_entropy = entropies / global_count(weights[classes].sum(), len(logits))
        count = global_count(logits.new_full((), len(labels)), len(logits))
        masks = layer.masks[pairs.images, pairs.queries].float()
        mask, dice = point_mask_losses(masks, segments.masks, pairs.objects, self.num_points)
        return {
            "loss_ce": self.class_weight * cross_entropy,
            "loss_mask": self.mask_weight * mask / count,
            "loss_dice": self.dice_weight * dice / count,
        }


def point_mask_losses(logits: Tensor, masks: Tensor, objects: Tensor, num_points: int) -> tuple[Tensor, Tensor]:
    """Return the sums over predicted masks of the mean cross entropy and of the dice loss at drawn points.

    Args:
        logits: predictions (M x h x w, float32).
        masks: ground truth (0 and 1, N x H x W), of the same part of the image.
        objects: index of the true mask of each prediction (int64, M).
        num_points: number of points, drawn for each prediction (see :func:`draw_points`).
    """
    if not len(logits):
        return logits.sum(), logits.sum()
    with torch.no_grad():
        points = draw_points(logits, num_points)
        few = masks_at_once(*masks.shape[1:])
        parts = zip(torch.split(objects, few), torch.split(points, few), strict=True)
        true = [sample_points(masks[rows][:, None].float(), drawn)[:, 0] for rows, drawn in parts]
        true_values = torch.cat(true)
    values = sample_points(logits[:, None], points)[:, 0]
    entropy = F.binary_cross_entropy_with_logits(values, true_values, reduction="none").mean(1).sum()
    probabilities = values.sigmoid()
    overlap = 2 * (probabilities * true_values).sum(1)
    dice = 1 - (overlap + 1) / (probabilities.sum(1) + true_values.sum(1) + 1)
    return entropy, dice.sum()


def draw_points(logits: Tensor, count: int) -> Tensor:
    """Draw the points at which M masks are compared (M x P x 2): three quarters are the most uncertain of three times
    as many, others are random (Kirillov et al. 2020, PointRend, section 3.1).

    Args:
        logits: predictions (M x h x w, float32).
        count: P.
    """
    uncertain = int(0.75 * count)
    drawn = torch.rand(len(logits), 3 * count, 2, device=logits.device)
    chosen = sample_points(logits[:, None], drawn)[:, 0].abs().topk(uncertain, dim=1, largest=False).indices
    points = drawn.gather(1, chosen[..., None].expand(-1, -1, 2))
    return torch.cat([points, torch.rand(len(logits), count - uncertain, 2, device=logits.device)], 1)


def sample_points(maps: Tensor, points: Tensor) -> Tensor:
    """Return the values of maps (B x M x h x w) at points (B x P x 2: x and y from 0 to 1), as B x M x P."""
    sampled = F.grid_sample(maps, 2 * points[:, :, None] - 1, mode="bilinear", align_corners=False)
    return sampled.squeeze(3)


def semantic_segments(targets: Tensor) -> list[MaskTargets]:
    """Return one segment for each class in each map. The host waits for the device once.

    Args:
        targets: class of each pixel (int64, B x H x W); 255 is ignored.
    """
    labels = true_indices(list(class_presence(targets)[:, :IGNORE_LABEL]))
    rows = zip(labels, targets, strict=True)
    return [MaskTargets(present, (target == present[:, None, None]).to(torch.uint8)) for present, target in rows]


def region_mask_losses(logits: Tensor, masks: Tensor) -> dict[str, Tensor]:
    """Return ``loss_mask``, the mean over the pixels of all masks, the pixel accuracy, and the shares of false positive
    and false negative pixels (0 where there are no such pixels; He et al. 2017, Mask R-CNN, section 3).

    Args:
        logits: predicted masks of R regions (R x S x S).
        masks: ground truth, from 0 to 1 (R x S x S).
    """
    loss = F.binary_cross_entropy_with_logits(logits, masks, reduction="sum")
    inside = masks > 0.5
    wrong = (logits > 0) != inside
    missed, added = (wrong & inside).sum(), (wrong & ~inside).sum()
    count = max(masks.numel(), 1)
    return {
        "loss_mask": loss / count,
        "mask_rcnn/accuracy": 1 - (missed + added) / count,
        "mask_rcnn/false_positive": added / (~inside).sum().clamp(min=1),
        "mask_rcnn/false_negative": missed / inside.sum().clamp(min=1),
    }
