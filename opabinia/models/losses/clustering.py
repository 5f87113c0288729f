"""Clustering losses: balanced assignments to prototypes (Sinkhorn-Knopp), and spherical k-means."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


@torch.no_grad()
def prototype_potentials(
    scores: Tensor, epsilon: float = 0.05, iterations: int = 3, power: float | None = None
) -> Tensor:
    """Compute the offsets (K) that balance a softmax of ``scores / epsilon`` over prototypes, such that each prototype
    gets its share of the samples (dual potentials of Sinkhorn-Knopp; Cuturi 2013; Asano et al. 2020).

    Given these offsets, each process can assign its own samples.

    Args:
        scores: scores of each sample for each prototype (N x K), of the batch of all processes.
        epsilon: divides the scores; smaller values give sharper, less balanced assignments (Caron et al. 2020, SwAV,
            section 3.1).
        iterations: number of iterations of the alternating normalization over samples and prototypes; 0: none.
        power: null: the prototypes have equal shares; otherwise the i-th, from 1 on, has a share proportional to
            ``i ** -power`` (VISSL's power law).
    """
    # In the log domain nothing overflows or underflows, whatever epsilon is; VISSL uses double precision for that.
    logits = _scale(scores, epsilon)
    samples, prototypes = logits.shape
    log_shares = logits.new_full((prototypes,), -math.log(prototypes))
    if power is not None:
        log_shares = torch.log_softmax(-power * torch.arange(1, prototypes + 1, device=logits.device).log(), 0)
        log_shares = log_shares.to(logits.dtype)
    prototype_offsets = torch.zeros_like(log_shares)
    sample_offsets = logits.new_zeros(samples, 1)
    for _ in range(iterations):
        prototype_offsets = log_shares - (logits + sample_offsets).logsumexp(0)
        sample_offsets = -math.log(samples) - (logits + prototype_offsets).logsumexp(1, keepdim=True)
    return prototype_offsets


@torch.no_grad()
def assign_prototypes(scores: Tensor, potentials: Tensor, epsilon: float = 0.05, *, hard: bool = False) -> Tensor:
    """Assign samples to prototypes (N x K; each row sums to 1; Caron et al. 2020, SwAV, equations 3 to 5). Double
    precision is kept; no gradient flows.

    Args:
        scores: N x K.
        potentials: from :func:`prototype_potentials` (K).
        epsilon: the same as there.
        hard: assign each sample to a single prototype.

    Example: golden case ``vissl_sinkhorn``: with the scores [0.2, 0.1, -0.1], among three other samples, the first one
    gets [0.934, 0.063, 0.003].
    """
    logits = _scale(scores, epsilon) + potentials
    if hard:
        return F.one_hot(logits.argmax(1), logits.shape[1]).to(logits.dtype)
    return logits.softmax(1)


def _scale(scores: Tensor, temperature: float) -> Tensor:
    return scores.to(torch.promote_types(scores.dtype, torch.float32)) / temperature


def swapped_prediction(scores: Sequence[Tensor], assignments: Sequence[Tensor], temperature: float = 0.1) -> Tensor:
    """SwAV loss: each view predicts the assignments of the other views of its image (Caron et al. 2020, SwAV, equations
    1 and 2); the mean over samples and pairs of views.

    Args:
        scores: scores of each view (B x K); two views or more.
        assignments: assignments of the first views (B x K), at least of one.
        temperature: divides the scores.

    Example: of two views whose predictions are uniform over three prototypes the loss is log 3.
    """
    predictions = [torch.log_softmax(_scale(view, temperature), 1) for view in scores]
    losses = [
        -(assignment * prediction).sum(1).mean()
        for view, assignment in enumerate(assignments)
        for other, prediction in enumerate(predictions)
        if other != view
    ]
    return torch.stack(losses).mean()


def normalized_entropy(shares: Tensor) -> Tensor:
    """Entropy of shares (K, 0 or more, of any sum) over its maximum, log K (0-d): 1 for a uniform distribution, 0 if
    one prototype has everything."""
    shares = shares.float() / shares.float().sum()
    entropy: Tensor = torch.special.entr(shares).sum() / math.log(max(len(shares), 2))
    return entropy


@torch.no_grad()
def spherical_kmeans(vectors: Tensor, initial: Tensor, iterations: int = 10) -> tuple[Tensor, Tensor]:
    """K-means by cosine similarity (Dhillon and Modha 2001), as in DeepCluster v2 (Caron et al. 2020, SwAV, equation
    11).

    The centroid of an empty cluster stays unchanged.

    Args:
        vectors: N x D, each of length 1.
        initial: initial centroids (K x D), each of length 1.
        iterations: updates of the centroids.

    Returns:
        the centroids (K x D, each of length 1), and the index of the nearest one for each vector (int64, N).

    Example: of [1, 0], [0.8, 0.6] and [0, 1], with the first and the last as initial centroids, the second is assigned
    to the first, and these two get the centroid [0.949, 0.316].
    """
    centroids = initial.clone()
    for _ in range(iterations):
        sums = torch.zeros_like(centroids).index_add_(0, _nearest(vectors, centroids), vectors)
        nonempty = sums.norm(dim=1, keepdim=True) > 0
        centroids = torch.where(nonempty, F.normalize(sums, dim=1), centroids)
    return centroids, _nearest(vectors, centroids)


_CHUNK_SIZE = 16384
"""Vectors that are compared with all centroids at a time, to bound memory."""


def _nearest(vectors: Tensor, centroids: Tensor) -> Tensor:
    return torch.cat([(chunk @ centroids.T).argmax(1) for chunk in torch.split(vectors, _CHUNK_SIZE)])
