"""Metrics of data with several labels per sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from opabinia.contracts import Batch, Evaluator, Predictions, Resampling


def average_precision(scores: NDArray[Any], labels: NDArray[Any]) -> float:
    """Return the area under precision over recall, in steps (no interpolation).

    Samples with equal scores enter together, so their order does not matter.

    Args:
        scores: N.
        labels: N, 1 where the sample is of the class.

    Returns: NaN without a sample of the class.

    Example: scores [0.9, 0.8, 0.7], labels [1, 0, 1]: (1 + 2/3) / 2 = 0.8333.
    """
    if not labels.any():
        return float("nan")
    from sklearn.metrics import average_precision_score  # slow to import, and most runs do not need it

    return float(average_precision_score(labels, scores))


def attribute_scores(probabilities: Tensor, labels: Tensor, *, threshold: float = 0.5) -> dict[str, float]:
    """Return the metrics of attribute recognition (Li et al. 2016, RAP, section 4.1; FastReID's FastAttr).

    Args:
        probabilities: N x K.
        labels: 0 and 1, N x K.
        threshold: minimum probability of a predicted attribute.

    Returns: ``mA``, the mean over attributes of the mean recall of samples with and without the attribute;
    ``accuracy`` (IoU of predicted and true labels), ``precision`` and ``recall``, each averaged over samples; ``f1`` of
    the last two. Divisions by 0 (recall of a sample without attributes) are excluded from the means; FastReID's means
    are NaN then.

    Example: probabilities [[0.9, 0.8], [0.2, 0.6]], labels [[1, 0], [0, 1]]: mA 0.75, precision 0.75, recall 1.
    """
    predicted, true = probabilities.double() >= threshold, labels > 0.5
    hits, rejections = predicted & true, ~predicted & ~true
    recalls = [hits.sum(0).double() / true.sum(0), rejections.sum(0).double() / (~true).sum(0)]
    sets = {"accuracy": predicted | true, "precision": predicted, "recall": true}
    means = {name: float((hits.sum(1).double() / members.sum(1)).nanmean()) for name, members in sets.items()}
    total = means["precision"] + means["recall"]
    f1 = 2 * means["precision"] * means["recall"] / total if total else 0.0
    return {"mA": float(torch.stack(recalls).mean(0).nanmean()), **means, "f1": f1}


class MultiLabel(Evaluator):
    """Scores ``mAP`` (mean average precision over the classes that occur), and at probability 0.5 ``micro_f1``
    (over all labels) and ``macro_f1`` (mean over those classes).

    The table (``details``) has average precision, F1 and number of samples of each class.

    Args:
        classes: names of the K classes.
    """

    def __init__(self, classes: Sequence[str]) -> None:
        self.better = {"mAP": "max", "micro_f1": "max", "macro_f1": "max"}
        self.classes = tuple(classes)
        self._batches: list[tuple[Tensor, Tensor]] = []

    def update(self, predictions: Predictions, batch: Batch) -> None:
        """Add a batch. ``predictions["logits"]`` and ``batch["label"]`` (0 and 1) are B x K."""
        # A row that is not finite ranks last and does not change the others.
        logits = predictions["logits"].detach().float().nan_to_num(-1e30, -1e30, -1e30)
        self._batches.append((logits.cpu(), batch["label"].cpu() > 0.5))

    def state(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return logits (N x K, float32) and labels (N x K, bool)."""
        if not self._batches:
            return np.zeros((0, len(self.classes)), np.float32), np.zeros((0, len(self.classes)), bool)
        logits, labels = (torch.cat(column).numpy() for column in zip(*self._batches, strict=True))
        return logits, labels

    def _per_class(self, states: Sequence[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return average precisions (K), and the number of hits, predicted and true labels (3 x K)."""
        logits, labels = (np.concatenate(column) for column in zip(*states, strict=True))
        precisions = np.array([average_precision(logits[:, k], labels[:, k]) for k in range(len(self.classes))])
        predicted = logits > 0
        return precisions, np.stack([(predicted & labels).sum(0), predicted.sum(0), labels.sum(0)])

    def compute(self, states: Sequence[Any]) -> dict[str, float]:
        """Return the scores; none without labels."""
        precisions, counts = self._per_class(states)
        present = counts[2] > 0
        if not present.any():
            return {}
        return {
            "mAP": float(precisions[present].mean()),
            "micro_f1": float(_f1(counts.sum(1, keepdims=True))[0]),
            "macro_f1": float(_f1(counts)[present].mean()),
        }

    def details(self, states: Sequence[Any]) -> dict[str, Any]:
        """Return the table; null for a class that never occurs."""
        precisions, counts = self._per_class(states)
        rows = zip(self.classes, counts[2].tolist(), precisions.tolist(), _f1(counts).tolist(), strict=True)
        return {
            "per_class": [
                {"class": name, "samples": samples, "AP": ap if samples else None, "f1": f1}
                for name, samples, ap, f1 in rows
            ]
        }

    def resamplings(self, states: Sequence[Any]) -> list[Resampling]:
        """Return the mAP."""
        logits, labels = _sorted_rows(states)
        columns = [_RankedSamples.of(logits[:, k], labels[:, k]) for k in range(logits.shape[1]) if labels[:, k].any()]

        def scores(weights: NDArray[np.float64]) -> NDArray[np.float64]:
            return _mean_of_present(np.stack([column.average_precision(weights) for column in columns], 1))

        return [Resampling("mAP", "images", len(logits), scores, 2 * logits.size)]


class _RankedSamples(NamedTuple):
    """The samples by the score of a class, best first: their numbers (N), whether they are of the class (N), and the
    last of each group of equal scores."""

    order: NDArray[np.int64]
    right: NDArray[np.bool_]
    ends: NDArray[np.int64]

    @staticmethod
    def of(scores: NDArray[Any], labels: NDArray[np.bool_]) -> _RankedSamples:
        order = np.argsort(-scores, kind="stable")
        ends = np.flatnonzero(np.diff(scores[order], append=np.nan) != 0)
        return _RankedSamples(order, labels[order], ends)

    def average_precision(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return :func:`average_precision` of weighted samples (R x N); NaN without a sample of the class."""
        drawn = weights[:, self.order]
        found, counted = ((drawn * mask).cumsum(1)[:, self.ends] for mask in (self.right, True))
        total = found[:, -1]
        sums = (np.diff(found, axis=1, prepend=0) * found / np.maximum(1, counted)).sum(1)
        return np.where(total > 0, sums / np.maximum(1, total), np.nan)


def _mean_of_present(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean of each row (R x K) over the classes that have a value; NaN for rows without one."""
    present = ~np.isnan(values)
    means: NDArray[np.float64] = np.nansum(values, 1) / np.where(present.any(1), present.sum(1), np.nan)
    return means


def _sorted_rows(states: Sequence[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return logits and labels of all processes in an order that does not depend on their number."""
    logits, labels = (np.concatenate(column) for column in zip(*states, strict=True))
    order = np.lexsort((*labels.T, *logits.T))
    return logits[order], labels[order]


class AttributeRecognition(MultiLabel):
    """Scores of :func:`attribute_scores` (``mA``, ``accuracy``, ``precision``, ``recall``, ``f1``) and of
    :class:`MultiLabel`.

    Args:
        classes: names of the K attributes.
        threshold: minimum probability of a predicted attribute.
    """

    def __init__(self, classes: Sequence[str], threshold: float = 0.5) -> None:
        super().__init__(classes)
        self.better = {**dict.fromkeys(("mA", "accuracy", "precision", "recall", "f1"), "max"), **self.better}
        self._threshold = threshold

    def compute(self, states: Sequence[Any]) -> dict[str, float]:
        """Return the scores; none without labels."""
        scores = super().compute(states)
        logits, labels = (torch.from_numpy(np.concatenate(column)) for column in zip(*states, strict=True))
        attributes = attribute_scores(logits.sigmoid(), labels.double(), threshold=self._threshold)
        return {**attributes, **scores} if scores else {}

    def resamplings(self, states: Sequence[Any]) -> list[Resampling]:
        """Return ``mA`` and ``mAP``."""
        logits, labels = _sorted_rows(states)
        predicted = torch.from_numpy(logits).sigmoid().double().numpy() >= self._threshold
        columns = [predicted & labels, labels, ~predicted & ~labels, ~labels]
        table = np.hstack([column.astype(np.float64) for column in columns])

        def scores(weights: NDArray[np.float64]) -> NDArray[np.float64]:
            hits, positive, rejections, negative = np.split(weights @ table, 4, axis=1)
            with np.errstate(divide="ignore", invalid="ignore"):
                return _mean_of_present((hits / positive + rejections / negative) / 2)

        return [Resampling("mA", "images", len(logits), scores, table.shape[1]), *super().resamplings(states)]


def _f1(counts: NDArray[Any]) -> NDArray[Any]:
    hits, predicted, true = counts
    f1: NDArray[Any] = 2 * hits / np.maximum(1, predicted + true)
    return f1
