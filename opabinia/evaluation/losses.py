"""Losses on validation data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from opabinia.contracts import Batch, Predictions

_PREFIX = "losses/"


class MeanLosses:
    """The mean over samples of the losses that predictions carry (``losses/<name>``, the same for all of a batch).

    Every batch of an evaluation is the same on any number of processes, and so is what it loses.
    """

    def __init__(self) -> None:
        self.better = {"loss": "min"}
        self._batches: list[tuple[str, int, dict[str, torch.Tensor]]] = []

    def update(self, predictions: Predictions, batch: Batch) -> None:
        """Take the losses of a batch; they stay on the device."""
        losses = {
            name.removeprefix(_PREFIX): rows.float().sum()
            for name, rows in predictions.items()
            if name.startswith(_PREFIX)
        }
        self._batches.append((str(batch["id"][0]), len(batch["id"]), losses))

    def state(self) -> Any:
        """Of each batch the id of its first sample, its samples, and its losses times those."""
        return [(first, count, {k: float(v) for k, v in losses.items()}) for first, count, losses in self._batches]

    def compute(self, states: Sequence[Any]) -> dict[str, float]:
        """``loss`` and its parts, added up in an order that does not depend on the processes."""
        batches = sorted((batch for state in states for batch in state), key=lambda batch: batch[0])
        samples = sum(count for _, count, _ in batches)
        names = sorted({name for *_, losses in batches for name in losses})
        return (
            {name: sum(losses.get(name, 0.0) for *_, losses in batches) / samples for name in names} if samples else {}
        )
