"""Confusion matrix, scores by class, and calibration: sums of whole numbers, so that order changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from opabinia.contracts import Batch, Predictions
from opabinia.evaluation.classification.topk import all_finite

_UNIT = 2**32
"""Shares of 1 are summed as whole numbers of this unit: sums of floats would depend on the order of the samples."""


class Confusion:
    """Which class was taken for which. Scores: ``mean_recall`` (the mean over classes of the share found, also called
    balanced accuracy) and ``macro_f1``; classes without samples are left out of both.

    The table (``details``) has recall, precision, F1 and number of samples for each class, and the confusion as
    triples (true class, predicted class, samples), most frequent errors first.

    Args:
        classes: names of the K classes.
    """

    def __init__(self, classes: Sequence[str]) -> None:
        self.better = {"mean_recall": "max", "macro_f1": "max"}
        self.classes = tuple(classes)
        self._cells: list[Tensor] = []

    def update(self, predictions: Predictions, batch: Batch) -> None:
        """Take a batch. ``predictions["logits"]`` is B x K; ``batch["label"]`` class numbers, B.

        Of equal logits the class with the smaller number is predicted. Cells are counted at the end: there are K x K.
        """
        size, labels = len(self.classes), batch["label"]
        logits = predictions["logits"]
        if not len(labels):
            return
        predicted = logits.argmax(1).masked_fill(logits.amax(1).isnan(), 0)  # the first of the largest
        self._cells.append(labels * size + predicted)

    def state(self) -> list[tuple[int, int]]:
        """(cell, samples) of the cells that are not empty."""
        if not self._cells:
            return []
        cells, counts = np.unique(torch.cat(self._cells).cpu().numpy(), return_counts=True)
        return list(zip(cells.tolist(), counts.tolist(), strict=True))

    def _matrix(self, states: Sequence[list[tuple[int, int]]]) -> Tensor:
        size = len(self.classes)
        matrix = torch.zeros(size * size, dtype=torch.int64)
        for state in states:
            for cell, count in state:
                matrix[cell] += count
        return matrix.view(size, size)

    def compute(self, states: Sequence[list[tuple[int, int]]]) -> dict[str, float]:
        """Means over the classes that have samples; nothing when there are none."""
        recall, _, f1, samples = _by_class(self._matrix(states))
        there = samples > 0
        if not there.any():
            return {}
        return {"mean_recall": float(recall[there].mean()), "macro_f1": float(f1[there].mean())}

    def details(self, states: Sequence[list[tuple[int, int]]]) -> dict[str, Any]:
        """The tables, in plain values."""
        matrix = self._matrix(states)
        recall, precision, f1, samples = _by_class(matrix)
        rows = zip(self.classes, samples.tolist(), recall.tolist(), precision.tolist(), f1.tolist(), strict=True)
        keys = ("class", "samples", "recall", "precision", "f1")
        cells = [(int(matrix[row, column]), row, column) for row, column in matrix.nonzero().tolist()]
        cells.sort(key=lambda cell: (cell[1] == cell[2], -cell[0], cell[1], cell[2]))
        return {
            "per_class": [dict(zip(keys, row, strict=True)) for row in rows],
            "confusion": [[row, column, count] for count, row, column in cells],
        }


def _by_class(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Recall, precision, F1 (float64; 0 where there is nothing to divide by) and samples of each class."""
    right, samples, predicted = matrix.diagonal().double(), matrix.sum(1), matrix.sum(0)
    recall, precision = right / samples.clamp(min=1), right / predicted.clamp(min=1)
    return recall, precision, 2 * right / (samples + predicted).clamp(min=1), samples


class Calibration:
    """Whether probabilities mean what they say. Scores: ``ece``, the expected calibration error (Guo et al. 2017,
    section 2: the mean gap between confidence and accuracy over equal bins of confidence), and ``nll``, the mean of
    -log of the right class's probability.

    The table (``details``) has the number of samples, the confidence and the accuracy of each bin.

    Args:
        bins: number of bins.
    """

    def __init__(self, bins: int = 15) -> None:
        self.better = {"ece": "min", "nll": "min"}
        self.bins = bins
        self._sums: Tensor | None = None

    def update(self, predictions: Predictions, batch: Batch) -> None:
        """Add a batch. ``predictions["logits"]`` is B x K; ``batch["label"]`` class numbers, B.

        Rows that are not finite count as sure and wrong.
        """
        labels = batch["label"]
        if not len(labels):
            return
        logits = predictions["logits"]
        logs, predicted = logits.double().log_softmax(1), logits.argmax(1)
        right = (predicted == labels) & all_finite(logits)
        confidence = logs.gather(1, predicted[:, None])[:, 0].exp().nan_to_num(1.0)
        # A bin holds its upper edge, as in the paper: (0, 1/15], (1/15, 2/15] ...
        number = (confidence * self.bins).ceil().long().clamp(1, self.bins) - 1
        loss = -logs.gather(1, labels[:, None])[:, 0].clamp(min=-100).nan_to_num(-100.0)
        columns = (torch.ones_like(number), right.long(), (confidence * _UNIT).round().long())
        found = torch.stack([torch.zeros(self.bins + 1, dtype=torch.int64, device=number.device) for _ in columns])
        for row, column in enumerate(columns):
            found[row].index_add_(0, number, column)
        found[0, -1] = (loss * _UNIT).round().long().sum()
        self._sums = found if self._sums is None else self._sums + found

    def state(self) -> list[list[int]]:
        """By bin: samples, right ones, sum of confidences; behind the first of them the sum of losses."""
        return [] if self._sums is None else self._sums.tolist()

    def _total(self, states: Sequence[list[list[int]]]) -> Tensor:
        total = torch.zeros(3, self.bins + 1, dtype=torch.int64)
        for state in states:
            total += torch.tensor(state, dtype=torch.int64) if state else 0
        return total

    def compute(self, states: Sequence[list[list[int]]]) -> dict[str, float]:
        """Both scores; nothing when there was no sample."""
        total = self._total(states)
        samples = int(total[0, :-1].sum())
        if not samples:
            return {}
        gaps = (total[2, :-1].double() / _UNIT - total[1, :-1].double()).abs()
        # Python's whole numbers: those of 64 bits would end at 2 * 10^9 nats.
        losses = sum(state[0][-1] for state in states if state)
        return {"ece": float(gaps.sum() / samples), "nll": losses / _UNIT / samples}

    def details(self, states: Sequence[list[list[int]]]) -> dict[str, Any]:
        """The bins that are not empty."""
        total = self._total(states)
        counts, right, confidence = total[:, :-1].tolist()
        return {
            "calibration": [
                {"samples": n, "confidence": confidence[i] / _UNIT / n, "accuracy": right[i] / n}
                for i, n in enumerate(counts)
                if n
            ]
        }
