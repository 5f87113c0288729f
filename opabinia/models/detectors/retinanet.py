"""RetinaNet: nine anchors at every place of a pyramid, and a loss that looks at what is hard.

Parameters of the head have torchvision's names: ``head.classification_head.conv.{0,1,2,3}.0`` (``.1`` is the norm, if
there is one), ``cls_logits``; ``head.regression_head.conv...``, ``bbox_reg``. In detectron2, without a norm, these are
``head.cls_subnet.{0,2,4,6}``, ``head.cls_score``, ``head.bbox_subnet`` and ``head.bbox_pred``. torchvision's weights
want ``convention: torchvision``, and those of its first version ``neck: fpn_p3_p7_from_p5``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torchvision.models.detection.retinanet import RetinaNetClassificationHead, RetinaNetRegressionHead
from torchvision.ops import box_iou

from opabinia.config import register
from opabinia.contracts import (
    Count,
    DatasetInfo,
    Detections,
    Detector,
    Fraction,
    Level,
    NeckPart,
    NonNegative,
    Positive,
    Sizes,
    Target,
)
from opabinia.models.detectors.anchors import (
    IGNORED,
    NEGATIVE,
    POSITIVE,
    AnchorGrid,
    BoxLoss,
    Convention,
    box_loss,
    decode,
    match,
)
from opabinia.models.detectors.dense import (
    Found,
    HeadNorm,
    Prior,
    best_candidates,
    by_level,
    focal,
    head_norm,
    says_right,
    suppressed,
)
from opabinia.models.necks import fpn_p3_p7


@register.detector(name="retinanet")
class RetinaNet(Detector):
    """RetinaNet (Lin et al. 2017, Focal loss for dense object detection).

    The losses of a picture are divided by its own positive anchors, as in the paper (section 4.1) and in torchvision,
    and their mean is taken: so a batch means the same on any number of processes and in any pieces. detectron2 divides
    by a running mean over steps, which would have to be saved and agreed on.

    Args:
        neck: the pyramid.
        anchor_sizes: sides of the smallest anchor of each level, in pixels; null takes 4 strides, which are the paper's
            32 to 512.
        scales: so many sizes from there to the double, which is not among them.
        ratios: height through width.
        offset: where the first anchor lies, in strides: 0 is torchvision's and detectron2's; 0.5 is the middle of what
            it sees.
        convention: whose anchors they are. ``torchvision``, for its weights, has sizes and corners in whole pixels, for
            each ratio all sizes, and takes as stride how many whole times a map goes into the batch.
        norm: behind each of the four convolutions of the two branches.
        prior: the chance of a class at first, everywhere.
        background: an anchor that overlaps no thing by this much is background ...
        foreground: ... and one that overlaps a thing by this much learns it, as do those that overlap it most.
        alpha: of the focal loss.
        gamma: of the focal loss.
        loss: how boxes are compared, see :func:`opabinia.models.detectors.anchors.box_loss`.
        beta: up to this error ``smooth_l1`` is a square; detectron2's. torchvision has 0.
        threshold: things with a score of no more than this are left out.
        nms: of two things of one class that overlap by more than this the lesser one goes.
        candidates: so many of each level, the best, go into that.
        most: things in an image, at most; detectron2's. torchvision has 300.

    Raises:
        ValueError: there are not as many anchor sizes as levels, or background is above foreground.
    """

    def __init__(
        self,
        levels: Sequence[Level],
        dataset_info: DatasetInfo,
        /,
        *,
        neck: NeckPart = fpn_p3_p7,
        anchor_sizes: list[Positive] | None = None,
        scales: Count = 3,
        ratios: tuple[Positive, ...] = (0.5, 1.0, 2.0),
        offset: Fraction = 0.0,
        convention: Convention = "detectron2",
        norm: HeadNorm = "none",
        prior: Prior = 0.01,
        background: Fraction = 0.4,
        foreground: Fraction = 0.5,
        alpha: Fraction = 0.25,
        gamma: NonNegative = 2.0,
        loss: BoxLoss = "smooth_l1",
        beta: NonNegative = 0.1,
        threshold: Fraction = 0.05,
        nms: Fraction = 0.5,
        candidates: Count = 1000,
        most: Count = 100,
    ) -> None:
        super().__init__()
        if background > foreground:
            raise ValueError(f"background ({background}) must not be above foreground ({foreground})")
        self.neck = neck(levels)
        strides = [level.stride for level in self.neck.out_levels]
        smallest = [4.0 * stride for stride in strides] if anchor_sizes is None else anchor_sizes
        sizes = [[size * 2 ** (number / scales) for number in range(scales)] for size in smallest]
        if convention == "torchvision":
            sizes = [[float(int(size)) for size in of_level] for of_level in sizes]
        self.grid = AnchorGrid(sizes, ratios, strides, offset=offset, convention=convention)
        channels, made = self.neck.out_levels[0].channels, head_norm(norm, self.neck.out_levels[0].channels)
        count, classes = self.grid.per_place, len(dataset_info.classes)
        self.head = nn.ModuleDict(
            {
                "classification_head": RetinaNetClassificationHead(channels, count, classes, prior, made),
                "regression_head": RetinaNetRegressionHead(channels, count, made),
            }
        )
        self.background, self.foreground, self.alpha, self.gamma = background, foreground, alpha, gamma
        self.loss, self.beta = loss, beta
        self.threshold, self.nms, self.most, self._most_candidates = threshold, nms, most, candidates

    def pyramid(self, maps: Sequence[Tensor]) -> list[Tensor]:
        """The neck's maps."""
        made: list[Tensor] = self.neck(maps)
        return made

    def _said(self, maps: Sequence[Tensor], shape: tuple[int, int]) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Logits (B x N x K), coded boxes (B x N x 4), and the anchors of each level (N x 4)."""
        return (
            self.head["classification_head"](maps),
            self.head["regression_head"](maps),
            self.grid(maps, shape),
        )

    def losses(
        self, maps: Sequence[Tensor], shape: tuple[int, int], sizes: Sizes, targets: Sequence[Target]
    ) -> dict[str, Tensor]:
        """``loss_cls``, ``loss_box_reg``; ``num_pos_anchors`` and ``num_neg_anchors`` of a picture, and
        ``fg_accuracy``, how many of the positive ones give the right class the highest score."""
        logits, codes, of_levels = self._said(maps, shape)
        anchors = torch.cat(of_levels)
        goals = assign(anchors, targets, self.background, self.foreground)
        positive, images = goals.labels == POSITIVE, len(targets)
        counts = positive.sum(dim=1)
        # No anchor is picked out, which would wait for the device: what is not positive counts 0.
        classes = goals.classes.masked_fill(~positive, -1)
        wrong = focal(logits, classes, self.alpha, self.gamma) * (goals.labels != IGNORED)
        everywhere = anchors.expand(images, -1, -1).flatten(0, 1)
        off = box_loss(codes.flatten(0, 1), everywhere, goals.boxes.flatten(0, 1), self.loss, beta=self.beta)
        each = counts.clamp(min=1)
        return {
            "loss_cls": (wrong.sum(dim=1) / each).mean(),
            "loss_box_reg": ((off.view_as(positive) * positive).sum(dim=1) / each).mean(),
            "num_pos_anchors": counts.sum() / images,
            "num_neg_anchors": (goals.labels == NEGATIVE).sum() / images,
            "fg_accuracy": says_right(logits, classes).sum() / counts.sum().clamp(min=1),
        }

    def detect(self, maps: Sequence[Tensor], shape: tuple[int, int], sizes: Sizes) -> list[Detections]:
        """Scores are the chances of classes."""
        return suppressed(self.candidates(maps, shape), sizes, self.threshold, self.nms, self.most)

    def candidates(self, maps: Sequence[Tensor], shape: tuple[int, int]) -> list[Found]:
        """The best of each level, before suppression."""
        levels = by_level(*self._said(maps, shape))
        return [best_candidates(level, decode, self._most_candidates) for level in levels]


class Goals(NamedTuple):
    """What the N anchors of B images are to find.

    Attributes:
        classes: of the thing that each overlaps most (int64, B x N).
        boxes: of that thing (B x N x 4); in images without things the anchors.
        labels: whether it learns it, see :class:`~opabinia.models.detectors.anchors.Matches` (int64, B x N).
    """

    classes: Tensor
    boxes: Tensor
    labels: Tensor


@torch.no_grad()
def assign(anchors: Tensor, targets: Sequence[Target], low: float, high: float) -> Goals:
    """Anchors to things, by their overlap (see :func:`~opabinia.models.detectors.anchors.match`).

    Args:
        anchors: N x 4.
        targets: of each image.
        low: anchors that overlap less with every thing are background.
        high: those that overlap so much or more with a thing learn it, and so does the one that overlaps it most.
    """
    goals = []
    for target in targets:  # one after the other: all anchors times all things of a batch would be too much
        found = match(box_iou(target.boxes, anchors), low, high, low_quality=True)
        if len(target.boxes):
            goals.append(Goals(target.labels[found.things], target.boxes[found.things], found.labels))
        else:
            goals.append(Goals(found.labels, anchors, found.labels))
    return Goals(*map(torch.stack, zip(*goals, strict=True)))
