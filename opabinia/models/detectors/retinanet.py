"""RetinaNet: nine anchors at every position of a feature pyramid, and focal loss.

Parameters of the head have torchvision's names: ``head.classification_head.conv.{0,1,2,3}.0`` (``.1`` is the norm, if
there is one), ``cls_logits``; ``head.regression_head.conv...``, ``bbox_reg``. In detectron2, without a norm, these are
``head.cls_subnet.{0,2,4,6}``, ``head.cls_score``, ``head.bbox_subnet`` and ``head.bbox_pred``. torchvision's weights
need ``convention: torchvision``, and those of its first version ``neck: fpn_p3_p7_from_p5``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torchvision.models.detection.retinanet import RetinaNetClassificationHead, RetinaNetRegressionHead
from torchvision.ops import box_iou

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
from opabinia.models.detectors.anchors import AnchorGrid, Convention
from opabinia.models.detectors.dense import DenseDetector, HeadNorm, Predictions, Probability, is_top1
from opabinia.models.losses.boxes import BoxLoss, box_regression_loss, decode_boxes
from opabinia.models.losses.class_weights import ClassWeights, class_weight_table, weighted_by_class
from opabinia.models.losses.focal import focal_loss
from opabinia.models.losses.matching import IGNORED, NEGATIVE, POSITIVE, match_anchors
from opabinia.models.necks import fpn_p3_p7, norm_factory
from opabinia.runtime.collectives import mean_over_samples


@register.detector(name="retinanet")
class RetinaNet(DenseDetector):
    """RetinaNet (Lin et al. 2017, Focal loss for dense object detection).

    The losses of an image are divided by its own positive anchors, as in the paper (section 4.1) and in torchvision,
    and averaged over images, so that results do not depend on gradient accumulation. detectron2 divides by a running
    mean over steps: ``loss_normalizer: running_mean``.

    Args:
        neck: makes the feature pyramid.
        anchor_sizes: sides of the smallest anchor of each level, in pixels; null takes 4 strides, the paper's 32 to
            512.
        scales_per_octave: number of sizes from there up to, but not including, twice that size.
        aspect_ratios: height / width of anchors.
        offset: position of the first anchor, in strides: 0 (detectron2, torchvision) or 0.5, the center of its cell.
        convention: convention of the anchors. ``torchvision``, for its weights, has corners on whole pixels, sizes
            rounded down, and strides computed from the sizes of the batch and the feature maps, rounded down.
        norm: after each convolution of the head.
        prior_probability: initial probability of every class.
        background_iou: anchors that overlap every object less are background.
        foreground_iou: anchors that overlap an object this much or more are assigned to it, and so is the one that
            overlaps it most. Those in between are ignored.
        alpha: weight alpha of the focal loss.
        gamma: focusing exponent of the focal loss.
        class_weights: weights of the class loss of anchors that are assigned to an object, by the name of its class (1
            if it is not named); ``balanced``: by inverse frequency, see
            :func:`opabinia.models.losses.class_weights.class_weight_table`; null: all alike.
        box_loss: loss of the boxes, see :func:`opabinia.models.losses.boxes.box_regression_loss`.
        smooth_l1_beta: threshold of ``smooth_l1``; 0 is L1.
        loss_normalizer: the losses of an image are divided by the number of its positive anchors (``image``), or by
            the ``running_mean`` of that number over images and forward passes, see :class:`RunningMean`.
        score_threshold: detections with this score or less are dropped.
        nms_threshold: IoU of two detections of one class above which the one with the lower score is dropped.
        pre_nms_topk: candidates of each level that go into suppression, the best ones.
        max_detections: per image; detectron2's. torchvision has 300.

    Raises:
        ValueError: there are not as many anchor sizes as levels, or background_iou is above foreground_iou.
    """

    _decode = staticmethod(decode_boxes)

    compiled_modules = r"neck|head\.\w+"

    class_weights: Tensor | None

    def __init__(
        self,
        levels: Sequence[Level],
        dataset_info: DatasetInfo,
        /,
        *,
        neck: NeckPart = fpn_p3_p7,
        anchor_sizes: list[Positive] | None = None,
        scales_per_octave: Count = 3,
        aspect_ratios: tuple[Positive, ...] = (0.5, 1.0, 2.0),
        offset: Fraction = 0.0,
        convention: Convention = "detectron2",
        norm: HeadNorm = "none",
        prior_probability: Probability = 0.01,
        background_iou: Fraction = 0.4,
        foreground_iou: Fraction = 0.5,
        alpha: Fraction = 0.25,
        gamma: NonNegative = 2.0,
        class_weights: ClassWeights | None = None,
        box_loss: BoxLoss = "smooth_l1",
        smooth_l1_beta: NonNegative = 0.1,
        loss_normalizer: Literal["image", "running_mean"] = "image",
        score_threshold: Fraction = 0.05,
        nms_threshold: Fraction = 0.5,
        pre_nms_topk: Count = 1000,
        max_detections: Count = 100,
    ) -> None:
        super().__init__(neck, levels, score_threshold, nms_threshold, pre_nms_topk, max_detections)
        if background_iou > foreground_iou:
            raise ValueError(f"background_iou ({background_iou}) must not be above foreground_iou ({foreground_iou})")
        strides = [level.stride for level in self.neck.out_levels]
        smallest = [4.0 * stride for stride in strides] if anchor_sizes is None else anchor_sizes
        sizes = [[size * 2 ** (i / scales_per_octave) for i in range(scales_per_octave)] for size in smallest]
        if convention == "torchvision":
            sizes = [[float(int(size)) for size in level_sizes] for level_sizes in sizes]
        self.grid = AnchorGrid(sizes, aspect_ratios, strides, offset=offset, convention=convention)
        channels, count, classes = self.neck.out_levels[0].channels, self.grid.num_anchors, len(dataset_info.classes)
        norm_layer = norm_factory(norm, channels)
        classification = RetinaNetClassificationHead(channels, count, classes, prior_probability, norm_layer)
        regression = RetinaNetRegressionHead(channels, count, norm_layer)
        self.head = nn.ModuleDict({"classification_head": classification, "regression_head": regression})
        self.class_layers = {"head.classification_head.cls_logits": ClassRows(groups=count)}
        self.background_iou, self.foreground_iou, self.alpha, self.gamma = background_iou, foreground_iou, alpha, gamma
        self.box_loss, self.smooth_l1_beta = box_loss, smooth_l1_beta
        self.register_buffer("class_weights", class_weight_table(class_weights, dataset_info), persistent=False)
        self.running_positives = RunningMean() if loss_normalizer == "running_mean" else None

    def _predict(self, maps: Sequence[Tensor], shape: tuple[int, int]) -> Predictions:
        logits, deltas = self.head["classification_head"](maps), self.head["regression_head"](maps)
        return logits, deltas, self.grid(maps, shape), None

    def losses(
        self, maps: Sequence[Tensor], shape: tuple[int, int], sizes: Sizes, targets: Sequence[Target]
    ) -> dict[str, Tensor]:
        """``loss_cls``, ``loss_box_reg``; ``num_pos_anchors`` and ``num_neg_anchors`` per image, and ``fg_accuracy``,
        the share of positive anchors whose true class has the highest score."""
        logits, deltas, level_anchors, _ = self._predict(maps, shape)
        anchors = torch.cat(level_anchors)
        assigned = assign_anchors(anchors, targets, self.background_iou, self.foreground_iou)
        positive, images = assigned.labels == POSITIVE, len(targets)
        counts = positive.sum(dim=1)
        # Positive anchors are not selected, which would wait for the device: the others are multiplied by 0.
        classes = assigned.classes.masked_fill(~positive, -1)
        class_losses = focal_loss(logits, classes, self.alpha, self.gamma) * (assigned.labels != IGNORED)
        class_losses = weighted_by_class(class_losses, classes, self.class_weights)
        box_losses = box_regression_loss(
            deltas.flatten(0, 1),
            anchors.expand(images, -1, -1).flatten(0, 1),
            assigned.boxes.flatten(0, 1),
            self.box_loss,
            beta=self.smooth_l1_beta,
        )
        divisors = counts.clamp(min=1)
        if self.running_positives is not None:
            positives = mean_over_samples(counts.sum().clamp(min=1), images)
            divisors = self.running_positives(positives, 100 / images)
        return {
            "loss_cls": (class_losses.sum(dim=1) / divisors).mean(),
            "loss_box_reg": ((box_losses.view_as(positive) * positive).sum(dim=1) / divisors).mean(),
            "num_pos_anchors": counts.sum() / images,
            "num_neg_anchors": (assigned.labels == NEGATIVE).sum() / images,
            "fg_accuracy": is_top1(logits, classes).sum() / counts.sum().clamp(min=1),
        }


class RunningMean(nn.Module):
    """Exponential moving average of a number, with momentum 0.9 as in detectron2's RetinaNet; saved with the weights.

    Attributes:
        value: the average (0-d); 0 before the first training step.
    """

    value: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("value", torch.zeros(()))

    @torch.no_grad()
    def forward(self, number: Tensor, initial: float) -> Tensor:
        """Update the average in training, and return it.

        Args:
            number: 0-d.
            initial: the average before the first step.
        """
        average = torch.where(self.value > 0, self.value, initial)
        if self.training:
            average = 0.9 * average + 0.1 * number
            self.value.copy_(average)
        return average


class AnchorTargets(NamedTuple):
    """Targets of the N anchors of B images.

    Attributes:
        classes: classes of the object that each overlaps most (int64, B x N).
        boxes: boxes of that object (B x N x 4); in images without objects the anchors.
        labels: positive, background or ignored, see :class:`~opabinia.models.losses.matching.Matches` (int64, B x N).
    """

    classes: Tensor
    boxes: Tensor
    labels: Tensor


@torch.no_grad()
def assign_anchors(anchors: Tensor, targets: Sequence[Target], low: float, high: float) -> AnchorTargets:
    """Assign anchors to objects by their IoU (see :func:`~opabinia.models.losses.matching.match_anchors`).

    Args:
        anchors: N x 4.
        targets: targets of each image.
        low: anchors whose IoU is below for all objects are background.
        high: anchors whose IoU is this or more are assigned to the object, and so is the one with the highest IoU.
    """
    assigned = []
    for target in targets:  # image by image: all anchors times all objects of a batch would take too much memory
        matches = match_anchors(box_iou(target.boxes, anchors), low, high, low_quality=True)
        if len(target.boxes):
            classes, boxes = target.labels[matches.indices], target.boxes[matches.indices]
        else:
            classes, boxes = matches.labels, anchors
        assigned.append(AnchorTargets(classes, boxes, matches.labels))
    return AnchorTargets(*map(torch.stack, zip(*assigned, strict=True)))
