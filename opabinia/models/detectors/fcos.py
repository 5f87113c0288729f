"""FCOS: no anchors, but points that find the box they lie in.

Parameters of the head have torchvision's names: ``head.classification_head.conv.{0,3,6,9}`` (convolutions),
``conv.{1,4,7,10}`` (norms), ``cls_logits``; ``head.regression_head.conv...``, ``bbox_reg``, ``bbox_ctrness``. In
detectron2 these are ``head.cls_subnet.{0,1,3,4,6,7,9,10}`` (as a rule: conv.n is subnet.n), ``head.cls_score``,
``head.bbox_subnet``, ``head.bbox_pred`` and ``head.ctrness``. Weights of both want ``offset: 0``, torchvision's also
``convention: torchvision``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.detection._utils import BoxLinearCoder
from torchvision.models.detection.fcos import FCOSClassificationHead, FCOSRegressionHead

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
from opabinia.models.detectors.anchors import AnchorGrid, Convention, overlap_loss
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
from opabinia.models.necks import fpn_p3_p7_from_p5
from opabinia.runtime.collectives import per_sample

CODER = BoxLinearCoder(normalize_by_size=True)
"""Distances from a point to the four sides, in strides."""

IN_PIXELS = BoxLinearCoder(normalize_by_size=False)


@register.detector
class Fcos(Detector):
    """FCOS (Tian et al. 2019) with what its authors added later (section 3 of their paper of 2022): points learn near
    the centre of a thing only, boxes by generalised intersection over union, distances are in strides, and the branch
    of the boxes tells the centerness.

    Losses are divided by the positive points of the batch of all processes, or by its pictures if these are more, so
    that a batch means the same on any number of processes.

    Args:
        neck: the pyramid.
        convs: convolutions of each of the two branches.
        norm: behind each of them.
        prior: the chance of a class at first, everywhere.
        radius: points up to this many strides from the centre of a thing learn it.
        offset: where the first point lies, in strides: the paper's 0.5 is the middle of what it sees; 0 is
            torchvision's and detectron2's.
        convention: whose points they are. ``torchvision``, for its weights, takes as stride how many whole times a map
            goes into the batch.
        alpha: of the focal loss.
        gamma: of the focal loss.
        threshold: things with a score of no more than this are left out. The paper's of 2019; 0.2 in torchvision and
            detectron2.
        nms: of two things of one class that overlap by more than this the lesser one goes.
        candidates: so many of each level, the best, go into that.
        most: things in an image, at most.
    """

    def __init__(
        self,
        levels: Sequence[Level],
        dataset_info: DatasetInfo,
        /,
        *,
        neck: NeckPart = fpn_p3_p7_from_p5,
        convs: Count = 4,
        norm: HeadNorm = "group",
        prior: Prior = 0.01,
        radius: Positive = 1.5,
        offset: Fraction = 0.5,
        convention: Convention = "detectron2",
        alpha: Fraction = 0.25,
        gamma: NonNegative = 2.0,
        threshold: Fraction = 0.05,
        nms: Fraction = 0.6,
        candidates: Count = 1000,
        most: Count = 100,
    ) -> None:
        super().__init__()
        self.neck = neck(levels)
        channels, classes = self.neck.out_levels[0].channels, len(dataset_info.classes)
        made = head_norm(norm, channels) or nn.Identity
        self.head = nn.ModuleDict(
            {
                "classification_head": FCOSClassificationHead(channels, 1, classes, convs, prior, made),
                "regression_head": FCOSRegressionHead(channels, 1, convs, made),
            }
        )
        strides = [level.stride for level in self.neck.out_levels]
        self.grid = AnchorGrid([[stride] for stride in strides], [1.0], strides, offset=offset, convention=convention)
        self.radius, self.alpha, self.gamma = radius, alpha, gamma
        self.threshold, self.nms, self.most, self._most_candidates = threshold, nms, most, candidates

    def pyramid(self, maps: Sequence[Tensor]) -> list[Tensor]:
        """The neck's maps."""
        made: list[Tensor] = self.neck(maps)
        return made

    def _said(self, maps: Sequence[Tensor], shape: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
        """Logits (B x N x K), distances in strides (B x N x 4), centerness (B x N), and the points of each level as
        boxes of the stride's size (N x 4)."""
        distances, centerness = self.head["regression_head"](maps)
        return self.head["classification_head"](maps), distances, centerness.squeeze(2), self.grid(maps, shape)

    def losses(
        self, maps: Sequence[Tensor], shape: tuple[int, int], sizes: Sizes, targets: Sequence[Target]
    ) -> dict[str, Tensor]:
        """``loss_cls``, ``loss_box_reg``, ``loss_centerness``; ``num_pos_anchors``, the positive points of a picture,
        and ``fg_accuracy``, how many of them give the right class the highest score."""
        logits, distances, centerness, points = self._said(maps, shape)
        goals = assign(points, targets, self.radius)
        positive, anchors = goals.classes >= 0, torch.cat(points)
        each = per_sample(positive.sum(), len(targets))
        count = each.clamp(min=1) * len(targets)
        # No place is picked out, which would wait for the device: what is not positive counts 0.
        boxes = CODER.decode(distances.float(), anchors)
        off = overlap_loss(boxes, goals.boxes, "giou")
        off_centre = F.binary_cross_entropy_with_logits(
            centerness.float(), centre_of(anchors, goals.boxes), reduction="none"
        )
        return {
            "loss_cls": focal(logits, goals.classes, self.alpha, self.gamma).sum() / count,
            "loss_box_reg": (off * positive).sum() / count,
            "loss_centerness": (off_centre * positive).sum() / count,
            "num_pos_anchors": each,
            "fg_accuracy": says_right(logits, goals.classes).sum() / count,
        }

    def detect(self, maps: Sequence[Tensor], shape: tuple[int, int], sizes: Sizes) -> list[Detections]:
        """Scores are the root of the class's chance times the centerness."""
        return suppressed(self.candidates(maps, shape), sizes, self.threshold, self.nms, self.most)

    def candidates(self, maps: Sequence[Tensor], shape: tuple[int, int]) -> list[Found]:
        """The best of each level, before suppression."""
        logits, distances, centerness, points = self._said(maps, shape)
        levels = by_level(logits, distances.float(), points, centerness)
        return [best_candidates(level, CODER.decode, self._most_candidates) for level in levels]


class Goals(NamedTuple):
    """What the N points of B images are to find: classes (int64, B x N; -1: nothing) and boxes (B x N x 4; anything of
    positive size where there is nothing)."""

    classes: Tensor
    boxes: Tensor


@torch.no_grad()
def assign(points: Sequence[Tensor], targets: Sequence[Target], radius: float) -> Goals:
    """Points to things: one finds the smallest thing that it lies in, near whose centre it is, and whose farthest side
    is as far away as its level is for (Tian et al. 2019, section 3.2).

    A level is for distances from 4 to 8 strides, both included, the finest for all that are less, the coarsest for
    all that are more: up to 64 pixels, 64 to 128 ..., from 512 on.

    Args:
        points: of each level, from fine to coarse, as boxes of the stride's size (N x 4).
        targets: of each image.
        radius: how far a point may be from the centre of its thing, in both directions, in strides.

    Example: of [0, 0, 40, 40] the points of stride 8 with x and y in 12, 20 and 28 learn at radius 1.5.
    """
    anchors = torch.cat(list(points))
    strides = anchors[:, 2] - anchors[:, 0]
    nearest, farthest = 4 * strides, 8 * strides
    nearest[: len(points[0])] = 0
    farthest[len(anchors) - len(points[-1]) :] = math.inf
    classes, boxes = [], []
    for target in targets:  # one after the other: all points times all things of a batch would be too much
        if not len(target.boxes):
            classes.append(target.labels.new_full((len(anchors),), -1))
            boxes.append(anchors)
            continue
        sides = IN_PIXELS.encode(anchors.unsqueeze(1), target.boxes.unsqueeze(0))
        far = sides.amax(dim=2)
        shift = (sides[..., :2] - sides[..., 2:]).abs().amax(dim=2) / 2
        theirs = (sides.amin(dim=2) > 0) & (shift < radius * strides.unsqueeze(1))
        theirs &= (far >= nearest.unsqueeze(1)) & (far <= farthest.unsqueeze(1))
        areas = (target.boxes[:, 2:] - target.boxes[:, :2]).prod(dim=1)
        smallest, things = areas.expand_as(far).masked_fill(~theirs, math.inf).min(dim=1)
        classes.append(target.labels[things].masked_fill(smallest.isinf(), -1))
        boxes.append(target.boxes[things])
    return Goals(torch.stack(classes), torch.stack(boxes))


@torch.no_grad()
def centre_of(anchors: Tensor, boxes: Tensor) -> Tensor:
    """Centerness (B x N): 1 in the middle of a box, 0 at its sides and beyond (Tian et al. 2019, equation 3).

    Args:
        anchors: N points, as boxes of the stride's size (N x 4).
        boxes: B x N x 4.

    Example: 2 from the left side, 8 from the right one, 5 from those above and below: the root of 2/8, 0.5.
    """
    sides = CODER.encode(anchors, boxes).clamp(min=0).view(*boxes.shape[:2], 2, 2)
    near, far = sides.aminmax(dim=2)
    centerness: Tensor = (near / far).prod(dim=2).sqrt()
    return centerness
