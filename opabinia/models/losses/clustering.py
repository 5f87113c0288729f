"""Clusters in the place of labels: assignments that fill all prototypes evenly, and k-means on the sphere."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


@torch.no_grad()
def evening(scores: Tensor, epsilon: float = 0.05, iterations: int = 3, power: float | None = None) -> Tensor:
    """What is to be added to ``scores / epsilon`` before a softmax over the prototypes, so that each gets its share of
    the samples (K; Cuturi 2013; Asano et al. 2020).

    This is all that samples must know of each other: with it, each process assigns its own.

    Args:
        scores: of each sample for each prototype (N x K), of the batch of all processes.
        epsilon: divides the scores; the smaller, the less even and the sharper (Caron et al. 2020, SwAV, section 3.1).
        iterations: how often shares are evened out, first over prototypes, then over samples; 0: never.
        power: null: the prototypes have even shares; else the i-th, from 1 on, has one in proportion to
            ``i ** -power`` (VISSL's power law).
    """
    # With logarithms nothing over- or underflows, whatever epsilon is; VISSL computes in double precision for that.
    logits = _scaled(scores, epsilon)
    samples, prototypes = logits.shape
    shares = logits.new_full((prototypes,), -math.log(prototypes))
    if power is not None:
        shares = torch.log_softmax(-power * torch.arange(1, prototypes + 1, device=logits.device).log(), 0)
        shares = shares.to(logits.dtype)
    of_prototypes = torch.zeros_like(shares)
    of_samples = logits.new_zeros(samples, 1)
    for _ in range(iterations):
        of_prototypes = shares - (logits + of_samples).logsumexp(0)
        of_samples = -math.log(samples) - (logits + of_prototypes).logsumexp(1, keepdim=True)
    return of_prototypes


@torch.no_grad()
def assigned(scores: Tensor, evened: Tensor, epsilon: float = 0.05, *, hard: bool = False) -> Tensor:
    """How much of each sample falls to each prototype (N x K; each row adds up to 1).

    Args:
        scores: N x K.
        evened: what :func:`evening` found (K).
        epsilon: the same as there.
        hard: give each sample to one prototype as a whole.
    """
    logits = _scaled(scores, epsilon) + evened
    if hard:
        return F.one_hot(logits.argmax(1), logits.shape[1]).to(logits.dtype)
    return logits.softmax(1)


def sinkhorn(
    scores: Tensor, epsilon: float = 0.05, iterations: int = 3, *, hard: bool = False, power: float | None = None
) -> Tensor:
    """Assignments (N x K) that fill the prototypes evenly (Caron et al. 2020, SwAV, equations 3 to 5):
    :func:`assigned` after :func:`evening`, whose parameters they are. Double precision stays so; no gradient flows.

    Example: golden case ``vissl_sinkhorn``: of the scores [0.2, 0.1, -0.1], among three samples more, the first one
    gets [0.934, 0.063, 0.003].
    """
    return assigned(scores, evening(scores, epsilon, iterations, power), epsilon, hard=hard)


def _scaled(scores: Tensor, epsilon: float) -> Tensor:
    return scores.to(torch.promote_types(scores.dtype, torch.float32)) / epsilon


def swapped_prediction(scores: Sequence[Tensor], assignments: Sequence[Tensor], temperature: float = 0.1) -> Tensor:
    """Each view is to predict the prototypes that the other views of its image were assigned to (Caron et al. 2020,
    SwAV, equations 1 and 2): the mean over samples, predicting views and assigning views.

    Args:
        scores: of each view (B x K); two views or more.
        assignments: of the first views (B x K), at least of one.
        temperature: divides the scores.

    Example: of two views whose predictions are even over three prototypes the loss is log 3.
    """
    predicted = [torch.log_softmax(_scaled(view, temperature), 1) for view in scores]
    losses = [
        -(assignment * prediction).sum(1).mean()
        for one, assignment in enumerate(assignments)
        for other, prediction in enumerate(predicted)
        if other != one
    ]
    return torch.stack(losses).mean()


def evenness(shares: Tensor) -> Tensor:
    """The entropy of shares (K, 0 or more, of any sum) over its largest value, log K (0-d): 1 where all are alike, 0
    where one prototype has everything."""
    shares = shares.double() / shares.double().sum()
    even: Tensor = torch.special.entr(shares).sum() / math.log(max(len(shares), 2))
    return even.float()


@torch.no_grad()
def spherical_kmeans(vectors: Tensor, first: Tensor, iterations: int = 10) -> tuple[Tensor, Tensor]:
    """K-means by cosine (Dhillon and Modha 2001), as in DeepCluster v2 (Caron et al. 2020, SwAV, equation 11).

    A cluster that nothing falls to stays where it is.

    Args:
        vectors: N x D, each of length 1.
        first: the centroids it begins with (K x D), each of length 1.
        iterations: how often centroids move.

    Returns:
        the centroids (K x D, each of length 1), and the number of the nearest one for each vector (int64, N).

    Example: of [1, 0], [0.8, 0.6] and [0, 1], with the first and the last to begin with, the second falls to the first,
    and these two to the centroid [0.949, 0.316].
    """
    centroids = first.clone()
    for _ in range(iterations):
        sums = torch.zeros_like(centroids).index_add_(0, _nearest(vectors, centroids), vectors)
        moved = sums.norm(dim=1, keepdim=True) > 0
        centroids = torch.where(moved, F.normalize(sums, dim=1), centroids)
    return centroids, _nearest(vectors, centroids)


_AT_ONCE = 16384
"""Vectors that are compared with all centroids at once."""


def _nearest(vectors: Tensor, centroids: Tensor) -> Tensor:
    return torch.cat([(some @ centroids.T).argmax(1) for some in torch.split(vectors, _AT_ONCE)])
