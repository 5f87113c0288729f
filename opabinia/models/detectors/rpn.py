"""The first stage of R-CNNs: which regions of an image are worth a second look (Ren et al. 2015, section 3.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.detection.rpn import RPNHead
from torchvision.ops import batched_nms, box_iou, clip_boxes_to_image

from opabinia.config import register
from opabinia.contracts import Count, Fraction, Level, NonNegative, Positive, Sizes, Target
from opabinia.models.detectors.anchors import POSITIVE, AnchorGrid, BoxLoss, Convention, box_loss, decode, match
from opabinia.models.detectors.regions import draw, has_extent


@register.section(name="region_proposals")
@dataclass(frozen=True, kw_only=True)
class Proposals:
    """How regions are proposed. Defaults are those of detectron2's R-CNNs with a feature pyramid.

    Args:
        anchor_sizes: square roots of the areas of anchors, in pixels: one for each map of the neck, from fine to
            coarse; null takes 8 strides, which are detectron2's 32 to 512.
        ratios: height through width of anchors.
        convolutions: before what is said of each place.
        convention: whose anchors they are. ``torchvision``, for its weights, has corners on whole pixels, takes as
            stride how many whole times a map goes into the batch, and ranks proposals by chances, which are all 1 where
            logits are large.
        background: an anchor that overlaps no thing by this much is background ...
        foreground: ... and one that overlaps a thing by this much belongs to it, as do those that overlap it most.
        samples: how many anchors of an image are learned from.
        positive: how many of them may belong to things, at most.
        loss: how boxes are compared, see :func:`opabinia.models.detectors.anchors.box_loss`.
        beta: of ``smooth_l1``; 0 is L1 (torchvision: 1/9).
        before_training: proposals of each map that go into suppression, in training ...
        before: ... and otherwise.
        after_training: proposals of an image that come out of it, in training ...
        after: ... and otherwise.
        nms: of two proposals of one map that overlap by more than this the lesser one goes.
        smallest: proposals whose width or height is not more than this, in pixels, are left out (torchvision: 0.001).
    """

    anchor_sizes: list[Positive] | None = None
    ratios: tuple[Positive, ...] = (0.5, 1, 2)
    convolutions: Count = 1
    convention: Convention = "detectron2"
    background: Fraction = 0.3
    foreground: Fraction = 0.7
    samples: Count = 256
    positive: Fraction = 0.5
    loss: BoxLoss = "smooth_l1"
    beta: NonNegative = 0
    before_training: Count = 2000
    before: Count = 1000
    after_training: Count = 1000
    after: Count = 1000
    nms: Fraction = 0.7
    smallest: NonNegative = 0


class Guesses(NamedTuple):
    """What the network says of all anchors; lists are by level.

    Attributes:
        logits: whether there is something (B x A each).
        deltas: how it differs from the anchor (B x A x 4 each).
        anchors: A x 4 each, float32.
    """

    logits: list[Tensor]
    deltas: list[Tensor]
    anchors: list[Tensor]


class RegionProposals(nn.Module):
    """The region proposal network.

    Its weights have torchvision's names (``head.conv.0.0``, ``head.cls_logits``, ``head.bbox_pred``). detectron2's
    ``conv``, ``objectness_logits`` and ``anchor_deltas`` have the same shapes and order.

    Args:
        levels: what the neck gives.
        how: see :class:`Proposals`.

    Raises:
        ValueError: there are not as many sizes as levels, or background is above foreground.
    """

    def __init__(self, levels: Sequence[Level], how: Proposals) -> None:
        super().__init__()
        if how.background > how.foreground:
            raise ValueError(f"background ({how.background}) must not be above foreground ({how.foreground})")
        self.how = how
        strides = [level.stride for level in levels]
        sizes = [8.0 * stride for stride in strides] if how.anchor_sizes is None else how.anchor_sizes
        self._anchors = AnchorGrid([(size,) for size in sizes], how.ratios, strides, convention=how.convention)
        self.head = RPNHead(levels[0].channels, self._anchors.per_place, how.convolutions)

    def forward(self, maps: Sequence[Tensor], shape: tuple[int, int]) -> Guesses:
        """Guesses at every anchor of the maps; ``shape`` is that of the batch."""
        logits, deltas = self.head(list(maps))
        return Guesses(
            [one.permute(0, 2, 3, 1).flatten(1).float() for one in logits],
            [one.permute(0, 2, 3, 1).reshape(len(one), -1, 4).float() for one in deltas],
            self._anchors(maps, shape),
        )

    def losses(self, guesses: Guesses, targets: Sequence[Target]) -> dict[str, Tensor]:
        """``loss_rpn_cls`` and ``loss_rpn_loc``, and how many anchors of each kind they are of, per image.

        Both are means over ``samples`` anchors of each image, whether or not it has that many (detectron2).
        """
        logits, deltas, anchors = torch.cat(guesses.logits, 1), torch.cat(guesses.deltas, 1), torch.cat(guesses.anchors)
        learned = [
            self._learned(logits[number], deltas[number], anchors, target) for number, target in enumerate(targets)
        ]
        existence, place, positive, negative = torch.stack(learned).sum(dim=0).unbind()
        count = len(targets) * self.how.samples
        return {
            # What is not finite shows, whichever anchors were drawn.
            "loss_rpn_cls": existence / count + 0 * logits.sum(),
            "loss_rpn_loc": place / count + 0 * deltas.sum(),
            "rpn/num_pos_anchors": positive.detach() / len(targets),
            "rpn/num_neg_anchors": negative.detach() / len(targets),
        }

    def _learned(self, logits: Tensor, deltas: Tensor, anchors: Tensor, target: Target) -> Tensor:
        """Of one image (4): sums of both losses, and the numbers of anchors of things and of background."""
        how = self.how
        found = match(box_iou(target.boxes, anchors), how.background, how.foreground, low_quality=True)
        rows, counts = draw(found.labels, how.samples, how.positive)
        positive = (found.labels[rows] == POSITIVE).float()
        existence = F.binary_cross_entropy_with_logits(logits[rows], positive, reduction="none")
        anchors = anchors[rows]
        goals = target.boxes[found.things[rows]] if len(target.boxes) else anchors
        place = box_loss(deltas[rows], anchors, goals, how.loss, beta=how.beta)
        weights = counts.float()
        each = torch.stack([existence, place * positive, positive, 1 - positive])
        return (each * weights).sum(dim=1)

    @torch.no_grad()
    def propose(self, guesses: Guesses, sizes: Sizes, before: int, after: int) -> list[Tensor]:
        """Regions of each image (N x 4), best first. It waits for the device while overlapping ones are suppressed.

        Args:
            guesses: at all anchors.
            sizes: of the images within the batch.
            before: regions of each level that go into suppression.
            after: regions of an image that come out of it, at most.
        """
        best = [_best(*of_level, before) for of_level in zip(*guesses, strict=True)]
        scores, boxes = (torch.cat(one, dim=1) for one in zip(*best, strict=True))
        if self.how.convention == "torchvision":
            scores = scores.sigmoid()
        levels = torch.cat([torch.full_like(one[0], level) for level, (one, _) in enumerate(best)])
        return [
            self._suppressed(clip_boxes_to_image(boxes[number], size), scores[number], levels)[:after]
            for number, size in enumerate(sizes)
        ]

    def _suppressed(self, boxes: Tensor, scores: Tensor, levels: Tensor) -> Tensor:
        large = has_extent(boxes, self.how.smallest)
        boxes = boxes[large]
        return boxes[batched_nms(boxes, scores[large], levels[large], self.how.nms)]


def _best(logits: Tensor, deltas: Tensor, anchors: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Logits (B x N) and boxes (B x N x 4) of the ``count`` best anchors of a level."""
    logits, rows = logits.topk(min(count, logits.shape[1]), dim=1)
    deltas = deltas.gather(1, rows[..., None].expand(-1, -1, 4))
    return logits, decode(deltas.flatten(0, 1), anchors[rows].flatten(0, 1)).view_as(deltas)
