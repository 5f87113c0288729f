"""The box head of R-CNNs, their second stage: classify regions and refine their boxes (Girshick 2015; detectron2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import torch
import torch.nn.functional as F
from annotated_types import Ge
from torch import Tensor, nn
from torchvision.models.detection.faster_rcnn import FastRCNNConvFCHead, TwoMLPHead
from torchvision.ops import clip_boxes_to_image

from opabinia.config import register
from opabinia.contracts import ClassRows, Count, DatasetInfo, Detections, Fraction, Level, NonNegative, Sizes, Target
from opabinia.models.detectors.regions import PoolingOptions, RegionPool, Regions, concat_regions
from opabinia.models.detectors.suppression import Candidates, box_nms, exceeds_size, suppress_static
from opabinia.models.losses.binary import draw_federated_classes
from opabinia.models.losses.boxes import BoxLoss, BoxWeights, box_regression_loss, decode_boxes
from opabinia.models.losses.class_weights import ClassWeights, class_weight_table, weighted_by_class
from opabinia.models.necks import Norm, norm_factory


@register.section(name="region_boxes")
@dataclass(frozen=True, kw_only=True)
class BoxOptions:
    """Options of the box head. Defaults are those of detectron2's R-CNNs with a feature pyramid.

    Args:
        resolution: side of the square that a region is pooled to.
        num_convs: convolutions before the fully connected layers.
        conv_dim: channels of each; null: as many as the neck has.
        norm: after each of these.
        num_fc: fully connected hidden layers; 0: the mean over the region's positions (ResNet-C4).
        fc_dim: width of each.
        class_agnostic: one box per region instead of one per class; null: in a cascade only.
        foreground_iou: regions that overlap an object this much or more are assigned to it, others are background.
        batch_size_per_image: regions sampled per image for the loss.
        positive_fraction: largest share of foreground regions among them.
        bbox_reg_weights: factors of encoded boxes: shifts to the right and down, width, height.
        class_loss: ``softmax``: cross-entropy over the classes and the background; ``sigmoid``: binary cross-entropy,
            summed over the classes; ``federated`` (Zhou et al. 2021, section 3.3; detectron2's USE_FED_LOSS): the same
            for the classes of a batch's regions and for others drawn by frequency, because no image of LVIS is
            annotated for all classes.
        federated_classes: number of classes in a batch for ``federated``, the background included; more if the batch
            has more.
        federated_power: a class is drawn with a probability proportional to its number of images to this power.
        class_weights: weights of the class loss of regions that are assigned to an object, by the name of its class (1
            if it is not named); ``balanced``: by inverse frequency, see
            :func:`opabinia.models.losses.class_weights.class_weight_table`; null: all alike.
        box_loss: loss of the boxes, see :func:`opabinia.models.losses.boxes.box_regression_loss`.
        smooth_l1_beta: threshold of ``smooth_l1``; 0 is L1 (torchvision: 1/9).
        box_loss_weight: factor of the box loss.
        score_threshold: detections with this score or less are dropped.
        nms_threshold: IoU of two detections of one class above which the one with the lower score is dropped.
        max_detections: per image.
        min_size: detections whose width or height, in pixels, is not larger are dropped (torchvision: 0.01).
        train_on_predictions: mask and keypoint heads are trained on the boxes that are predicted for regions, not on
            the regions (detectron2's TRAIN_ON_PRED_BOXES).
    """

    resolution: Count = 7
    num_convs: Annotated[int, Ge(0)] = 0
    conv_dim: Count | None = None
    norm: Norm = "none"
    num_fc: Annotated[int, Ge(0)] = 2
    fc_dim: Count = 1024
    class_agnostic: bool | None = None
    foreground_iou: Fraction = 0.5
    batch_size_per_image: Count = 512
    positive_fraction: Fraction = 0.25
    bbox_reg_weights: BoxWeights = (10, 10, 5, 5)
    class_loss: Literal["softmax", "sigmoid", "federated"] = "softmax"
    federated_classes: Count = 50
    federated_power: NonNegative = 0.5
    class_weights: ClassWeights | None = None
    box_loss: BoxLoss = "smooth_l1"
    smooth_l1_beta: NonNegative = 0
    box_loss_weight: NonNegative = 1
    score_threshold: Fraction = 0.05
    nms_threshold: Fraction = 0.5
    max_detections: Count = 100
    min_size: NonNegative = 0
    train_on_predictions: bool = False


class BoxPredictor(nn.Module):
    """Logits of the K classes and the background, which is the last one (R x K + 1), and encoded boxes: one per class
    (R x 4K) or one for all (R x 4).

    Names, order and initialization of the weights are detectron2's. torchvision has the background first: its
    ``cls_score`` is rolled by one row, and the first four rows of its ``bbox_pred`` are dropped.
    """

    def __init__(self, width: int, classes: int, class_agnostic: bool | None) -> None:
        super().__init__()
        self.cls_score = nn.Linear(width, classes + 1)
        self.bbox_pred = nn.Linear(width, 4 if class_agnostic else 4 * classes)
        self.class_layers = {"cls_score": ClassRows(others=1)}
        if not class_agnostic:
            self.class_layers["bbox_pred"] = ClassRows(width=4)
        for layer, deviation in ((self.cls_score, 0.01), (self.bbox_pred, 0.001)):
            nn.init.normal_(layer.weight, std=deviation)
            nn.init.zeros_(layer.bias)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Features (R x D) to logits and encoded boxes, float32."""
        return self.cls_score(features).float(), self.bbox_pred(features).float()


class BoxPredictions(NamedTuple):
    """Predictions for the regions of all images: ``logits`` (R x K + 1), ``deltas`` (R x 4K or R x 4)."""

    logits: Tensor
    deltas: Tensor

    @property
    def boxes_per_region(self) -> Tensor:
        """The deltas as R x K x 4 or R x 1 x 4, where R may be 0."""
        return self.deltas.view(self.deltas.shape[0], self.deltas.shape[1] // 4, 4)


def hidden_layers(channels: int, options: BoxOptions) -> nn.Module:
    """Build the layers from pooled features (R x M x S x S) to vectors (R x D), initialized as in detectron2.

    The usual two layers have torchvision's names, ``fc6`` and ``fc7``.
    """
    layers: nn.Module
    if (options.num_convs, options.num_fc) == (0, 2):
        layers = TwoMLPHead(channels * options.resolution**2, options.fc_dim)
    else:
        size = (channels, options.resolution, options.resolution)
        width = options.conv_dim or channels
        convs, fcs = [width] * options.num_convs, [options.fc_dim] * options.num_fc
        layers = FastRCNNConvFCHead(size, convs, fcs, norm_factory(options.norm, width))
        if not fcs:
            layers = nn.Sequential(*list(layers.children())[:-1], nn.AdaptiveAvgPool2d(1), nn.Flatten())
    for layer in layers.modules():
        if isinstance(layer, nn.Linear):
            nn.init.kaiming_uniform_(layer.weight, a=1)
            nn.init.zeros_(layer.bias)
    return layers


class BoxLayers(nn.Module):
    """Hidden layers and predictor, with their losses.

    Args:
        channels: number of channels of the feature maps.
        dataset_info: description of the training data, with K classes.
        options: see :class:`BoxOptions`.
        weights: weights of the box coding.
    """

    draw_weights: Tensor
    class_weights: Tensor | None

    def __init__(self, channels: int, dataset_info: DatasetInfo, options: BoxOptions, weights: BoxWeights) -> None:
        super().__init__()
        classes = len(dataset_info.classes)
        self.options, self.classes, self.weights = options, classes, weights
        counts = torch.tensor([*dataset_info.image_counts, 0], dtype=torch.float32)  # 0: of the background
        self.register_buffer("draw_weights", counts**options.federated_power * (counts > 0), persistent=False)
        table = class_weight_table(options.class_weights, dataset_info)
        self.register_buffer("class_weights", table, persistent=False)
        self.head = hidden_layers(channels, options)
        conv_width = options.conv_dim if options.num_convs and options.conv_dim else channels
        width = options.fc_dim if options.num_fc else conv_width
        self.predictor = BoxPredictor(width, classes, options.class_agnostic)

    def forward(self, pooled: Tensor) -> BoxPredictions:
        """Predict from the pooled features of regions (R x M x S x S)."""
        return BoxPredictions(*self.predictor(self.head(pooled)))

    def boxes(self, predictions: BoxPredictions, regions: Tensor) -> Tensor:
        """Decode the boxes of regions (R x 4): R x K x 4, or R x 1 x 4 if class-agnostic."""
        return decode_boxes(predictions.deltas, regions, self.weights).view(predictions.boxes_per_region.shape)

    def scores(self, predictions: BoxPredictions) -> Tensor:
        """Return the probabilities of the classes and the background (R x K + 1)."""
        logits = predictions.logits
        return logits.softmax(dim=1) if self.options.class_loss == "softmax" else logits.sigmoid()

    def _class_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the sum of the class losses of all regions."""
        kind = self.options.class_loss
        if kind == "softmax":
            return F.cross_entropy(logits, labels, self.class_weights, reduction="sum")
        targets = F.one_hot(labels, self.classes + 1).to(logits)
        losses = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")[:, :-1]
        if kind == "federated":
            losses = losses * draw_federated_classes(labels, self.draw_weights, self.options.federated_classes)
        return weighted_by_class(losses, labels[:, None].expand_as(losses), self.class_weights).sum()

    def losses(self, predictions: BoxPredictions, regions: Regions) -> dict[str, Tensor]:
        """``loss_cls`` and ``loss_box_reg``, both means over all regions including background, the accuracy of the
        classes over all regions and over foreground, and the share of foreground predicted as background."""
        logits, labels, options = predictions.logits, regions.labels, self.options
        foreground = (labels < self.classes).float()
        column = torch.zeros_like(labels) if options.class_agnostic else labels.clamp(max=self.classes - 1)
        deltas = predictions.boxes_per_region.gather(1, column[:, None, None].expand(-1, 1, 4))[:, 0]
        box_losses = box_regression_loss(
            deltas, regions.boxes, regions.targets, options.box_loss, beta=options.smooth_l1_beta, weights=self.weights
        )
        count = max(len(labels), 1)
        predicted = logits.argmax(dim=1)
        correct, num_foreground = (predicted == labels).float(), foreground.sum().clamp(min=1)
        return {
            "loss_cls": self._class_loss(logits, labels) / count,
            "loss_box_reg": options.box_loss_weight * (box_losses * foreground).sum() / count,
            "fast_rcnn/cls_accuracy": correct.sum() / count,
            "fast_rcnn/fg_cls_accuracy": (correct * foreground).sum() / num_foreground,
            "fast_rcnn/false_negative": ((predicted == self.classes) * foreground).sum() / num_foreground,
        }


class BoxHead(nn.Module):
    """The box head of Faster R-CNN.

    Args:
        levels: feature levels of the neck.
        dataset_info: description of the training data.
        options: see :class:`BoxOptions`.
        pooling: see :class:`PoolingOptions`.

    Raises:
        ValueError: the neck has fewer levels than are pooled from.
    """

    def __init__(
        self, levels: Sequence[Level], dataset_info: DatasetInfo, options: BoxOptions, pooling: PoolingOptions
    ) -> None:
        super().__init__()
        self.options = options
        self.pool = RegionPool(levels, options.resolution, pooling)
        self.layers = BoxLayers(self.pool.out_channels, dataset_info, options, options.bbox_reg_weights)

    def losses(
        self, maps: Sequence[Tensor], sizes: Sizes, regions: Sequence[Regions], targets: Sequence[Target]
    ) -> tuple[dict[str, Tensor], list[Sequence[Regions]]]:
        """Return the losses (see :meth:`BoxLayers.losses`), and the regions that other heads are trained on."""
        predictions = self.layers(self.pool(maps, [image.boxes for image in regions]))
        losses = self.layers.losses(predictions, concat_regions(regions))
        return losses, [self._refine(predictions, regions) if self.options.train_on_predictions else regions]

    @torch.no_grad()
    def _refine(self, predictions: BoxPredictions, regions: Sequence[Regions]) -> list[Regions]:
        """Replace the boxes of regions by those that are predicted for their class."""
        every = concat_regions(regions)
        boxes = self.layers.boxes(predictions, every.boxes)
        column = every.labels.clamp(max=boxes.shape[1] - 1)
        refined = boxes[torch.arange(len(column), device=column.device), column]
        counts = [len(image.boxes) for image in regions]
        return [image._replace(boxes=boxes) for image, boxes in zip(regions, torch.split(refined, counts), strict=True)]

    def detect(self, maps: Sequence[Tensor], sizes: Sizes, proposals: Sequence[Tensor]) -> list[Detections]:
        """Detect objects in each image from its proposals (N x 4)."""
        predictions = self.layers(self.pool(maps, proposals))
        counts = [len(boxes) for boxes in proposals]
        boxes = torch.split(self.layers.boxes(predictions, torch.cat(list(proposals))), counts)
        scores = torch.split(self.layers.scores(predictions), counts)
        return [postprocess(*image, self.options) for image in zip(boxes, scores, sizes, strict=True)]

    def detect_batch(self, maps: Sequence[Tensor], sizes: Tensor, proposals: Tensor) -> Detections:
        """Detect objects in B images of some sizes (int64, B x 2) from their proposals (B x N x 4; empty boxes give no
        detections): see :func:`postprocess_batch`."""
        predictions = self.layers(self.pool(maps, proposals))
        boxes = self.layers.boxes(predictions, proposals.flatten(0, 1))
        return postprocess_batch(boxes, self.layers.scores(predictions), sizes, self.options)


def postprocess(boxes: Tensor, scores: Tensor, size: tuple[int, int], options: BoxOptions) -> Detections:
    """Return the detections of one image, above the score threshold and after non-maximum suppression per class.

    Scores and boxes that are NaN are kept, so that they are noticed. Suppression waits for the device.

    Args:
        boxes: R x K x 4, or R x 1 x 4.
        scores: R x K + 1, the background last.
        size: height and width of the image.
        options: thresholds.
    """
    scores = scores[:, :-1]
    boxes = clip_boxes_to_image(boxes, size).expand(-1, scores.shape[1], -1)
    rows, labels = torch.where(~(scores <= options.score_threshold) & exceeds_size(boxes, options.min_size))
    boxes, scores = boxes[rows, labels], scores[rows, labels]
    kept = box_nms(boxes, scores, labels, options.nms_threshold)[: options.max_detections]
    return Detections(boxes[kept], scores[kept], labels[kept])


def postprocess_batch(boxes: Tensor, scores: Tensor, sizes: Tensor, options: BoxOptions) -> Detections:
    """Return the detections of :func:`postprocess` for B images, with static shapes: see :func:`suppress_static`.

    Args:
        boxes: the same number for each image (R x K x 4, or R x 1 x 4).
        scores: R x K + 1, the background last.
        sizes: height and width of each image (int64, B x 2).
        options: thresholds.
    """
    scores = scores[:, :-1]
    labels = torch.arange(scores.shape[1], device=scores.device).expand_as(scores)
    values = scores, labels, boxes.expand(-1, scores.shape[1], -1)
    candidates = Candidates(*(rows.reshape(sizes.shape[0], -1, *rows.shape[2:]) for rows in values))
    thresholds = options.score_threshold, options.nms_threshold, options.max_detections, options.min_size
    return suppress_static([candidates], sizes, *thresholds)
