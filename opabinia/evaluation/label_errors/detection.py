"""Label errors of bounding boxes: overlooked, badly located, of another class, and annotated twice.

After ObjectLab: Tkachenko, Thyagarajan and Mueller, ObjectLab: Automated Diagnosis of Mislabeled Images in Object
Detection Data (2023). It scores predicted boxes without an annotation, annotated boxes by the nearest predicted one of
their class, and annotated boxes by predicted ones of other classes. Here boxes are compared by their intersection over
union (IoU) alone, so that the size of an image does not matter; scores of predictions are relative to those of right
ones of their class, as in confident learning; and each box keeps its score, so that it can be shown.

Shapes: D predictions and N annotated objects of an image.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from opabinia.contracts import Batch, DatasetInfo, Predictions
from opabinia.contracts.rotated_boxes import upright_boxes
from opabinia.evaluation.detection.base import DetectionEvaluator, ImageResult, sorted_images, to_corners
from opabinia.evaluation.detection.detection_errors import image_iou, in_crowd, right_detections
from opabinia.evaluation.label_errors.suspects import Box, Floats, Ints, LabelCheck, LabelErrors, Suspect, ranked

OVERLOOKED, MISPLACED, OTHER_CLASS, TWICE = "overlooked object", "badly located box", "class", "duplicate box"

MIN_SUSPICION = 0.4
"""Suspects with a lower score are not listed."""

MIN_DUPLICATE_IOU = 0.6


def class_scores(scores: Floats, labels: Ints, right: NDArray[np.bool_], classes: int) -> Floats:
    """Return the mean score of the right predictions of each class (K); of a class without any, that of all right ones;
    1 if there is none.

    Args:
        scores, labels, right: scores and classes of all predictions, and whether each matches an object.
        classes: K.
    """
    if not right.any():
        return np.ones(classes)
    counts = np.bincount(labels[right], minlength=classes)
    sums = np.bincount(labels[right], scores[right], classes)
    return np.where(counts > 0, sums / np.maximum(counts, 1), scores[right].mean())


def nearest_predictions(iou: Floats, same_class: NDArray[np.bool_], confidence: Floats) -> Ints:
    """Return for each object the prediction that is probably of it (N): that of its class with the highest product of
    confidence and IoU; -1 if none overlaps. The nearest of all may be one of the weak predictions around an object.

    Args:
        iou: D x N.
        same_class: whether the class of a prediction is that of an object, D x N.
        confidence: score relative to the right predictions of the class, at most 1 (D).
    """
    support = np.where(same_class, confidence[:, None] * iou, 0.0)
    if not len(support):
        return np.full(iou.shape[1], -1, dtype=np.int64)
    return np.where(support.max(0) > 0, support.argmax(0), -1).astype(np.int64)


def overlooked(iou: Floats, nearest: Ints, confidence: Floats) -> Floats:
    """Return the suspicion that each prediction is an object without annotation (D): its confidence times 1 - its
    highest IoU with any object; 0 for one that belongs to an object, which is badly located instead.

    Args:
        iou, confidence: see :func:`nearest_predictions`.
        nearest: the prediction of each object (N), or -1.
    """
    scores: Floats = confidence * (1 - iou.max(1, initial=0))
    scores[nearest[nearest >= 0]] = 0
    return scores


def strongest(scores: Floats, iou: Floats) -> Floats:
    """Return scores (D) in which those of predictions that overlap one with a higher score by an IoU of 0.3 or more are
    0: an object is listed once, whatever classes are predicted there.

    Args:
        scores: D.
        iou: IoU of the predictions with each other, D x D.
    """
    kept = np.zeros(len(scores))
    for row in np.argsort(-scores, kind="stable").tolist():
        if scores[row] > 0 and not (iou[row, kept > 0] >= _SAME_OBJECT_IOU).any():
            kept[row] = scores[row]
    return kept


_SAME_OBJECT_IOU = 0.3


def badly_located(iou: Floats, nearest: Ints, confidence: Floats) -> Floats:
    """Return the suspicion that the box of each object is badly placed (N): the confidence of its prediction times 1 -
    its IoU. Where none of its class overlaps, nothing is known: 0.

    Args:
        iou, nearest, confidence: see :func:`overlooked`.
    """
    scores = np.zeros(len(nearest))
    (objects,) = np.nonzero(nearest >= 0)
    rows = nearest[objects]
    scores[objects] = confidence[rows] * (1 - iou[rows, objects])
    return scores


def of_other_class(iou: Floats, same_class: NDArray[np.bool_], confidence: Floats) -> Floats:
    """Return the suspicion that each object is of another class (N): the highest product of confidence and IoU of a
    prediction of another class, times 1 - the same of its own class.

    Args:
        iou, same_class, confidence: see :func:`nearest_predictions`.
    """
    support = confidence[:, None] * iou
    other, own = (np.where(mask, support, 0.0).max(0, initial=0) for mask in (~same_class, same_class))
    suspicion: Floats = other * (1 - own)
    return suspicion


def annotated_twice(iou: Floats, labels: Ints, support: Floats) -> Floats:
    """Return the suspicion that each object is annotated twice (N): the highest IoU with another box of its class, if
    at least :data:`MIN_DUPLICATE_IOU`; 0 for the better one of a pair.

    Args:
        iou: IoU of annotated boxes with each other, N x N.
        labels: N.
        support: IoU with the prediction of each (N); the box with the higher one is the better one, of equal ones the
            first.
    """
    pairs = np.where((labels[:, None] == labels) & (iou >= MIN_DUPLICATE_IOU), iou, 0.0)
    order = np.empty(len(labels), dtype=np.int64)
    order[np.argsort(-support, kind="stable")] = np.arange(len(labels))
    scores: Floats = np.where(order[:, None] > order, pairs, 0.0).max(1, initial=0)
    return scores


def box_iou(boxes: Floats) -> Floats:
    """Return the IoU of boxes (left, top, right, bottom; N x 4) with each other (N x N); 0 of empty ones."""
    ends, starts = (bound(boxes[:, None, part], boxes[None, :, part]) for bound, part in _BOUNDS)
    intersections = (ends - starts).clip(0).prod(2)
    areas = (boxes[:, 2:] - boxes[:, :2]).clip(0).prod(1)
    unions = areas[:, None] + areas - intersections
    iou: Floats = intersections / np.maximum(unions, np.finfo(np.float64).tiny)
    return iou


_BOUNDS = ((np.minimum, slice(2, None)), (np.maximum, slice(None, 2)))


class DetectionCheck(LabelCheck):
    """Bounding boxes, upright or oriented. An object is listed once, for the error with the highest score; crowds, and
    classes that are not exhaustively annotated in an image, are not searched for overlooked objects."""

    def __init__(self) -> None:
        super().__init__()
        self._collector = _Collector(DatasetInfo(samples=0), None)

    def update(self, predictions: Predictions, batch: Batch) -> None:
        """Add a batch, see :meth:`opabinia.evaluation.detection.base.DetectionEvaluator.update`."""
        self._collector.update(predictions, batch)
        self.ids += batch["id"]

    @property
    def images(self) -> list[ImageResult]:
        """The images so far, sorted.

        Raises:
            DataMismatch: a prediction is not finite.
        """
        return sorted_images([self._collector.state()])

    @staticmethod
    def find(checks: Sequence[DetectionCheck], classes: Sequence[str]) -> LabelErrors:
        suspects: list[Suspect] = []
        objects = 0
        for check in checks:
            images = check.images
            scores, labels = (
                np.concatenate([getattr(image, name) for image in images]) for name in ("scores", "labels")
            )
            right = np.concatenate([right_detections(image) for image in images])
            typical = class_scores(scores, labels, right, len(classes))
            for image in images:
                suspects += _suspects_of(image, typical, classes)
                objects += int((~image.ground_truth.crowd).sum())
        facts = {"annotated objects": f"{objects:,}"}
        kinds = (OVERLOOKED, MISPLACED, OTHER_CLASS, TWICE)
        facts |= {f"issue {kind}": f"{sum(suspect.issue == kind for suspect in suspects):,}" for kind in kinds}
        return LabelErrors(ranked(suspects), facts)


class _Collector(DetectionEvaluator):
    oriented = None


def _suspects_of(image: ImageResult, typical: Floats, classes: Sequence[str]) -> Iterator[Suspect]:
    """Yield the suspects of an image.

    Args:
        image: annotated objects and predictions.
        typical: see :func:`class_scores`.
        classes: names of the classes.
    """
    truth = image.ground_truth
    annotated = ~truth.crowd
    labels, boxes = truth.labels[annotated], to_corners(truth.boxes)[annotated]
    iou, same = image_iou(image)[:, annotated], image.labels[:, None] == labels
    confidence = np.minimum(1, image.scores / np.maximum(typical[image.labels], np.finfo(np.float64).tiny))
    nearest = nearest_predictions(iou, same, confidence)
    best = np.where(nearest >= 0, iou[nearest, np.arange(len(nearest))], 0.0) if len(iou) else np.zeros(len(nearest))
    predicted = upright_boxes(torch.from_numpy(image.boxes)).double().numpy()

    unseen = overlooked(iou, nearest, confidence)
    unseen[in_crowd(image) | np.isin(image.labels, truth.not_exhaustive) | (unseen < MIN_SUSPICION)] = 0
    unseen = strongest(unseen, box_iou(predicted))
    for row in np.flatnonzero(unseen).tolist():
        name, score = classes[image.labels[row]], image.scores[row]
        reason = (
            f"{name} is predicted with score {score:.2f}, typical of right ones is {typical[image.labels[row]]:.2f}; "
        )
        reason += f"the highest IoU with an annotated box is {iou[row].max(initial=0):.2f}"
        yield Suspect(image.name, OVERLOOKED, "", name, float(unseen[row]), reason, None, _box(predicted[row]))

    issues = {
        MISPLACED: badly_located(iou, nearest, confidence),
        OTHER_CLASS: of_other_class(iou, same, confidence),
        TWICE: annotated_twice(box_iou(boxes), labels, best),
    }
    scores = np.stack(list(issues.values()), 1)
    for row in np.flatnonzero(scores.max(1, initial=0) >= MIN_SUSPICION).tolist():
        issue, label = list(issues)[int(scores[row].argmax())], classes[labels[row]]
        match = int(nearest[row])
        if issue == OTHER_CLASS:
            match = int(np.where(~same[:, row], confidence * iou[:, row], -1).argmax())
            reason = f"{classes[image.labels[match]]} is predicted with score {image.scores[match]:.2f} and IoU "
            reason += f"{iou[match, row]:.2f}, {label} with IoU {best[row]:.2f}"
        elif issue == MISPLACED:
            reason = f"the predicted {label} has score {image.scores[match]:.2f} and IoU {best[row]:.2f}"
        else:
            reason = f"another annotated {label} has an IoU of {scores[row].max():.2f}"
        name = classes[image.labels[match]] if match >= 0 else ""
        place = _box(predicted[match]) if match >= 0 else None
        yield Suspect(image.name, issue, label, name, float(scores[row].max()), reason, _box(boxes[row]), place)


def _box(values: Floats) -> Box:
    left, top, right, bottom = values.tolist()
    return left, top, right, bottom
