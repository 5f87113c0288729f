"""Tables of correct, missed, confused and false detections, at one score and one IoU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from opabinia.contracts.rotated_boxes import box_areas, polygon_areas, rotated_intersections
from opabinia.evaluation.detection.base import ImageResult, Ints, to_corners
from opabinia.evaluation.detection.rle import Floats

_MIN_IOU = 0.5
_MAX_IMAGES = 100


class MatchedImage(NamedTuple):
    """Detections and objects of an image, matched.

    Attributes:
        right: classes of objects detected as what they are.
        confused: (true class, predicted class) of objects taken for others.
        missed: classes of objects without a detection.
        false: classes of detections without an object.
    """

    right: list[int]
    confused: list[tuple[int, int]]
    missed: list[int]
    false: list[int]


def image_iou(image: ImageResult) -> Floats:
    """Return the intersection over union of all detections and objects of an image (D x N); 0 if both are empty."""
    intersections, detected, annotated = _image_areas(image)
    unions = detected[:, None] + annotated - intersections
    return intersections / np.maximum(unions, np.finfo(np.float64).tiny)


def _image_areas(image: ImageResult) -> tuple[Floats, Floats, Floats]:
    """Return the areas of the intersections of detections and objects (D x N), of detections (D), of objects (N)."""
    if image.ground_truth.corners is not None:
        boxes, polygons = torch.from_numpy(image.boxes).double(), torch.from_numpy(image.ground_truth.corners)
        areas = rotated_intersections(boxes, polygons), box_areas(boxes), polygon_areas(polygons)
        return areas[0].numpy(), areas[1].numpy(), areas[2].numpy()
    detected, annotated = image.boxes.astype(np.float64), to_corners(image.ground_truth.boxes)
    ends = np.minimum(detected[:, None, 2:], annotated[None, :, 2:])
    sides = ends - np.maximum(detected[:, None, :2], annotated[None, :, :2])
    return sides.clip(0).prod(2), _areas(detected), _areas(annotated)


def match_detections(image: ImageResult, confidence: float) -> MatchedImage:
    """Match detections with a score of at least ``confidence`` to objects with an IoU of at least 0.5, one to one.

    Pairs of the same class come first, then those of different classes, and among them the larger IoU. A detection of
    which at least half lies in a crowd of its class is ignored.
    """
    confident = image.select(image.scores >= confidence)
    labels, (iou, classes) = confident.labels, _overlaps(confident)
    rows, columns = np.nonzero(iou >= _MIN_IOU)
    order = np.lexsort((-iou[rows, columns], labels[rows] != classes[columns]))
    object_of: dict[int, int] = {}
    matched: set[int] = set()
    for row, column in zip(rows[order].tolist(), columns[order].tolist(), strict=True):
        if row not in object_of and column not in matched:
            object_of[row] = column
            matched.add(column)
    ignored = in_crowd(confident)
    pairs = [(int(classes[column]), int(labels[row])) for row, column in object_of.items()]
    return MatchedImage(
        right=[true for true, predicted in pairs if true == predicted],
        confused=[(true, predicted) for true, predicted in pairs if true != predicted],
        missed=[label for column, label in enumerate(classes.tolist()) if column not in matched],
        false=[label for row, label in enumerate(labels.tolist()) if row not in object_of and not ignored[row]],
    )


def _overlaps(image: ImageResult) -> tuple[Floats, Ints]:
    """Return the IoU of detections and objects without crowds (D x N), and the classes of these objects (N)."""
    objects = ~image.ground_truth.crowd
    return image_iou(image)[:, objects], image.ground_truth.labels[objects]


def in_crowd(image: ImageResult) -> NDArray[np.bool_]:
    """Return whether at least half of each detection lies in a crowd of its class (D)."""
    crowd = image.ground_truth.crowd
    intersections, detected, _ = _image_areas(image)
    inside = intersections[:, crowd] >= _MIN_IOU * detected[:, None]
    ignored: NDArray[np.bool_] = (inside & (image.labels[:, None] == image.ground_truth.labels[crowd])).any(1)
    return ignored


def best_min_score(images: Sequence[ImageResult]) -> float:
    """Return the minimum score of detections with the highest F1 over all images and classes; 0.5 if none is right.

    A detection is right if it has an IoU of at least 0.5 with an object of its class that no detection with a higher
    score has matched. Of several such scores the highest is returned.
    """
    counted = [image.select(~in_crowd(image)) for image in images]
    scores = np.concatenate([image.scores for image in counted])
    order = np.argsort(-scores, kind="stable")
    scores, right = scores[order], np.concatenate([right_detections(image) for image in counted])[order]
    objects = sum(int((~image.ground_truth.crowd).sum()) for image in images)
    f1 = 2 * np.cumsum(right) / (np.arange(1, len(scores) + 1) + objects)
    f1[:-1][scores[1:] == scores[:-1]] = 0  # a minimum admits all detections with its score
    return float(scores[f1.argmax()]) if right.any() else 0.5


def right_detections(image: ImageResult) -> NDArray[np.bool_]:
    """Return whether each detection matches an object of its class (D); higher scores choose first."""
    iou, classes = _overlaps(image)
    iou = np.where(image.labels[:, None] == classes, iou, 0.0)
    right = np.zeros(len(iou), dtype=np.bool_)
    for row in np.argsort(-image.scores, kind="stable").tolist() if iou.size else ():
        column = int(iou[row].argmax())
        if iou[row, column] >= _MIN_IOU:
            right[row], iou[:, column] = True, 0.0
    return right


def error_tables(images: Sequence[ImageResult], num_classes: int, confidence: float | None) -> dict[str, Any]:
    """Return the tables of errors for ``details.json``.

    Args:
        images: with detections.
        num_classes: number of classes.
        confidence: minimum score of the detections that are counted; None takes :func:`best_min_score`.

    Returns:
        ``counted``: the minimum score and IoU, what the score was selected by, and the F1 of all detections so counted;
        ``confusion`` (:func:`confusion`) and ``worst`` (:func:`worst_images`).
    """
    min_score = best_min_score(images) if confidence is None else confidence
    matches = [match_detections(image, min_score) for image in images]
    right, confused, missed, false = (sum(map(len, column)) for column in zip(*matches, strict=True))
    counted = {
        "min_score": min_score,
        "min_iou": _MIN_IOU,
        "selected_by": "highest F1" if confidence is None else "confidence",
        "F1": 2 * right / max(1, 2 * (right + confused) + missed + false),
    }
    return {"counted": counted, "confusion": confusion(matches, num_classes), "worst": worst_images(images, matches)}


def count_objects(images: Sequence[ImageResult], num_classes: int) -> list[int]:
    """Return the number of objects of each class, without crowds."""
    labels = [image.ground_truth.labels[~image.ground_truth.crowd] for image in images]
    return list(np.bincount(np.concatenate(labels), minlength=num_classes).tolist())


def confusion(matches: Sequence[MatchedImage], num_classes: int) -> list[list[int]]:
    """Return (true class, predicted class, count), most frequent errors first.

    The class ``num_classes`` is the background: predicted for missed objects, true for false detections.
    """
    cells: Counter[tuple[int, int]] = Counter()
    for match in matches:
        cells.update((label, label) for label in match.right)
        cells.update(match.confused)
        cells.update((label, num_classes) for label in match.missed)
        cells.update((num_classes, label) for label in match.false)
    order = sorted(cells.items(), key=lambda cell: (cell[0][0] == cell[0][1], -cell[1], cell[0]))
    return [[true, predicted, count] for (true, predicted), count in order]


def worst_images(images: Sequence[ImageResult], matches: Sequence[MatchedImage]) -> list[dict[str, Any]]:
    """Return the images with most errors: missed objects and false detections; a confusion counts as both.

    Among images with equally many errors the one with fewer correct detections comes first.
    """
    rows = []
    for image, match in zip(images, matches, strict=True):
        missed, false = (len(match.confused) + len(errors) for errors in (match.missed, match.false))
        if missed or false:
            rows.append((image.name, image.ground_truth.image_id, len(match.right), missed, false))
    rows.sort(key=lambda row: (-row[3] - row[4], row[2]))
    return [dict(zip(("id", "image_id", "right", "missed", "false"), row, strict=True)) for row in rows[:_MAX_IMAGES]]


def _areas(boxes: Floats) -> Floats:
    areas: Floats = (boxes[:, 2:] - boxes[:, :2]).clip(0).prod(1)
    return areas
