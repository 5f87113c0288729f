"""Losses that keep the coordinates of vectors from saying the same, or nothing at all.

They want the batch of all processes (``runtime.exchange.gather_rows``), and compute in float32 under autocast too.
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
    eps: float = 1e-5,
    normalize: Normalize = "per_view",
) -> Tensor:
    """Coordinates of two views are to correlate with themselves, and not with each other (Zbontar et al. 2021,
    equation 1); the mean over pairs of views.

    Args:
        views: vectors of each view (B x D); B of at least 2, two views or more.
        off_diagonal: weight of the correlations that are to be 0; the authors' program's 0.0051.
        scale: of the whole loss; the authors' program's 0.024.
        eps: added to variances, which are biased.
        normalize: by mean and variance of each view, as in the paper, or of all views together, as in VISSL.

    Example: golden case ``vissl_barlow``: four images in three dimensions give 0.050655, joint 0.052780.
    """
    if normalize == "joint":
        vectors = _normalized(torch.cat(list(views)), eps).chunk(len(views))
    else:
        vectors = tuple(_normalized(view, eps) for view in views)
    losses = []
    for one, other in combinations(vectors, 2):
        correlations = _product(one, other) / len(one)
        right = (1 - correlations.diagonal()).square().sum()
        losses.append(right + off_diagonal * _off_diagonal(correlations))
    return scale * torch.stack(losses).mean()


def invariance(views: Sequence[Tensor]) -> Tensor:
    """How far views of an image are from each other: the mean squared difference of coordinates, over pairs of views
    (Bardes et al. 2022, VICReg, algorithm 1).

    Args:
        views: vectors of each view (B x D); two views or more.
    """
    return torch.stack([F.mse_loss(one.float(), other.float()) for one, other in combinations(views, 2)]).mean()


def variance(views: Sequence[Tensor], target: float = 1.0, eps: float = 1e-4) -> Tensor:
    """How far the deviation of each coordinate within a view is below a target, averaged over coordinates and views.

    Bardes et al. 2022, VICReg, equation 1. The mean over views is that of the authors' program, with which the paper's
    weights go; equation 6 has the sum.

    Args:
        views: vectors of each view (B x D); B of at least 2.
        target: the deviation that is enough.
        eps: added to variances, which are unbiased, so that the root has a gradient at 0.
    """
    return torch.stack([F.relu(target - (view.float().var(0) + eps).sqrt()).mean() for view in views]).mean()


def covariance(views: Sequence[Tensor]) -> Tensor:
    """The squared covariances of different coordinates, over D: of two views the sum over both (Bardes et al. 2022,
    VICReg, equations 3, 4 and 6), of V views the mean over views, times 2.

    Args:
        views: vectors of each view (B x D); B of at least 2.
    """
    losses = []
    for view in views:
        centred = view.float() - view.float().mean(0)
        losses.append(_off_diagonal(_product(centred, centred) / (len(view) - 1)) / view.shape[1])
    return 2 * torch.stack(losses).mean()


def _normalized(vectors: Tensor, eps: float) -> Tensor:
    """Mean 0 and variance 1 in every coordinate."""
    return F.batch_norm(vectors.float(), None, None, training=True, eps=eps)


def _product(one: Tensor, other: Tensor) -> Tensor:
    """D x D, of vectors B x D."""
    with torch.autocast(one.device.type, enabled=False):
        return one.T @ other


def _off_diagonal(matrix: Tensor) -> Tensor:
    """The sum of squares beside the diagonal (0-d). Two sums, and no copy of the matrix: it may have 8192^2 entries."""
    return matrix.square().sum() - matrix.diagonal().square().sum()
