"""k-nearest-neighbor classification: the quality of embeddings without training anything on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from opabinia.config import register
from opabinia.contracts import Count, DatasetInfo, Positive, Resampling
from opabinia.evaluation.classification.topk import count_topk_hits
from opabinia.evaluation.representation.feature_bank import BankState, FeatureBankEvaluator, Rows

_MAX_SIMILARITIES = 2**24
"""Similarities in memory at once: 64 MiB."""


def knn_votes(
    queries: Tensor,
    bank: Tensor,
    labels: Tensor,
    num_classes: int,
    *,
    k: int = 20,
    temperature: float = 0.07,
    normalize: bool = True,
    leave_one_out: bool = False,
) -> Iterator[Tensor]:
    """Yield the votes of the k nearest training samples for each class, in blocks of queries (b x K each).

    A neighbor votes for its class with ``exp(similarity / temperature)`` (Wu et al. 2018, section 3.4). Votes of a
    query are divided by that of its nearest neighbor against overflow; the order of the classes stays the same.

    Args:
        queries: N x D.
        bank: features of the training samples, M x D. If there are fewer than k, all vote.
        labels: labels of the training samples (int64, M).
        num_classes: K.
        k: number of neighbors; VISSL's default is 200.
        temperature: lower values weight the nearest neighbors more; VISSL's default is 0.1, DINO's 0.07.
        normalize: compare by cosine; otherwise by dot product.
        leave_one_out: the queries are the bank, of two samples or more, and none is a neighbor of itself.
    """
    if normalize:
        queries, bank = F.normalize(queries, dim=1), F.normalize(bank, dim=1)
    start = 0
    for block in torch.split(queries, max(1, _MAX_SIMILARITIES // max(1, len(bank)))):
        matrix = block @ bank.T
        if leave_one_out:
            matrix.diagonal(start).fill_(-torch.inf)
        start += len(block)
        similarities, neighbors = matrix.topk(min(k, len(bank)), dim=1)
        weights = ((similarities - similarities[:, :1]) / temperature).exp()
        yield weights.new_zeros(len(block), num_classes).scatter_add_(1, labels[neighbors], weights)


@register.evaluator(name="knn")
class Knn(FeatureBankEvaluator):
    """k-nearest-neighbor accuracy with the training samples as bank: ``knn_top1``, ``knn_top5``; see :func:`knn_votes`.

    Args:
        dataset_info: facts about the data.
        k: number of neighbors (DINO's 20; VISSL's is 200).
        temperature: lower values weight the nearest neighbors more (DINO's; VISSL's is 0.1).
        normalize: compare by cosine; otherwise by dot product.

    Raises:
        ValueError: images have no classes, or several labels.
    """

    def __init__(
        self, dataset_info: DatasetInfo, /, *, k: Count = 20, temperature: Positive = 0.07, normalize: bool = True
    ) -> None:
        super().__init__("knn", dataset_info)
        self._classes = len(dataset_info.classes)
        self._options: dict[str, Any] = {"k": k, "temperature": temperature, "normalize": normalize}
        self._right = self._samples = 0
        self.better = {"knn_top1": "max"} | ({"knn_top5": "max"} if self._classes > 5 else {})

    def _scores(self, train: Rows, test: Rows) -> dict[str, float]:
        """Return top-1 and top-5 accuracy."""
        (bank, bank_labels), (queries, labels) = train.tensors(self.device), test.tensors(self.device)
        hits: list[Tensor] = []  # on the device: blocks have few queries if the bank is large
        start = 0
        for votes in knn_votes(queries, bank, bank_labels, self._classes, **self._options):
            hits.append(count_topk_hits(votes, labels[start : start + len(votes)], (1, 5)))
            start += len(votes)
        total = torch.stack(hits).sum(0).cpu()
        self._right, self._samples = int(total[0]), len(labels)
        return dict(zip(self.better, (total.double() / len(labels)).tolist(), strict=False))

    def resamplings(self, states: Sequence[BankState]) -> list[Resampling]:
        """Return the top-1 accuracy."""
        return [Resampling.share("knn_top1", self._right, self._samples)]
