"""Label errors of data with several labels for each sample: confident learning for each class against all others.

Northcutt, Jiang and Chuang 2021 for each class; Thyagarajan, Snorrason, Northcutt and Mueller, Identifying Incorrect
Annotations in Multi-Label Classification Data (2022), for one score of a sample: that of its worst label.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from opabinia.contracts import CLASS_SEPARATOR, NO_CLASS, Batch, Predictions
from opabinia.evaluation.label_errors.classification import confident_classes, estimated_errors
from opabinia.evaluation.label_errors.suspects import (
    Floats,
    Ints,
    LabelCheck,
    LabelErrors,
    Suspect,
    check_probabilities,
    ranked,
)


def binary(probabilities: Floats) -> Floats:
    """Return the probabilities of not being and of being of a class (N x 2), of those of being (N)."""
    return np.stack([1 - probabilities, probabilities], 1)


def class_suspicion(labels: Ints, probabilities: Floats) -> Floats:
    """Return 1 - the probability of each label (N x K): of the class where it is labeled, of all others where not.

    Args:
        labels: 0 and 1, N x K.
        probabilities: N x K.
    """
    return np.where(labels > 0, 1 - probabilities, probabilities)


def class_errors(labels: Ints, probabilities: Floats) -> NDArray[np.bool_]:
    """Return which labels are probably wrong (bool, N x K): confident learning counts them as errors, and the opposite
    is more probable.

    Args:
        labels: 0 and 1, N x K.
        probabilities: N x K.
    """
    confident = [confident_classes(labels[:, k], binary(probabilities[:, k])) for k in range(labels.shape[1])]
    columns = np.stack(confident, 1)
    wrong: NDArray[np.bool_] = (columns >= 0) & (columns != labels) & (class_suspicion(labels, probabilities) > 0.5)
    return wrong


class MultiLabelCheck(LabelCheck):
    """Samples with several labels: listed are those with a label of :func:`class_errors`; the score is that of its most
    suspicious one."""

    def __init__(self) -> None:
        super().__init__()
        self._batches: list[tuple[Ints, Floats]] = []

    def update(self, predictions: Predictions, batch: Batch) -> None:
        """Add a batch: ``probabilities`` and ``label`` (0 and 1), B x K, and ``id``."""
        labels = (batch["label"] > 0.5).long().numpy()
        self._batches.append((labels, predictions["probabilities"].double().numpy()))
        self.ids += batch["id"]

    @staticmethod
    def find(checks: Sequence[MultiLabelCheck], classes: Sequence[str]) -> LabelErrors:
        ids = [name for check in checks for name in check.ids]
        batches = [batch for check in checks for batch in check._batches]
        labels, probabilities = (np.concatenate(column) for column in zip(*batches, strict=True))
        check_probabilities(probabilities, ids)
        wrong, scores = class_errors(labels, probabilities), class_suspicion(labels, probabilities)
        suspects = []
        for row in np.flatnonzero(wrong.any(1)).tolist():
            columns = np.flatnonzero(wrong[row])
            columns = columns[np.argsort(-scores[row, columns], kind="stable")]
            reasons = [
                f"{classes[k]} is {'' if labels[row, k] else 'not '}labeled, predicted {probabilities[row, k]:.2f}"
                for k in columns.tolist()
            ]
            corrected = np.where(wrong[row], 1 - labels[row], labels[row])
            suspects.append(
                Suspect(
                    ids[row],
                    "classes",
                    _names(labels[row], classes),
                    _names(corrected, classes),
                    float(scores[row, columns[0]]),
                    "; ".join(reasons),
                )
            )
        total = sum(estimated_errors(labels[:, k], binary(probabilities[:, k])) for k in range(len(classes)))
        estimate = f"{total:.0f} of {labels.size:,}"
        return LabelErrors(ranked(suspects), {"wrong labels, estimated by confident learning": estimate})


def _names(labels: Ints, classes: Sequence[str]) -> str:
    names = [classes[k] for k in np.flatnonzero(labels).tolist()]
    return f"{CLASS_SEPARATOR} ".join(names) or NO_CLASS
