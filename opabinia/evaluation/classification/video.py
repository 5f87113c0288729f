"""Several views of a film, merged before anything is counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from opabinia.contracts import Batch, DataMismatch, Evaluator, Predictions

_UNIT = 2**40
"""Probabilities are kept as whole numbers of this unit, so that sums do not depend on the order of views."""


class Seen(NamedTuple):
    """What a process has seen of N films.

    Attributes:
        ids: of the films.
        sums: probabilities over their views, summed or the largest (int64, N x K, in units).
        views: how many there were (int64, N).
        labels: of the films (int64, N; float32, N x K, of several labels).
    """

    ids: list[str]
    sums: NDArray[np.int64]
    views: NDArray[np.int64]
    labels: NDArray[Any]


class PerVideo:
    """Lets other evaluators judge films by the mean, or by the largest, of the probabilities of their views.

    Views of a film are samples of one ``id``. Where each film has one view nothing changes. For each film it keeps K
    whole numbers, however many views there are (Feichtenhofer et al. 2019, SlowFast, section 4: the mean of the softmax
    scores of 10 clips in 3 crops; SlowFast's code: their sum or maximum).

    Args:
        evaluators: who judges films.
        logits_of: probabilities (N x K) to logits that give them.
        merge: how views are merged.
    """

    def __init__(
        self,
        evaluators: Sequence[Evaluator],
        logits_of: Callable[[Tensor], Tensor],
        merge: Literal["mean", "max"] = "mean",
    ) -> None:
        self._evaluators, self._logits_of, self._merge = evaluators, logits_of, merge
        self.better = {name: better for one in evaluators for name, better in one.better.items()}
        self._films: dict[str, int] = {}
        self._sums: list[NDArray[np.int64]] = []
        self._views: list[int] = []
        self._labels: list[NDArray[Any]] = []
        self._judged: list[tuple[Evaluator, Any]] = []

    def update(self, predictions: Predictions, batch: Batch) -> None:
        """Take the views of a batch: ``probabilities`` (B x K), ``label`` and ``id``.

        Raises:
            Unfit: two views of a film have different labels.
        """
        each = predictions["probabilities"].double().nan_to_num(0.0, 0.0, 0.0)
        units, labels = (each * _UNIT).round().long().cpu().numpy(), batch["label"].cpu().numpy()
        for film, row, label in zip(batch["id"], units, labels, strict=True):
            self._take(film, row, 1, label)

    def _take(self, film: str, row: NDArray[np.int64], views: int, label: NDArray[Any]) -> None:
        number = self._films.setdefault(film, len(self._films))
        if number == len(self._sums):
            self._sums.append(row)
            self._views.append(views)
            self._labels.append(label)
            return
        if not np.array_equal(self._labels[number], label):
            raise DataMismatch(f"views of {film} have different labels: {self._labels[number]} and {label}")
        self._sums[number] = self._sums[number] + row if self._merge == "mean" else np.maximum(self._sums[number], row)
        self._views[number] += views

    def state(self) -> Seen | None:
        """What this process has seen; None if that is nothing."""
        if not self._films:
            return None
        return Seen(list(self._films), np.stack(self._sums), np.array(self._views), np.stack(self._labels))

    def compute(self, states: Sequence[Seen | None]) -> dict[str, float]:
        """The scores of all evaluators."""
        self._judge(states)
        return {name: score for one, state in self._judged for name, score in one.compute([state]).items()}

    def details(self, states: Sequence[Seen | None]) -> dict[str, Any]:
        """The tables of all evaluators that have some."""
        tables = [one.details([state]) for one, state in self._judged if hasattr(one, "details")]
        return {name: table for each in tables for name, table in each.items()}

    def _judge(self, states: Sequence[Seen | None]) -> None:
        whole = PerVideo([], self._logits_of, self._merge)
        for seen in states:
            for film, row, views, label in zip(*seen, strict=True) if seen else ():
                whole._take(film, row, int(views), label)
        if (seen := whole.state()) is not None:
            counts = seen.views[:, None] if self._merge == "mean" else 1
            probabilities = torch.from_numpy(seen.sums / (counts * float(_UNIT)))
            probabilities[torch.from_numpy(seen.sums).sum(1) == 0] = torch.nan  # no view was finite: a miss
            predictions = {"logits": self._logits_of(probabilities), "probabilities": probabilities}
            for one in self._evaluators:
                one.update(predictions, {"label": torch.from_numpy(seen.labels), "id": seen.ids})
        self._judged = [(one, one.state()) for one in self._evaluators]
