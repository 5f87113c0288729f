"""R-CNNs whose boxes are made better several times in a row (Cai and Vasconcelos 2018)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn
from torchvision.ops import clip_boxes_to_image

from opabinia.config import register
from opabinia.contracts import DatasetInfo, Detections, Detector, Fraction, Level, NeckPart, Sizes, Target
from opabinia.models.detectors.anchors import Weights
from opabinia.models.detectors.boxes import Boxes, BoxLayers, Judged, chosen, joined
from opabinia.models.detectors.masks import Masks
from opabinia.models.detectors.rcnn import Rcnn, mask_head
from opabinia.models.detectors.regions import Pooling, RegionPool, Regions, counted, has_extent, labelled
from opabinia.models.detectors.rpn import Proposals, RegionProposals
from opabinia.models.necks import fpn


class CascadeHead(nn.Module):
    """Box heads in a row. Each looks at the boxes of the one before and learns from those that fit better.

    Scores are the mean over all stages, boxes those of the last. All stages pool from the same maps, so each hands back
    only its share of the gradient.

    Args:
        levels: what the neck gives.
        classes: K.
        how: see :class:`Boxes`; one box is for all classes, whatever it says.
        overlaps: how much a region of each stage is to overlap a thing to be learned as that thing.
        weights: of the coding of each stage.
        pooling: see :class:`Pooling`.

    Raises:
        ValueError: there are not as many weights as overlaps, or the neck gives fewer maps than are to be looked at.
    """

    def __init__(
        self,
        levels: Sequence[Level],
        classes: int,
        how: Boxes,
        overlaps: Sequence[float],
        weights: Sequence[Weights],
        pooling: Pooling,
    ) -> None:
        super().__init__()
        if len(overlaps) != len(weights):
            raise ValueError(f"later_overlaps has {len(overlaps)} stages, later_weights {len(weights)}")
        if how.class_agnostic is False:
            raise ValueError("class_agnostic: a cascade hands on one box for all classes; write true or null")
        self.how = replace(how, class_agnostic=True)
        self.classes, self.overlaps = classes, overlaps
        self.pool = RegionPool(levels, how.resolution, pooling)
        self.stages = nn.ModuleList(
            BoxLayers(levels[0].channels, classes, self.how, one) for one in (how.weights, *weights)
        )

    def losses(
        self, maps: Sequence[Tensor], sizes: Sizes, regions: Sequence[Regions], targets: Sequence[Target]
    ) -> dict[str, Tensor]:
        """Those of every stage (see :meth:`BoxLayers.losses`): ``loss_cls_stage0``, ``stage0/fast_rcnn/...``, and the
        numbers of regions that later stages learn from: ``stage1/roi_head/...``."""
        said: dict[str, Tensor] = {}
        for number, stage in enumerate(self._stages):
            boxes = [one.boxes for one in regions]
            judged = self._judged(stage, maps, boxes)
            said |= of_stage(number, stage.losses(judged, joined(regions)))
            if number < len(self.overlaps):
                moved = self._moved(stage, judged, boxes, sizes)
                regions = [
                    labelled(one[has_extent(one, 0)], target, self.overlaps[number], self.classes)
                    for one, target in zip(moved, targets, strict=True)
                ]
                said |= of_stage(number + 1, counted(regions, self.classes))
        return said

    def detect(self, maps: Sequence[Tensor], sizes: Sizes, proposals: Sequence[Tensor]) -> list[Detections]:
        """Things in each image, from the regions that were proposed (N x 4)."""
        boxes, scores = list(proposals), []
        for stage in self._stages:
            judged = self._judged(stage, maps, boxes)
            boxes = self._moved(stage, judged, boxes, sizes)
            scores.append(judged.logits.softmax(dim=1))
        mean = torch.split(torch.stack(scores).mean(dim=0), [len(one) for one in boxes])
        return [
            chosen(one[:, None], score, size, self.how) for one, score, size in zip(boxes, mean, sizes, strict=True)
        ]

    @property
    def _stages(self) -> list[BoxLayers]:
        return cast("list[BoxLayers]", list(self.stages))

    def _judged(self, stage: BoxLayers, maps: Sequence[Tensor], boxes: Sequence[Tensor]) -> Judged:
        judged: Judged = stage(scaled_gradient(self.pool(maps, boxes), 1 / len(self.stages)))
        return judged

    def _moved(self, stage: BoxLayers, judged: Judged, boxes: Sequence[Tensor], sizes: Sizes) -> list[Tensor]:
        """The boxes of each image (N x 4) as a stage corrects them, without gradients."""
        moved = stage.boxes(judged, torch.cat(list(boxes))).detach()[:, 0]
        of_images = torch.split(moved, [len(one) for one in boxes])
        return [clip_boxes_to_image(one, size) for one, size in zip(of_images, sizes, strict=True)]


def scaled_gradient(values: Tensor, scale: float) -> Tensor:
    """The same values, whose gradient is multiplied by ``scale``."""
    return torch.lerp(values.detach(), values, scale)


def of_stage(number: int, said: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Names as in detectron2: ``loss_cls_stage0``, ``stage0/fast_rcnn/cls_accuracy``."""
    return {f"{name}_stage{number}" if "loss" in name else f"stage{number}/{name}": said[name] for name in said}


@register.detector
def cascade_rcnn(
    levels: Sequence[Level],
    dataset_info: DatasetInfo,
    /,
    *,
    neck: NeckPart = fpn,
    proposals: Proposals,
    pooling: Pooling,
    box: Boxes,
    later_overlaps: tuple[Fraction, ...] = (0.6, 0.7),
    later_weights: tuple[Weights, ...] = ((20, 20, 10, 10), (30, 30, 15, 15)),
    mask: Masks | None = None,
) -> Detector:
    """Cascade R-CNN (Cai and Vasconcelos 2018) with a feature pyramid, as detectron2 has it, with masks or without.

    detectron2 trains it with 2000 proposals ``after_training``.

    Args:
        levels: what the backbone gives.
        facts: of the training data.
        neck: maps of the backbone to those that are looked at.
        proposals: which regions are looked at again.
        pooling: how.
        box: what is in a region, and where exactly; ``foreground`` and ``weights`` are those of the first stage.
        later_overlaps: by how much a region is to overlap a thing to be learned as that thing, in each later stage.
        later_weights: what coded boxes are multiplied by in each later stage.
        mask: which pixels of a box belong to the thing; null: no masks.

    Raises:
        ValueError: ``mask`` is given and the training data has none, later overlaps and weights differ in number, boxes
            are to be of single classes, or see :func:`opabinia.models.detectors.rcnn.faster_rcnn`.
    """
    pyramid = neck(levels)
    given, classes = pyramid.out_levels, len(dataset_info.classes)
    head = CascadeHead(given, classes, box, later_overlaps, later_weights, pooling)
    others = {} if mask is None else {"mask": mask_head(given, dataset_info, mask, pooling)}
    return Rcnn(pyramid, RegionProposals(given, proposals), head, others, classes)
