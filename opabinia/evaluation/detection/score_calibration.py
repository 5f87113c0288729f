"""Calibration of detection scores: how far they are from precisions, and maps by class that bring them there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from opabinia.config import register
from opabinia.contracts import Count, DatasetInfo, Fraction
from opabinia.evaluation.detection.base import DetectionEvaluator, ImageResult, Ints
from opabinia.evaluation.detection.detection_errors import in_crowd, right_detections
from opabinia.evaluation.detection.rle import Floats

FILE = "score_calibration.json"

_MIN_DETECTIONS = 20
_EPSILON = 1e-6


@register.evaluator
class ScoreCalibration(DetectionEvaluator):
    """Calibration of detection scores. ``d_ece`` is the detection expected calibration error: the mean gap between
    score and precision over equal bins of the score, of each class by itself, weighted by their detections (Kueppers et
    al. 2020, Multivariate Confidence Calibration for Object Detection, section 3.1, with the score as the only
    variable; there over all classes, in which errors of one class can hide those of another). ``d_ece_calibrated`` is
    that of the scores after a map of each class, fitted on every second image and applied to the others, on which both
    are computed.

    The maps are logistic functions of the score's logit (Platt 1999, with his targets, which keep the maps of few
    detections finite), fitted by scikit-learn. ``score_calibration.json`` has slope and offset by class, fitted on all
    images, as ``task.score_calibration`` takes them. A map that would not increase with the score, or one of a class
    with fewer than 20 detections, is omitted. Since maps increase, average precision by class stays the same.

    A detection is right as in the error tables: at an IoU of 0.5. Those in crowds are ignored.

    Args:
        dataset_info: facts about the data.
        min_score: minimum score of the detections that count. Many with scores near 0 would hide the others.
        bins: number of bins.
    """

    oriented = None

    def __init__(self, dataset_info: DatasetInfo, /, *, min_score: Fraction = 0.05, bins: Count = 15) -> None:
        super().__init__(dataset_info, None)
        self._min_score, self._bins = min_score, bins
        self.better = {"d_ece_calibrated": "min", "d_ece": "min"}

    def _prepare(self, images: list[ImageResult]) -> list[ImageResult]:
        return [image.select((image.scores >= self._min_score) & ~in_crowd(image)) for image in images]

    def _evaluate(self, images: Sequence[ImageResult]) -> dict[str, Any]:
        """Return the scores, the table of classes and the maps; nothing without detections in the second half."""
        if not sum(len(image.scores) for image in images[1::2]):
            return {"scores": {}, "per_class": [], "maps": {}}
        fitted, maps = self._fit(images[::2]), self._fit(images)
        labels, scores, right = _columns(images[1::2])
        rows, totals = [], np.zeros(2)
        for label, name in self._classes():
            class_scores, outcomes = scores[labels == label], right[labels == label]
            mapped = calibrate(class_scores, *fitted.get(name, (1.0, 0.0)))
            errors = [calibration_error(values, outcomes, self._bins) for values in (class_scores, mapped)]
            rows.append({"class": name, "detections": len(outcomes), "d_ece": errors[0], "d_ece_calibrated": errors[1]})
            totals += len(outcomes) / len(scores) * np.array([error or 0.0 for error in errors])
        means = {"d_ece": float(totals[0]), "d_ece_calibrated": float(totals[1])}
        return {"scores": means, "per_class": rows, "maps": maps}

    def _classes(self) -> Sequence[tuple[int, str]]:
        return list(enumerate(self._dataset_info.classes))

    def _fit(self, images: Sequence[ImageResult]) -> dict[str, tuple[float, float]]:
        labels, scores, right = _columns(images)
        fits = {name: fit_scores(scores[labels == label], right[labels == label]) for label, name in self._classes()}
        return {name: fit for name, fit in fits.items() if fit is not None}

    def compute(self, states: Sequence[list[ImageResult]]) -> dict[str, float]:
        """Return the scores; none without detections."""
        scores: dict[str, float] = self._results(states)[1]["scores"]
        return scores

    def details(self, states: Sequence[list[ImageResult]]) -> dict[str, Any]:
        """Return number of detections and both errors of each class; null without detections."""
        return {"score_calibration": self._results(states)[1]["per_class"]}

    def files(self, states: Sequence[list[ImageResult]]) -> dict[str, Any]:
        """Return the maps."""
        return {FILE: self._results(states)[1]["maps"]}


def _columns(images: Sequence[ImageResult]) -> tuple[Ints, Floats, Ints]:
    """Return label, score and whether it is right of all detections."""
    right = [right_detections(image).astype(np.int64) for image in images]
    empty = np.zeros(0)
    return (
        np.concatenate([empty.astype(np.int64), *(image.labels for image in images)]),
        np.concatenate([empty, *(image.scores for image in images)]),
        np.concatenate([empty.astype(np.int64), *right]),
    )


def fit_scores(scores: Floats, right: Ints) -> tuple[float, float] | None:
    """Fit slope and offset of :func:`calibrate`; None for fewer than 20 detections, or a slope that is not above 0.

    Args:
        scores: scores of detections (N).
        right: 1 or 0 for each.
    """
    from sklearn.linear_model import LogisticRegression

    count, hits = len(right), int(right.sum())
    if count < _MIN_DETECTIONS:
        return None
    high, low = (hits + 1) / (hits + 2), 1 / (count - hits + 2)
    target = np.where(right == 1, high, low)
    logits = _logit(np.concatenate([scores, scores]))[:, None]
    model = LogisticRegression(C=1e6).fit(logits, [1] * count + [0] * count, np.concatenate([target, 1 - target]))
    slope, offset = float(model.coef_[0, 0]), float(model.intercept_[0])
    return (round(slope, 6), round(offset, 6)) if slope > 0 else None


def calibrate(scores: Floats, slope: float, offset: float) -> Floats:
    """Return sigmoid(slope * logit(score) + offset)."""
    return np.asarray(1 / (1 + np.exp(-slope * _logit(scores) - offset)))


def _logit(scores: Floats) -> Floats:
    clipped = np.clip(scores.astype(np.float64), _EPSILON, 1 - _EPSILON)
    return np.asarray(np.log(clipped / (1 - clipped)))


def calibration_error(scores: Floats, right: Ints, bins: int) -> float | None:
    """Return the mean gap between score and precision over equal bins of the score, weighted by their detections; None
    without detections.

    Example: scores [0.9, 0.9, 0.2], of which the first is right, 10 bins: (2 * |0.9 - 0.5| + |0.2 - 0|) / 3 = 0.3333.
    """
    if not len(scores):
        return None
    numbers = np.clip(np.ceil(scores * bins).astype(np.int64), 1, bins) - 1
    gaps = np.bincount(numbers, scores, bins) - np.bincount(numbers, right, bins)
    return float(np.abs(gaps).sum() / len(scores))
