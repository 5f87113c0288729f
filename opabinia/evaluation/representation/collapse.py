"""Detection of collapsed embeddings, without labels."""

from __future__ import annotations

import logging

import torch
import torch.nn.functional as F
from torch import Tensor

from opabinia.config import register
from opabinia.contracts import EMBEDDING, DatasetInfo, Fraction
from opabinia.evaluation.representation.feature_bank import EmbeddingEvaluator, Rows

log = logging.getLogger("opabinia")

_MAX_SAMPLES = 4096
"""Uniformity and rank are estimated from at most this many samples, at even distances in the data."""


@torch.no_grad()
def spread(vectors: Tensor) -> Tensor:
    """Return the spread of vectors (N x D; 0-d): the standard deviation of each coordinate of the normalized vectors,
    averaged, times the square root of D.

    1 for isotropic directions, 0 for equal ones (Chen and He 2021, SimSiam, section 4.1).
    """
    vectors = F.normalize(vectors.float(), dim=1)
    deviation: Tensor = vectors.std(0, correction=0).mean() * vectors.shape[1] ** 0.5
    return deviation


def effective_rank(vectors: Tensor) -> Tensor:
    """Return the effective rank of vectors (N x D; 0-d), from 1 to D: the exponential of the entropy of their singular
    values, as shares of the sum (Garrido et al. 2023, RankMe, equation 1)."""
    # Roots of the eigenvalues of the smaller product are the singular values.
    vectors = vectors.double()
    product = vectors.T @ vectors if vectors.shape[0] >= vectors.shape[1] else vectors @ vectors.T
    values = torch.linalg.eigvalsh(product).clamp(min=0).sqrt()
    shares = values / values.sum().clamp(min=torch.finfo(values.dtype).tiny)
    rank: Tensor = torch.special.entr(shares).sum().exp()
    return rank


def uniformity(vectors: Tensor) -> Tensor:
    """Return the uniformity of normalized vectors (N x D; 0-d) on the sphere, lower is better: the logarithm of the
    mean over pairs of ``exp(-2 * distance^2)`` (Wang and Isola 2020, section 4.1)."""
    vectors = F.normalize(vectors, dim=1)
    return torch.pdist(vectors).square().mul(-2.0).exp().mean().log()


@register.evaluator(name="collapse")
class Collapse(EmbeddingEvaluator):
    """Detects embeddings that are all alike: ``spread``, ``rank`` (:func:`effective_rank`), ``uniformity``; see the
    functions of these names.

    Rank and uniformity are those of at most 4,096 samples, at even distances in the data.

    Args:
        dataset_info: facts about the data.
        warn_below: a spread below this value is logged as a warning.
    """

    layers = (EMBEDDING,)

    def __init__(self, dataset_info: DatasetInfo, /, *, warn_below: Fraction = 0.05) -> None:
        super().__init__()
        self._warn_below = warn_below
        self.better = {"spread": "max", "rank": "max", "uniformity": "min"}

    def _scores(self, rows: Rows) -> dict[str, float]:
        """Return the three scores, and warn if the embeddings have collapsed."""
        if len(rows.ids) < 2:
            return {}
        vectors = torch.from_numpy(rows.features)
        deviation = float(spread(vectors))
        if deviation < self._warn_below:
            log.warning(
                "embeddings have collapsed to one direction (spread %.3f, 1 is isotropic); lower the learning rate, or "
                "check what prevents collapse in this method", deviation,
            )  # fmt: skip
        sample = vectors[:: -(-len(vectors) // _MAX_SAMPLES)]
        return {"spread": deviation, "rank": float(effective_rank(sample)), "uniformity": float(uniformity(sample))}
