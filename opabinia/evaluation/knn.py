"""Classification by nearest neighbours: what embeddings are worth without training anything on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from opabinia.config import register
from opabinia.contracts import Batch, Count, Facts, Positive, Predictions, Unfit
from opabinia.evaluation.banks import Batches, joined, rows_of


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
class Knn:
    """Scores of classification by the nearest training samples: ``knn_top1``, ``knn_top5``; see :func:`votes`.

    Args:
        facts: of the data.
        k: neighbours that vote (DINO's 20; VISSL's are 200).
        temperature: the smaller, the more the nearest count (DINO's; VISSL's is 0.1).
        normalize: compare by cosine; otherwise by dot product.

    Raises:
        ValueError: images have no classes, or several.
    """

    def __init__(self, facts: Facts, /, *, k: Count = 20, temperature: Positive = 0.07, normalize: bool = True) -> None:
        if len(facts.classes) < 2 or facts.multi_label or facts.boxes:
            raise ValueError("knn: every image of the data needs one label, of two classes or more")
        self._classes = len(facts.classes)
        self._k, self._temperature, self._normalize = k, temperature, normalize
        self._bank: Batches = []
        self._queries: Batches = []
        self._device = torch.device("cpu")
        self.better = {"knn_top1": "max"} | ({"knn_top5": "max"} if self._classes > 5 else {})

    def learn(self, predictions: Predictions, batch: Batch) -> None:
        """Keep training samples: ``predictions["embedding"]`` (B x D) and ``batch["label"]``."""
        self._bank.append(rows_of(predictions, batch))

    def update(self, predictions: Predictions, batch: Batch) -> None:
        """Keep samples to be classified, likewise."""
        self._device = predictions["embedding"].device
        self._queries.append(rows_of(predictions, batch))

    def state(self) -> tuple[Batches, Batches]:
        """The batches of this process: to vote, and to be classified."""
        return self._bank, self._queries

    def compute(self, states: Sequence[tuple[Batches, Batches]]) -> dict[str, float]:
        """Shares of samples whose class is among the first and the first five.

        Raises:
            Unfit: there are no training samples, or an embedding is not finite.
        """
        bank, queries = (joined(side) for side in zip(*states, strict=True))
        if queries is None:
            return {}
        if bank is None:
            raise Unfit("knn: there are no training samples to compare with")
        (known, labels), (asked, right) = bank.tensors(), queries.tensors()
        known, labels, asked = (one.to(self._device) for one in (known, labels, asked))
        hits = torch.zeros(2, dtype=torch.int64)
        ways = {"k": self._k, "temperature": self._temperature, "normalize": self._normalize}
        start = 0
        for block in votes(asked, known, labels, self._classes, **ways):  # type: ignore[arg-type]
            ranked = block.topk(min(5, self._classes), dim=1).indices.cpu()
            found = ranked == right[start : start + len(block), None]
            hits += torch.stack([found[:, 0].sum(), found.sum()])
            start += len(block)
        scores = (hits.double() / len(right)).tolist()
        return dict(zip(self.better, scores, strict=False))
