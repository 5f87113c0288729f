"""Several evaluators of one task as one, with one table of classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opabinia.contracts import Batch, Evaluator, Predictions, Resampling


class Combined(Evaluator):
    """The scores of several evaluators whose classes are the same.

    The tables (``details``) are those of all, with one row for each class; of others with the same name the first
    evaluator's.

    Args:
        evaluators: the headline score is that of the first one.
    """

    def __init__(self, evaluators: Sequence[Evaluator]) -> None:
        self._evaluators = evaluators
        self._pairs: tuple[Any, list[tuple[Evaluator, list[Any]]]] | None = None
        self.better = {name: way for evaluator in evaluators for name, way in evaluator.better.items()}

    def update(self, predictions: Predictions, batch: Batch) -> None:
        """Add a batch."""
        for evaluator in self._evaluators:
            evaluator.update(predictions, batch)

    def state(self) -> list[Any]:
        """Return the state of each evaluator."""
        return [evaluator.state() for evaluator in self._evaluators]

    def _of_each(self, states: Sequence[list[Any]]) -> list[tuple[Evaluator, list[Any]]]:
        """Return each evaluator with its states; the same lists for the same states, by which evaluators remember."""
        if self._pairs is None or self._pairs[0] is not states:
            pairs = zip(self._evaluators, map(list, zip(*states, strict=True)), strict=True)
            self._pairs = states, list(pairs)
        return self._pairs[1]

    def compute(self, states: Sequence[list[Any]]) -> dict[str, float]:
        """Return the scores of all."""
        scores: dict[str, float] = {}
        for evaluator, parts in self._of_each(states):
            scores |= evaluator.compute(parts)
        return scores

    def details(self, states: Sequence[list[Any]]) -> dict[str, Any]:
        """Return the tables."""
        tables: dict[str, Any] = {}
        for evaluator, parts in self._of_each(states):
            added = evaluator.details(parts)
            if "per_class" in tables and "per_class" in added:
                pairs = zip(tables["per_class"], added["per_class"], strict=True)
                tables["per_class"] = [first | second for first, second in pairs]
            tables = added | tables
        tables.pop("counted", None)  # it describes the detector's confusions, which are not among these tables
        return tables

    def resamplings(self, states: Sequence[list[Any]]) -> list[Resampling]:
        """Return those of all."""
        return [each for evaluator, parts in self._of_each(states) for each in evaluator.resamplings(parts)]

    def files(self, states: Sequence[list[Any]]) -> dict[str, Any]:
        """Return the files of all."""
        files: dict[str, Any] = {}
        for evaluator, parts in self._of_each(states):
            files |= evaluator.files(parts)
        return files
