"""The most confident errors of a classifier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from opabinia.contracts import Batch, Evaluator, Predictions

MAX_SAMPLES = 100


class Misclassified(NamedTuple):
    """A sample, its class and the predicted one by number, and the probability of each."""

    id: str
    label: int
    predicted: int
    of_label: float
    of_predicted: float


class WorstSamples(Evaluator):
    """Lists the samples whose predicted class is not their label, the most confident errors first.

    It computes no scores. The table (``details``): ``worst``, at most a hundred samples with the ``label``, the class
    ``predicted``, and the probability of each.

    Args:
        classes: their names.
    """

    def __init__(self, classes: Sequence[str]) -> None:
        self.better: dict[str, str] = {}
        self._classes = classes
        self._worst: list[Misclassified] = []

    def update(self, predictions: Predictions, batch: Batch) -> None:
        """Add a batch: ``probabilities`` (B x K), ``label`` (int64) and ``id``."""
        probabilities, labels = predictions["probabilities"].double().nan_to_num(0.0).cpu(), batch["label"].cpu()
        highest, predicted = probabilities.max(1)
        wrong = (predicted != labels).nonzero().flatten()
        tensors = labels[wrong], predicted[wrong], probabilities[wrong, labels[wrong]], highest[wrong]
        ids = [batch["id"][index] for index in wrong.tolist()]
        self._worst = _worst([*self._worst, *map(Misclassified, ids, *(tensor.tolist() for tensor in tensors))])

    def state(self) -> list[Misclassified]:
        """Return the worst samples of this process."""
        return self._worst

    def compute(self, states: Sequence[Any]) -> dict[str, float]:
        """Return no scores."""
        return {}

    def details(self, states: Sequence[list[Misclassified]]) -> dict[str, Any]:
        """Return ``worst``."""
        names = self._classes
        return {
            "worst": [
                {**error._asdict(), "label": names[error.label], "predicted": names[error.predicted]}
                for error in _worst([error for state in states for error in state])
            ]
        }


def _worst(errors: list[Misclassified]) -> list[Misclassified]:
    """Return the most confident errors, of equal ones in the order of their ids, so that the number of processes does
    not matter."""
    return sorted(errors, key=lambda error: (error.of_label - error.of_predicted, error.id))[:MAX_SAMPLES]
