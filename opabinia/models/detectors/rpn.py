"""Region proposal network, the first stage of R-CNNs (Ren et al. 2015, section 3.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.detection.rpn import RPNHead
from torchvision.ops import box_iou, clip_boxes_to_image

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
from opabinia.models.detectors.anchors import AnchorGrid, Convention
from opabinia.models.detectors.regions import draw_samples
from opabinia.models.detectors.suppression import box_nms, clip_boxes, exceeds_size, nms_batch
from opabinia.models.losses.boxes import BoxLoss, BoxWeights, box_regression_loss, decode_boxes
from opabinia.models.losses.matching import POSITIVE, match_anchors
from opabinia.models.necks import fpn
from opabinia.runtime.device import true_indices


@register.section(name="region_proposals")
@dataclass(frozen=True, kw_only=True)
class ProposalOptions:
    """Options of region proposals. Defaults are those of detectron2's R-CNNs with a feature pyramid.

    Args:
        anchor_sizes: square roots of the areas of anchors, in pixels: one for each level of the neck, from fine to
            coarse, or a list of equal length for each; null takes 8 strides, detectron2's 32 to 512.
        aspect_ratios: height / width of anchors.
        offset: position of the first anchor, in strides: 0 (detectron2, torchvision) or 0.5, the center of its cell.
        num_convs: convolutions before the predictions.
        convention: convention of the anchors. ``torchvision``, for its weights, has corners on whole pixels, computes
            strides from the sizes of the batch and the feature maps, rounded down, and ranks proposals by
            probabilities, which saturate at 1 for large logits.
        background_iou: anchors that overlap every object less are background.
        foreground_iou: anchors that overlap an object this much or more are assigned to it, and so are those that
            overlap it most. Those in between are ignored.
        batch_size_per_image: anchors sampled per image for the loss.
        positive_fraction: largest share of positive anchors among them.
        box_loss: loss of the boxes, see :func:`opabinia.models.losses.boxes.box_regression_loss`.
        smooth_l1_beta: threshold of ``smooth_l1``; 0 is L1 (torchvision: 1/9).
        bbox_reg_weights: factors of encoded boxes: shifts to the right and down, width, height.
        loss_weight: factor of both losses.
        box_loss_weight: further factor of the box loss.
        pre_nms_topk_train: proposals of each level that go into suppression, in training.
        pre_nms_topk_test: the same in evaluation.
        post_nms_topk_train: proposals of an image after suppression, in training.
        post_nms_topk_test: the same in evaluation.
        nms_threshold: IoU of two proposals of one level above which the one with the lower score is dropped.
        min_size: proposals whose width or height, in pixels, is not larger are dropped (torchvision: 0.001).
    """

    anchor_sizes: list[Positive] | list[list[Positive]] | None = None
    aspect_ratios: tuple[Positive, ...] = (0.5, 1, 2)
    offset: Fraction = 0.0
    num_convs: Count = 1
    convention: Convention = "detectron2"
    background_iou: Fraction = 0.3
    foreground_iou: Fraction = 0.7
    batch_size_per_image: Count = 256
    positive_fraction: Fraction = 0.5
    box_loss: BoxLoss = "smooth_l1"
    smooth_l1_beta: NonNegative = 0
    bbox_reg_weights: BoxWeights = (1, 1, 1, 1)
    loss_weight: NonNegative = 1
    box_loss_weight: NonNegative = 1
    pre_nms_topk_train: Count = 2000
    pre_nms_topk_test: Count = 1000
    post_nms_topk_train: Count = 1000
    post_nms_topk_test: Count = 1000
    nms_threshold: Fraction = 0.7
    min_size: NonNegative = 0


class RpnOutput(NamedTuple):
    """Predictions for all anchors, one tensor per level.

    Attributes:
        logits: objectness (B x A each).
        deltas: encoded boxes (B x A x 4 each).
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
        levels: feature levels of the neck.
        options: see :class:`ProposalOptions`.

    Raises:
        ValueError: there are not as many sizes as levels, or background_iou is above foreground_iou.
    """

    def __init__(self, levels: Sequence[Level], options: ProposalOptions) -> None:
        super().__init__()
        if options.background_iou > options.foreground_iou:
            raise ValueError(
                f"background_iou ({options.background_iou}) must not be above foreground_iou ({options.foreground_iou})"
            )
        self.options = options
        strides = [level.stride for level in levels]
        sizes = [8.0 * stride for stride in strides] if options.anchor_sizes is None else options.anchor_sizes
        self._anchors = AnchorGrid(
            [size if isinstance(size, list) else [size] for size in sizes],
            options.aspect_ratios,
            strides,
            offset=options.offset,
            convention=options.convention,
        )
        self.head = RPNHead(levels[0].channels, self._anchors.num_anchors, options.num_convs)

    def forward(self, maps: Sequence[Tensor], shape: tuple[int, int]) -> RpnOutput:
        """Predict from the feature maps of a batch of height and width ``shape``."""
        logits, deltas = self.head(list(maps))
        return RpnOutput(
            [level.permute(0, 2, 3, 1).flatten(1).float() for level in logits],
            [level.permute(0, 2, 3, 1).reshape(level.shape[0], -1, 4).float() for level in deltas],
            self._anchors(maps, shape),
        )

    def losses(self, output: RpnOutput, targets: Sequence[Target]) -> dict[str, Tensor]:
        """``loss_rpn_cls`` and ``loss_rpn_loc``, and the number of positive and negative sampled anchors per image.

        Both losses are divided by ``batch_size_per_image`` for each image, even if it has fewer samples (detectron2).
        """
        logits, deltas, anchors = torch.cat(output.logits, 1), torch.cat(output.deltas, 1), torch.cat(output.anchors)
        sums = [
            self._image_sums(image_logits, image_deltas, anchors, target)
            for image_logits, image_deltas, target in zip(logits, deltas, targets, strict=True)
        ]
        objectness, boxes, positive, negative = torch.stack(sums).sum(dim=0).unbind()
        count = len(targets) * self.options.batch_size_per_image
        weight = self.options.loss_weight
        return {
            # Predictions that are not finite must show, whichever anchors were sampled.
            "loss_rpn_cls": weight * objectness / count + 0 * logits.sum(),
            "loss_rpn_loc": weight * self.options.box_loss_weight * boxes / count + 0 * deltas.sum(),
            "rpn/num_pos_anchors": positive.detach() / len(targets),
            "rpn/num_neg_anchors": negative.detach() / len(targets),
        }

    def _image_sums(self, logits: Tensor, deltas: Tensor, anchors: Tensor, target: Target) -> Tensor:
        """Sum over an image's samples: objectness loss, box loss, number of positive and of negative samples."""
        options = self.options
        iou = box_iou(target.boxes, anchors)
        matches = match_anchors(iou, options.background_iou, options.foreground_iou, low_quality=True)
        rows, valid = draw_samples(matches.labels, options.batch_size_per_image, options.positive_fraction)
        positive = (matches.labels[rows] == POSITIVE).float()
        objectness = F.binary_cross_entropy_with_logits(logits[rows], positive, reduction="none")
        anchors = anchors[rows]
        boxes = target.boxes[matches.indices[rows]] if len(target.boxes) else anchors
        box_losses = box_regression_loss(
            deltas[rows],
            anchors,
            boxes,
            options.box_loss,
            beta=options.smooth_l1_beta,
            weights=options.bbox_reg_weights,
        )
        values = torch.stack([objectness, box_losses * positive, positive, 1 - positive])
        return (values * valid.float()).sum(dim=1)

    def propose(self, output: RpnOutput, sizes: Sizes, pre_nms_topk: int, post_nms_topk: int) -> list[Tensor]:
        """Return the boxes of :meth:`scored_proposals`."""
        return [boxes for boxes, _ in self.scored_proposals(output, sizes, pre_nms_topk, post_nms_topk)]

    @torch.no_grad()
    def scored_proposals(
        self, output: RpnOutput, sizes: Sizes, pre_nms_topk: int, post_nms_topk: int
    ) -> list[tuple[Tensor, Tensor]]:
        """Return the proposals of each image (N x 4) and their probabilities (N), best first. This waits for the
        device, once for the sizes of all and once for the suppression of each image.

        Args:
            output: output of :meth:`forward`.
            sizes: sizes of the images within the batch.
            pre_nms_topk: proposals of each level that go into suppression.
            post_nms_topk: proposals of an image after suppression, at most.
        """
        best = self._best(output, pre_nms_topk)
        scores, boxes = (torch.cat(values, dim=1) for values in zip(*best, strict=True))
        levels = torch.cat([torch.full_like(logits[0], level) for level, (logits, _) in enumerate(best)])
        clipped = [clip_boxes_to_image(*image) for image in zip(boxes, sizes, strict=True)]
        large = true_indices([exceeds_size(image, self.options.min_size) for image in clipped])
        proposals = []
        for image_boxes, image_scores, rows in zip(clipped, scores, large, strict=True):
            image = image_boxes[rows], image_scores[rows], levels[rows]
            kept = rows[box_nms(*image, self.options.nms_threshold)[:post_nms_topk]]
            proposals.append((image_boxes[kept], self._probabilities(image_scores[kept])))
        return proposals

    def propose_batch(self, output: RpnOutput, sizes: Tensor, pre_nms_topk: int, post_nms_topk: int) -> Detections:
        """Return the proposals of :meth:`scored_proposals` with static shapes: boxes (B x N x 4), probabilities and
        labels (B x N), 0 or, for padding, which are empty boxes, -1.

        Args:
            output, pre_nms_topk, post_nms_topk: see there.
            sizes: height and width of each image (int64, B x 2).
        """
        ranks, clipped = [], []
        for level_scores, level_boxes in self._best(output, pre_nms_topk):
            level_boxes = clip_boxes(level_boxes, sizes)
            level_scores = level_scores.masked_fill(~exceeds_size(level_boxes, self.options.min_size), -inf)
            kept = nms_batch(level_boxes, level_scores, self.options.nms_threshold)
            ranks.append(level_scores.masked_fill(~kept, -inf))
            clipped.append(level_boxes)
        scores, rows = torch.cat(ranks, dim=1).topk(min(post_nms_topk, sum(level.shape[1] for level in ranks)))
        boxes = torch.cat(clipped, dim=1).gather(1, rows[..., None].expand(-1, -1, 4))
        valid = scores > -inf
        return Detections(boxes * valid[..., None], self._probabilities(scores).where(valid, 0), valid.long() - 1)

    def _best(self, output: RpnOutput, count: int) -> list[tuple[Tensor, Tensor]]:
        """Return scores to rank by (B x N) and boxes (B x N x 4) of the ``count`` best anchors of each level."""
        levels = [_top_proposals(*level, count, self.options.bbox_reg_weights) for level in zip(*output, strict=True)]
        if self.options.convention == "torchvision":
            return [(logits.sigmoid(), boxes) for logits, boxes in levels]
        return levels

    def _probabilities(self, scores: Tensor) -> Tensor:
        return scores if self.options.convention == "torchvision" else scores.sigmoid()


@register.detector(name="rpn")
class ProposalNetwork(Detector):
    """A region proposal network by itself (Ren et al. 2015, section 3.1; detectron2's ProposalNetwork).

    Its detections are objects of any class, all with label 0: evaluate them with ``proposal_recall``.

    Args:
        levels: the backbone's levels.
        dataset_info: description of the training data.
        neck: makes the feature pyramid.
        proposals: options of the region proposals; there are ``post_nms_topk_test`` detections per image.
        last_stage: false: the backbone's last stage does not run, and is frozen (ResNet-C4, with the neck ``no_neck``).

    Raises:
        ValueError: see :class:`RegionProposals`.
    """

    compiled_modules = r"neck|rpn\.head"

    def __init__(
        self,
        levels: Sequence[Level],
        dataset_info: DatasetInfo,
        /,
        *,
        neck: NeckPart = fpn,
        proposals: ProposalOptions,
        last_stage: bool = True,
    ) -> None:
        super().__init__()
        self.neck = neck(levels if last_stage else levels[:-1])
        self.last_stage_on_regions = not last_stage
        self.rpn = RegionProposals(self.neck.out_levels, proposals)
        self.max_detections = proposals.post_nms_topk_test

    def use_last_stage(self, stage: nn.Module) -> None:
        """Freeze the backbone's last stage, which there are no regions for."""
        stage.requires_grad_(False)

    def losses(
        self, maps: Sequence[Tensor], shape: tuple[int, int], sizes: Sizes, targets: Sequence[Target]
    ) -> dict[str, Tensor]:
        """See :meth:`RegionProposals.losses`."""
        return self.rpn.losses(self.rpn(maps, shape), targets)

    def detect(self, maps: Sequence[Tensor], shape: tuple[int, int], sizes: Sizes) -> list[Detections]:
        """Return the proposals of each image with their probabilities, best first."""
        options = self.rpn.options
        output = self.rpn(maps, shape)
        proposals = self.rpn.scored_proposals(output, sizes, options.pre_nms_topk_test, options.post_nms_topk_test)
        return [Detections(boxes, scores, torch.zeros_like(scores, dtype=torch.int64)) for boxes, scores in proposals]

    def detect_batch(self, maps: Sequence[Tensor], shape: tuple[int, int], sizes: Tensor) -> Detections:
        """Return the detections of B images with static shapes; see :meth:`RegionProposals.propose_batch`."""
        options = self.rpn.options
        return self.rpn.propose_batch(
            self.rpn(maps, shape), sizes, options.pre_nms_topk_test, options.post_nms_topk_test
        )


def _top_proposals(
    logits: Tensor, deltas: Tensor, anchors: Tensor, count: int, weights: BoxWeights
) -> tuple[Tensor, Tensor]:
    """Return logits (B x N) and boxes (B x N x 4) of the ``count`` best anchors of a level."""
    logits, rows = logits.topk(min(count, logits.shape[1]), dim=1)
    deltas = deltas.gather(1, rows[..., None].expand(-1, -1, 4))
    return logits, decode_boxes(deltas.flatten(0, 1), anchors[rows].flatten(0, 1), weights).view_as(deltas)
