"""The second stage of R-CNNs: what is in a region, and where its box is (Girshick 2015; detectron2's rules)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
import torch.nn.functional as F
from annotated_types import Ge
from torch import Tensor, nn
from torchvision.models.detection.faster_rcnn import FastRCNNConvFCHead, TwoMLPHead
from torchvision.ops import batched_nms, clip_boxes_to_image

from opabinia.config import register
from opabinia.contracts import Count, Detections, Fraction, Level, NonNegative, Sizes, Target
from opabinia.models.detectors.anchors import BoxLoss, Weights, box_loss, decode
from opabinia.models.detectors.regions import Pooling, RegionPool, Regions, has_extent
from opabinia.models.necks import Norm, norm_of


@register.section(name="region_boxes")
@dataclass(frozen=True, kw_only=True)
class Boxes:
    """How regions become boxes of classes. Defaults are those of detectron2's R-CNNs with a feature pyramid.

    Args:
        resolution: side of the square that a region is pooled to.
        convolutions: on that square, before the hidden layers, with the channels of the neck.
        norm: behind each of these.
        layers: hidden layers.
        width: of each.
        class_agnostic: one box for a region, not one for each class; null: in a cascade only.
        foreground: a region that overlaps a thing by this much is learned as that thing, otherwise as background.
        samples: how many regions of an image are learned from.
        positive: how many of them may be of things, at most.
        weights: what coded boxes are multiplied by: shifts to the right and down, width, height.
        loss: how boxes are compared, see :func:`opabinia.models.detectors.anchors.box_loss`.
        beta: of ``smooth_l1``; 0 is L1 (torchvision: 1/9).
        threshold: things with a score of no more than this are left out.
        nms: of two things of one class that overlap by more than this the lesser one goes.
        most: things in an image, at most.
        smallest: things whose width or height is not more than this, in pixels, are left out (torchvision: 0.01).
    """

    resolution: Count = 7
    convolutions: Annotated[int, Ge(0)] = 0
    norm: Norm = "none"
    layers: Count = 2
    width: Count = 1024
    class_agnostic: bool | None = None
    foreground: Fraction = 0.5
    samples: Count = 512
    positive: Fraction = 0.25
    weights: Weights = (10, 10, 5, 5)
    loss: BoxLoss = "smooth_l1"
    beta: NonNegative = 0
    threshold: Fraction = 0.05
    nms: Fraction = 0.5
    most: Count = 100
    smallest: NonNegative = 0


class BoxPredictor(nn.Module):
    """Logits of the K classes and the background, which is the last one (R x K + 1), and coded boxes: of each class
    (R x 4K) or of all (R x 4).

    Weights are drawn as in detectron2, whose names and order they have. torchvision has the background first: its
    ``cls_score`` is rolled by one row, and of its ``bbox_pred`` the first four rows are dropped.
    """

    def __init__(self, width: int, classes: int, class_agnostic: bool | None) -> None:
        super().__init__()
        self.cls_score = nn.Linear(width, classes + 1)
        self.bbox_pred = nn.Linear(width, 4 if class_agnostic else 4 * classes)
        for layer, deviation in ((self.cls_score, 0.01), (self.bbox_pred, 0.001)):
            nn.init.normal_(layer.weight, std=deviation)
            nn.init.zeros_(layer.bias)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and coded boxes of features (R x D), float32."""
        return self.cls_score(features).float(), self.bbox_pred(features).float()


class Judged(NamedTuple):
    """What is said of regions, of all images together: ``logits`` (R x K + 1), ``deltas`` (R x 4K or R x 4)."""

    logits: Tensor
    deltas: Tensor


def hidden_layers(channels: int, how: Boxes) -> nn.Module:
    """Pooled maps (R x M x S x S) to features (R x D); drawn as in detectron2.

    Of the usual two layers the names are torchvision's, ``fc6`` and ``fc7``.
    """
    made: nn.Module
    if (how.convolutions, how.layers) == (0, 2):
        made = TwoMLPHead(channels * how.resolution**2, how.width)
    else:
        size = (channels, how.resolution, how.resolution)
        convolutions = [channels] * how.convolutions
        made = FastRCNNConvFCHead(size, convolutions, [how.width] * how.layers, norm_of(how.norm, channels))
    for layer in made.modules():
        if isinstance(layer, nn.Linear):
            nn.init.kaiming_uniform_(layer.weight, a=1)
            nn.init.zeros_(layer.bias)
    return made


class BoxLayers(nn.Module):
    """Hidden layers and what is read from them.

    Args:
        channels: of the maps.
        classes: K.
        how: see :class:`Boxes`.
        weights: of the coding.
    """

    def __init__(self, channels: int, classes: int, how: Boxes, weights: Weights) -> None:
        super().__init__()
        self.how, self.classes, self.weights = how, classes, weights
        self.head = hidden_layers(channels, how)
        self.predictor = BoxPredictor(how.width, classes, how.class_agnostic)

    def forward(self, pooled: Tensor) -> Judged:
        """What is said of regions, from the maps under them (R x M x S x S)."""
        return Judged(*self.predictor(self.head(pooled)))

    def boxes(self, judged: Judged, regions: Tensor) -> Tensor:
        """R x K x 4 (R x 1 x 4 if one is for all classes), from the regions (R x 4)."""
        return decode(judged.deltas, regions, self.weights).view(_by_box(judged.deltas))

    def losses(self, judged: Judged, regions: Regions) -> dict[str, Tensor]:
        """``loss_cls`` and ``loss_box_reg``, both means over all regions, those of background too, and how often the
        class was right: of all regions, of things, and how many of these were taken for background."""
        logits, labels = judged.logits, regions.labels
        is_thing = (labels < self.classes).float()
        deltas = judged.deltas.view(_by_box(judged.deltas))
        column = torch.zeros_like(labels) if self.how.class_agnostic else labels.clamp(max=self.classes - 1)
        deltas = deltas.gather(1, column[:, None, None].expand(-1, 1, 4))[:, 0]
        place = box_loss(deltas, regions.boxes, regions.goals, self.how.loss, beta=self.how.beta, weights=self.weights)
        count = max(len(labels), 1)
        guess = logits.argmax(dim=1)
        right, things = (guess == labels).float(), is_thing.sum().clamp(min=1)
        return {
            "loss_cls": F.cross_entropy(logits, labels, reduction="sum") / count,
            "loss_box_reg": (place * is_thing).sum() / count,
            "fast_rcnn/cls_accuracy": right.sum() / count,
            "fast_rcnn/fg_cls_accuracy": (right * is_thing).sum() / things,
            "fast_rcnn/false_negative": ((guess == self.classes) * is_thing).sum() / things,
        }


def _by_box(deltas: Tensor) -> tuple[int, int, int]:
    """R x K x 4 of R x 4K, where R may be 0."""
    return len(deltas), deltas.shape[1] // 4, 4


class BoxHead(nn.Module):
    """The head of Faster R-CNN.

    Args:
        levels: what the neck gives.
        classes: K.
        how: see :class:`Boxes`.
        pooling: see :class:`Pooling`.

    Raises:
        ValueError: the neck gives fewer maps than are to be looked at.
    """

    def __init__(self, levels: Sequence[Level], classes: int, how: Boxes, pooling: Pooling) -> None:
        super().__init__()
        self.how = how
        self.pool = RegionPool(levels, how.resolution, pooling)
        self.layers = BoxLayers(levels[0].channels, classes, how, how.weights)

    def losses(
        self, maps: Sequence[Tensor], sizes: Sizes, regions: Sequence[Regions], targets: Sequence[Target]
    ) -> dict[str, Tensor]:
        """See :meth:`BoxLayers.losses`."""
        judged = self.layers(self.pool(maps, [one.boxes for one in regions]))
        return self.layers.losses(judged, joined(regions))

    def detect(self, maps: Sequence[Tensor], sizes: Sizes, proposals: Sequence[Tensor]) -> list[Detections]:
        """Things in each image, from the regions that were proposed (N x 4)."""
        judged = self.layers(self.pool(maps, proposals))
        counts = [len(one) for one in proposals]
        boxes = torch.split(self.layers.boxes(judged, torch.cat(list(proposals))), counts)
        scores = torch.split(judged.logits.softmax(dim=1), counts)
        return [chosen(*of_image, self.how) for of_image in zip(boxes, scores, sizes, strict=True)]


def joined(regions: Sequence[Regions]) -> Regions:
    """The regions of all images."""
    return Regions(*(torch.cat(one) for one in zip(*regions, strict=True)))


def chosen(boxes: Tensor, scores: Tensor, size: tuple[int, int], how: Boxes) -> Detections:
    """The things of one image: those good enough, without those that a better one of the same class covers.

    Scores and boxes that are not numbers are handed on, so that they are seen. Suppression waits for the device.

    Args:
        boxes: R x K x 4, or R x 1 x 4.
        scores: R x K + 1, the background last.
        size: height and width of the image.
        how: thresholds.
    """
    scores = scores[:, :-1]
    boxes = clip_boxes_to_image(boxes, size).expand(-1, scores.shape[1], -1)
    rows, labels = torch.where(~(scores <= how.threshold) & has_extent(boxes, how.smallest))
    boxes, scores = boxes[rows, labels], scores[rows, labels]
    best = batched_nms(boxes, scores, labels, how.nms)[: how.most]
    return Detections(boxes[best], scores[best], labels[best])
