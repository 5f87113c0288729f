"""Pascal VOC's average precision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Gt, Lt
from numpy.typing import NDArray

from opabinia.config import register
from opabinia.contracts import DatasetInfo, Fraction, Resampling
from opabinia.evaluation.detection.base import DetectionEvaluator, ImageResult, Ints
from opabinia.evaluation.detection.detection_errors import count_objects, error_tables, image_iou
from opabinia.evaluation.detection.resampling import (
    RankedDetections,
    recall,
    resampled_precision,
    tenths_of_recall,
)
from opabinia.evaluation.detection.rle import Floats

THRESHOLDS = np.arange(50, 100, 5) / 100


@register.evaluator
class Voc(DetectionEvaluator):
    """Pascal VOC's mean average precision of boxes, as its development kit computes it (Everingham et al. 2010, section
    4.2): ``AP50`` is VOC's own score, ``AP75`` that of a larger IoU, ``AP`` the mean over IoUs from 0.5 to 0.95
    (detectron2's three).

    A detection is right if its IoU with the object of its class that it overlaps most is *above* the threshold; of
    several detections of an object the one with the highest score is right. Difficult objects (``crowd`` in the ground
    truth) need not be detected, and detections of them are ignored. Classes without objects are omitted.

    VOC counts pixels from 1 and includes the last one, and so adds 1 to widths and heights; boxes here begin at 0 and
    end behind their last pixel, which is the same width without adding. Scores and boxes are not rounded first, as
    detectron2 does when it writes VOC's files.

    The tables (``details``): AP of each class, the confusion table and the hundred images with most errors
    (:mod:`opabinia.evaluation.detection.detection_errors`).

    Args:
        dataset_info: facts about the data.
        year: 2007: the mean of the precisions at recalls 0, 0.1 ... 1; 2012: the area under precision over recall.
        confidence: minimum score of the detections in the error tables; null: that with the highest F1 of the set.
        ious: further IoUs with a score of their own: ``[0.3]`` adds ``AP30``, for objects of which the place matters
            more than the size.
    """

    def __init__(
        self,
        dataset_info: DatasetInfo,
        /,
        *,
        year: Literal[2007, 2012] = 2012,
        confidence: Fraction | None = None,
        ious: list[Annotated[float, Gt(0), Lt(1)]] | None = None,
    ) -> None:
        super().__init__(dataset_info, confidence)
        self._average = eleven_point_average if year == 2007 else area_under_curve
        self._reached = tenths_of_recall if year == 2007 else recall
        self._thresholds = [*THRESHOLDS.tolist(), *(ious or [])]
        self._columns = {"AP50": 0, "AP75": 5}
        self._columns |= {f"AP{100 * iou:g}": len(THRESHOLDS) + number for number, iou in enumerate(ious or [])}
        self.better = dict.fromkeys([*self._columns, "AP"], "max")

    def _evaluate(self, images: Sequence[ImageResult]) -> Floats:
        """Return AP of each class at the ten thresholds and the further ones (K x 10 or more); NaN for a class without
        objects."""
        classes = range(len(self._dataset_info.classes))
        precisions = np.full((len(classes), len(self._thresholds)), np.nan)
        if not images:
            return precisions
        for label, detections in enumerate(self._ranked(images)):
            for column, right in enumerate(detections.right if len(detections.objects) else ()):
                precisions[label, column] = self._average(right[right >= 0].astype(np.int64), len(detections.objects))
        return precisions

    def _ranked(self, images: Sequence[ImageResult]) -> list[RankedDetections]:
        """Return the detections of each class."""
        labels, scores, ious, objects = _nearest_objects(images)
        truths = [image.ground_truth for image in images]
        difficult, classes = (
            np.concatenate(column) for column in zip(*((t.crowd, t.labels) for t in truths), strict=True)
        )
        of_object = np.repeat(np.arange(len(images)), [len(truth.labels) for truth in truths])
        of_detection = np.repeat(np.arange(len(images)), [len(image.labels) for image in images])
        ranked = []
        for label in range(len(self._dataset_info.classes)):
            rows = np.flatnonzero(labels == label)
            rows = rows[np.argsort(-scores[rows], kind="stable")]
            right = [_right(ious[rows], objects[rows], difficult, threshold) for threshold in self._thresholds]
            counted = of_object[(classes == label) & ~difficult]
            ranked.append(RankedDetections(np.stack(right).astype(np.int8), of_detection[rows], counted))
        return ranked

    def compute(self, states: Sequence[list[ImageResult]]) -> dict[str, float]:
        """Return the scores; none without objects."""
        precisions = self._results(states)[1]
        valid = precisions[~np.isnan(precisions[:, 0])]
        if not len(valid):
            return {}
        return {name: float(values.mean()) for name, values in self._of_name(valid).items()}

    def resamplings(self, states: Sequence[list[ImageResult]]) -> list[Resampling]:
        """Return ``AP50`` and ``AP``."""
        images = self._results(states)[0]
        ious, ranked = {"AP50": slice(1), "AP": slice(len(THRESHOLDS))}, self._ranked(images)
        return [resampled_precision(name, ranked, ious[name], len(images), self._reached) for name in ious]

    def details(self, states: Sequence[list[ImageResult]]) -> dict[str, Any]:
        """Return the tables; null for a class without objects."""
        images, precisions = self._results(states)
        if not images:
            return {}
        classes = self._dataset_info.classes
        rows = []
        for name, count, values in zip(classes, count_objects(images, len(classes)), precisions, strict=True):
            means = {name: float(column.mean()) for name, column in self._of_name(values).items()}
            rows.append({"class": name, "objects": count} | (means if count else dict.fromkeys(means)))
        return {"per_class": rows, **error_tables(images, len(classes), self._confidence)}

    def _of_name(self, precisions: Floats) -> dict[str, Floats]:
        """Return the columns of each score (of an array whose last dimension are thresholds)."""
        named = {name: precisions[..., column] for name, column in self._columns.items()}
        return {**named, "AP": precisions[..., : len(THRESHOLDS)]}


def _nearest_objects(images: Sequence[ImageResult]) -> list[NDArray[Any]]:
    """Return for the D detections of all images: class labels; scores; intersection over union with the object of the
    class that they overlap most, 0 if the image has none; index of that object among those of all images, or -1."""
    parts = []
    offset = 0
    for image in images:
        ground_truth = image.ground_truth
        best_iou, best_object = np.zeros(len(image.labels)), np.full(len(image.labels), -1)
        if len(ground_truth.labels) and len(image.labels):
            ious = image_iou(image)
            ious[image.labels[:, None] != ground_truth.labels] = -1
            best_iou = ious.max(1)
            best_object = np.where(best_iou >= 0, ious.argmax(1) + offset, -1)
        parts.append((image.labels, image.scores, best_iou, best_object))
        offset += len(ground_truth.labels)
    return [np.concatenate(column) for column in zip(*parts, strict=True)]


def _right(ious: Floats, objects: Ints, difficult: NDArray[np.bool_], threshold: float) -> Ints:
    """Return for each detection of a class, best first: 1 right, 0 false, -1 ignored."""
    right = np.zeros(len(ious), np.int64)
    hits = np.flatnonzero(ious > threshold)
    _, firsts = np.unique(objects[hits], return_index=True)
    right[hits[firsts]] = 1
    right[hits[difficult[objects[hits]]]] = -1
    return right


def area_under_curve(right: Ints, objects: int) -> float:
    """Return the area under precision over recall, each precision being the best at this recall or a higher one.

    Args:
        right: 1 or 0 for each detection, best first.
        objects: number of objects.

    Example: [1, 0, 1] of 2 objects: precisions 1, 1/2, 2/3, so (1 + 2/3) / 2 = 0.8333.
    """
    return float((_best_precision(right) * right).sum() / objects)


def voc_ap(targets: NDArray[Any], scores: NDArray[Any]) -> float:
    """Return the average precision of a class over whole images: :func:`area_under_curve` of the images, best first;
    images with equal scores in the given order.

    Args:
        targets: number of objects of the class in each image (N); an image above 0 is positive.
        scores: N.

    Returns: NaN if no image is positive.

    Example: targets [1, 0, 1], scores [0.9, 0.8, 0.7]: (1 + 2/3) / 2 = 0.8333.
    """
    positive = (np.asarray(targets) > 0).astype(np.int64)
    if not positive.any():
        return float("nan")
    return area_under_curve(positive[np.argsort(-np.asarray(scores), kind="stable")], int(positive.sum()))


def eleven_point_average(right: Ints, objects: int) -> float:
    """Return the mean of the best precisions at recalls of at least 0, 0.1 ... 1.

    Args:
        right: 1 or 0 for each detection, best first.
        objects: number of objects.

    Example: [1, 0, 1] of 2 objects: 1 at recalls up to 0.5, 2/3 above, so (6 + 5 * 2/3) / 11 = 0.8485.
    """
    precision, recalled = _best_precision(right), 10 * right.cumsum()
    # Integers: 3 of 10 is a recall of 0.3.
    reached = [precision[recalled >= tenth * objects] for tenth in range(11)]
    return float(sum(values[0] if len(values) else 0.0 for values in reached) / 11)


def _best_precision(right: Ints) -> Floats:
    """Return for each n the best precision among the n best detections, or more of them."""
    precision = right.cumsum() / np.arange(1, len(right) + 1)
    return np.maximum.accumulate(precision[::-1])[::-1]
