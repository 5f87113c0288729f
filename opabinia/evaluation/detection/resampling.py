"""Average precision of resampled images, from detections that are matched once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from opabinia.contracts import Resampling
from opabinia.contracts.masks import compress_rle
from opabinia.evaluation.detection.base import ImageResult, Ints, to_corners
from opabinia.evaluation.detection.coco_format import Kind

Floats = NDArray[np.float64]

_RECALLS = np.linspace(0, 1, 101)

Reached = Callable[[Floats, Floats], Floats]
"""Maps right detections so far (R x n) and objects (R x 1) to the share of the recalls over which precisions are
averaged that is reached."""


class RankedDetections(NamedTuple):
    """The D detections of a class in all images, best first.

    Attributes:
        right: for each of T IoUs (int8, T x D) 1 right, 0 false, -1 ignored.
        images: number of the image of each detection (D).
        objects: number of the image of each object of the class that must be detected.
    """

    right: NDArray[np.int8]
    images: Ints
    objects: Ints


def resampled_precision(
    name: str, classes: Sequence[RankedDetections], ious: slice, images: int, reached: Reached
) -> Resampling:
    """Return the mean of the average precisions of classes and IoUs, over the classes with objects.

    Args:
        name: name of the score.
        classes: detections of each class.
        ious: the IoUs that count.
        images: number of images.
        reached: the rule of the average: :func:`recall_points` ...
    """
    counted = [
        _until_last_right(detections._replace(right=detections.right[ious]))
        for detections in classes
        if len(detections.objects)
    ]

    def scores(weights: Floats) -> Floats:
        sums, present = np.zeros(len(weights)), np.zeros(len(weights))
        for detections in counted:
            objects = weights[:, detections.objects].sum(1)
            sums += _average_precision(detections, weights, objects[:, None], reached)
            present += objects > 0
        return np.where(present > 0, sums / np.maximum(1, present), np.nan)

    cost = sum(len(each.images) + len(each.objects) + int((each.right == 1).sum()) for each in counted)
    return Resampling(name, "images", images, scores, cost)


def _until_last_right(detections: RankedDetections) -> RankedDetections:
    """Drop the detections after the last one that is right at any IoU: they change no average."""
    end = int(np.flatnonzero((detections.right == 1).any(0)).max(initial=-1)) + 1
    return detections._replace(right=detections.right[:, :end], images=detections.images[:end])


def _average_precision(detections: RankedDetections, weights: Floats, objects: Floats, reached: Reached) -> Floats:
    """Return the mean over the IoUs of the average precision of a class (R); 0 without objects."""
    right, images, _ = detections
    drawn = weights[:, images]
    before = drawn.cumsum(1)
    total = np.zeros(len(weights))
    for row in right:
        hits, ignored = np.flatnonzero(row == 1), np.flatnonzero(row < 0)
        found, counted = drawn[:, hits].cumsum(1), before[:, hits]
        if len(ignored):
            ignored_before = np.pad(drawn[:, ignored].cumsum(1), ((0, 0), (1, 0)))
            counted -= ignored_before[:, np.searchsorted(ignored, hits)]
        precision = found / np.maximum(1, counted)
        best = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
        total += (best * np.diff(reached(found, np.maximum(1, objects)), axis=1, prepend=0)).sum(1)
    return np.where(objects[:, 0] > 0, total / len(right), 0.0)


def recall_points(found: Floats, objects: Floats) -> Floats:
    """Follow COCO: precisions at the recalls 0, 0.01 ... 1."""
    return np.searchsorted(_RECALLS, found / objects, side="right") / len(_RECALLS)


def tenths_of_recall(found: Floats, objects: Floats) -> Floats:
    """Follow VOC 2007: precisions at the recalls 0, 0.1 ... 1."""
    return (np.floor_divide(10 * found, objects) + 1) / 11


def recall(found: Floats, objects: Floats) -> Floats:
    """Follow VOC 2012: the area under precision over recall."""
    return found / objects


def rank_by_coco(
    images: Sequence[ImageResult], kind: Kind, classes: int, thresholds: Floats, max_detections: int
) -> list[RankedDetections]:
    """Match boxes or masks by COCO's rule; return the detections of each class.

    Args:
        images: in the order in which they are evaluated: among equal scores the first image comes first.
        kind: ``bbox`` or ``segm``.
        classes: number of classes.
        thresholds: IoUs, ascending, T.
        max_detections: per image and class.
    """
    parts: list[list[tuple[Floats, NDArray[np.int8], Ints]]] = [[] for _ in range(classes)]
    objects: list[list[int]] = [[] for _ in range(classes)]
    for number, image in enumerate(images):
        truth, crowd = image.ground_truth, _crowds(image, kind)
        for label in truth.labels[~crowd].tolist():
            objects[label].append(number)
        for label in np.unique(image.labels).tolist():
            rows = np.flatnonzero(image.labels == label)
            rows = rows[np.argsort(-image.scores[rows], kind="stable")][:max_detections]
            mine = np.flatnonzero(truth.labels == label)
            right = _match(_overlaps(image, kind, rows, mine, crowd[mine]), crowd[mine], thresholds)
            if label in truth.not_exhaustive:
                right[right == 0] = -1
            parts[label].append((image.scores[rows], right, np.full(len(rows), number)))
    empty = np.zeros(0), np.zeros((len(thresholds), 0), np.int8), np.zeros(0, np.int64)
    ranked = []
    for of_class, of_objects in zip(parts, objects, strict=True):
        scores, right, numbers = (np.concatenate(column, -1) for column in zip(empty, *of_class, strict=True))
        order = np.argsort(-scores, kind="stable")
        ranked.append(RankedDetections(right[:, order], numbers[order], np.array(of_objects, np.int64)))
    return ranked


def _crowds(image: ImageResult, kind: Kind) -> NDArray[np.bool_]:
    """Return which objects of an image are crowds; one without a mask is one where masks are compared."""
    truth = image.ground_truth
    if kind == "bbox":
        return truth.crowd
    return truth.crowd | np.array([not segment for segment in truth.segments or ()], np.bool_)


def _overlaps(image: ImageResult, kind: Kind, rows: Ints, columns: Ints, crowd: NDArray[np.bool_]) -> Floats:
    """Return the IoU of some detections and objects of an image; of a crowd the share of the detection in it."""
    from faster_coco_eval.core.mask import iou

    if not len(rows) or not len(columns):
        return np.zeros((len(rows), len(columns)))
    truth = image.ground_truth
    detected: list[Any]
    annotated: list[Any]
    if kind == "bbox":
        boxes = image.boxes[rows].astype(np.float64)
        boxes[:, 2:] -= boxes[:, :2]
        detected, annotated = boxes.tolist(), truth.boxes[columns].tolist()
    else:
        masks, segments = image.masks or (), truth.segments or ()
        left, top, right, bottom = to_corners(truth.boxes).T
        detected = [{"size": truth.size, "counts": masks[row]} for row in rows]
        corners = np.stack([left, top, left, bottom, right, bottom, right, top], 1).tolist()
        filled = [segments[column] or compress_rle([corners[column]], truth.size) for column in columns]
        annotated = [{"size": truth.size, "counts": counts} for counts in filled]
    return np.asarray(iou(detected, annotated, crowd.astype(int).tolist())).reshape(len(rows), len(columns))


def _match(overlaps: Floats, crowd: NDArray[np.bool_], thresholds: Floats) -> NDArray[np.int8]:
    """Match detections of a class in an image (best first) to its objects: each takes the free object with the largest
    overlap, or else a crowd, which several may share.

    Args:
        overlaps: IoU of detections and objects (D x N).
        crowd: whether each object is a crowd (N).
        thresholds: IoUs, ascending, T.

    Returns: :attr:`RankedDetections.right` (T x D).
    """
    limits = np.minimum(thresholds, 1 - 1e-10)
    right = np.zeros((len(limits), len(overlaps)), np.int8)
    free = np.ones((len(limits), len(crowd)), np.bool_)
    for row, most in enumerate(overlaps.max(1, initial=0)):
        for column, limit in enumerate(limits[limits <= most].tolist()):
            for candidates in (free[column] & ~crowd, crowd):
                # Of equal overlaps the last object is taken.
                values = np.where(candidates, overlaps[row], -1.0)[::-1]
                best = len(crowd) - 1 - int(values.argmax())
                if candidates[best] and overlaps[row, best] >= limit:
                    right[column, row] = -1 if crowd[best] else 1
                    free[column, best] = False
                    break
    return right
