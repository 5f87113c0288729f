"""Whitening by principal components: the directions in which vectors vary, each made to vary equally."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from opabinia.contracts import DataMismatch

LEAST = 1e-5
"""Directions with less than this share of the largest variance are noise, which whitening would only make loud. VISSL
keeps them, with this variance in place of their own."""


class Whitening(NamedTuple):
    """What was learned from some vectors, to be done to others.

    Attributes:
        mean: of the vectors, D.
        directions: one a row, most variance first, divided by the square root of it: n x D.
    """

    mean: Tensor
    directions: Tensor

    def __call__(self, vectors: Tensor) -> Tensor:
        """Vectors (... x D) along the directions (... x n)."""
        return (vectors - self.mean) @ self.directions.T


def whitening(
    vectors: Tensor, components: int | None = None, *, covariance: Literal["mean", "sum"] = "mean"
) -> Whitening:
    """Principal components of vectors, scaled to variance 1 (Jégou and Chum 2012, section 3).

    Computed in float64. Each direction points to the side on which its largest coordinate is positive, so that the same
    vectors give the same numbers on any machine. The vectors stay as they are.

    Args:
        vectors: N x D.
        components: at most so many directions; None: all. There are fewer when the vectors have fewer.
        covariance: the ``mean`` of products over the vectors, or their ``sum``, which is VISSL's: all components are
            then smaller by the square root of N.

    Raises:
        Unfit: the vectors are all the same, or not finite.

    Example: [2, 0], [0, 1], [-2, 0], [0, -1] become [√2, 0], [0, √2], [-√2, 0], [0, -√2].
    """
    if not len(vectors):
        raise DataMismatch("whitening: there are no vectors to learn from")
    exact = vectors.double()
    mean = exact.mean(0)
    products = (exact - mean).T @ (exact - mean)
    if not products.isfinite().all():
        raise DataMismatch("whitening: the vectors are not finite")
    variances, directions = torch.linalg.eigh(products / (len(exact) if covariance == "mean" else 1))
    variances, directions = variances.flip(0)[:components], directions.T.flip(0)[:components]
    kept = variances > LEAST * variances[0]
    if not kept.any():
        raise DataMismatch(f"whitening: the {len(vectors)} vectors are all the same")
    variances, directions = variances[kept], directions[kept]
    largest = directions.gather(1, directions.abs().argmax(1, keepdim=True))
    scaled = directions * largest.sign() / variances.sqrt()[:, None]
    return Whitening(mean.to(vectors.dtype), scaled.to(vectors.dtype))
