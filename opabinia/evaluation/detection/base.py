"""Ground truth and detections of images: the common part of all detection evaluators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from opabinia.contracts import Batch, DataMismatch, DatasetInfo, Evaluator, GroundTruth, Predictions
from opabinia.contracts.masks import compress_rle
from opabinia.contracts.rotated_boxes import upright_boxes
from opabinia.evaluation.detection.rle import Floats, paste_masks

Ints = NDArray[np.int64]

_MAX_SHIFT = 0.03
"""Resizing never moves a box by this share of an image's side; clipping at the image's border may."""


class ImageResult(NamedTuple):
    """Ground truth and the D detections of an image, in pixels of the original image.

    Attributes:
        name: id of the sample.
        ground_truth: segments are compressed RLE, None for objects without a mask.
        boxes: left, top, right, bottom (D x 4); oriented ones D x 5.
        scores: D.
        labels: class labels (D).
        masks: compressed RLE of each detection; None if the detector predicts no masks.
        keypoints: x, y, score (D x P x 3); None if the detector predicts none.
    """

    name: str
    ground_truth: GroundTruth
    boxes: Floats
    scores: Floats
    labels: Ints
    masks: list[str] | None
    keypoints: Floats | None

    def best(self, count: int) -> ImageResult:
        """Return the image with the ``count`` detections of the highest scores, in their present order."""
        return self.select(np.sort(np.argsort(-self.scores, kind="stable")[:count]))

    def select(self, rows: NDArray[Any]) -> ImageResult:
        """Return the image with some of its detections: their indices, or a bool for each."""
        indices = np.arange(len(self.scores))[rows]
        return self._replace(
            boxes=self.boxes[indices],
            scores=self.scores[indices],
            labels=self.labels[indices],
            masks=None if self.masks is None else [self.masks[index] for index in indices],
            keypoints=None if self.keypoints is None else self.keypoints[indices],
        )


class DetectionEvaluator(Evaluator):
    """Base of detection evaluators: keeps ground truth and detections of the images of this process.

    Subclasses implement :meth:`_evaluate` and read its result, which is computed once for the same states, from
    :meth:`_results`.

    Args:
        dataset_info: facts about the data.
        confidence: minimum score of the detections in the error tables; null: that with the highest F1 of the set.
        masks: whether masks are evaluated; otherwise they are dropped.

    Attributes:
        oriented: whether it evaluates oriented (rotated) boxes; None: any.

    Raises:
        ValueError: the boxes of the data are oriented, and not those of the evaluator, or the reverse.
    """

    oriented: bool | None = False

    def __init__(self, dataset_info: DatasetInfo, confidence: float | None, masks: bool = False) -> None:
        if self.oriented not in (None, dataset_info.oriented):
            kind, evaluators = ("oriented", "dota_map") if dataset_info.oriented else ("upright", "coco or voc")
            raise ValueError(f"the boxes of the data are {kind}: take {evaluators}")
        self._dataset_info, self._confidence, self._masks = dataset_info, confidence, masks
        self._images: list[ImageResult] = []
        self._cached: tuple[Any, list[ImageResult], Any] | None = None

    def update(self, predictions: Predictions, batch: Batch) -> None:
        """Add a batch: ``predictions`` of a detector (:data:`opabinia.contracts.Predictions`),
        ``batch["ground_truth"]`` and ``batch["id"]``.

        Raises:
            DataMismatch: a transform moved the objects in the images, other than by resizing.
        """
        if not self._images:
            check_only_resized(batch)
        names = ("boxes", "scores", "labels", "keypoints", *(("masks",) if self._masks else ()))
        # NumPy has no bfloat16. Labels up to 2^24 are exact in float32.
        dtype = torch.promote_types(predictions["boxes"].dtype, torch.float32)
        arrays = {name: predictions[name].to(dtype).cpu().numpy() for name in names if name in predictions}
        masks, keypoints = arrays.get("masks"), arrays.get("keypoints")
        for row, (name, ground_truth) in enumerate(zip(batch["id"], batch["ground_truth"], strict=True)):
            valid = arrays["labels"][row] >= 0
            boxes = arrays["boxes"][row][valid]
            segments: list[Any] | None = None
            if self._masks:
                segments = list(ground_truth.segments or [None] * len(ground_truth.labels))
                segments = [compress_rle(segment, ground_truth.size) if segment else None for segment in segments]
            self._images.append(
                ImageResult(
                    str(name),
                    replace(ground_truth, segments=segments),
                    boxes,
                    arrays["scores"][row][valid],
                    arrays["labels"][row][valid].astype(np.int64),
                    None if masks is None else paste_masks(masks[row][valid], boxes, ground_truth.size),
                    None if keypoints is None else keypoints[row][valid],
                )
            )

    def state(self) -> list[ImageResult]:
        """Return the images of this process."""
        return self._images

    def _results(self, states: Sequence[list[ImageResult]]) -> tuple[list[ImageResult], Any]:
        """Return the images of all processes, sorted, and the result of :meth:`_evaluate`, kept for further calls."""
        if self._cached is None or self._cached[0] is not states:
            images = self._prepare(sorted_images(states))
            self._cached = states, images, self._evaluate(images)
        return self._cached[1:]

    def _prepare(self, images: list[ImageResult]) -> list[ImageResult]:
        """Return the images with the detections that count."""
        return images

    def _evaluate(self, images: Sequence[ImageResult]) -> Any:
        raise NotImplementedError


def check_only_resized(batch: Batch) -> None:
    """Check that transforms do not crop, rotate or flip: detections could not be mapped back to the original image.

    Resizing keeps the relative position of an object in its image.

    Raises:
        DataMismatch: most boxes of the batch have another relative position than in the annotations.
    """
    if not {"boxes", "image_sizes", "original_size"} <= batch.keys():
        return
    moved: list[bool] = []
    for boxes, ground_truth, image_size, original_size in zip(
        *(batch[key] for key in ("boxes", "ground_truth", "image_sizes", "original_size")), strict=True
    ):
        annotated = to_corners(ground_truth.boxes[~ground_truth.crowd]) / (original_size * 2)[::-1]
        if len(boxes) == len(annotated):  # otherwise some were dropped, or cut away
            shifts = upright_boxes(boxes).cpu().numpy() / (image_size * 2)[::-1] - annotated
            moved += (np.abs(shifts).max(1, initial=0) > _MAX_SHIFT).tolist()
    if sum(moved) > max(len(moved) / 2, 3):
        raise DataMismatch(
            f"{sum(moved)} of {len(moved)} objects lie elsewhere in the images than in the original images: "
            "data.val.transforms may resize images, and nothing else"
        )


def to_corners(boxes: Floats) -> Floats:
    """Convert boxes (N x 4) from left, top, width, height to left, top, right, bottom."""
    return np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], 1)


def sorted_images(states: Sequence[Sequence[ImageResult]]) -> list[ImageResult]:
    """Return the images of all processes, sorted by their ids in the annotation file.

    The order of images decides between detections with equal scores, so it must not depend on which process evaluated
    them.

    Raises:
        DataMismatch: a detection has a box, score or keypoint that is not finite.
    """
    images = sorted((image for state in states for image in state), key=_sort_key)
    for image in images:
        values = image.boxes, image.scores, np.zeros(0) if image.keypoints is None else image.keypoints
        if not all(np.isfinite(array).all() for array in values):
            raise DataMismatch(
                f"a detection in {image.name} has a box, score or keypoint that is not finite; if this is so in all "
                "images, the model has diverged"
            )
    return images


def _sort_key(image: ImageResult) -> tuple[bool, int, str, str]:
    """Numbers before names; images with the same number by the id of the sample."""
    image_id = image.ground_truth.image_id
    if isinstance(image_id, str):
        return True, 0, image_id, image.name
    return False, int(image_id), "", image.name
