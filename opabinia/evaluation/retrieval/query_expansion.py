"""Query expansion: each feature is replaced by a mean over its neighbors."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from opabinia.evaluation.retrieval.distances import Array, feature_pair, nearest


def expand_features(
    query_features: Array,
    gallery_features: Array,
    *,
    k: int = 5,
    alpha: float = 3.0,
    times: int = 1,
) -> tuple[Tensor, Tensor]:
    """Return features after alpha query expansion (Radenović et al. 2019, section 3.4) of queries and gallery alike, as
    FastReID does it.

    Every feature becomes the mean over its k nearest ones by cosine among queries and gallery, itself included, each
    weighted by cosine ** alpha. Features are averaged as they are, and the mean is not normalized. A neighbor with a
    negative cosine has weight 0. If there are fewer features than k, all are taken.

    Args:
        query_features: Q x D.
        gallery_features: G x D.
        k: neighbors, itself included (FastReID's default in configs).
        alpha: larger values weight distant neighbors less; 0 is the plain mean of Chum et al. 2007.
        times: number of repetitions.

    Returns: new features, Q x D and G x D (float32). No matrix of size (Q + G) x (Q + G) is held.

    Raises:
        ValueError: features do not fit or are not finite, or a number is out of its range.
    """
    query, gallery = feature_pair(query_features, gallery_features)
    if k < 1 or times < 0 or not 0 <= alpha < math.inf:
        raise ValueError(f"k must be at least 1, times and alpha at least 0; not k={k}, times={times}, alpha={alpha}")
    features = torch.cat([query, gallery])
    for _ in range(times):
        distances, neighbors = nearest(features, features, k)
        weights = (1 - distances).clamp(min=0) ** alpha / distances.shape[1]
        # A weighted sum of rows that never holds the k x D numbers of all features.
        features = F.embedding_bag(neighbors, features, mode="sum", per_sample_weights=weights)
    return features[: len(query)], features[len(query) :]
