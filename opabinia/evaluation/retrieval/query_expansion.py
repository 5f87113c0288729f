"""Query expansion: a feature is replaced by a mean over its neighbours."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from opabinia.evaluation.retrieval.distances import Array, as_features, nearest


def alpha(
    query_features: Array,
    gallery_features: Array,
    *,
    k: int = 5,
    alpha: float = 3.0,
    times: int = 1,
    block: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Alpha query expansion (Radenović et al. 2019, section 3.4), of queries and gallery alike, as FastReID does it.

    Every feature becomes the mean over its k nearest ones by cosine, itself being one of them, each weighted by
    cosine ** alpha. Neighbours are looked for among queries and gallery together; features are averaged as they are and
    the mean is not brought to length 1. A neighbour that points away (a cosine below 0) has weight 0: to the power of
    alpha it would be no number, or would push. Of fewer features than k all are taken.

    Args:
        query_features: Q x D.
        gallery_features: G x D.
        k: neighbours, itself included (FastReID's default in configs).
        alpha: the larger, the less do far ones count; 0 is the plain mean of Chum et al. 2007.
        times: how often the whole is done.
        block: see :func:`opabinia.evaluation.retrieval.distances.blocks`; nothing of size (Q + G) x (Q + G) is held.

    Returns: new features, Q x D and G x D (float32).

    Raises:
        ValueError: features do not fit or are not finite, or a number is out of its range.
    """
    query, gallery = as_features("query", query_features), as_features("gallery", gallery_features)
    if query.shape[1] != gallery.shape[1]:
        raise ValueError(f"query features have {query.shape[1]} numbers, gallery features {gallery.shape[1]}")
    if k < 1 or times < 0 or not 0 <= alpha < math.inf:
        raise ValueError(f"k is to be at least 1, times and alpha at least 0; not k={k}, times={times}, alpha={alpha}")
    features = torch.cat([query, gallery.to(query.device)])
    for _ in range(times):
        features = _expanded(features, k, alpha, block)
    return features[: len(query)], features[len(query) :]


def _expanded(features: Tensor, k: int, alpha: float, block: int | None) -> Tensor:
    distances, neighbours = nearest(features, features, k, "cosine", block=block)
    weights = (1 - distances).clamp(min=0) ** alpha / distances.shape[1]
    # A bag of rows, weighted and summed: the k x D numbers of each feature are never held for all of them.
    return F.embedding_bag(neighbours, features, mode="sum", per_sample_weights=weights)
