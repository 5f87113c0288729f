"""Confusion matrix, per-class scores, and calibration: sums of integers, so the order of samples does not matter."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from opabinia.contracts import Batch, Evaluator, Predictions, Resampling
from opabinia.evaluation.classification.topk import all_finite

_UNIT = 2**32
"""Fractions of 1 are summed as integers of this unit: sums of floats would depend on the order of the samples."""


class Confusion(Evaluator):
    """Confusion matrix. Scores: ``mean_recall`` (mean of the classes' recall, also called balanced accuracy) and
    ``macro_f1``; both without classes that have no samples.

    The table (``details``) has recall, precision, F1 and number of samples of each class, and the confusion matrix as
    triples (true class, predicted class, samples), most frequent errors first.

    Args:
        classes: names of the K classes.
    """

    def __init__(self, classes: Sequence[str]) -> None:
        self.better = {"mean_recall": "max", "macro_f1": "max"}
        self.classes = tuple(classes)
        self._cells: list[Tensor] = []

    def update(self, predictions: Predictions, batch: Batch) -> None:
        """Add a batch. ``predictions["logits"]`` is B x K; ``batch["label"]`` class labels, B.

        Among equal logits the class with the smaller number is predicted. The K x K cells are counted at the end.
        """
        labels, logits = batch["label"], predictions["logits"]
        if not len(labels):
            return
        predicted = logits.argmax(1).masked_fill(logits.amax(1).isnan(), 0)  # the first of the largest
        self._cells.append(labels * len(self.classes) + predicted)

    def state(self) -> list[tuple[int, int]]:
        """Return (cell, samples) of the cells that are not empty."""
        if not self._cells:
            return []
        cells, counts = np.unique(torch.cat(self._cells).cpu().numpy(), return_counts=True)
        return list(zip(cells.tolist(), counts.tolist(), strict=True))

    def _matrix(self, states: Sequence[list[tuple[int, int]]]) -> Tensor:
        size = len(self.classes)
        matrix = torch.zeros(size * size, dtype=torch.int64)
        for cell, count in chain.from_iterable(states):
            matrix[cell] += count
        return matrix.view(size, size)

    def compute(self, states: Sequence[list[tuple[int, int]]]) -> dict[str, float]:
        """Return the means over the classes that have samples; none without samples."""
        recall, _, f1, samples = _per_class(self._matrix(states))
        present = samples > 0
        if not present.any():
            return {}
        return {"mean_recall": float(recall[present].mean()), "macro_f1": float(f1[present].mean())}

    def details(self, states: Sequence[list[tuple[int, int]]]) -> dict[str, Any]:
        """Return the tables."""
        matrix = self._matrix(states)
        recall, precision, f1, samples = _per_class(matrix)
        columns = (self.classes, samples.tolist(), recall.tolist(), precision.tolist(), f1.tolist())
        keys = ("class", "samples", "recall", "precision", "f1")
        cells = [[row, column, int(matrix[row, column])] for row, column in matrix.nonzero().tolist()]
        return {
            "per_class": [dict(zip(keys, row, strict=True)) for row in zip(*columns, strict=True)],
            "confusion": sorted(cells, key=lambda cell: (cell[0] == cell[1], -cell[2], cell[0], cell[1])),
        }

    def resamplings(self, states: Sequence[list[tuple[int, int]]]) -> list[Resampling]:
        """Return the mean recall."""
        matrix = self._matrix(states).numpy()
        samples = matrix.sum(1)
        ends = samples.cumsum()
        # The samples of each class one after the other, first those that are right.
        right = np.concatenate(
            [np.arange(count) < hits for count, hits in zip(samples, matrix.diagonal(), strict=True)]
        )
        starts = (ends - samples)[samples > 0]

        def scores(weights: NDArray[np.float64]) -> NDArray[np.float64]:
            hits, drawn = (np.add.reduceat(rows, starts, axis=1) for rows in (weights * right, weights))
            means: NDArray[np.float64] = (hits / np.maximum(1, drawn)).sum(1) / (drawn > 0).sum(1)
            return means

        return [Resampling("mean_recall", "images", int(ends[-1]), scores, 3 * int(ends[-1]))]


def _per_class(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return recall, precision, F1 (float64; 0 instead of a division by 0) and number of samples of each class."""
    right, samples, predicted = matrix.diagonal().double(), matrix.sum(1), matrix.sum(0)
    recall, precision = right / samples.clamp(min=1), right / predicted.clamp(min=1)
    return recall, precision, 2 * right / (samples + predicted).clamp(min=1), samples


class Calibration(Evaluator):
    """Calibration of probabilities. Scores: ``ece``, the expected calibration error (Guo et al. 2017, section 2: mean
    gap between confidence and accuracy over equal bins of confidence), and ``nll``, the mean negative log-likelihood.

    The table (``details``) has the number of samples, the confidence and the accuracy of each bin.

    Args:
        bins: number of bins.
    """

    def __init__(self, bins: int = 15) -> None:
        self.better = {"ece": "min", "nll": "min"}
        self.bins = bins
        self._sums = torch.zeros(3, bins + 1, dtype=torch.int64)

    def update(self, predictions: Predictions, batch: Batch) -> None:
        """Add a batch. ``predictions["logits"]`` is B x K; ``batch["label"]`` class labels, B.

        Rows that are not finite count as wrong with confidence 1.
        """
        labels = batch["label"]
        if not len(labels):
            return
        logits = predictions["logits"]
        logs, predicted = logits.double().log_softmax(1), logits.argmax(1)
        right = (predicted == labels) & all_finite(logits)
        confidence = logs.gather(1, predicted[:, None])[:, 0].exp().nan_to_num(1.0)
        # A bin includes its upper edge, as in the paper: (0, 1/15], (1/15, 2/15] ...
        bin_of = (confidence * self.bins).ceil().long().clamp(1, self.bins) - 1
        loss = -logs.gather(1, labels[:, None])[:, 0].clamp(min=-100).nan_to_num(-100.0)
        columns = (torch.ones_like(bin_of), right.long(), (confidence * _UNIT).round().long())
        for row, column in zip(self._sums, columns, strict=True):
            row.index_add_(0, bin_of.cpu(), column.cpu())
        self._sums[0, -1] += (loss * _UNIT).round().long().sum().cpu()

    def state(self) -> list[list[int]]:
        """Return by bin: samples, right ones, sum of confidences; the sum of losses is the last item of the first."""
        return list(self._sums.tolist())

    def _total(self, states: Sequence[list[list[int]]]) -> Tensor:
        return torch.tensor(states, dtype=torch.int64).sum(0)[:, :-1]

    def compute(self, states: Sequence[list[list[int]]]) -> dict[str, float]:
        """Return both scores; none without samples."""
        counts, right, confidence = self._total(states)
        samples = int(counts.sum())
        if not samples:
            return {}
        gaps = (confidence.double() / _UNIT - right.double()).abs()
        # Python's integers: those of 64 bits would end at 2 * 10^9 nats.
        losses = sum(state[0][-1] for state in states)
        return {"ece": float(gaps.sum() / samples), "nll": losses / _UNIT / samples}

    def details(self, states: Sequence[list[list[int]]]) -> dict[str, Any]:
        """Return the bins that are not empty."""
        return {
            "calibration": [
                {"samples": count, "confidence": confidence / _UNIT / count, "accuracy": right / count}
                for count, right, confidence in self._total(states).T.tolist()
                if count
            ]
        }
