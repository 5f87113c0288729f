"""Suspicious labels, and the base class of what finds them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from opabinia.contracts import Batch, DataMismatch, Predictions

Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.int64]
Box = tuple[float, float, float, float]
"""Left, top, right and bottom in pixels of the original image."""


@dataclass(frozen=True)
class Suspect:
    """A label that may be wrong.

    Attributes:
        id: id of the sample.
        issue: kind of the suspected error, such as ``wrong class``.
        label: the annotated class; empty if nothing is annotated.
        predicted: the predicted class; empty if nothing is predicted.
        score: suspicion from 0 to 1.
        reason: the measurements behind it, in words.
        box: the annotated box; None: the whole sample, or nothing is annotated.
        predicted_box: the predicted box.
    """

    id: str
    issue: str
    label: str
    predicted: str
    score: float
    reason: str
    box: Box | None = None
    predicted_box: Box | None = None

    @property
    def place(self) -> Box | None:
        """The annotated box, or else the predicted one."""
        return self.box or self.predicted_box


class LabelErrors(NamedTuple):
    """The result of a search.

    Attributes:
        suspects: from the most suspicious to the least.
        facts: numbers of the whole search by name, for people.
    """

    suspects: list[Suspect]
    facts: Mapping[str, str]


class LabelCheck:
    """Finds suspicious labels. It collects the predictions of one run; :meth:`find` reads those of all runs.

    Attributes:
        ids: the samples so far.
        needs_embedding: ``predictions`` also have an ``embedding``, if the task has features.
    """

    needs_embedding = False

    def __init__(self) -> None:
        self.ids: list[str] = []

    def update(self, predictions: Predictions, batch: Batch) -> None:
        """Add a batch with its predictions, on the host."""
        raise NotImplementedError

    @staticmethod
    def find(checks: Sequence[Any], classes: Sequence[str]) -> LabelErrors:
        """Return the suspicious labels of all runs.

        Args:
            checks: one of each run.
            classes: names of the classes.

        Raises:
            DataMismatch: a prediction is not finite.
        """
        raise NotImplementedError


def ranked(suspects: Iterable[Suspect]) -> list[Suspect]:
    """Return suspects from the highest score to the lowest; equal ones by sample, issue and place."""
    return sorted(suspects, key=lambda suspect: (-suspect.score, suspect.id, suspect.issue, suspect.place or ()))


def check_probabilities(probabilities: Floats, ids: Sequence[str]) -> None:
    """Check that predicted probabilities (N x ...) are from 0 to 1.

    Raises:
        DataMismatch: some are not; the text names the first sample.
    """
    invalid = ~((probabilities >= 0) & (probabilities <= 1)).reshape(len(probabilities), -1).all(1)
    if invalid.any():
        raise DataMismatch(
            f"{int(invalid.sum())} of {len(ids)} samples have a predicted probability that is not a number from 0 to "
            f"1, the first is {ids[int(invalid.argmax())]}; if all have, the model has diverged"
        )
