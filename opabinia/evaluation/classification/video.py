"""Predictions of several views of a video, merged before they are evaluated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from opabinia.contracts import Batch, DataMismatch, Evaluator, Predictions, Resampling

_UNIT = 2**40
"""Probabilities are kept as integers of this unit, so that sums do not depend on the order of views."""

Videos = dict[str, tuple[NDArray[np.int64], int, NDArray[Any]]]
"""By id: probabilities in units, summed over views or the largest (int64, K); number of views; label."""


class PerVideo(Evaluator):
    """Passes the mean, or the largest, of the probabilities of a video's views to other evaluators.

    Views of a video are samples with the same ``id``. With one view per video nothing changes. For each video K
    integers are kept, however many views there are (Feichtenhofer et al. 2019, SlowFast, section 4: the mean of the
    softmax scores of 10 clips in 3 crops; SlowFast's code: their sum or maximum).

    Args:
        evaluators: the evaluators of videos.
        logits_of: maps probabilities (N x K) to logits that give them.
        merge: how views are merged.
    """

    def __init__(
        self,
        evaluators: Sequence[Evaluator],
        logits_of: Callable[[Tensor], Tensor],
        merge: Literal["mean", "max"] = "mean",
    ) -> None:
        self._evaluators, self._logits_of, self._merge = evaluators, logits_of, merge
        self.better = {name: better for evaluator in evaluators for name, better in evaluator.better.items()}
        self._videos: Videos = {}

    def update(self, predictions: Predictions, batch: Batch) -> None:
        """Add the views of a batch: ``probabilities`` (B x K), ``label`` and ``id``.

        Raises:
            DataMismatch: two views of a video have different labels.
        """
        probabilities = predictions["probabilities"].double().nan_to_num(0.0, 0.0, 0.0)
        units, labels = (probabilities * _UNIT).round().long().cpu().numpy(), batch["label"].cpu().numpy()
        for video, row, label in zip(batch["id"], units, labels, strict=True):
            self._add(video, row, 1, label)

    def _add(self, video: str, row: NDArray[np.int64], views: int, label: NDArray[Any]) -> None:
        if video not in self._videos:
            self._videos[video] = row.copy(), views, label.copy()  # views would keep their whole batch
            return
        merged, views_before, known_label = self._videos[video]
        if not np.array_equal(known_label, label):
            raise DataMismatch(f"views of {video} have different labels: {known_label} and {label}")
        (np.add if self._merge == "mean" else np.maximum)(merged, row, out=merged)
        self._videos[video] = merged, views_before + views, known_label

    def state(self) -> Videos:
        """Return the videos of this process."""
        return self._videos

    def compute(self, states: Sequence[Videos]) -> dict[str, float]:
        """Return the scores of all evaluators. Each sees the videos of all processes once."""
        total = PerVideo([], self._logits_of, self._merge)
        for state in states:
            for video, merged in state.items():
                total._add(video, *merged)
        if total._videos:
            sums, views, labels = (np.stack(column) for column in zip(*total._videos.values(), strict=True))
            probabilities = torch.from_numpy(sums / ((views[:, None] if self._merge == "mean" else 1) * float(_UNIT)))
            probabilities[torch.from_numpy(sums).sum(1) == 0] = torch.nan  # no view was finite: a miss
            predictions = {"logits": self._logits_of(probabilities), "probabilities": probabilities}
            for evaluator in self._evaluators:
                evaluator.update(predictions, {"label": torch.from_numpy(labels), "id": list(total._videos)})
        return {
            name: score
            for evaluator in self._evaluators
            for name, score in evaluator.compute([evaluator.state()]).items()
        }

    def details(self, states: Sequence[Videos]) -> dict[str, Any]:
        """Return the tables of all evaluators. Called after :meth:`compute`."""
        tables: dict[str, Any] = {}
        for evaluator in self._evaluators:
            tables |= evaluator.details([evaluator.state()])
        return tables

    def resamplings(self, states: Sequence[Videos]) -> list[Resampling]:
        """Return those of all evaluators, of videos. Called after :meth:`compute`."""
        of_each = (evaluator.resamplings([evaluator.state()]) for evaluator in self._evaluators)
        return [replace(resampling, unit="videos") for resampling in chain.from_iterable(of_each)]
