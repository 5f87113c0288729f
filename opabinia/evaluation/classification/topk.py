"""Top-k accuracy."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from opabinia.contracts import Batch, Evaluator, Predictions, Resampling


def count_topk_hits(logits: Tensor, labels: Tensor, ks: Sequence[int]) -> Tensor:
    """Return for each k the number of samples whose class is among the k largest logits (int64, len(ks)).

    Another class ranks above the right one only if its logit is larger, or equal with a smaller class number, so the
    result is the same on any device. Samples whose logits are not finite are misses.

    Args:
        logits: B x K.
        labels: class labels, B.
        ks: may be larger than K.
    """
    # Sums of signs are several times as fast as sums of booleans.
    signs = (logits - logits.gather(1, labels[:, None])).sign()
    different = signs.abs().sum(1, dtype=torch.float32)
    rank = (signs.sum(1, dtype=torch.float32) + different) / 2
    # Ties are rare, but only on the CPU can the host look for them without waiting for the device.
    if logits.device.type != "cpu" or (different < logits.shape[1] - 1).any():
        classes = torch.arange(logits.shape[1], device=logits.device)
        rank += ((signs == 0) & (classes < labels[:, None])).sum(1)
    rank = rank.masked_fill(~all_finite(logits), logits.shape[1] + max(ks))
    return torch.stack([(rank < k).sum() for k in ks])


def all_finite(rows: Tensor) -> Tensor:
    """Return whether all numbers of a row (B x K, K at least 1) are finite (bool, B). Faster than asking for each."""
    return rows.amax(1).isfinite() & rows.amin(1).isfinite()


class TopK(Evaluator):
    """Share of samples whose class is among the k largest logits: scores ``top1``, ``top5`` ...

    Counts are integers, so the result is the same on any number of processes.
    """

    def __init__(self, ks: Sequence[int] = (1, 5)) -> None:
        self.ks = tuple(ks)
        self.better = {f"top{k}": "max" for k in self.ks}
        self._hits = torch.zeros(len(self.ks), dtype=torch.int64)
        self._samples = 0

    def update(self, predictions: Predictions, batch: Batch) -> None:
        """Count a batch. ``predictions["logits"]`` is B x K; ``batch["label"]`` class labels, B."""
        self._hits += count_topk_hits(predictions["logits"], batch["label"], self.ks).cpu()
        self._samples += len(batch["label"])

    def state(self) -> tuple[list[int], int]:
        """Return the hits for each k, and the number of samples."""
        return self._hits.tolist(), self._samples

    def compute(self, states: Sequence[tuple[list[int], int]]) -> dict[str, float]:
        """Return the shares over all processes; none without samples."""
        samples = sum(count for _, count in states)
        if not samples:
            return {}
        totals = [sum(column) for column in zip(*(hits for hits, _ in states), strict=True)]
        return {f"top{k}": total / samples for k, total in zip(self.ks, totals, strict=True)}

    def resamplings(self, states: Sequence[tuple[list[int], int]]) -> list[Resampling]:
        """Return the first of the shares."""
        right, samples = (sum(column) for column in zip(*((hits[0], count) for hits, count in states), strict=True))
        return [Resampling.share(f"top{self.ks[0]}", right, samples)]
