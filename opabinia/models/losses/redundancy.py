"""Losses that decorrelate the dimensions of embeddings and prevent collapse (Barlow Twins, VICReg).

They take the batch gathered from all processes (``runtime.collectives.gather_rows``), and compute in float32 under
autocast too.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Normalize = Literal["per_view", "joint"]


def barlow_twins(
    views: Sequence[Tensor],
    off_diagonal: float = 0.0051,
    scale: float = 0.024,
    normalize: Normalize = "per_view",
) -> Tensor:
    """Barlow Twins loss: the cross-correlation matrix of two views should be the identity (Zbontar et al. 2021,
    equation 1); the mean over pairs of views.

    Args:
        views: embeddings of each view (B x D); B of at least 2, two views or more.
        off_diagonal: weight of the off-diagonal elements; 0.0051 in the authors' code.
        scale: factor of the whole loss; 0.024 in the authors' code.
        normalize: by mean and variance of each view, as in the paper, or of all views jointly, as in VISSL.

    Example: golden case ``vissl_barlow``: four images in three dimensions give 0.050655, joint 0.052780.
    """
    if normalize == "joint":
        vectors = _normalize(torch.cat(list(views))).chunk(len(views))
    else:
        vectors = tuple(_normalize(view) for view in views)
    losses = []
    for first, second in combinations(vectors, 2):
        correlations = _product(first, second) / len(first)
        diagonal = (1 - correlations.diagonal()).square().sum()
        losses.append(diagonal + off_diagonal * _off_diagonal(correlations))
    return scale * torch.stack(losses).mean()


def invariance(views: Sequence[Tensor]) -> Tensor:
    """Mean squared difference of the embeddings of an image's views, over pairs of views (Bardes et al. 2022, VICReg,
    algorithm 1).

    Args:
        views: embeddings of each view (B x D); two views or more.
    """
    losses = [F.mse_loss(first.float(), second.float()) for first, second in combinations(views, 2)]
    return torch.stack(losses).mean()


def variance(views: Sequence[Tensor]) -> Tensor:
    """Mean shortfall of the standard deviation of each dimension below 1, over dimensions and views.

    Bardes et al. 2022, VICReg, equation 1. The mean over views is that of the authors' code, with which the paper's
    weights go; equation 6 has the sum.

    Args:
        views: embeddings of each view (B x D); B of at least 2.
    """
    # 1e-4 is added to variances, which are unbiased, so that the root has a gradient at 0.
    return torch.stack([F.relu(1 - (view.float().var(0) + 1e-4).sqrt()).mean() for view in views]).mean()


def covariance(views: Sequence[Tensor]) -> Tensor:
    """Sum of squared covariances of different dimensions over D: for two views the sum over both (Bardes et al. 2022,
    VICReg, equations 3, 4 and 6), for V views the mean over views, times 2.

    Args:
        views: embeddings of each view (B x D); B of at least 2.
    """
    losses = []
    for view in views:
        centered = view.float() - view.float().mean(0)
        losses.append(_off_diagonal(_product(centered, centered) / (len(view) - 1)) / view.shape[1])
    return 2 * torch.stack(losses).mean()


def _normalize(vectors: Tensor) -> Tensor:
    """Normalize each dimension to mean 0 and (biased) variance 1."""
    return F.batch_norm(vectors.float(), None, None, training=True)


def _product(first: Tensor, second: Tensor) -> Tensor:
    """Multiply B x D matrices to D x D."""
    with torch.autocast(first.device.type, enabled=False):
        return first.T @ second


def _off_diagonal(matrix: Tensor) -> Tensor:
    """Sum of squares off the diagonal (0-d), as two sums instead of a masked copy: there may be 8192^2 elements."""
    return matrix.square().sum() - matrix.diagonal().square().sum()
