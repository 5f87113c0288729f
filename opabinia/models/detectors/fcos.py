"""FCOS: anchor-free detection, in which points predict the box around them.

Parameters of the head have torchvision's names: ``head.classification_head.conv.{0,3,6,9}`` (convolutions),
``conv.{1,4,7,10}`` (norms), ``cls_logits``; ``head.regression_head.conv...``, ``bbox_reg``, ``bbox_ctrness``. In
detectron2 these are ``head.cls_subnet.{0,1,3,4,6,7,9,10}`` (conv.n is subnet.n), ``head.cls_score``,
``head.bbox_subnet``, ``head.bbox_pred`` and ``head.ctrness``. ``head.scales.{0,1,2,3,4}`` are the factors of levels.
Weights of both need ``offset: 0``, torchvision's also ``convention: torchvision``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.detection._utils import BoxLinearCoder
from torchvision.models.detection.fcos import FCOSClassificationHead, FCOSRegressionHead

from opabinia.config import register
from opabinia.contracts import (
    ClassRows,
    Count,
    DatasetInfo,
    Fraction,
    Level,
    NeckPart,
    NonNegative,
    Positive,
    Sizes,
    Target,
)
from opabinia.contracts.rotated_boxes import box_areas, to_box_frame
from opabinia.models.detectors.anchors import AnchorGrid, Convention
from opabinia.models.detectors.dense import DenseDetector, HeadNorm, Predictions, Probability, is_top1
from opabinia.models.losses.boxes import IouLoss, iou_loss
from opabinia.models.losses.class_weights import ClassWeights, class_weight_table, weighted_by_class
from opabinia.models.losses.focal import focal_loss
from opabinia.models.necks import fpn_p3_p7_from_p5, norm_factory
from opabinia.runtime.collectives import mean_over_samples

CODER = BoxLinearCoder(normalize_by_size=True)
"""Distances from a point to the four sides, in strides."""

PIXEL_CODER = BoxLinearCoder(normalize_by_size=False)
"""Distances in pixels."""


@register.detector
class Fcos(DenseDetector):
    """FCOS (Tian et al. 2019), by default with its authors' later improvements (section 3 of their paper of 2022):
    center sampling, generalized IoU loss, distances in strides, and centerness predicted by the box branch.

    Losses are divided by the positive points of the batch of all processes, or by its images if these are more, so
    that results do not depend on the number of processes.

    Args:
        neck: makes the feature pyramid.
        num_convs: convolutions of each of the two branches.
        norm: after each of them.
        prior_probability: initial probability of every class.
        center_sampling_radius: points up to this many strides from the center of an object are assigned to it; null:
            all points within its box (2019).
        distances: ``strides``: predicted in strides, negative ones are 0; ``exponential``: logarithms of pixels (2019).
        level_factors: the predicted distances of each level are multiplied by a learned factor (both papers,
            MMDetection).
        centerness_branch: the branch that predicts centerness, ``box`` or ``class`` (2019).
        box_loss: see :func:`opabinia.models.losses.boxes.iou_loss`; ``iou`` is that of 2019.
        weight_boxes: box losses are weighted by the centerness of their points (the authors' code, MMDetection);
            false: equally (torchvision, detectron2).
        offset: position of the first point, in strides: the paper's 0.5 is the center of its cell; 0 is torchvision's
            and detectron2's.
        convention: convention of the points. ``torchvision``, for its weights, computes strides from the sizes of the
            batch and the feature maps, rounded down.
        alpha: weight alpha of the focal loss.
        gamma: focusing exponent of the focal loss.
        class_weights: weights of the class loss of points that are assigned to an object, by the name of its class (1
            if it is not named); ``balanced``: by inverse frequency, see
            :func:`opabinia.models.losses.class_weights.class_weight_table`; null: all alike.
        score_threshold: detections with this score or less are dropped. 0.05 in the paper of 2019; 0.2 in torchvision
            and detectron2.
        nms_threshold: IoU of two detections of one class above which the one with the lower score is dropped.
        pre_nms_topk: candidates of each level that go into suppression, the best ones.
        max_detections: per image.
    """

    _decode = staticmethod(CODER.decode)

    class_layers: Mapping[str, ClassRows] = {"head.classification_head.cls_logits": ClassRows()}
    compiled_modules = r"neck|head\.\w+_head\.\w+|head\.angle"

    class_weights: Tensor | None

    def __init__(
        self,
        levels: Sequence[Level],
        dataset_info: DatasetInfo,
        /,
        *,
        neck: NeckPart = fpn_p3_p7_from_p5,
        num_convs: Count = 4,
        norm: HeadNorm = "group",
        prior_probability: Probability = 0.01,
        center_sampling_radius: Positive | None = 1.5,
        distances: Literal["strides", "exponential"] = "strides",
        level_factors: bool = False,
        centerness_branch: Literal["box", "class"] = "box",
        box_loss: IouLoss = "giou",
        weight_boxes: bool = False,
        offset: Fraction = 0.5,
        convention: Convention = "detectron2",
        alpha: Fraction = 0.25,
        gamma: NonNegative = 2.0,
        class_weights: ClassWeights | None = None,
        score_threshold: Fraction = 0.05,
        nms_threshold: Fraction = 0.6,
        pre_nms_topk: Count = 1000,
        max_detections: Count = 100,
    ) -> None:
        super().__init__(neck, levels, score_threshold, nms_threshold, pre_nms_topk, max_detections)
        channels, classes = self.neck.out_levels[0].channels, len(dataset_info.classes)
        norm_layer = norm_factory(norm, channels) or nn.Identity
        classification = FCOSClassificationHead(channels, 1, classes, num_convs, prior_probability, norm_layer)
        regression = FCOSRegressionHead(channels, 1, num_convs, norm_layer)
        self.head = nn.ModuleDict({"classification_head": classification, "regression_head": regression})
        strides = [level.stride for level in self.neck.out_levels]
        if level_factors:
            self.head["scales"] = nn.ParameterList(torch.ones(()) for _ in strides)
        self.distances, self.centerness_branch = distances, centerness_branch
        self.box_loss: IouLoss = box_loss
        self.weight_boxes = weight_boxes
        self.grid = AnchorGrid([[stride] for stride in strides], [1.0], strides, offset=offset, convention=convention)
        self.center_sampling_radius, self.alpha, self.gamma = center_sampling_radius, alpha, gamma
        self.register_buffer("class_weights", class_weight_table(class_weights, dataset_info), persistent=False)

    def _predict(self, maps: Sequence[Tensor], shape: tuple[int, int]) -> Predictions:
        """Run the head: boxes are encoded as distances in strides, anchors are points, as boxes of the stride's
        size."""
        heads: Any = self.head
        classes, boxes = heads["classification_head"], heads["regression_head"]
        points = self.grid(maps, shape)
        levels = []
        for number, level in enumerate(maps):
            class_features, box_features = classes.conv(level), boxes.conv(level)
            distances = self._regress(box_features, number, points[number])
            centerness = boxes.bbox_ctrness(box_features if self.centerness_branch == "box" else class_features)
            logits = flatten_positions(classes.cls_logits(class_features))
            levels.append((logits, distances, flatten_positions(centerness).squeeze(2)))
        logits, distances, centerness = (torch.cat(parts, dim=1) for parts in zip(*levels, strict=True))
        return logits, distances, points, centerness

    def _regress(self, features: Tensor, level: int, points: Tensor) -> Tensor:
        """Return the encoded boxes of the points of a level (B x N x 4), given features of the box branch."""
        heads: Any = self.head
        raw = flatten_positions(heads["regression_head"].bbox_reg(features)).float()
        if "scales" in heads:
            raw = raw * heads["scales"][level]
        strides = (points[:, 2:] - points[:, :2]).repeat(1, 2)
        return raw.relu() if self.distances == "strides" else raw.exp() / strides

    def _box_losses(self, encoded: Tensor, points: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of the box of each point (B x N), given points (N x 4) and their objects (B x N x 4)."""
        return iou_loss(CODER.decode(encoded, points), targets, self.box_loss)

    def losses(
        self, maps: Sequence[Tensor], shape: tuple[int, int], sizes: Sizes, targets: Sequence[Target]
    ) -> dict[str, Tensor]:
        """``loss_cls``, ``loss_box_reg``, ``loss_centerness``; ``num_pos_anchors``, the positive points per image, and
        ``fg_accuracy``, the share of them whose true class has the highest score."""
        logits, distances, points, centerness = self._predict(maps, shape)
        assert centerness is not None
        assigned = assign_points(points, targets, self.center_sampling_radius)
        positive, anchors = assigned.classes >= 0, torch.cat(points)
        positives_per_image = mean_over_samples(positive.sum(), len(targets))
        count = positives_per_image.clamp(min=1) * len(targets)
        # Positive points are not selected, which would wait for the device: the others are multiplied by 0.
        box_losses = self._box_losses(distances, anchors, assigned.boxes)
        wanted = centerness_targets(anchors, assigned.boxes)
        weights, divisor = positive, count
        if self.weight_boxes:
            weights = wanted * positive
            divisor = mean_over_samples(weights.sum(), len(targets)).clamp(min=1e-6) * len(targets)
        centerness_losses = F.binary_cross_entropy_with_logits(centerness.float(), wanted, reduction="none")
        class_losses = focal_loss(logits, assigned.classes, self.alpha, self.gamma)
        return {
            "loss_cls": weighted_by_class(class_losses, assigned.classes, self.class_weights).sum() / count,
            "loss_box_reg": (box_losses * weights).sum() / divisor,
            "loss_centerness": (centerness_losses * positive).sum() / count,
            "num_pos_anchors": positives_per_image,
            "fg_accuracy": is_top1(logits, assigned.classes).sum() / count,
        }


def flatten_positions(values: Tensor) -> Tensor:
    """Return a row for each position: B x C x h x w as B x h w x C."""
    return values.flatten(2).transpose(1, 2)


class PointTargets(NamedTuple):
    """Targets of the N points of B images: classes (int64, B x N; -1: background) and boxes (B x N x 4, or x 5 of
    rotated boxes; any box of positive size for background)."""

    classes: Tensor
    boxes: Tensor


@torch.no_grad()
def assign_points(
    points: Sequence[Tensor], targets: Sequence[Target], center_sampling_radius: float | None
) -> PointTargets:
    """Assign each point to the smallest object that contains it, whose center is near, and whose farthest side is
    within the range of its level (Tian et al. 2019, section 3.2).

    A level is for distances from 4 to 8 strides, both included, the finest one for all smaller and the coarsest one for
    all larger distances: up to 64 pixels, 64 to 128 ..., from 512 on.

    Args:
        points: points of each level, from fine to coarse, as boxes of the stride's size (N x 4).
        targets: targets of each image.
        center_sampling_radius: largest horizontal and vertical distance from the center of the object, in strides;
            None: any.

    Example: of [0, 0, 40, 40] the points of stride 8 with x and y in 12, 20 and 28 are positive at radius 1.5.
    """
    anchors = torch.cat(list(points))
    strides = anchors[:, 2] - anchors[:, 0]
    nearest, farthest = 4 * strides, 8 * strides
    nearest[: len(points[0])] = 0
    farthest[len(anchors) - len(points[-1]) :] = math.inf
    classes, boxes = [], []
    for target in targets:  # image by image: all points times all objects of a batch would take too much memory
        if not len(target.boxes):
            classes.append(target.labels.new_full((len(anchors),), -1))
            boxes.append(F.pad(anchors, (0, target.boxes.shape[1] - 4)))
            continue
        sides = box_distances(anchors.unsqueeze(1), target.boxes.unsqueeze(0))
        distance = sides.amax(dim=2)
        allowed = sides.amin(dim=2) > 0
        if center_sampling_radius is not None:
            shift = (sides[..., :2] - sides[..., 2:]).abs().amax(dim=2) / 2
            allowed &= shift < center_sampling_radius * strides.unsqueeze(1)
        allowed &= (distance >= nearest.unsqueeze(1)) & (distance <= farthest.unsqueeze(1))
        smallest, indices = box_areas(target.boxes).expand_as(distance).masked_fill(~allowed, math.inf).min(dim=1)
        classes.append(target.labels[indices].masked_fill(smallest.isinf(), -1))
        boxes.append(target.boxes[indices])
    return PointTargets(torch.stack(classes), torch.stack(boxes))


def box_distances(anchors: Tensor, boxes: Tensor) -> Tensor:
    """Return the distances in pixels from points, as boxes of the stride's size (... x 4), to the left, top, right and
    bottom side of boxes (... x 4; ... x 5: of rotated boxes in their own frame), negative outside (... x 4)."""
    if boxes.shape[-1] == 4:
        distances: Tensor = PIXEL_CODER.encode(anchors, boxes)
        return distances
    positions = to_box_frame((anchors[..., :2] + anchors[..., 2:]) / 2, boxes)
    return torch.cat([boxes[..., 2:4] / 2 + positions, boxes[..., 2:4] / 2 - positions], -1)


@torch.no_grad()
def centerness_targets(anchors: Tensor, boxes: Tensor) -> Tensor:
    """Compute centerness (B x N): 1 at the center of a box, 0 at its sides and outside (Tian et al. 2019, equation 3).

    Args:
        anchors: N points, as boxes of the stride's size (N x 4).
        boxes: B x N x 4, or x 5.

    Example: distances of 2 to the left, 8 to the right and 5 to the other sides: the root of 2/8, 0.5.
    """
    sides = box_distances(anchors, boxes).clamp(min=0).view(*boxes.shape[:2], 2, 2)
    near, far = sides.aminmax(dim=2)
    centerness: Tensor = (near / far).prod(dim=2).sqrt()
    return centerness
