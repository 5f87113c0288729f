"""Whether embeddings have collapsed: numbers that need no labels."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from opabinia.config import register
from opabinia.contracts import EMBEDDING, Batch, DatasetInfo, Fraction, Predictions
from opabinia.evaluation.representation.feature_bank import Batches, joined, rows_of

log = logging.getLogger("opabinia")


@torch.no_grad()
def spread(vectors: Tensor) -> Tensor:
    """How far vectors (N x D) point in different directions (0-d): the deviation of each coordinate of the normalised
    vectors, averaged, times the square root of D.

    1 where they point evenly everywhere, 0 where all are the same (Chen and He 2021, SimSiam, section 4.1).
    """
    vectors = F.normalize(vectors.float(), dim=1)
    far: Tensor = vectors.std(0, correction=0).mean() * vectors.shape[1] ** 0.5
    return far


def effective_rank(vectors: Tensor) -> Tensor:
    """How many directions vectors (N x D) use (0-d), from 1 to D: the exponential of the entropy of their singular
    values, as shares of the sum (Garrido et al. 2023, RankMe, equation 1)."""
    # The eigenvalues of the smaller product; their roots are the singular values.
    vectors = vectors.double()
    product = vectors.T @ vectors if vectors.shape[0] >= vectors.shape[1] else vectors @ vectors.T
    values = torch.linalg.eigvalsh(product).clamp(min=0).sqrt()
    shares = values / values.sum().clamp(min=torch.finfo(values.dtype).tiny)
    rank: Tensor = torch.special.entr(shares).sum().exp()
    return rank


def uniformity(vectors: Tensor, t: float = 2.0) -> Tensor:
    """How evenly normalised vectors (N x D) lie on the sphere (0-d), lower is better: the logarithm of the mean over
    pairs of ``exp(-t * distance^2)`` (Wang and Isola 2020, section 4.1)."""
    vectors = F.normalize(vectors, dim=1)
    return torch.pdist(vectors).square().mul(-t).exp().mean().log()


_MOST = 4096
"""So many samples, spread evenly over the data, tell the uniformity and the rank of all."""


@register.evaluator(name="collapse")
class Collapse:
    """Tells embeddings that are all alike: ``spread``, ``rank``, ``uniformity``; see the functions of these names.

    Rank and uniformity are those of up to 4,096 samples, taken at even distances.

    Args:
        facts: of the data.
        alarm: warn where the spread is below this.
    """

    layers = (EMBEDDING,)

    def __init__(self, dataset_info: DatasetInfo, /, *, alarm: Fraction = 0.05) -> None:
        self._alarm = alarm
        self._batches: Batches = []
        self.better = {"spread": "max", "rank": "max", "uniformity": "min"}

    def update(self, predictions: Predictions, batch: Batch) -> None:
        """Keep a batch: ``predictions["embedding"]`` (B x D)."""
        self._batches.append(rows_of(predictions, batch))

    def state(self) -> Batches:
        """The batches of this process."""
        return self._batches

    def compute(self, states: Sequence[Batches]) -> dict[str, float]:
        """The three numbers; a warning where embeddings have collapsed.

        Raises:
            Unfit: an embedding is not finite.
        """
        rows = joined(states)
        if rows is None or len(rows.ids) < 2:
            return {}
        vectors = torch.from_numpy(rows.features)
        far = float(spread(vectors))
        if far < self._alarm:
            log.warning(
                "embeddings have collapsed: they point in one direction (spread %.3f, 1 is even); lower the learning "
                "rate, or look at what keeps this method from it", far,
            )  # fmt: skip
        some = vectors[:: -(-len(vectors) // _MOST)]
        return {"spread": far, "rank": float(effective_rank(some)), "uniformity": float(uniformity(some))}
