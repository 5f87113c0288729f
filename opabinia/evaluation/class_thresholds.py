"""The best threshold of the score of each class, chosen on validation data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from opabinia.config import register
from opabinia.contracts import Batch, DatasetInfo, Evaluator, Predictions
from opabinia.evaluation.detection.base import DetectionEvaluator, ImageResult
from opabinia.evaluation.detection.detection_errors import count_objects, in_crowd, right_detections

FILE = "class_thresholds.json"

Floats = NDArray[np.float64]
Criterion = Literal["f1", "youden"]


class Threshold(NamedTuple):
    """Minimum score of a class, and what it gives: precision, recall and F1."""

    threshold: float
    precision: float
    recall: float
    f1: float


def best_threshold(
    scores: Floats, right: NDArray[np.bool_], positives: int, criterion: Criterion = "f1"
) -> Threshold | None:
    """Return the minimum score with the highest F1, or Youden's J (Youden 1950: recall minus false positive rate); None
    if nothing is right. It lies midway between the lowest score that it admits and the next one; of several equally
    good ones it is the highest.

    Args:
        scores: scores of predictions for a class (N).
        right: whether each is right.
        positives: objects, or samples, of the class.
        criterion: ``youden`` is for predictions of which each is right or a negative sample.

    Example: scores [0.9, 0.8, 0.7, 0.6], the first and third right, 2 positives: 0.65, with an F1 of 2 * 2 / (3 + 2).
    """
    if not right.any():
        return None
    order = np.argsort(-scores, kind="stable")
    scores, hits = scores[order], np.cumsum(right[order])
    count = np.arange(1, len(scores) + 1)  # of the predictions that a threshold admits
    value = 2 * hits / (count + positives)
    if criterion == "youden":
        value = hits / positives - (count - hits) / max(1, len(scores) - positives)
    value[:-1][scores[1:] == scores[:-1]] = -np.inf  # a threshold admits all predictions with its score
    best = int(value.argmax())
    threshold = scores[best : best + 2].mean()
    precision, recall, f1 = hits[best] / count[best], hits[best] / positives, 2 * hits[best] / (count[best] + positives)
    return Threshold(float(threshold), float(precision), float(recall), float(f1))


@register.evaluator
def class_thresholds(dataset_info: DatasetInfo, /, *, criterion: Criterion = "f1") -> Evaluator:
    """Best threshold of the score of each class. Score ``f1_at_thresholds``: the mean of F1 over classes at these; as
    they are chosen on the same data, it is what they may give at best.

    ``class_thresholds.json`` has them by class; `opabinia predict`, `serve` and `export` use those of the first
    validation set. A class without a right prediction has none.

    Detection: a detection is right at an IoU of 0.5, those in crowds are ignored. Data with several labels for each
    sample: each class by itself. Data with two classes: the second one is the positive class, and the threshold of the
    first is 1 minus its own.

    Args:
        dataset_info: facts about the data.
        criterion: ``f1``, or for two classes and several labels ``youden``, recall minus false positive rate.

    Raises:
        ValueError: the data has more than two classes, of which each sample has one: the most probable is predicted.
    """
    if dataset_info.boxes:
        if criterion == "youden":
            raise ValueError("criterion: detections have no negative samples; take f1")
        return DetectionThresholds(dataset_info)
    if not dataset_info.multi_label and len(dataset_info.classes) != 2:
        raise ValueError("thresholds are for detection, for several labels per sample, and for two classes")
    return LabelThresholds(dataset_info, criterion)


class DetectionThresholds(DetectionEvaluator):
    """Thresholds of detections, see :func:`class_thresholds`."""

    oriented = None

    def __init__(self, dataset_info: DatasetInfo) -> None:
        super().__init__(dataset_info, None)
        self.better = {"f1_at_thresholds": "max"}

    def _prepare(self, images: list[ImageResult]) -> list[ImageResult]:
        return [image.select(~in_crowd(image)) for image in images]

    def _evaluate(self, images: Sequence[ImageResult]) -> dict[str, Threshold]:
        classes = self._dataset_info.classes
        labels = np.concatenate([np.zeros(0, np.int64), *(image.labels for image in images)])
        scores = np.concatenate([np.zeros(0), *(image.scores.astype(np.float64) for image in images)])
        right = np.concatenate([np.zeros(0, bool), *map(right_detections, images)])
        objects = count_objects(images, len(classes))
        found = {
            name: best_threshold(scores[labels == label], right[labels == label], objects[label])
            for label, name in enumerate(classes)
        }
        return {name: threshold for name, threshold in found.items() if threshold is not None}

    def compute(self, states: Sequence[list[ImageResult]]) -> dict[str, float]:
        """Return the score; none if no detection is right."""
        return _scores(self._results(states)[1])

    def details(self, states: Sequence[list[ImageResult]]) -> dict[str, Any]:
        """Return the threshold of each class with its precision, recall and F1."""
        return {"class_thresholds": _table(self._results(states)[1])}

    def files(self, states: Sequence[list[ImageResult]]) -> dict[str, Any]:
        """Return the thresholds by class."""
        return {FILE: _thresholds(self._results(states)[1])}


class LabelThresholds(Evaluator):
    """Thresholds of probabilities, see :func:`class_thresholds`.

    Args:
        dataset_info: facts about the data, with K classes.
        criterion: what is maximized.
    """

    def __init__(self, dataset_info: DatasetInfo, criterion: Criterion) -> None:
        self.better = {"f1_at_thresholds": "max"}
        self._classes, self._is_binary = dataset_info.classes, not dataset_info.multi_label
        self._criterion = criterion
        self._batches: list[tuple[Tensor, Tensor]] = []

    def update(self, predictions: Predictions, batch: Batch) -> None:
        """Add a batch. ``predictions["probabilities"]`` is B x K; ``batch["label"]`` B x K of 0 and 1, or B."""
        # NaN is never right with a high score.
        probabilities = predictions["probabilities"].detach().float().nan_to_num(0.0).cpu()
        label = batch["label"].cpu()
        is_positive = label > 0.5 if label.ndim == 2 else torch.nn.functional.one_hot(label, len(self._classes)) > 0
        self._batches.append((probabilities, is_positive))

    def state(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return probabilities (N x K, float32) and labels (N x K, bool)."""
        empty = torch.zeros(0, len(self._classes))
        columns = zip((empty, empty > 0), *self._batches, strict=True)
        probabilities, labels = (torch.cat(column).numpy() for column in columns)
        return probabilities, labels

    def _found(self, states: Sequence[Any]) -> dict[str, Threshold]:
        scores, labels = (np.concatenate(column) for column in zip(*states, strict=True))
        scores = scores.astype(np.float64)
        found = {
            self._classes[k]: best_threshold(scores[:, k], labels[:, k], int(labels[:, k].sum()), self._criterion)
            for k in ([1] if self._is_binary else range(len(self._classes)))
        }
        return {name: threshold for name, threshold in found.items() if threshold is not None}

    def compute(self, states: Sequence[Any]) -> dict[str, float]:
        """Return the score; none without labels."""
        return _scores(self._found(states))

    def details(self, states: Sequence[Any]) -> dict[str, Any]:
        """Return the threshold of each class with its precision, recall and F1."""
        return {"class_thresholds": _table(self._found(states))}

    def files(self, states: Sequence[Any]) -> dict[str, Any]:
        """Return the thresholds by class."""
        thresholds = _thresholds(self._found(states))
        if self._is_binary and thresholds:
            thresholds[self._classes[0]] = 1 - thresholds[self._classes[1]]
        return {FILE: thresholds}


def _scores(found: dict[str, Threshold]) -> dict[str, float]:
    return {"f1_at_thresholds": float(np.mean([row.f1 for row in found.values()]))} if found else {}


def _table(found: dict[str, Threshold]) -> list[dict[str, Any]]:
    return [{"class": name, **row._asdict()} for name, row in found.items()]


def _thresholds(found: dict[str, Threshold]) -> dict[str, float]:
    return {name: row.threshold for name, row in found.items()}
