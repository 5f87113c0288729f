"""k-reciprocal re-ranking by shared neighbors (Zhong et al., CVPR 2017).

Beside features there are only lists of the nearest neighbors and sparse rows, never a matrix of all pairs. The steps,
for N images, which are the queries and then the gallery:

1. the nearest neighbors of each, from products in tiles;
2. the sets of mutual neighbors, extended by the sets of those (sections 3.2 and 3.3 of the paper);
3. a row of weights over each set, falling with the distance, and its mean over the k2 nearest (3.4 and 3.6);
4. the Jaccard distance of two rows, mixed with the original distance (3.5 and 3.7), computed on request.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, vstack
from torch import Tensor
from torch.nn.functional import normalize

from opabinia.contracts import Indices
from opabinia.evaluation.retrieval.distances import Array, as_features, feature_pair, nearest_of, smallest

Variant = Literal["zhong", "fastreid"]
Metric = Literal["cosine", "euclidean"]

_TILE = 2048
"""Rows and columns of a tile of distances; memory is about 12 times its square in bytes without features and lists."""

_GRAPH_ROWS = 512
"""Rows of distances of a graph that are computed at a time."""

Sparse = Any
"""A ``scipy.sparse.csr_array``, which has no types."""


@torch.no_grad()
def k_reciprocal(
    query_features: Array,
    gallery_features: Array,
    *,
    k1: int = 20,
    k2: int = 6,
    lambda_value: float = 0.3,
    variant: Variant = "zhong",
    metric: Metric = "cosine",
) -> Reranked:
    """Re-rank the gallery for every query by shared neighbors.

    The two variants are the code of the paper's authors and that of FastReID's evaluator. They differ in the number of
    neighbors (k1 without or with the image itself), in the weights (of squared distances d² divided by the largest of
    the row; of d²) and in the original distance (d² divided by the largest of the row; 1 - cosine, or d²).

    Products run on the device of the features, all else on the CPU. Among images at equal distance the one with the
    smaller index is nearer, a query before the gallery.

    Args:
        query_features: Q x D, finite; numpy or torch.
        gallery_features: G x D, finite.
        k1: nearest neighbors of an image; half as many for those of its neighbors. All images if there are fewer.
            Defaults of this and the next two are those of the paper, section 4.
        k2: nearest neighbors, itself included, that weights are averaged over; 1 averages none. All images if there are
            fewer; "fastreid" takes at most k1.
        lambda_value: share of the original distance, 0 to 1; the rest is the Jaccard distance.
        variant: which code is followed.
        metric: distance metric of the features. "cosine": normalized, so that d² is 2 - 2 cosine.

    Raises:
        ValueError: features are empty, of unequal width or not finite, or a number is out of its range.

    Example::

        reranked = k_reciprocal(queries, gallery)  # 3,368 x 2,048 and 15,913 x 2,048
        reranked.distances(0, 100)  # 100 x 15,913
        distances, indices = reranked.nearest(10)  # 3,368 x 10 both
    """
    for name, value in {"k1": k1, "k2": k2}.items():
        if value < 1:
            raise ValueError(f"{name} is {value}; it is at least 1")
    if not 0 <= lambda_value <= 1:
        raise ValueError(f"lambda_value is {lambda_value}; it is from 0 to 1")
    if variant not in ("zhong", "fastreid"):
        raise ValueError(f'variant is {variant!r}; it is "zhong" or "fastreid"')
    if metric not in ("cosine", "euclidean"):
        raise ValueError(f'metric is {metric!r}; it is "cosine" or "euclidean"')
    query, gallery = feature_pair(query_features, gallery_features)
    if not len(query) or not len(gallery):
        raise ValueError(f"there are {len(query)} query and {len(gallery)} gallery features; it takes one of each")
    space = _FeatureSpace(torch.cat([query, gallery]), len(query), metric)
    weights, scale = _reciprocal_weights(space, k1, k2, variant)
    # 1 - cosine is half of d²
    original_scale = scale if variant == "zhong" or metric == "euclidean" else 0.5 * scale
    return Reranked(space, weights, original_scale[: space.queries], lambda_value)


@torch.no_grad()
def jaccard_graph(features: Array, radius: float, *, k1: int = 30, k2: int = 6) -> Sparse:
    """Return the Jaccard distances of images by their shared neighbors, those up to ``radius``: a sparse N x N matrix
    (float32, rows sorted by column) in which each image is at 0 from itself.

    They are those of the variant "fastreid" with cosines and without the original distances, as clusterings of
    re-identification take them (Ge et al. 2020, SpCL, and its code).

    Args:
        features: N x D, finite, at least one.
        radius: below 1, the distance of images without a shared neighbor.
        k1, k2: as in :func:`k_reciprocal`; defaults are those of SpCL.
    """
    space = _FeatureSpace(as_features("image", features).clone(), 0, "cosine")
    weights, _ = _reciprocal_weights(space, k1, k2, "fastreid")
    by_neighbor, blocks = weights.T.tocsr(), []
    for start in range(0, space.size, _GRAPH_ROWS):
        block = weights[start : start + _GRAPH_ROWS]
        distances = _jaccard_distances(_shared_weights(block, by_neighbor))
        distances[np.arange(len(distances)), np.arange(start, start + len(distances))] = 0
        rows, columns = np.nonzero(distances <= radius)
        ends = np.searchsorted(rows, np.arange(len(distances) + 1))
        blocks.append(csr_array((distances[rows, columns], columns, ends), shape=distances.shape))
    return vstack(blocks, format="csr")


def _reciprocal_weights(space: _FeatureSpace, k1: int, k2: int, variant: Variant) -> tuple[Sparse, Tensor]:
    """Return the rows of weights (N x N), and the factor of the squared distances of each image (N)."""
    zhong = variant == "zhong"
    num_neighbors = k1 + 1 if zhong else k1
    squared, nearest, farthest = _neighbors(space, min(max(num_neighbors, k2) if zhong else k1, space.size))
    neighbors = nearest.cpu().numpy()
    scale = 1 / farthest.clamp(min=torch.finfo(torch.float32).tiny) if zhong else torch.ones_like(farthest)
    # round() takes the even one of two equally near integers, as NumPy's in both originals: half of 5 neighbors is 2.
    sets = _expanded_sets(neighbors[:, :num_neighbors], round(k1 / 2) + 1)
    weights = _weights(sets, _distances_in(sets, space, neighbors, squared), scale.cpu().numpy())
    if k2 > 1:
        averaged = neighbors[:, :k2]
        weights = _neighbor_matrix(averaged, np.float32(1 / averaged.shape[1])) @ weights
    return weights, scale


class Reranked:
    """Distances of the queries to the gallery after re-ranking, computed on request.

    Args:
        space: the original distances.
        weights: N x N, rows that sum to 1.
        scale: factor of the original squared distances of each query, Q.
        lambda_value: share of the original distances.

    Attributes:
        queries: number of queries, Q.
        gallery: number of gallery images, G.
    """

    def __init__(self, space: _FeatureSpace, weights: Sparse, scale: Tensor, lambda_value: float) -> None:
        self.queries, self.gallery = space.queries, space.size - space.queries
        self._space, self._scale, self._lambda = space, scale, lambda_value
        self._weights = weights[: self.queries]
        self._gallery_by_neighbor = weights[self.queries :].T.tocsr()

    def distances(self, start: int, stop: int) -> Tensor:
        """Return the rows of queries ``start`` to ``stop`` (x G): float32, on the device of the features."""
        start, stop, _ = slice(start, stop).indices(self.queries)
        original = self._space.tile(slice(start, stop), slice(self.queries, None)) * self._scale[start:stop, None]
        shared = _shared_weights(self._weights[start:stop], self._gallery_by_neighbor)
        jaccard = torch.from_numpy(_jaccard_distances(shared)).to(original.device)
        return original.mul_(self._lambda).add_(jaccard, alpha=1 - self._lambda)

    def nearest(self, k: int) -> tuple[Tensor, Tensor]:
        """Return the k nearest gallery images of each query; see
        :func:`opabinia.evaluation.retrieval.distances.nearest_of`."""
        return nearest_of(self, k)


class _FeatureSpace:
    """Squared distances among N images, the queries first and then the gallery.

    A tile also gives the distances of its columns: half the products, and bitwise symmetric.

    Attributes:
        queries: number of queries.
        size: N.
        device: where distances are computed.
    """

    def __init__(self, features: Tensor, queries: int, metric: Metric) -> None:
        self.queries, self.size = queries, len(features)
        self.device = features.device
        self._features = features
        self._squares = self._features.square().sum(1)
        invalid = (~(4 * self._squares).isfinite()).nonzero()[:, 0].tolist()  # (x - y)² is at most 2 x² + 2 y²
        if invalid:
            row = invalid[0]
            name = f"query_features[{row}]" if row < self.queries else f"gallery_features[{row - self.queries}]"
            raise ValueError(f"{name} is not finite, or too large to be squared ({len(invalid)} of {self.size} are)")
        if metric == "cosine":
            normalize(self._features, out=self._features)
            self._squares.fill_(1)  # of a feature of zeros too, whose cosine with any other is 0

    def tiles(self) -> Iterator[tuple[slice, int, Tensor]]:
        """Yield all distances once, in tiles: the rows, the first column, and the distances. Tiles of the same rows
        come in the order of columns."""
        for start in range(0, self.size, _TILE):
            rows = slice(start, min(start + _TILE, self.size))
            yield rows, start, self.tile(rows, rows).fill_diagonal_(0)
            for later in range(rows.stop, self.size, _TILE):
                columns = slice(later, min(later + _TILE, self.size))
                tile = self.tile(rows, columns)
                yield rows, later, tile
                yield columns, start, tile.T

    def pairs(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Return the distances of single pairs."""
        count = max(1, 2**20 // self._features.shape[1])
        parts = zip(torch.split(rows, count), torch.split(columns, count), strict=True)
        products = [torch.linalg.vecdot(self._features[first], self._features[second]) for first, second in parts]
        squared = self._squares[rows] + self._squares[columns] - 2 * torch.cat(products)
        return squared.clamp_(min=0)

    def tile(self, rows: slice, columns: slice) -> Tensor:
        """Return the distances of some rows to some columns, in a new tensor."""
        tile = torch.addmm(self._squares[columns], self._features[rows], self._features[columns].T, alpha=-2)
        return tile.add_(self._squares[rows, None]).clamp_(min=0)


def _neighbors(space: _FeatureSpace, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the k nearest of each image, itself among them (squared distances, indices), and its largest squared
    distance."""
    squared = torch.full((space.size, k), torch.inf, device=space.device)
    nearest = torch.zeros(space.size, k, dtype=torch.int64, device=space.device)
    farthest = torch.zeros(space.size, device=space.device)
    for rows, first, tile in space.tiles():
        values, columns = smallest(tile, k)
        # Earlier tiles have smaller indices, so they come first of equal distances.
        squared[rows], order = smallest(torch.cat([squared[rows], values], 1), k)
        nearest[rows] = torch.cat([nearest[rows], columns + first], 1).gather(1, order)
        farthest[rows] = farthest[rows].maximum(tile.amax(1))
    return squared, nearest, farthest


def _expanded_sets(neighbors: Indices, half: int) -> Sparse:
    """Return R*: mutual neighbors, extended by the smaller sets of those that share more than 2/3 of them.

    Args:
        neighbors: the nearest of each image first, N x k.
        half: number of neighbors that the smaller sets are made of.
    """
    sets, smaller = _mutual(neighbors), _mutual(neighbors[:, :half])
    common = sets.multiply(sets @ smaller).tocsr()  # sizes of the intersections; `smaller` is its own transpose
    sizes = smaller.sum(1)
    common.data = (3 * common.data > 2 * sizes[common.indices]).astype(common.dtype)
    common.eliminate_zeros()
    expanded = (sets + common @ smaller).tocsr()
    expanded.sort_indices()
    return expanded


def _mutual(neighbors: Indices) -> Sparse:
    """Return R: ones where two images are among each other's neighbors."""
    matrix = _neighbor_matrix(neighbors, np.int32(1))
    return matrix.multiply(matrix.T).tocsr()


def _neighbor_matrix(neighbors: Indices, value: np.generic) -> Sparse:
    """Return N x N with ``value`` at the neighbors of each image."""
    count, k = neighbors.shape
    ends = np.arange(0, count * k + 1, k)
    return csr_array((np.full(count * k, value), neighbors.reshape(-1), ends), shape=(count, count))


def _distances_in(sets: Sparse, space: _FeatureSpace, neighbors: Indices, squared: Tensor) -> NDArray[np.float32]:
    """Return the squared distances at the entries of ``sets``: most are those of neighbors, others are computed."""
    order = neighbors.argsort(1)
    known = (np.arange(space.size)[:, None] * space.size + np.take_along_axis(neighbors, order, 1)).reshape(-1)
    values = np.take_along_axis(squared.cpu().numpy(), order, 1).reshape(-1)
    rows, columns = _row_indices(sets), sets.indices.astype(np.int64)
    wanted = rows * space.size + columns
    positions = np.searchsorted(known, wanted).clip(max=len(known) - 1)
    distances: NDArray[np.float32] = values[positions]
    missing = np.flatnonzero(known[positions] != wanted)
    if len(missing):
        cells = (torch.from_numpy(indices[missing]).to(space.device) for indices in (rows, columns))
        distances[missing] = space.pairs(*cells).cpu().numpy()
    return distances


def _weights(sets: Sparse, squared: NDArray[np.float32], scale: NDArray[np.float32]) -> Sparse:
    """Return exp(-d²), each row scaled and divided by its sum. Sets of images with many duplicates may be empty."""
    counts = np.diff(sets.indptr)
    starts, lengths = sets.indptr[:-1][counts > 0], counts[counts > 0]
    exponents = -squared * scale[_row_indices(sets)]
    exponents -= np.repeat(np.maximum.reduceat(exponents, starts), lengths)  # one of each row is 0: no sum vanishes
    values = np.exp(exponents)
    values /= np.repeat(np.add.reduceat(values, starts), lengths)
    return csr_array((values, sets.indices, sets.indptr), shape=sets.shape)


def _shared_weights(rows: Sparse, by_neighbor: Sparse) -> NDArray[np.float32]:
    """Return the sum over all images of the smaller of two weights (R x C).

    Args:
        rows: weights of R images (R x N).
        by_neighbor: weights of C images, transposed (N x C).
    """
    count, width = rows.shape[0], by_neighbor.shape[1]
    first = by_neighbor.indptr[rows.indices].astype(np.int64)
    lengths = by_neighbor.indptr[rows.indices + 1] - first
    # Each weight of a row meets those of others for the same neighbor: rows of `by_neighbor`, end to end.
    entry = np.repeat(np.arange(len(lengths)), lengths)
    partner = np.arange(len(entry)) + (first - lengths.cumsum() + lengths)[entry]
    smaller = np.minimum(rows.data[entry], by_neighbor.data[partner])
    cell = _row_indices(rows)[entry] * width + by_neighbor.indices[partner]
    sums = np.bincount(cell, smaller, minlength=count * width)
    return sums.astype(np.float32).reshape(count, width)


def _jaccard_distances(shared: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the distances for sums of smaller weights: rows sum to 1, so the sum of the larger weights is 2 less that
    of the smaller ones."""
    distances: NDArray[np.float32] = (1 - shared / (2 - shared)).clip(min=0)
    return distances


def _row_indices(sparse: Sparse) -> Indices:
    """Return the row of each entry."""
    return np.repeat(np.arange(sparse.shape[0]), np.diff(sparse.indptr))
