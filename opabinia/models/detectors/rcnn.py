"""Two-stage detectors: regions are proposed, then classified and refined.

Rules and defaults are detectron2's. The weights are named

    neck...                                       the feature pyramid
    rpn.head.conv.0.0, cls_logits, bbox_pred      (.weight, .bias, here and below)
    box.layers.head.fc6, fc7                      box.stages.0.head.fc6 ... in a cascade
    box.layers.predictor.cls_score, bbox_pred     box.stages.0.predictor.cls_score ... in a cascade
    others.mask.layers.0.0 ... 3.0                with instance masks
    others.mask.predictor.conv5_mask, mask_fcn_logits       others.mask.stages.0 ... with a mask head for every stage
    others.keypoint.layers.0, 2 ... 14            with keypoints
    others.keypoint.predictor.kps_score_lowres

as in torchvision, apart from the prefixes. Classes are in detectron2's order, **the background last**: ``cls_score``
has K + 1 rows, ``bbox_pred`` 4 K and ``mask_fcn_logits`` K. torchvision's first class is the background: its
``cls_score`` is rolled by -1, and the rows of the background in the others (four, one) are dropped.

To reproduce torchvision's detections with its weights, set ``convention: torchvision`` and ``min_size: 0.001`` of the
proposals, ``aligned: false`` and ``sampling_ratio: 2`` of the pooling, and ``min_size: 0.01`` of the boxes. To continue
its training, set also ``smooth_l1_beta`` of proposals and boxes to 1/9, and ``soft_targets`` of the masks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from torch import Tensor, nn

from opabinia.config import register
from opabinia.contracts import (
    Count,
    DatasetInfo,
    Detections,
    Detector,
    Fraction,
    Level,
    Neck,
    NeckPart,
    NonNegative,
    Sizes,
    Target,
)
from opabinia.models.detectors.boxes import BoxHead, BoxOptions
from opabinia.models.detectors.cascade import CascadeHead, CascadeMasks, ScoreAverage
from opabinia.models.detectors.keypoints import KeypointHead, KeypointOptions
from opabinia.models.detectors.masks import MaskHead, MaskOptions
from opabinia.models.detectors.regions import PoolingOptions, RegionPool, count_regions, sample_regions
from opabinia.models.detectors.rpn import ProposalOptions, RegionProposals
from opabinia.models.losses.boxes import BoxWeights
from opabinia.models.necks import fpn


class Rcnn(Detector):
    """Neck, region proposals, box head, and mask or keypoint heads.

    It waits for the device once for the suppression of each image, and for all images once wherever the number of
    regions must be known: proposals, samples, the levels of each pooling, foreground.

    Args:
        neck: makes the feature pyramid.
        rpn: proposes regions.
        box: turns regions into detections: a head, or a cascade of them.
        others: heads that add to detections, by name: ``mask``, ``keypoint``.
        classes: K.
    """

    compiled_modules = r"neck|rpn\.head|box\.(layers|stages\.\d+)|others\.\w+\.(stages\.\d+\.)?(layers|predictor)"

    def __init__(
        self, neck: Neck, rpn: RegionProposals, box: BoxHead | CascadeHead, others: dict[str, nn.Module], classes: int
    ) -> None:
        super().__init__()
        self.neck, self.rpn, self.box = neck, rpn, box
        self.others = nn.ModuleDict(others)
        self.classes = classes
        self.max_detections, self.score_threshold = box.options.max_detections, box.options.score_threshold
        self.masks, self.keypoints = "mask" in others, "keypoint" in others
        self._pools = [module for module in self.modules() if isinstance(module, RegionPool)]
        self.last_stage_on_regions = self._pools[0].options.last_stage
        self.pyramid_levels = () if self.last_stage_on_regions else neck.out_levels

    def use_last_stage(self, stage: nn.Module) -> None:
        """Run the backbone's last stage on pooled regions."""
        for pool in self._pools:
            pool.stage = (stage,)

    @property
    def _others(self) -> list[MaskHead | CascadeMasks | KeypointHead]:
        return cast("list[MaskHead | CascadeMasks | KeypointHead]", list(self.others.values()))

    def losses(
        self, maps: Sequence[Tensor], shape: tuple[int, int], sizes: Sizes, targets: Sequence[Target]
    ) -> dict[str, Tensor]:
        """Losses of all stages, and detectron2's training metrics. A loss without samples is 0."""
        output = self.rpn(maps, shape)
        losses: dict[str, Tensor] = self.rpn.losses(output, targets)
        options, box = self.rpn.options, self.box.options
        proposals = self.rpn.propose(output, sizes, options.pre_nms_topk_train, options.post_nms_topk_train)
        sampling = box.foreground_iou, box.batch_size_per_image, box.positive_fraction, self.classes
        regions = sample_regions(proposals, targets, *sampling)
        box_losses, by_stage = self.box.losses(maps, sizes, regions, targets)
        losses |= count_regions(regions, self.classes) | box_losses
        for head in self._others:
            losses |= head.losses(maps, by_stage, targets)
        return losses

    def detect(self, maps: Sequence[Tensor], shape: tuple[int, int], sizes: Sizes) -> list[Detections]:
        """Detections of each image: boxes, scores and labels, best first."""
        options = self.rpn.options
        output = self.rpn(maps, shape)
        proposals = self.rpn.propose(output, sizes, options.pre_nms_topk_test, options.post_nms_topk_test)
        return self.box.detect(maps, sizes, proposals)

    def detect_batch(self, maps: Sequence[Tensor], shape: tuple[int, int], sizes: Tensor) -> Detections:
        """Detections of B images of some sizes (int64, B x 2) with masks and keypoints and static shapes: padded with
        label -1."""
        options = self.rpn.options
        topk = options.pre_nms_topk_test, options.post_nms_topk_test
        proposals = self.rpn.propose_batch(self.rpn(maps, shape), sizes, *topk).boxes
        detections = self.box.detect_batch(maps, sizes, proposals)
        for head in self._others:
            detections = head.describe_batch(maps, shape, detections)
        return detections

    def describe(
        self, maps: Sequence[Tensor], shape: tuple[int, int], sizes: Sizes, detections: Sequence[Detections]
    ) -> list[Detections]:
        """Add masks or keypoints, if the detector predicts them."""
        for head in self._others:
            detections = head.describe(maps, detections)
        return list(detections)


@register.detector
def faster_rcnn(
    levels: Sequence[Level],
    dataset_info: DatasetInfo,
    /,
    *,
    neck: NeckPart = fpn,
    proposals: ProposalOptions,
    pooling: PoolingOptions,
    box: BoxOptions,
) -> Detector:
    """Faster R-CNN (Ren et al. 2015) with a feature pyramid (Lin et al. 2017), as in detectron2.

    Args:
        levels: the backbone's levels.
        dataset_info: description of the training data.
        neck: makes the feature pyramid.
        proposals: options of the region proposals.
        pooling: options of RoIAlign.
        box: options of the box head.

    Raises:
        ValueError: the neck does not have as many levels as there are anchor sizes, or fewer than are pooled from.
    """
    pyramid, region_levels = _build_neck(neck, levels, pooling)
    return _build_rcnn(pyramid, region_levels, dataset_info, proposals, pooling, box)


@register.detector
def mask_rcnn(
    levels: Sequence[Level],
    dataset_info: DatasetInfo,
    /,
    *,
    neck: NeckPart = fpn,
    proposals: ProposalOptions,
    pooling: PoolingOptions,
    box: BoxOptions,
    mask: MaskOptions,
) -> Detector:
    """Mask R-CNN (He et al. 2017), as in detectron2: Faster R-CNN with instance masks.

    Args:
        levels: the backbone's levels.
        dataset_info: description of the training data.
        neck: makes the feature pyramid.
        proposals: options of the region proposals.
        pooling: options of RoIAlign.
        box: options of the box head.
        mask: options of the mask head.

    Raises:
        ValueError: the training data has no masks, or see :func:`faster_rcnn`.
    """
    pyramid, region_levels = _build_neck(neck, levels, pooling)
    head = build_mask_head(region_levels, dataset_info, mask, pooling)
    return _build_rcnn(pyramid, region_levels, dataset_info, proposals, pooling, box, mask=head)


@register.detector
def keypoint_rcnn(
    levels: Sequence[Level],
    dataset_info: DatasetInfo,
    /,
    *,
    neck: NeckPart = fpn,
    proposals: ProposalOptions,
    pooling: PoolingOptions,
    box: BoxOptions,
    keypoint: KeypointOptions,
) -> Detector:
    """Keypoint R-CNN (He et al. 2017, section 5): Faster R-CNN with keypoints.

    detectron2 trains it on people with ``smooth_l1_beta`` 0.5 of the boxes and ``post_nms_topk_train`` 1500.

    Args:
        levels: the backbone's levels.
        dataset_info: description of the training data.
        neck: makes the feature pyramid.
        proposals: options of the region proposals.
        pooling: options of RoIAlign.
        box: options of the box head.
        keypoint: options of the keypoint head.

    Raises:
        ValueError: the training data has no keypoints, or see :func:`faster_rcnn`.
    """
    if not dataset_info.keypoints:
        raise ValueError(
            "keypoint_rcnn learns keypoints, and the training data has none: take a source that has them, such as "
            "coco with a file of keypoints, or the detector faster_rcnn"
        )
    pyramid, region_levels = _build_neck(neck, levels, pooling)
    classes = len(dataset_info.classes)
    head = KeypointHead(region_levels, classes, len(dataset_info.keypoints), keypoint, pooling)
    return _build_rcnn(pyramid, region_levels, dataset_info, proposals, pooling, box, keypoint=head)


@register.detector
def cascade_rcnn(
    levels: Sequence[Level],
    dataset_info: DatasetInfo,
    /,
    *,
    neck: NeckPart = fpn,
    proposals: ProposalOptions,
    pooling: PoolingOptions,
    box: BoxOptions,
    later_ious: tuple[Fraction, ...] = (0.6, 0.7),
    later_bbox_reg_weights: tuple[BoxWeights, ...] = ((20, 20, 10, 10), (30, 30, 15, 15)),
    stage_loss_weights: tuple[NonNegative, ...] | None = None,
    score_average: ScoreAverage = "probabilities",
    mask: MaskOptions | None = None,
    num_mask_heads: Count = 1,
) -> Detector:
    """Cascade R-CNN (Cai and Vasconcelos 2018) with a feature pyramid, as in detectron2, with instance masks or
    without.

    detectron2 trains it with ``post_nms_topk_train`` 2000.

    Args:
        levels: the backbone's levels.
        dataset_info: description of the training data.
        neck: makes the feature pyramid.
        proposals: options of the region proposals.
        pooling: options of RoIAlign.
        box: options of the box heads; ``foreground_iou`` and ``bbox_reg_weights`` are those of the first stage.
        later_ious: foreground IoU of each later stage.
        later_bbox_reg_weights: factors of encoded boxes in each later stage.
        stage_loss_weights: factors of the losses of each stage, such as the ``[1, 0.5, 0.25]`` of the paper and
            MMDetection; null: detectron2's rule, factors of 1, with gradients of features divided by the number of
            stages.
        score_average: scores are the mean of the stages' probabilities (the paper, detectron2), or the probabilities of
            their mean logits (MMDetection).
        mask: options of the mask heads; null: no instance masks.
        num_mask_heads: 1 is trained on the regions of the first stage (detectron2); as many as there are stages are
            each trained on the regions of theirs, and masks are the mean of their probabilities (Cai and Vasconcelos
            2019, section 5; MMDetection).

    Raises:
        ValueError: ``mask`` is given and the training data has no masks, the numbers of later IoUs and weights differ,
            boxes are to be per class, there are other mask heads than one or one for each stage, or see
            :func:`faster_rcnn`.
    """
    pyramid, region_levels = _build_neck(neck, levels, pooling)
    coding = later_ious, later_bbox_reg_weights
    head = CascadeHead(region_levels, dataset_info, box, *coding, pooling, stage_loss_weights, score_average)
    if num_mask_heads not in (1, len(head.stages)):
        raise ValueError(f"num_mask_heads is {num_mask_heads}: expected 1, or {len(head.stages)} as there are stages")
    others: dict[str, nn.Module] = {}
    if mask is not None:
        masks = [build_mask_head(region_levels, dataset_info, mask, pooling) for _ in range(num_mask_heads)]
        others["mask"] = masks[0] if num_mask_heads == 1 else CascadeMasks(masks, head.stage_loss_weights)
    rpn = RegionProposals(pyramid.out_levels, proposals)
    return Rcnn(pyramid, rpn, head, others, len(dataset_info.classes))


def _build_neck(neck: NeckPart, levels: Sequence[Level], pooling: PoolingOptions) -> tuple[Neck, tuple[Level, ...]]:
    """Return the neck, and the levels for :class:`RegionPool`."""
    if not pooling.last_stage:
        pyramid = neck(levels)
        return pyramid, pyramid.out_levels
    pyramid = neck(levels[:-1])
    return pyramid, (*pyramid.out_levels, levels[-1])


def _build_rcnn(
    neck: Neck,
    region_levels: Sequence[Level],
    dataset_info: DatasetInfo,
    proposals: ProposalOptions,
    pooling: PoolingOptions,
    box: BoxOptions,
    **others: nn.Module,
) -> Rcnn:
    rpn = RegionProposals(neck.out_levels, proposals)
    head = BoxHead(region_levels, dataset_info, box, pooling)
    return Rcnn(neck, rpn, head, others, len(dataset_info.classes))


def build_mask_head(
    levels: Sequence[Level], dataset_info: DatasetInfo, options: MaskOptions, pooling: PoolingOptions
) -> MaskHead:
    """Build the mask head for the classes of the data.

    Raises:
        ValueError: the training data has no masks.
    """
    if not dataset_info.masks:
        raise ValueError(
            "masks are to be learned, and the training data has none: write masks: true in its source, or take a "
            "detector of boxes, such as faster_rcnn"
        )
    return MaskHead(levels, len(dataset_info.classes), options, pooling)
