"""Detectors in two stages: regions are proposed, and each is looked at again.

Rules and defaults are detectron2's. The weights are named

    neck...                                       the feature pyramid
    rpn.head.conv.0.0, cls_logits, bbox_pred      (.weight, .bias, here and below)
    box.layers.head.fc6, fc7                      box.stages.0.head.fc6 ... in a cascade
    box.layers.predictor.cls_score, bbox_pred     box.stages.0.predictor.cls_score ... in a cascade
    others.mask.layers.0.0 ... 3.0                where there are masks
    others.mask.predictor.conv5_mask, mask_fcn_logits
    others.keypoint.layers.0, 2 ... 14            where there are keypoints
    others.keypoint.predictor.kps_score_lowres

as in torchvision, apart from what stands before. Classes are in detectron2's order, **the background last**:
``cls_score`` has K + 1 rows, ``bbox_pred`` 4 K and ``mask_fcn_logits`` K. Of torchvision's weights, whose first class
is the background, ``cls_score`` is rolled by -1, and the rows of the background in the others (four, one) are dropped.

For torchvision's weights to give what they give there, the convention of proposals is ``torchvision`` and their
``smallest`` 0.001; pooling has ``aligned: false`` and ``samples: 2``; boxes have ``smallest: 0.01``. To go on training
as there, proposals and boxes have a ``beta`` of 1/9, and masks are ``soft``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, cast

from torch import Tensor, nn

from opabinia.config import register
from opabinia.contracts import DatasetInfo, Detections, Detector, Level, Neck, NeckPart, Sizes, Target
from opabinia.models.detectors.boxes import Boxes, BoxHead
from opabinia.models.detectors.keypoints import KeypointHead, Keypoints
from opabinia.models.detectors.masks import MaskHead, Masks
from opabinia.models.detectors.regions import Pooling, Regions, counted, sampled
from opabinia.models.detectors.rpn import Proposals, RegionProposals
from opabinia.models.necks import fpn


class FindsBoxes(Protocol):
    """The head that makes things of regions: :class:`BoxHead`, or several in a row."""

    how: Boxes

    def losses(
        self, maps: Sequence[Tensor], sizes: Sizes, regions: Sequence[Regions], targets: Sequence[Target]
    ) -> dict[str, Tensor]: ...

    def detect(self, maps: Sequence[Tensor], sizes: Sizes, proposals: Sequence[Tensor]) -> list[Detections]: ...


class Describes(Protocol):
    """A head that tells more of things: :class:`MaskHead`, :class:`KeypointHead`."""

    def losses(
        self, maps: Sequence[Tensor], regions: Sequence[Regions], targets: Sequence[Target]
    ) -> dict[str, Tensor]: ...

    def describe(self, maps: Sequence[Tensor], found: Sequence[Detections]) -> list[Detections]: ...


class Rcnn(Detector):
    """Neck, proposals, boxes and what else is told of things.

    It waits for the device where regions are suppressed, drawn and given to the maps that suit their sizes.

    Args:
        neck: maps of the backbone to a pyramid.
        rpn: proposes regions.
        box: a :class:`FindsBoxes`.
        others: each a :class:`Describes`, by name.
        classes: K.
    """

    def __init__(
        self, neck: Neck, rpn: RegionProposals, box: nn.Module, others: Mapping[str, nn.Module], classes: int
    ) -> None:
        super().__init__()
        self.neck, self.rpn, self.box = neck, rpn, box
        self.others = nn.ModuleDict(others)
        self.classes = classes
        self.most = self._box.how.most
        self.masks, self.keypoints = "mask" in others, "keypoint" in others

    @property
    def _box(self) -> FindsBoxes:
        return cast("FindsBoxes", self.box)

    @property
    def _others(self) -> list[Describes]:
        return cast("list[Describes]", list(self.others.values()))

    def pyramid(self, maps: Sequence[Tensor]) -> list[Tensor]:
        """The neck's maps."""
        made: list[Tensor] = self.neck(maps)
        return made

    def losses(
        self, maps: Sequence[Tensor], shape: tuple[int, int], sizes: Sizes, targets: Sequence[Target]
    ) -> dict[str, Tensor]:
        """Losses of all stages, and detectron2's numbers beside them. Where there is nothing to learn a loss is 0."""
        guesses = self.rpn(maps, shape)
        said: dict[str, Tensor] = self.rpn.losses(guesses, targets)
        how, box = self.rpn.how, self._box.how
        proposals = self.rpn.propose(guesses, sizes, how.before_training, how.after_training)
        regions = [
            sampled(
                proposed,
                target,
                foreground=box.foreground,
                samples=box.samples,
                positive=box.positive,
                classes=self.classes,
            )
            for proposed, target in zip(proposals, targets, strict=True)
        ]
        said |= counted(regions, self.classes) | self._box.losses(maps, sizes, regions, targets)
        for other in self._others:
            said |= other.losses(maps, regions, targets)
        return said

    def detect(self, maps: Sequence[Tensor], shape: tuple[int, int], sizes: Sizes) -> list[Detections]:
        """Things in each image: boxes, scores and labels, best first."""
        how = self.rpn.how
        proposals = self.rpn.propose(self.rpn(maps, shape), sizes, how.before, how.after)
        return self._box.detect(maps, sizes, proposals)

    def describe(
        self, maps: Sequence[Tensor], shape: tuple[int, int], sizes: Sizes, found: Sequence[Detections]
    ) -> list[Detections]:
        """Adds masks or keypoints, where the detector knows such."""
        if not self._others:
            return list(found)
        for other in self._others:
            found = other.describe(maps, found)
        return list(found)


@register.detector
def faster_rcnn(
    levels: Sequence[Level],
    dataset_info: DatasetInfo,
    /,
    *,
    neck: NeckPart = fpn,
    proposals: Proposals,
    pooling: Pooling,
    box: Boxes,
) -> Detector:
    """Faster R-CNN (Ren et al. 2015) with a feature pyramid (Lin et al. 2017), as detectron2 has it.

    Args:
        levels: what the backbone gives.
        facts: of the training data.
        neck: maps of the backbone to those that are looked at.
        proposals: which regions are looked at again.
        pooling: how.
        box: what is in a region, and where exactly.

    Raises:
        ValueError: the neck does not give as many maps as there are sizes of anchors, or fewer than are pooled from.
    """
    pyramid = neck(levels)
    given, classes = pyramid.out_levels, len(dataset_info.classes)
    return Rcnn(pyramid, RegionProposals(given, proposals), BoxHead(given, classes, box, pooling), {}, classes)


@register.detector
def mask_rcnn(
    levels: Sequence[Level],
    dataset_info: DatasetInfo,
    /,
    *,
    neck: NeckPart = fpn,
    proposals: Proposals,
    pooling: Pooling,
    box: Boxes,
    mask: Masks,
) -> Detector:
    """Mask R-CNN (He et al. 2017), as detectron2 has it: Faster R-CNN that tells the pixels of things, too.

    Args:
        levels: what the backbone gives.
        facts: of the training data.
        neck: maps of the backbone to those that are looked at.
        proposals: which regions are looked at again.
        pooling: how.
        box: what is in a region, and where exactly.
        mask: which of its pixels belong to it.

    Raises:
        ValueError: the training data has no masks, or see :func:`faster_rcnn`.
    """
    pyramid = neck(levels)
    given, classes = pyramid.out_levels, len(dataset_info.classes)
    others = {"mask": mask_head(given, dataset_info, mask, pooling)}
    return Rcnn(pyramid, RegionProposals(given, proposals), BoxHead(given, classes, box, pooling), others, classes)


@register.detector
def keypoint_rcnn(
    levels: Sequence[Level],
    dataset_info: DatasetInfo,
    /,
    *,
    neck: NeckPart = fpn,
    proposals: Proposals,
    pooling: Pooling,
    box: Boxes,
    keypoint: Keypoints,
) -> Detector:
    """Keypoint R-CNN (He et al. 2017, section 5): Faster R-CNN that tells the points of things, too.

    detectron2 trains it on people with a ``beta`` of 0.5 for boxes and 1500 proposals ``after_training``.

    Args:
        levels: what the backbone gives.
        facts: of the training data.
        neck: maps of the backbone to those that are looked at.
        proposals: which regions are looked at again.
        pooling: how.
        box: what is in a region, and where exactly.
        keypoint: where its points lie.

    Raises:
        ValueError: the training data has no keypoints, or see :func:`faster_rcnn`.
    """
    if not dataset_info.keypoints:
        raise ValueError(
            "keypoint_rcnn learns keypoints, and the training data has none: take a source that tells them, such as "
            "coco with a file of keypoints, or the detector faster_rcnn"
        )
    pyramid = neck(levels)
    given, classes = pyramid.out_levels, len(dataset_info.classes)
    others = {"keypoint": KeypointHead(given, classes, len(dataset_info.keypoints), keypoint, pooling)}
    return Rcnn(pyramid, RegionProposals(given, proposals), BoxHead(given, classes, box, pooling), others, classes)


def mask_head(levels: Sequence[Level], dataset_info: DatasetInfo, how: Masks, pooling: Pooling) -> MaskHead:
    """The head for masks of the data's classes.

    Raises:
        ValueError: the training data has no masks.
    """
    if not dataset_info.masks:
        raise ValueError(
            "masks are to be learned, and the training data has none: write masks: true in its source, or take a "
            "detector of boxes, such as faster_rcnn"
        )
    return MaskHead(levels, len(dataset_info.classes), how, pooling)
