"""The heads of Cascade R-CNN: boxes refined by several stages (Cai and Vasconcelos 2018), masks of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torchvision.ops import clip_boxes_to_image

from opabinia.contracts import DatasetInfo, Detections, Level, Sizes, Target
from opabinia.models.detectors.boxes import BoxLayers, BoxOptions, BoxPredictions, postprocess, postprocess_batch
from opabinia.models.detectors.masks import MaskHead, Masks
from opabinia.models.detectors.regions import (
    PoolingOptions,
    RegionPool,
    Regions,
    concat_regions,
    count_regions,
    label_regions,
)
from opabinia.models.detectors.suppression import clip_boxes, exceeds_size
from opabinia.models.losses.boxes import BoxWeights
from opabinia.runtime.device import true_indices

ScoreAverage = Literal["probabilities", "logits"]


class CascadeHead(nn.Module):
    """A sequence of box heads, each of which takes the boxes of the one before and is trained with a higher IoU.

    Scores are means over all stages, boxes those of the last. All stages pool from the same feature maps, so the
    gradient of each is divided by their number.

    Args:
        levels: feature levels of the neck.
        dataset_info: description of the training data.
        options: see :class:`BoxOptions`; boxes are class-agnostic.
        ious: foreground IoU of each later stage.
        weights: weights of the box coding of each later stage.
        pooling: see :class:`PoolingOptions`.
        stage_loss_weights: factors of the losses of each stage, without the division of gradients; None: detectron2's
            rule, factors of 1 with it.
        score_average: scores are the mean of the stages' probabilities (the paper, detectron2), or the probabilities of
            their mean logits (MMDetection).

    Raises:
        ValueError: the numbers of weights and IoUs differ, boxes are to be per class, masks are to be trained on
            predicted boxes, or the neck has fewer levels than are pooled from.
    """

    def __init__(
        self,
        levels: Sequence[Level],
        dataset_info: DatasetInfo,
        options: BoxOptions,
        ious: Sequence[float],
        weights: Sequence[BoxWeights],
        pooling: PoolingOptions,
        stage_loss_weights: Sequence[float] | None = None,
        score_average: ScoreAverage = "probabilities",
    ) -> None:
        super().__init__()
        if stage_loss_weights is not None and len(stage_loss_weights) != len(ious) + 1:
            raise ValueError(f"stage_loss_weights has {len(stage_loss_weights)} of {len(ious) + 1} stages")
        if len(ious) != len(weights):
            raise ValueError(f"later_ious has {len(ious)} stages, later_bbox_reg_weights {len(weights)}")
        if options.class_agnostic is False:
            raise ValueError("class_agnostic: boxes of a cascade are class-agnostic; write true or null")
        if options.train_on_predictions:
            raise ValueError("train_on_predictions: masks of a cascade are trained on its proposals")
        self.options = replace(options, class_agnostic=True)
        self.classes, self.ious, self.score_average = len(dataset_info.classes), ious, score_average
        self.gradient_scale = 1 / (len(ious) + 1) if stage_loss_weights is None else 1.0
        self.stage_loss_weights = stage_loss_weights or [1.0] * (len(ious) + 1)
        self.pool = RegionPool(levels, options.resolution, pooling)
        self.stages = nn.ModuleList(
            BoxLayers(self.pool.out_channels, dataset_info, self.options, stage_weights)
            for stage_weights in (options.bbox_reg_weights, *weights)
        )

    def losses(
        self, maps: Sequence[Tensor], sizes: Sizes, regions: Sequence[Regions], targets: Sequence[Target]
    ) -> tuple[dict[str, Tensor], list[Sequence[Regions]]]:
        """Return the losses of every stage (see :meth:`BoxLayers.losses`): ``loss_cls_stage0``,
        ``stage0/fast_rcnn/...``, with the numbers of training regions of later stages, ``stage1/roi_head/...``; and
        the regions of every stage."""
        losses: dict[str, Tensor] = {}
        by_stage: list[Sequence[Regions]] = []
        for number, stage in enumerate(self._stages):
            by_stage.append(regions)
            boxes = [image.boxes for image in regions]
            predictions = self._predict(stage, maps, boxes)
            values = stage.losses(predictions, concat_regions(regions))
            losses |= add_stage(number, values, self.stage_loss_weights[number])
            if number < len(self.ious):
                refined = self._refine(stage, predictions, boxes, sizes)
                large = true_indices([exceeds_size(image, 0) for image in refined])
                regions = [
                    label_regions(image[rows], target, self.ious[number], self.classes)
                    for image, rows, target in zip(refined, large, targets, strict=True)
                ]
                losses |= add_stage(number + 1, count_regions(regions, self.classes))
        return losses, by_stage

    def detect(self, maps: Sequence[Tensor], sizes: Sizes, proposals: Sequence[Tensor]) -> list[Detections]:
        """Detect objects in each image from its proposals (N x 4)."""
        boxes, by_stage = list(proposals), []
        for stage in self._stages:
            predictions = self._predict(stage, maps, boxes)
            boxes = self._refine(stage, predictions, boxes, sizes)
            by_stage.append(predictions)
        mean = torch.split(self._mean_scores(by_stage), [len(image) for image in boxes])
        return [
            postprocess(image[:, None], score, size, self.options)
            for image, score, size in zip(boxes, mean, sizes, strict=True)
        ]

    def detect_batch(self, maps: Sequence[Tensor], sizes: Tensor, proposals: Tensor) -> Detections:
        """Detect objects in B images; see :meth:`BoxHead.detect_batch`."""
        boxes, by_stage = proposals, []
        for stage in self._stages:
            predictions = self._predict(stage, maps, boxes)
            boxes = clip_boxes(stage.boxes(predictions, boxes.flatten(0, 1)).view_as(boxes), sizes)
            by_stage.append(predictions)
        return postprocess_batch(boxes.flatten(0, 1)[:, None], self._mean_scores(by_stage), sizes, self.options)

    def _mean_scores(self, by_stage: Sequence[BoxPredictions]) -> Tensor:
        """Return the scores of regions as the mean over stages (R x K + 1)."""
        if self.score_average == "logits":
            mean_logits = torch.stack([stage.logits for stage in by_stage]).mean(dim=0)
            by_stage = [by_stage[-1]._replace(logits=mean_logits)]
        return torch.stack([self._stages[0].scores(predictions) for predictions in by_stage]).mean(dim=0)

    @property
    def _stages(self) -> list[BoxLayers]:
        return cast("list[BoxLayers]", list(self.stages))

    def _predict(self, stage: BoxLayers, maps: Sequence[Tensor], boxes: Sequence[Tensor] | Tensor) -> BoxPredictions:
        predictions: BoxPredictions = stage(scale_gradient(self.pool(maps, boxes), self.gradient_scale))
        return predictions

    def _refine(
        self, stage: BoxLayers, predictions: BoxPredictions, boxes: Sequence[Tensor], sizes: Sizes
    ) -> list[Tensor]:
        """Return the boxes of each image (N x 4) as refined by a stage, without gradient."""
        refined = stage.boxes(predictions, torch.cat(list(boxes))).detach()[:, 0]
        images = torch.split(refined, [len(image) for image in boxes])
        return [clip_boxes_to_image(image, size) for image, size in zip(images, sizes, strict=True)]


class CascadeMasks(Masks):
    """A mask head for each stage, trained on its regions (Cai and Vasconcelos 2019, section 5; MMDetection). Masks are
    the means of the probabilities of all stages within the final boxes.

    Args:
        heads: one for each stage.
        weights: factors of their losses.
    """

    def __init__(self, heads: Sequence[MaskHead], weights: Sequence[float]) -> None:
        super().__init__()
        self.stages, self.weights = nn.ModuleList(heads), weights

    @property
    def _stages(self) -> list[MaskHead]:
        return cast("list[MaskHead]", list(self.stages))

    def losses(
        self, maps: Sequence[Tensor], regions: Sequence[Sequence[Regions]], targets: Sequence[Target]
    ) -> dict[str, Tensor]:
        """Return the losses of every stage, see :meth:`MaskHead.losses`: ``loss_mask_stage0`` ..."""
        losses: dict[str, Tensor] = {}
        for number, (head, weight) in enumerate(zip(self._stages, self.weights, strict=True)):
            losses |= add_stage(number, head.losses(maps, regions[number:], targets), weight)
        return losses

    def probabilities(self, maps: Sequence[Tensor], boxes: Sequence[Tensor] | Tensor, labels: Tensor) -> Tensor:
        """Return the mean over stages, see :meth:`Masks.probabilities`."""
        return torch.stack([head.probabilities(maps, boxes, labels) for head in self._stages]).mean(dim=0)


def scale_gradient(values: Tensor, scale: float) -> Tensor:
    """Return the same values with their gradient multiplied by ``scale``."""
    return torch.lerp(values.detach(), values, scale)


def add_stage(number: int, values: Mapping[str, Tensor], weight: float = 1.0) -> dict[str, Tensor]:
    """Multiply losses by ``weight``, and add the stage to names as in detectron2: ``loss_cls_stage0``,
    ``stage0/fast_rcnn/cls_accuracy``."""
    losses = {f"{name}_stage{number}": weight * value for name, value in values.items() if "loss" in name}
    return losses | {f"stage{number}/{name}": value for name, value in values.items() if "loss" not in name}
