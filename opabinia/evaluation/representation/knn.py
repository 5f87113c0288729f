"""Classification by nearest neighbours: what embeddings are worth without training anything on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from opabinia.config import register
from opabinia.contracts import Count, DatasetInfo, Positive
from opabinia.evaluation.classification.topk import hits
from opabinia.evaluation.representation.feature_bank import Learner, Sides, refuse_unlabelled


def votes(
    queries: Tensor,
    bank: Tensor,
    labels: Tensor,
    classes: int,
    *,
    k: int = 20,
    temperature: float = 0.07,
    normalize: bool = True,
) -> Iterator[Tensor]:
    """Votes of the k nearest training samples for each class, in blocks of queries (b x K each).

    A neighbour votes for its class with ``exp(similarity / temperature)`` (Wu et al. 2018, section 3.4). Votes of a
    query are divided by that of its nearest neighbour, so that none overflows; which class has most is the same.

    Args:
        queries: N x D.
        bank: the training samples, M x D. Of fewer than k all vote.
        labels: of those (int64, M).
        classes: K.
        k: neighbours that vote; VISSL's default is 200.
        temperature: the smaller, the more the nearest count; VISSL's default is 0.1, DINO's 0.07.
        normalize: compare by cosine; otherwise by dot product.
    """
    if normalize:
        queries, bank = F.normalize(queries, dim=1), F.normalize(bank, dim=1)
    for block in torch.split(queries, max(1, _SIMILARITIES // max(1, len(bank)))):
        nearest, places = (block @ bank.T).topk(min(k, len(bank)), dim=1)
        weights = ((nearest - nearest[:, :1]) / temperature).exp()
        yield weights.new_zeros(len(block), classes).scatter_add_(1, labels[places], weights)


_SIMILARITIES = 2**24
"""So many are in memory at once: 64 MiB."""


@register.evaluator(name="knn")
class Knn(Learner):
    """Scores of classification by the nearest training samples: ``knn_top1``, ``knn_top5``; see :func:`votes`.

    Args:
        facts: of the data.
        k: neighbours that vote (DINO's 20; VISSL's are 200).
        temperature: the smaller, the more the nearest count (DINO's; VISSL's is 0.1).
        normalize: compare by cosine; otherwise by dot product.

    Raises:
        ValueError: images have no classes, or several.
    """

    def __init__(
        self, dataset_info: DatasetInfo, /, *, k: Count = 20, temperature: Positive = 0.07, normalize: bool = True
    ) -> None:
        refuse_unlabelled("knn", dataset_info)
        super().__init__()
        self._classes = len(dataset_info.classes)
        self._k, self._temperature, self._normalize = k, temperature, normalize
        self.better = {"knn_top1": "max"} | ({"knn_top5": "max"} if self._classes > 5 else {})

    def compute(self, states: Sequence[Sides]) -> dict[str, float]:
        """Shares of samples whose class is among the first and the first five.

        Raises:
            Unfit: there are no training samples, or an embedding is not finite.
        """
        sides = self.sides(states)
        if sides is None:
            return {}
        (known, labels), (asked, right) = (side.tensors() for side in sides)
        known, labels, asked = (one.to(self.device) for one in (known, labels, asked))
        found = torch.zeros(2, dtype=torch.int64)
        start = 0
        for block in votes(
            *(asked, known, labels, self._classes),
            k=self._k,
            temperature=self._temperature,
            normalize=self._normalize,
        ):
            found += hits(block, right[start : start + len(block)].to(block.device), (1, 5)).cpu()
            start += len(block)
        return dict(zip(self.better, (found.double() / len(right)).tolist(), strict=False))
