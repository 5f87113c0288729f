"""Losses on validation data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from opabinia.config import register
from opabinia.contracts import Batch, DatasetInfo, Evaluator, Predictions

_PREFIX = "losses/"


class MeanLosses(Evaluator):
    """Means over the samples of the losses in the predictions (``losses/<name>``, the same for all samples of a
    batch): ``loss`` and its parts, under their own names.

    Evaluation batches, and so their losses, are the same on any number of processes.
    """

    def __init__(self) -> None:
        self.better = {"loss": "min"}
        self._samples = 0
        self._sums: dict[str, list[Tensor]] = {}

    def update(self, predictions: Predictions, batch: Batch) -> None:
        """Add the losses of a batch; they stay on the device."""
        self._samples += len(batch["id"]) * any(name.startswith(_PREFIX) for name in predictions)
        for name, rows in predictions.items():
            if name.startswith(_PREFIX):
                self._sums.setdefault(name.removeprefix(_PREFIX), []).append(rows.float().sum())

    def state(self) -> tuple[int, dict[str, list[float]]]:
        """Return the number of samples, and by name the sum over the samples of each batch."""
        return self._samples, {name: torch.stack(sums).tolist() for name, sums in self._sums.items()}

    def compute(self, states: Sequence[Any]) -> dict[str, float]:
        """Return ``loss`` and its parts. Sums are exact, so the order of batches and processes does not matter."""
        samples = sum(count for count, _ in states)
        names = sorted({name for _, sums in states for name in sums})
        self.better |= dict.fromkeys(names, "min")
        return {
            name: math.fsum(value for _, sums in states for value in sums.get(name, ())) / samples for name in names
        }


@register.evaluator
def validation_loss(dataset_info: DatasetInfo, /) -> MeanLosses:
    """The loss of a self-supervised task on validation data, whose transforms end with ``views_and_image``.

    The random numbers of its views depend only on the seed and the position of a sample, so evaluations are comparable.
    Temperatures and other schedules are those of the first step. DeepCluster and NPID, which keep an entry of every
    training image, have no such loss.

    Args:
        dataset_info: description of the validation data.
    """
    return MeanLosses()
