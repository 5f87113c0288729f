"""PCA whitening."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from opabinia.contracts import DataMismatch

MIN_VARIANCE = 1e-5
"""Directions with less than this share of the largest variance are noise, which whitening would amplify, and are
dropped. VISSL keeps them, with this variance in place of their own."""


class Whitening(NamedTuple):
    """A fitted whitening transform.

    Attributes:
        mean: mean of the vectors, D.
        directions: n x D, most variance first, each divided by its standard deviation.
    """

    mean: Tensor
    directions: Tensor

    def __call__(self, vectors: Tensor) -> Tensor:
        """Project vectors (... x D) on the directions (... x n)."""
        return (vectors - self.mean) @ self.directions.T


def whitening(vectors: Tensor, components: int | None = None) -> Whitening:
    """Fit principal components scaled to variance 1 (Jégou and Chum 2012, section 3).

    Computed in float64. The largest coordinate of each direction is positive, so the same vectors give the same numbers
    on any machine. VISSL scales by the sum of the products instead of their mean: its components are smaller by the
    square root of N.

    Args:
        vectors: N x D.
        components: maximum number of directions; None: all. There are fewer if the vectors have fewer.

    Raises:
        DataMismatch: the vectors are all the same, or not finite.

    Example: [2, 0], [0, 1], [-2, 0], [0, -1] become [√2, 0], [0, √2], [-√2, 0], [0, -√2].
    """
    if not len(vectors):
        raise DataMismatch("whitening: there are no vectors to learn from")
    exact = vectors.double()
    mean = exact.mean(0)
    products = (exact - mean).T @ (exact - mean)
    if not products.isfinite().all():
        raise DataMismatch("whitening: the vectors are not finite")
    variances, directions = torch.linalg.eigh(products / len(exact))
    variances, directions = variances.flip(0)[:components], directions.T.flip(0)[:components]
    kept = variances > MIN_VARIANCE * variances[0]
    if not kept.any():
        raise DataMismatch(f"whitening: the {len(vectors)} vectors are all the same")
    variances, directions = variances[kept], directions[kept]
    largest = directions.gather(1, directions.abs().argmax(1, keepdim=True))
    scaled = directions * largest.sign() / variances.sqrt()[:, None]
    return Whitening(mean.to(vectors.dtype), scaled.to(vectors.dtype))
