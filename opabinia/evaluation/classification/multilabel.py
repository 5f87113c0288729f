"""Scores for several labels a sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from opabinia.contracts import Batch, Predictions


def average_precision(scores: NDArray[Any], there: NDArray[Any]) -> float:
    """Area under precision over recall, in steps (no interpolation).

    Samples with equal scores come at once, so that their order changes nothing.

    Args:
        scores: N.
        there: N, whether the class is there.

    Returns: NaN when it is there nowhere.

    Example: scores [0.9, 0.8, 0.7], there [1, 0, 1]: (1 + 2/3) / 2 = 0.8333.
    """
    positives = int(there.sum())
    if not positives:
        return float("nan")
    from sklearn.metrics import average_precision_score  # most runs need none of it

    return float(average_precision_score(there, scores))


def attribute_scores(probabilities: Tensor, labels: Tensor, *, threshold: float = 0.5) -> dict[str, float]:
    """How well attributes of people are told (Li et al. 2016, RAP, section 4.1; FastReID's FastAttr).

    Args:
        probabilities: N x K.
        labels: 0 and 1, N x K.
        threshold: from where on an attribute is said to be there.

    Returns: ``mA``, the mean over the attributes of the mean recall of those who have it and of those who have not;
    ``accuracy``, ``precision`` and ``recall``, means over the samples of the share of what is rightly said in what is
    there or said, in what is said, and in what is there; ``f1``, of the last two. What would be divided by 0 (of a
    sample without attributes the recall) is in no mean; FastReID's means are NaN then.

    Example: probabilities [[0.9, 0.8], [0.2, 0.6]], labels [[1, 0], [0, 1]]: mA 0.75, precision 0.75, recall 1.
    """
    said, there = probabilities.double() >= threshold, labels > 0.5
    right, rightly_not = said & there, ~said & ~there
    both = [_shares(right.sum(0), there.sum(0)), _shares(rightly_not.sum(0), (~there).sum(0))]
    over = {"accuracy": said | there, "precision": said, "recall": there}
    means = {name: float(_shares(right.sum(1), of.sum(1)).nanmean()) for name, of in over.items()}
    total = means["precision"] + means["recall"]
    f1 = 2 * means["precision"] * means["recall"] / total if total else 0.0
    return {"mA": float(torch.stack(both).mean(0).nanmean()), **means, "f1": f1}


def _shares(parts: Tensor, wholes: Tensor) -> Tensor:
    """NaN where there is nothing to have a share of."""
    return parts.double() / wholes


def among_first(scores: Tensor, there: Tensor, ks: Sequence[int]) -> dict[str, float]:
    """How many of the k classes with the largest scores are there (``precision1`` ...), and which share of those that
    are there is among them (``recall1`` ...), over all samples together.

    Of equal scores the class with the smaller number comes first.

    Args:
        scores: N x K.
        there: N x K of 0 and 1; or class numbers (int64, N).
        ks: of a k above K all classes are taken.

    Returns: nothing without samples; no recall where nothing is there.

    Example: scores [0.5, 0.3, 0.2], there [1, 0, 1]: precision1 1, precision2 1/2, recall2 1/2.
    """
    if not len(scores):
        return {}
    if there.ndim == 1:
        there = F.one_hot(there, scores.shape[1])
    order = scores.argsort(stable=True, dim=1, descending=True)
    right = (there > 0.5).gather(1, order).sum(0).cumsum(0)
    found = {k: int(right[min(k, scores.shape[1]) - 1]) for k in ks}
    shares = {f"precision{k}": found[k] / (min(k, scores.shape[1]) * len(scores)) for k in ks}
    total = int(right[-1])
    return shares | ({f"recall{k}": found[k] / total for k in ks} if total else {})


class MultiLabel:
    """Scores ``mAP`` (mean average precision over the classes that are there), and at probability 0.5 ``micro_f1``
    (over all labels), ``macro_f1`` (mean over those classes).

    The table (``details``) has average precision, F1 and number of samples for each class.

    Args:
        classes: names of the K classes.
    """

    def __init__(self, classes: Sequence[str]) -> None:
        self.better = {"mAP": "max", "micro_f1": "max", "macro_f1": "max"}
        self.classes = tuple(classes)
        self._seen: list[tuple[Tensor, Tensor]] = []

    def update(self, predictions: Predictions, batch: Batch) -> None:
        """Keep a batch. ``predictions["logits"]`` and ``batch["label"]`` (0 and 1) are B x K."""
        # A row that is not finite must not move the others.
        logits = predictions["logits"].detach().float().nan_to_num(-1e30, -1e30, -1e30)
        self._seen.append((logits.cpu(), batch["label"].cpu() > 0.5))

    def state(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Logits (N x K, float32) and labels (N x K, bool)."""
        if not self._seen:
            return np.zeros((0, len(self.classes)), np.float32), np.zeros((0, len(self.classes)), bool)
        logits, labels = (torch.cat(column).numpy() for column in zip(*self._seen, strict=True))
        return logits, labels

    def _by_class(self, states: Sequence[Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Average precision (K); true positives, predicted and there (3 x K)."""
        logits, labels = (np.concatenate(column) for column in zip(*states, strict=True))
        precisions = np.array([average_precision(logits[:, k], labels[:, k]) for k in range(len(self.classes))])
        predicted = logits > 0
        counts = np.stack([(predicted & labels).sum(0), predicted.sum(0), labels.sum(0)])
        return precisions, counts, labels

    def compute(self, states: Sequence[Any]) -> dict[str, float]:
        """Nothing when there was no sample, or no label at all."""
        precisions, counts, labels = self._by_class(states)
        there = counts[2] > 0
        if not labels.size or not there.any():
            return {}
        f1 = _f1(counts)
        total = _f1(counts.sum(1, keepdims=True))
        return {
            "mAP": float(precisions[there].mean()),
            "micro_f1": float(total[0]),
            "macro_f1": float(f1[there].mean()),
        }

    def details(self, states: Sequence[Any]) -> dict[str, Any]:
        """The table, in plain values; null for a class that is there nowhere."""
        precisions, counts, _ = self._by_class(states)
        rows = zip(self.classes, counts[2].tolist(), precisions.tolist(), _f1(counts).tolist(), strict=True)
        return {
            "per_class": [
                {"class": name, "samples": samples, "AP": ap if samples else None, "f1": f1}
                for name, samples, ap, f1 in rows
            ]
        }


def _f1(counts: NDArray[Any]) -> NDArray[Any]:
    right, predicted, there = counts
    result: NDArray[Any] = 2 * right / np.maximum(1, predicted + there)
    return result
