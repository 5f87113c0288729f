"""Panoptic segmentation: the class of each pixel, and the objects of countable classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from annotated_types import Ge
from torch import Tensor

from opabinia.config import register
from opabinia.contracts import (
    IGNORE_LABEL,
    BackbonePart,
    Batch,
    Clock,
    Count,
    DatasetInfo,
    DecoderPart,
    Detections,
    DetectorPart,
    Evaluator,
    EvaluatorPart,
    ExportModule,
    Features,
    Fraction,
    InstanceMasks,
    MaskTargets,
    NonNegative,
    Predictions,
)
from opabinia.contracts.segmentation import class_presence
from opabinia.evaluation.detection.coco import Coco
from opabinia.evaluation.mean_losses import MeanLosses
from opabinia.evaluation.segmentation.combined import Combined
from opabinia.evaluation.segmentation.panoptic import Panoptic as PanopticQuality
from opabinia.evaluation.segmentation.semantic import Semantic
from opabinia.models.decoders.layers import resize_like
from opabinia.models.losses.segmentation import pixel_cross_entropy
from opabinia.models.panoptic import (
    MAX_INSTANCES,
    combine_instances,
    first_image,
    merge_masks,
    stack_segments,
    top_instances,
)
from opabinia.runtime.device import true_indices
from opabinia.tasks.dataset_checks import check_channels, check_classes
from opabinia.tasks.dense_base import DensePrediction, validation_losses
from opabinia.tasks.detections_base import scale_to_original, stack_detections, targets_from
from opabinia.tasks.segmentation.inference import original_maps
from opabinia.tasks.segmentation.panoptic_export import PanopticExport
from opabinia.visualization.presenters.panoptic import PanopticPresenter


@register.task(name="panoptic")
class Panoptic(DensePrediction):
    """Panoptic segmentation (Kirillov et al. 2019): Panoptic FPN, a detector with instance masks and a decoder that
    share a feature pyramid; or a mask classifier such as ``mask2former``, which needs no detector.

    Panoptic FPN's decoder learns the classes without countable objects, and one class for all objects, as in
    detectron2. Evaluated by panoptic quality, by the mean IoU of classes, and by COCO's average precision of boxes and
    masks.

    Args:
        backbone: maps images to feature maps of several strides.
        decoder: of Panoptic FPN: reads the detector's feature pyramid, such as ``{name: fpn, neck: null}``; otherwise a
            mask classifier, which reads the backbone's feature maps.
        detector: with instance masks and a feature pyramid, such as ``mask_rcnn``; null: the decoder finds the objects.
        decoder_weight: weight of the decoder's loss in Panoptic FPN.
        min_score: minimum score of segments with objects (Panoptic FPN) or of all (mask classifiers); null: 0.5, or
            0.8.
        max_overlap: maximum share of a segment's pixels that better ones cover; null: 0.5, or 0.2.
        min_area: minimum pixels of other segments in Panoptic FPN.
        freeze_stages: number of frozen stages of the backbone, counted from the stem; for pretrained backbones.
        freeze_norms: batch norms of the backbone keep their statistics and weights; ``statistics``: only these.
        freeze_random: accept frozen stages or norms of a backbone with random weights; otherwise a training with them
            and without ``init`` is an error.
        mean: channel means of images in 0..1; null: see :func:`opabinia.models.layers.build_normalization`.
        std: channel standard deviations, likewise.
        size_multiple: sides of a padded batch are multiples of it; null takes the backbone's largest stride.
        validation_loss: compute the losses on validation data, too (``val/loss``).
        evaluator: null takes ``panoptic``, ``semantic`` and ``coco``.

    Raises:
        ValueError: the training data is not panoptic, or the detector or decoder is none of those described above.
    """

    masks_of_files = True
    things: Tensor
    to_decoder: Tensor
    to_class: Tensor

    def __init__(
        self,
        dataset_info: DatasetInfo,
        /,
        *,
        backbone: BackbonePart,
        decoder: DecoderPart,
        detector: DetectorPart | None,
        decoder_weight: NonNegative = 0.5,
        min_score: Fraction | None = None,
        max_overlap: Fraction | None = None,
        min_area: Annotated[int, Ge(0)] = 4096,
        freeze_stages: int = 0,
        freeze_norms: bool | Literal["statistics"] = False,
        freeze_random: bool = False,
        mean: list[float] | None = None,
        std: list[float] | None = None,
        size_multiple: Count | None = None,
        validation_loss: bool = True,
        evaluator: EvaluatorPart | None = None,
    ) -> None:
        things = sorted(dataset_info.thing_labels)
        if not (dataset_info.maps and dataset_info.masks and things):
            raise ValueError(
                "panoptic segmentation learns from segmentation maps and the masks of objects; the training data does "
                "not have both: take a source of panoptic data, such as coco_panoptic"
            )
        super().__init__(dataset_info, backbone, freeze_stages, freeze_norms, freeze_random, mean, std)
        others = [label for label in range(len(dataset_info.classes)) if label not in things]
        if detector is None:
            self.detector, self.decoder = None, decoder(self.levels, len(dataset_info.classes))
        else:
            self.detector = detector(self.levels, _countable(dataset_info, things))
            if not (self.detector.masks and self.detector.pyramid_levels):
                raise ValueError(
                    "detector: panoptic segmentation needs instance masks and a feature pyramid, as mask_rcnn has them"
                )
            self.decoder = decoder(self.detector.pyramid_levels, 1 + len(others))
        if self.decoder.own_losses != (detector is None):
            raise ValueError(
                "decoder: a mask classifier such as mask2former finds the objects itself; set detector to null"
                if detector
                else "detector: the decoder does not find objects; set a detector such as mask_rcnn, or take a decoder "
                "such as mask2former"
            )
        self.register_buffer("things", torch.tensor(things), persistent=False)
        table = torch.full((IGNORE_LABEL + 1,), IGNORE_LABEL)
        to_decoder, to_class = table.clone(), table.clone()
        to_decoder[things], to_decoder[others] = 0, torch.arange(1, len(others) + 1)
        to_class[1 : len(others) + 1] = torch.tensor(others, dtype=torch.int64)
        self.register_buffer("to_decoder", to_decoder, persistent=False)
        self.register_buffer("to_class", to_class.to(torch.uint8), persistent=False)
        self.min_samples_per_rank = self.decoder.min_samples_per_rank
        self.decoder_weight = decoder_weight
        self.min_score = (0.5 if detector else 0.8) if min_score is None else min_score
        overlap = (0.5 if detector else 0.2) if max_overlap is None else max_overlap
        self.merging: dict[str, Any] = {"min_score": self.min_score}
        if detector:
            self.merging |= {"max_overlap": overlap, "min_area": min_area, "classes": len(dataset_info.classes)}
        else:
            self.merging |= {"min_visible": 1 - overlap, "thing_labels": dataset_info.thing_labels}
        self.size_multiple = size_multiple or max(
            self.levels[-1].stride, self.detector.size_multiple if self.detector else 1
        )
        self._validation_loss, self._evaluator = validation_loss, evaluator

    def _maps(self, features: Features) -> Sequence[Tensor]:
        """Return the feature maps that the decoder and the detector read."""
        return self.detector.pyramid(features["pyramid"]) if self.detector else features["pyramid"]

    def losses(self, features: Features, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        """Return the detector's losses under their own names and ``loss_semantic``, or the mask classifier's own."""
        maps = self._maps(features)
        return self._losses(maps, self._decode(maps), batch)

    def _decode(self, maps: Sequence[Tensor]) -> Any:
        """Return the logits of pixels (Panoptic FPN), or the predictions of all layers of a mask classifier."""
        return self.decoder(maps) if self.detector else self.decoder.query_masks(maps)

    def _losses(self, maps: Sequence[Tensor], decoded: Any, batch: Batch) -> dict[str, Tensor]:
        if self.detector is None:
            return self.decoder.losses(decoded, self._segments_of(batch))
        shape = (batch["image"].shape[-2], batch["image"].shape[-1])
        targets = [
            target._replace(labels=torch.searchsorted(self.things, target.labels)) for target in targets_from(batch)
        ]
        losses = self.detector.losses(maps, shape, batch["image_sizes"], targets)
        classes = self.to_decoder[batch["mask"].long()]
        logits = resize_like(decoded.float(), classes)
        losses["loss_semantic"] = self.decoder_weight * pixel_cross_entropy(logits, classes)
        return losses

    def _segments_of(self, batch: Batch) -> list[MaskTargets]:
        """Return the segments of each image: its objects, and the pixels of every other class. The host waits for the
        device once."""
        stuff = class_presence(batch["mask"])[:, :IGNORE_LABEL].index_fill(1, self.things, False)
        rows = []
        images = zip(batch["mask"], batch["labels"], batch["masks"], true_indices(list(stuff)), strict=True)
        for classes, labels, runs, others in images:
            masks = InstanceMasks(runs, classes.shape).dense()
            pixels = torch.cat([masks, (classes == others[:, None, None]).to(torch.uint8)])
            rows.append(MaskTargets(torch.cat([labels, others]), pixels))
        return rows

    def predictions(self, features: Features, batch: Batch) -> Predictions:
        """Return ``segmentation``, ``segments``, ``segment_labels``, ``segment_scores`` and ``image_size``, ``boxes``,
        ``scores``, ``labels`` and ``masks`` (see :data:`opabinia.contracts.Predictions`), and ``losses/...`` if the
        batch has maps."""
        maps = self._maps(features)
        decoded = self._decode(maps)
        rows = self._combined(maps, decoded, batch) if self.detector else self._classified(decoded[0], batch)
        if not self._validation_loss or "mask" not in batch:
            return rows
        return rows | validation_losses(lambda: self._losses(maps, decoded, batch), batch["image"])

    def _combined(self, maps: Sequence[Tensor], decoded: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return the predictions of Panoptic FPN."""
        assert self.detector is not None
        images, sizes, originals = batch["image"], batch["image_sizes"], batch["original_size"]
        shape = (images.shape[-2], images.shape[-1])
        detections = self.detector.describe(maps, shape, sizes, self.detector.detect(maps, shape, sizes))
        detections = [
            row._replace(labels=self.things[row.labels]) for row in map(scale_to_original, detections, sizes, originals)
        ]
        logits = resize_like(decoded.float(), images)
        classes = self.to_class[original_maps(logits, sizes, originals).long()]
        segments = []
        above = true_indices([row.scores >= self.min_score for row in detections])
        for row, indices, labels, original in zip(detections, above, classes, originals, strict=True):
            kept = Detections(*(values[None, indices] for values in row if values is not None))
            pixels = labels[None, : original[0], : original[1]]
            segments.append(first_image(combine_instances(kept, pixels, **self.merging)))
        return stack_detections(detections, self.detector.max_detections) | stack_segments(segments)

    def _classified(self, queries: tuple[Tensor, Tensor], batch: Batch) -> dict[str, Tensor]:
        """Return the predictions of a mask classifier from the classes and masks of its queries."""
        logits, masks = (values.float() for values in queries)
        segments, instances = [], []
        for row, (size, original) in enumerate(zip(batch["image_sizes"], batch["original_size"], strict=True)):
            # Image by image: the masks of all queries of a batch in its full resolution would take too much memory.
            pixels = resize_like(masks[row : row + 1], batch["image"])[..., : size[0], : size[1]]
            pixels = F.interpolate(pixels, size=tuple(original), mode="bilinear", align_corners=False)[0]
            segments.append(merge_masks(logits[row], pixels, **self.merging))
            found = top_instances(logits[row : row + 1], pixels[None], self.dataset_info.thing_labels)
            instances.append(Detections(*(values[0] for values in found if values is not None)))
        return stack_detections(instances, MAX_INSTANCES) | stack_segments(segments)

    def evaluators(self, dataset_info: DatasetInfo) -> list[Evaluator]:
        """Return the configured evaluator, or panoptic quality, mean IoU and COCO's; and the mean losses.

        Raises:
            ValueError: the dataset is not panoptic, or has other classes or channels than the training data.
        """
        check_channels(dataset_info, self.dataset_info)
        check_classes(dataset_info, self.dataset_info)
        if not dataset_info.maps or dataset_info.thing_labels != self.dataset_info.thing_labels:
            raise ValueError("it has no segmentation maps with the objects of the same classes to compare with")
        if self._evaluator:
            evaluators = [self._evaluator(dataset_info)]
        else:
            parts = PanopticQuality(dataset_info), Semantic(dataset_info), Coco(replace(dataset_info, keypoints=()))
            evaluators = [Combined(parts)]
        return [*evaluators, MeanLosses()] if self._validation_loss else evaluators

    def presenter(self) -> PanopticPresenter:
        """Show the map of segments."""
        return PanopticPresenter(self.dataset_info)

    def export_module(self) -> ExportModule:
        """Return segmentation of images of one size; see
        :class:`opabinia.tasks.segmentation.panoptic_export.PanopticExport`."""
        return PanopticExport(self)


def _countable(dataset_info: DatasetInfo, things: Sequence[int]) -> DatasetInfo:
    """Return the facts about the classes with these labels only."""
    names = ("classes", "category_ids", "frequencies", "image_counts")
    columns = {name: getattr(dataset_info, name) for name in names}
    kept: dict[str, Any] = {
        name: tuple(values[label] for label in things) for name, values in columns.items() if values
    }
    return replace(dataset_info, **kept)
