"""Top-k accuracy."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from opabinia.contracts import Batch, Predictions


def hits(logits: Tensor, labels: Tensor, ks: Sequence[int]) -> Tensor:
    """How many samples have their class among the k largest logits, for each k (int64, len(ks)).

    A class counts as above the right one only if its logit is larger, or equal with a smaller class number:
    every set of logits has one answer, on any device. Samples whose logits are not finite are misses.

    Args:
        logits: B x K.
        labels: class numbers, B.
        ks: may be larger than K.
    """
    # Signs are counted several times as fast as truth values.
    signs = (logits - logits.gather(1, labels[:, None])).sign()
    unlike = signs.abs().sum(1, dtype=torch.float32)
    place = (signs.sum(1, dtype=torch.float32) + unlike) / 2
    if (unlike < logits.shape[1] - 1).any():
        numbers = torch.arange(logits.shape[1], device=logits.device)
        place += ((signs == 0) & (numbers < labels[:, None])).sum(1)
    place = place.masked_fill(~all_finite(logits), logits.shape[1] + max(ks))
    return torch.stack([(place < k).sum() for k in ks])


def all_finite(rows: Tensor) -> Tensor:
    """Which rows (B x K, K at least 1) hold nothing but finite numbers (bool, B), sooner than asking each."""
    return rows.amax(1).isfinite() & rows.amin(1).isfinite()


class TopK:
    """Share of samples whose class is among the k largest logits: scores ``top1``, ``top5`` ...

    Counts are whole numbers, so the result is the same on any number of processes.
    """

    def __init__(self, ks: Sequence[int] = (1, 5)) -> None:
        self.ks = tuple(ks)
        self.better = {f"top{k}": "max" for k in self.ks}
        self._hits: Tensor | None = None
        self._samples = 0

    def update(self, predictions: Predictions, batch: Batch) -> None:
        """Count a batch. ``predictions["logits"]`` is B x K; ``batch["label"]`` class numbers, B."""
        found = hits(predictions["logits"], batch["label"], self.ks)
        self._hits = found if self._hits is None else self._hits + found
        self._samples += len(batch["label"])

    def state(self) -> tuple[list[int], int]:
        """Hits for each k, and the number of samples."""
        return ([0] * len(self.ks) if self._hits is None else self._hits.tolist()), self._samples

    def compute(self, states: Sequence[tuple[list[int], int]]) -> dict[str, float]:
        """Shares over all processes; nothing when there was no sample."""
        samples = sum(count for _, count in states)
        if not samples:
            return {}
        totals = [sum(column) for column in zip(*(found for found, _ in states), strict=True)]
        return {f"top{k}": total / samples for k, total in zip(self.ks, totals, strict=True)}
