"""The choice of a batch of samples to label: the most uncertain, the most different, or both.

Shapes: N samples with features of D numbers, in rows of length 1, so that a squared distance is 2 - 2 cosine. Work and
memory grow with N times the number of chosen samples; no matrix N x N is computed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.int64]

_BLOCK = 4096
"""Rows whose similarities are computed at once."""


class Chosen(NamedTuple):
    """Chosen samples, in the order in which they were chosen.

    Attributes:
        indices: int64, M.
        distances: distance of each to the nearest labeled or earlier chosen sample at that time (M); infinite without
            one.
    """

    indices: Ints
    distances: Floats


class Pool:
    """Samples to choose from. A group of near-duplicates is chosen once.

    Args:
        features: float32, N x D, each row of length 1 or 0.
        groups: group of each sample (N).
        distances: squared distance of each to the nearest labeled sample (N), see :func:`nearest_distances`.
        taken: samples that were chosen before, and whose groups cannot be chosen (bool, N).

    Attributes:
        available: which samples can be chosen (bool, N).
        distances: squared distance of each to the nearest labeled or chosen sample (N).
    """

    def __init__(self, features: Floats, groups: Ints, distances: Floats, taken: NDArray[np.bool_]) -> None:
        self._features, self._groups = features, groups
        self.available = ~np.isin(groups, groups[taken])
        self.distances = np.minimum(distances, nearest_distances(features, features[taken]))

    def take(self, index: int) -> None:
        """Choose a sample."""
        self.available[self._groups == self._groups[index]] = False
        similarity = self._features @ self._features[index]
        np.minimum(self.distances, np.maximum(2 - 2 * similarity, 0), out=self.distances)

    def nearest_to_mean(self) -> int:
        """Return the available sample that is most similar to the mean of all."""
        similarity = self._features @ self._features.mean(0)
        return int(np.where(self.available, similarity, -np.inf).argmax())


def unit_rows(features: Floats) -> Floats:
    """Return features (N x D) as float32 rows of length 1; rows of zeros stay so."""
    rows = features.astype(np.float32)
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    return rows


def nearest_distances(features: Floats, labeled: Floats) -> Floats:
    """Return the squared distance of each sample to the nearest labeled one (float32, N); infinite if there is none.

    Args:
        features: N x D, rows of length 1.
        labeled: L x D, likewise.
    """
    similarity = np.full(len(features), -np.inf, dtype=np.float32)
    for start in range(0, len(features), _BLOCK):
        rows = features[start : start + _BLOCK]
        for first in range(0, len(labeled), _BLOCK):
            block = (rows @ labeled[first : first + _BLOCK].T).max(1)
            np.maximum(similarity[start : start + _BLOCK], block, out=similarity[start : start + _BLOCK])
    return np.maximum(2 - 2 * similarity, 0)


def most_uncertain(pool: Pool, count: int, uncertainty: Floats) -> Chosen:
    """Choose the samples with the highest uncertainty (N), the first of equal ones."""
    order = iter(np.argsort(-uncertainty, kind="stable").tolist())
    return _choose(pool, count, lambda: next(index for index in order if pool.available[index]))


def k_center(pool: Pool, count: int) -> Chosen:
    """Choose samples so that no other one is far from a labeled or chosen one: the farthest sample, again and again.

    The greedy solution of the k-center problem, a core-set (Sener and Savarese, Active Learning for Convolutional
    Neural Networks: A Core-Set Approach, 2018). Without labeled samples the first one is that nearest to the mean.
    """

    def farthest() -> int:
        if np.isinf(pool.distances).all():
            return pool.nearest_to_mean()
        return int(np.where(pool.available, pool.distances, -1).argmax())

    return _choose(pool, count, farthest)


def weighted_seeding(pool: Pool, count: int, uncertainty: Floats, rng: np.random.Generator) -> Chosen:
    """Draw samples with a probability in proportion to uncertainty (N) times the squared distance to the nearest
    labeled or chosen sample: the seeding of k-means++ (Arthur and Vassilvitskii 2007) with weights.

    BADGE (Ash et al. 2020) seeds in the space of gradients, whose length is the uncertainty; here length and direction
    are separate, so that it holds for any kind of predictions. Drawing avoids outliers, which :func:`k_center` prefers.
    """

    def draw() -> int:
        distances = np.where(np.isinf(pool.distances), 1, pool.distances).astype(np.float64)
        weights = np.where(pool.available, uncertainty * distances, 0)
        for fallback in (uncertainty, np.ones(len(weights))):  # all are equal to chosen ones, or certain
            if weights.sum() > 0:
                break
            weights = np.where(pool.available, fallback, 0).astype(np.float64)
        ends = np.cumsum(weights)
        position = rng.random() * ends[-1]
        return int(np.searchsorted(ends, position, "right"))

    return _choose(pool, count, draw)


def _choose(pool: Pool, count: int, next_index: Callable[[], int]) -> Chosen:
    indices, distances = list[int](), list[float]()
    while len(indices) < count and pool.available.any():
        index = next_index()
        indices.append(index)
        distances.append(float(np.sqrt(pool.distances[index])))
        pool.take(index)
    return Chosen(np.array(indices, dtype=np.int64), np.array(distances))
