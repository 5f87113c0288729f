"""Samples that were taken for something else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from opabinia.contracts import Batch, Predictions

MOST = 100
"""So many are named, and kept at any time."""


class Mistake(NamedTuple):
    """A sample, its class and the likeliest one by number, and the probability of each."""

    id: str
    label: int
    found: int
    of_label: float
    of_found: float


class WorstSamples:
    """Names samples whose likeliest class is not their label, the surest mistakes first.

    It gives no scores. The table (``details``): ``worst``, a hundred samples at most, with the ``label`` and the class
    ``found``, and the probability of each.

    Args:
        classes: their names.
    """

    def __init__(self, classes: Sequence[str]) -> None:
        self.better: dict[str, str] = {}
        self._classes = classes
        self._worst: list[Mistake] = []

    def update(self, predictions: Predictions, batch: Batch) -> None:
        """Take samples: ``probabilities`` (B x K), ``label`` (int64) and ``id``."""
        each, labels = predictions["probabilities"].double().nan_to_num(0.0).cpu(), batch["label"].cpu()
        highest, found = each.max(1)
        wrong = (found != labels).nonzero().flatten()
        columns = (one.tolist() for one in (labels[wrong], found[wrong], each[wrong, labels[wrong]], highest[wrong]))
        names = [batch["id"][number] for number in wrong.tolist()]
        self._worst = _worst([*self._worst, *map(Mistake, names, *columns)])

    def state(self) -> list[Mistake]:
        """The worst of this process."""
        return self._worst

    def compute(self, states: Sequence[Any]) -> dict[str, float]:
        """Nothing."""
        return {}

    def details(self, states: Sequence[list[Mistake]]) -> dict[str, Any]:
        """``worst``."""
        return {
            "worst": [
                {**one._asdict(), "label": self._classes[one.label], "found": self._classes[one.found]}
                for one in _worst([one for state in states for one in state])
            ]
        }


def _worst(mistakes: list[Mistake]) -> list[Mistake]:
    """Those of which a model is surest; of equal ones the order is that of their names, on any number of processes."""
    return sorted(mistakes, key=lambda one: (one.of_label - one.of_found, one.id))[:MOST]
