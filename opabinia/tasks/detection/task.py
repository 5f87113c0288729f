"""Object detection: bounding boxes, with instance masks and keypoints where detector and data have them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from opabinia.config import register
from opabinia.contracts import (
    BackbonePart,
    Batch,
    Clock,
    Count,
    DatasetInfo,
    Detections,
    DetectorPart,
    Evaluator,
    EvaluatorPart,
    ExportModule,
    Features,
    Fraction,
    Predictions,
    Sizes,
    Task,
)
from opabinia.evaluation.detection.coco import Coco
from opabinia.evaluation.detection.rotated import DotaMap
from opabinia.evaluation.mean_losses import MeanLosses
from opabinia.models.detectors.suppression import box_nms
from opabinia.runtime.text import first_of
from opabinia.tasks.dataset_checks import check_channels, check_classes
from opabinia.tasks.dense_base import DensePrediction, TestTimeAugmentation, validation_losses
from opabinia.tasks.detection.fusion import fuse_detections, unstack_detections
from opabinia.tasks.detection.score_calibration import ScoreMaps
from opabinia.tasks.detection.test_time_augmentation import detect_augmented
from opabinia.tasks.detection.tiles import Tiles, detect_tiled, select_detections, warn_of_single_tiles
from opabinia.tasks.detections_base import scale_to_original, stack_detections, targets_from
from opabinia.visualization.presenters.detections import DetectionPresenter


@register.task(name="detection")
class Detection(DensePrediction):
    """Object detection: a backbone and a detector, which brings its neck and its losses.

    Evaluated by COCO average precision of boxes, and of masks and keypoints where detector and data have them; oriented
    boxes by DOTA's mean average precision.

    Args:
        backbone: maps images to feature maps of several strides.
        detector: predicts objects from feature maps: ``fcos``, ``retinanet``, ``faster_rcnn``, ``mask_rcnn`` ...
        freeze_stages: number of frozen stages of the backbone, counted from the stem (detectron2's FREEZE_AT, there 2);
            for pretrained backbones.
        freeze_norms: batch norms of the backbone keep their statistics and weights; for pretrained backbones.
            ``statistics``: only their statistics, as MMDetection's ``norm_eval``.
        freeze_random: accept frozen stages or norms of a backbone with random weights; otherwise a training with them
            and without ``init`` is an error.
        mean: channel means of images in 0..1; null: see :func:`opabinia.models.layers.build_normalization`.
        std: channel standard deviations, likewise.
        size_multiple: sides of a padded batch are multiples of it; null takes what the detector needs.
        validation_loss: compute the losses on validation data, too (``val/loss``); not with ``tiles``.
        test_time_augmentation: predict from several scales and mirrored images; null predicts from the image as it is.
        tiles: predict from overlapping tiles, for large images; null predicts from the whole image. Training tiles are
            those of the transform ``random_crop``.
        class_agnostic_nms: of predicted boxes that overlap by more than this IoU only the best is kept, whatever their
            classes; null: suppression, if the detector has one, is per class.
        score_calibration: slope and offset by class of the map from scores to precisions that the evaluator
            ``score_calibration`` fits: ``eval/val/score_calibration.json`` in the run folder; null: scores as they are.
        evaluator: null takes ``coco``, with oriented boxes ``dota_map``.

    Raises:
        ValueError: the training data has no boxes, or no classes; its boxes are oriented and those of the detector are
            not, or the reverse; tiles are smaller than the detector needs.
    """

    next_commands = ("eval", "predict", "compare", "report", "export", "extract")

    def __init__(
        self,
        dataset_info: DatasetInfo,
        /,
        *,
        backbone: BackbonePart,
        detector: DetectorPart,
        freeze_stages: int = 0,
        freeze_norms: bool | Literal["statistics"] = False,
        freeze_random: bool = False,
        mean: list[float] | None = None,
        std: list[float] | None = None,
        size_multiple: Count | None = None,
        validation_loss: bool = True,
        test_time_augmentation: TestTimeAugmentation | None = None,
        tiles: Tiles | None = None,
        class_agnostic_nms: Fraction | None = None,
        score_calibration: dict[str, tuple[float, float]] | None = None,
        evaluator: EvaluatorPart | None = None,
    ) -> None:
        if not dataset_info.boxes or not dataset_info.classes:
            missing = "boxes: take a source with boxes, such as coco" if not dataset_info.boxes else "classes"
            raise ValueError(f"detection learns from bounding boxes; the training data has no {missing}")
        super().__init__(dataset_info, backbone, freeze_stages, freeze_norms, freeze_random, mean, std)
        self.detector = detector(self.levels, dataset_info)
        self.label_keys = self.detector.label_keys
        if dataset_info.samples and self.detector.oriented != dataset_info.oriented:  # none: weights without a run
            raise ValueError(
                "the boxes of the training data are oriented, those of this detector upright: take rotated_fcos, or "
                "rt_detr, d_fine or rf_detr with oriented: {}"
                if dataset_info.oriented
                else "this detector predicts oriented boxes, those of the training data are upright: take fcos, or "
                "rt_detr, d_fine or rf_detr with oriented: null, or data with oriented boxes"
            )
        if test_time_augmentation and test_time_augmentation.flip and not self._mirrors_keypoints():
            raise ValueError(
                "test_time_augmentation.flip: this detector predicts keypoints together with boxes, and those of a "
                "mirrored image have left and right exchanged; write flip: false"
            )
        if self.detector.last_stage_on_regions:
            self.detector.use_last_stage(self.backbone.split_last_stage())
        self.size_multiple = self._multiple = size_multiple or self.detector.size_multiple
        if tiles is not None and tiles.size < self._multiple:
            raise ValueError(f"tiles.size: {tiles.size} is below {self._multiple}, the detector's smallest image side")
        self.test_time_augmentation, self.tiles = test_time_augmentation, tiles
        self.class_agnostic_nms = class_agnostic_nms
        self.score_maps = None if score_calibration is None else ScoreMaps(score_calibration, dataset_info.classes)
        self._validation_loss, self._evaluator = validation_loss and tiles is None, evaluator

    def _mirrors_keypoints(self) -> bool:
        return self.detector.keypoints_from_boxes or not self.detector.keypoints

    def _pyramid(self, images: Tensor, sizes: Sizes) -> list[Tensor]:
        """Return the feature maps that the detector reads."""
        return self.detector.pyramid(self.feature_maps(images, sizes))

    def losses(self, features: Features, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        """Return the detector's losses under their own names, and what it logs beside them."""
        return self._losses(self.detector.pyramid(features["pyramid"]), batch)

    def reads_whole_images(self, batch: Batch) -> bool:
        """See :meth:`opabinia.tasks.dense_base.DensePrediction.reads_whole_images`."""
        return self._has_losses(batch) or (self.tiles is None and self.test_time_augmentation is None)

    def _has_losses(self, batch: Batch) -> bool:
        return self._validation_loss and "boxes" in batch

    def predictions(self, features: Features, batch: Batch) -> Predictions:
        """Return detections in pixels of the images as they were read (see :data:`opabinia.contracts.Predictions`), and
        ``losses/...`` if the batch has boxes."""
        images, sizes = batch["image"], batch["image_sizes"]
        maps = self.detector.pyramid(features["pyramid"]) if self.reads_whole_images(batch) else []
        if self.tiles is None:
            detections, count = self._detect(images, sizes, maps), self.detector.max_detections
        else:
            warn_of_single_tiles(sizes, batch["original_size"], self.tiles)
            detections = detect_tiled(self._detect, images, sizes, self.tiles, self._multiple)
            count = self.tiles.max_detections
        if self.class_agnostic_nms is not None:
            kept = [
                box_nms(rows.boxes, rows.scores, torch.zeros_like(rows.labels), self.class_agnostic_nms)
                for rows in detections
            ]
            detections = list(map(select_detections, detections, kept))
        if self.score_maps is not None:
            detections = [rows._replace(scores=self.score_maps(rows.scores, rows.labels)) for rows in detections]
            detections = [select_detections(rows, rows.scores.argsort(descending=True)) for rows in detections]
        detections = list(map(scale_to_original, detections, sizes, batch["original_size"]))
        rows = stack_detections(detections, count)
        if "masks" in rows:
            rows["image_size"] = torch.tensor(batch["original_size"])
        return rows | (validation_losses(lambda: self._losses(maps, batch), images) if self._has_losses(batch) else {})

    def predict_together(self, models: Sequence[Task], batch: Batch) -> Predictions:
        """Return the fused detections of the models, see :func:`opabinia.tasks.detection.fusion.fuse_detections`."""
        without_truth = {key: value for key, value in batch.items() if key != "boxes"}  # no losses
        predictions = [model.predict(without_truth) for model in models]
        count = max(rows["labels"].shape[1] for rows in predictions)
        by_image = zip(*map(unstack_detections, predictions), strict=True)
        fused = [_first(fuse_detections(models), count) for models in by_image]
        sizes = {name: predictions[0][name] for name in ("image_size",) if name in predictions[0]}
        return stack_detections(fused, count) | sizes

    def _detect(self, images: Tensor, sizes: Sizes, maps: Sequence[Tensor] = ()) -> list[Detections]:
        """Return the detections in a padded batch, from its feature maps where these are known."""
        augmentation = self.test_time_augmentation
        if augmentation is not None:
            return detect_augmented(self.detector, self._pyramid, images, sizes, augmentation, self._multiple)
        maps = maps or self._pyramid(images, sizes)
        detections = self.detector.detect(maps, _shape(images), sizes)
        return self.detector.describe(maps, _shape(images), sizes, detections)

    def _losses(self, maps: Sequence[Tensor], batch: Batch) -> dict[str, Tensor]:
        return self.detector.losses(maps, _shape(batch["image"]), batch["image_sizes"], targets_from(batch))

    def evaluators(self, dataset_info: DatasetInfo) -> list[Evaluator]:
        """Return the configured evaluator, or COCO's, or DOTA's for oriented boxes; and the mean losses.

        Raises:
            ValueError: the dataset has no boxes or other ones than the detector, or other classes, keypoints or
                channels than the training data.
        """
        check_channels(dataset_info, self.dataset_info)
        if not dataset_info.boxes:
            raise ValueError("it has no boxes to compare with")
        if dataset_info.oriented != self.detector.oriented:
            kinds = ["upright", "oriented"]
            evaluated, trained = kinds[dataset_info.oriented], kinds[self.detector.oriented]
            raise ValueError(f"its boxes are {evaluated}, those of the detector {trained}")
        check_classes(dataset_info, self.dataset_info)
        if self.detector.keypoints and dataset_info.keypoints not in ((), self.dataset_info.keypoints):
            evaluated, trained = first_of(dataset_info.keypoints, 3), first_of(self.dataset_info.keypoints, 3)
            raise ValueError(f"its keypoints are {evaluated}, those of training {trained}")
        evaluated_info = replace(
            dataset_info,
            masks=dataset_info.masks and self.detector.masks,
            keypoints=dataset_info.keypoints if self.detector.keypoints else (),
        )
        evaluator = self._evaluator or (DotaMap if dataset_info.oriented else Coco)
        evaluators: list[Evaluator] = [evaluator(evaluated_info)]
        return [*evaluators, MeanLosses()] if self._validation_loss else evaluators

    def presenter(self) -> DetectionPresenter:
        """Show boxes, masks and keypoints."""
        return DetectionPresenter(self.dataset_info)

    def export_module(self) -> ExportModule:
        """Return detection with static shapes; see :class:`opabinia.tasks.detection.export.DetectionExport`."""
        from opabinia.tasks.detection.export import DetectionExport

        return DetectionExport(self, self.detector)


def _first(detections: Detections, count: int) -> Detections:
    return select_detections(detections, torch.arange(min(count, len(detections.scores))))


def _shape(images: Tensor) -> tuple[int, int]:
    return (images.shape[-2], images.shape[-1])
