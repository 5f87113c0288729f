"""k-reciprocal re-ranking: who is near to the same things is near to each other. Zhong et al., CVPR 2017.

Beside features there are only lists of the nearest and sparse rows, never a matrix of all pairs. How it goes, for N
things, which are the queries and then the gallery:

1. the nearest of each, from products in tiles;
2. who is among each other's nearest, widened by the sets of those (sections 3.2 and 3.3 of the paper);
3. a row of weights over that set, falling with the distance, and its mean over the k2 nearest (3.4 and 3.6);
4. the Jaccard distance of two rows, mixed with the distance that there was (3.5 and 3.7), when it is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor
from torch.nn.functional import normalize

from opabinia.contracts import Indices
from opabinia.evaluation.retrieval.distances import Array, as_tensor, smallest

Variant = Literal["zhong", "fastreid"]
Metric = Literal["cosine", "euclidean"]

Sparse = Any
"""A ``scipy.sparse.csr_array``, which brings no types."""


def k_reciprocal(
    query_features: Array,
    gallery_features: Array,
    *,
    k1: int = 20,
    k2: int = 6,
    lambda_value: float = 0.3,
    variant: Variant = "zhong",
    metric: Metric = "cosine",
    block: int = 2048,
) -> Reranked:
    """Re-rank the gallery for every query by the neighbours that they share.

    The two variants are what the paper's authors published and what FastReID's evaluator runs. They differ in the
    number of neighbours (k1 beside itself; k1 with itself), in the weights (of squared distances d² divided by the
    largest of the row; of d²) and in what is mixed in (d² divided by the largest of the row; 1 - cosine, or d²).

    Products run where the features are, all else on the CPU. Of things at equal distance the one with the smaller index
    is nearer, a query before the gallery.

    Args:
        query_features: Q x D, finite; numpy or torch.
        gallery_features: G x D, finite.
        k1: nearest neighbours of a thing; those of its neighbours are half as many. All there are if there are fewer.
            This and the next two from the paper, section 4.
        k2: nearest neighbours, with itself, that the mean is taken over; 1 takes none. All there are if there are
            fewer; "fastreid" keeps k1 and takes no more.
        lambda_value: share of the distance before, 0 to 1; the rest is the Jaccard distance.
        variant: whose rule.
        metric: how features are compared. "cosine": at length 1, so that d² is 2 - 2 cosine.
        block: rows and columns of a tile; memory is about 12 block² bytes beside features and lists.

    Raises:
        ValueError: Features are empty, of unequal width or not finite, or a number is out of its range.

    Example::

        found = k_reciprocal(queries, gallery)  # 3,368 x 2,048 and 15,913 x 2,048
        found.distances(0, 100)  # 100 x 15,913
        distances, indices = found.nearest(10)  # 3,368 x 10 both
    """
    _check_numbers(k1, k2, lambda_value, variant, block)
    if metric not in ("cosine", "euclidean"):
        raise ValueError(f'metric is {metric!r}; it is "cosine" or "euclidean"')
    space = _Features(as_tensor(query_features), as_tensor(gallery_features), metric, block)
    return _rerank(space, k1, k2, lambda_value, variant)


def k_reciprocal_from_distances(
    query_gallery: Array,
    query_query: Array,
    gallery_gallery: Array,
    *,
    k1: int = 20,
    k2: int = 6,
    lambda_value: float = 0.3,
    variant: Variant = "zhong",
    block: int = 256,
) -> Reranked:
    """Re-rank by distances that somebody else measured.

    Euclidean ones give what :func:`k_reciprocal` gives of their features with ``metric="euclidean"``. They are squared
    here; where the two directions differ, the distance *to* a thing counts, as in Zhong's function.

    Args:
        query_gallery: Q x G, not negative (what rounding leaves below 0 passes); numpy or torch.
        query_query: Q x Q.
        gallery_gallery: G x G.
        k1, k2, lambda_value, variant: as of :func:`k_reciprocal`.
        block: rows looked at together.

    Raises:
        ValueError: The sizes do not fit, a distance is negative or not finite, or a number is out of its range.
    """
    _check_numbers(k1, k2, lambda_value, variant, block)
    space = _Given(as_tensor(query_gallery), as_tensor(query_query), as_tensor(gallery_gallery), block)
    return _rerank(space, k1, k2, lambda_value, variant)


class Reranked:
    """Distances of the queries to the gallery after re-ranking, computed when they are asked for.

    Attributes:
        queries: how many there are, Q.
        gallery: how many things are searched, G.
    """

    def __init__(self, space: _Space, weights: Sparse, scale: Tensor, lambda_value: float) -> None:
        """Take what distances are made of.

        Args:
            space: distances before.
            weights: N x N, rows that sum to 1.
            scale: what turns squared distances of a query into those that are mixed in, Q.
            lambda_value: their share.
        """
        self.queries, self.gallery = space.queries, space.size - space.queries
        self._space, self._scale, self._lambda = space, scale, lambda_value
        self._weights = weights[: self.queries]
        self._gallery_by_neighbour = weights[self.queries :].T.tocsr()

    def distances(self, start: int, stop: int) -> Tensor:
        """Of queries ``start`` to ``stop`` to the whole gallery: float32, on the device of the features."""
        start, stop, _ = slice(start, stop).indices(self.queries)
        before = self._space.to_gallery(start, stop) * self._scale[start:stop, None]
        shared = torch.from_numpy(self._shared(start, stop)).to(before.device)
        # Rows sum to 1, so the sum of the larger weights is 2 less that of the smaller ones.
        jaccard = (1 - shared / (2 - shared)).clamp_(min=0)
        return before.mul_(self._lambda).add_(jaccard, alpha=1 - self._lambda)

    def nearest(self, k: int, *, block: int = 256) -> tuple[Tensor, Tensor]:
        """The k nearest of the gallery for each query, nearest first; of equal ones the first.

        Args:
            k: at least 1; all there are if there are fewer.
            block: queries looked at together.

        Returns:
            Distances (float32) and indices into the gallery (int64), Q x k both.
        """
        for name, value in {"k": k, "block": block}.items():
            if value < 1:
                raise ValueError(f"{name} is {value}; it is at least 1")
        found = [smallest(self.distances(start, start + block), k) for start in range(0, self.queries, block)]
        return torch.cat([values for values, _ in found]), torch.cat([columns for _, columns in found])

    def _shared(self, start: int, stop: int) -> NDArray[np.float32]:
        """Sum over all things of the smaller weight of the two: (stop - start) x G."""
        mine, theirs = self._weights[start:stop], self._gallery_by_neighbour
        first = theirs.indptr[mine.indices].astype(np.int64)
        lengths = theirs.indptr[mine.indices + 1] - first
        # Each weight of mine meets those that the gallery has for the same thing: rows of `theirs`, end to end.
        entry = np.repeat(np.arange(len(lengths)), lengths)
        met = np.arange(len(entry)) + (first - lengths.cumsum() + lengths)[entry]
        smaller = np.minimum(mine.data[entry], theirs.data[met])
        cell = _row_numbers(mine)[entry] * self.gallery + theirs.indices[met]
        sums = np.bincount(cell, smaller, minlength=(stop - start) * self.gallery)
        return sums.astype(np.float32).reshape(stop - start, self.gallery)


# --- distances before -------------------------------------------------------------------------------------------------


class _Space(Protocol):
    """Squared distances among N things, the queries first and then the gallery.

    Attributes:
        queries: how many of the things are queries.
        size: N.
        unit: times a squared distance is the distance that FastReID's evaluator mixes in.
        device: where distances are computed.
    """

    queries: int
    size: int
    unit: float
    device: torch.device

    def tiles(self) -> Iterator[tuple[slice, int, Tensor]]:
        """All of them once, in pieces: of which rows, from which column on, and the distances. Those of the same rows
        come in the order of columns."""
        ...

    def pairs(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Those of single pairs."""
        ...

    def to_gallery(self, start: int, stop: int) -> Tensor:
        """Those of queries ``start`` to ``stop``, in a tensor of its own."""
        ...


class _Features:
    """Distances of features. A tile gives those of its columns as well: half the products, and both ways the same."""

    def __init__(self, query: Tensor, gallery: Tensor, metric: Metric, block: int) -> None:
        for name, features in {"query_features": query, "gallery_features": gallery}.items():
            if features.ndim != 2 or not features.numel():
                raise ValueError(f"{name} has shape {tuple(features.shape)}; it is things x width, and not empty")
        if query.shape[1] != gallery.shape[1]:
            widths = f"{query.shape[1]} and {gallery.shape[1]}"
            raise ValueError(f"query_features and gallery_features are {widths} wide; they are of one network")
        if query.device != gallery.device:
            devices = f"{query.device} and {gallery.device}"
            raise ValueError(f"query_features and gallery_features are on {devices}; they are on one device")
        self.queries, self.size = len(query), len(query) + len(gallery)
        self.device = query.device
        self._features = torch.cat([query.detach().float(), gallery.detach().float()])
        self._squares = self._features.square().sum(1)
        self._check_finite()
        self.unit = 1.0
        if metric == "cosine":
            self.unit = 0.5
            normalize(self._features, out=self._features)
            self._squares.fill_(1)  # of a feature of zeros too, whose cosine with any other is 0
        self._block = block

    def _check_finite(self) -> None:
        wrong = (~(4 * self._squares).isfinite()).nonzero()[:, 0].tolist()  # (x - y)² is at most 2 x² + 2 y²
        if wrong:
            query = wrong[0] < self.queries
            where = f"query_features[{wrong[0]}]" if query else f"gallery_features[{wrong[0] - self.queries}]"
            raise ValueError(f"{where} is not finite, or too large to be squared ({len(wrong)} of {self.size} are)")

    def tiles(self) -> Iterator[tuple[slice, int, Tensor]]:
        for start in range(0, self.size, self._block):
            rows = slice(start, min(start + self._block, self.size))
            yield rows, start, self._tile(rows, rows).fill_diagonal_(0)
            for later in range(rows.stop, self.size, self._block):
                columns = slice(later, min(later + self._block, self.size))
                tile = self._tile(rows, columns)
                yield rows, later, tile
                yield columns, start, tile.T

    def pairs(self, rows: Tensor, columns: Tensor) -> Tensor:
        count = max(1, 2**20 // self._features.shape[1])
        some = (slice(first, first + count) for first in range(0, len(rows), count))
        products = [torch.linalg.vecdot(self._features[rows[few]], self._features[columns[few]]) for few in some]
        squared = self._squares[rows] + self._squares[columns] - 2 * torch.cat(products)
        return squared.clamp_(min=0)

    def to_gallery(self, start: int, stop: int) -> Tensor:
        return self._tile(slice(start, stop), slice(self.queries, None))

    def _tile(self, rows: slice, columns: slice) -> Tensor:
        some, others = self._features[rows], self._features[columns]
        tile = torch.addmm(self._squares[columns], some, others.T, alpha=-2)
        return tile.add_(self._squares[rows, None]).clamp_(min=0)


class _Given:
    """Distances that were measured elsewhere. Row i holds those *to* thing i: the column of what was given."""

    unit = 1.0

    def __init__(self, query_gallery: Tensor, query_query: Tensor, gallery_gallery: Tensor, block: int) -> None:
        if query_gallery.ndim != 2 or not query_gallery.numel():
            shape = tuple(query_gallery.shape)
            raise ValueError(f"query_gallery has shape {shape}; it is queries x gallery, and not empty")
        self.queries, gallery = query_gallery.shape
        _check_distances("query_gallery", query_gallery, self.queries, gallery)
        _check_distances("query_query", query_query, self.queries, self.queries)
        _check_distances("gallery_gallery", gallery_gallery, gallery, gallery)
        self.size, self.device = self.queries + gallery, query_gallery.device
        self._given = query_gallery, query_query, gallery_gallery
        self._block = block

    def tiles(self) -> Iterator[tuple[slice, int, Tensor]]:
        query_gallery, query_query, gallery_gallery = self._given
        for some in self._blocks(self.queries):
            to_queries = torch.cat([query_query[:, some].T, query_gallery[some]], 1)
            yield some, 0, to_queries.float().square_()
        for some in self._blocks(self.size - self.queries):
            to_gallery = torch.cat([query_gallery[:, some], gallery_gallery[:, some]])
            rows = slice(self.queries + some.start, self.queries + some.stop)
            yield rows, 0, to_gallery.float().square_().T.contiguous()

    def pairs(self, rows: Tensor, columns: Tensor) -> Tensor:
        query_gallery, query_query, gallery_gallery = self._given
        to_query, of_query = rows < self.queries, columns < self.queries
        found = torch.empty(len(rows), device=self.device)
        for which, given, first, second in (
            (to_query & of_query, query_query, columns, rows),
            (to_query & ~of_query, query_gallery, rows, columns - self.queries),
            (~to_query & of_query, query_gallery, columns, rows - self.queries),
            (~to_query & ~of_query, gallery_gallery, columns - self.queries, rows - self.queries),
        ):
            found[which] = given[first[which], second[which]].float()
        return found.square_()

    def to_gallery(self, start: int, stop: int) -> Tensor:
        return self._given[0][start:stop].float().square()

    def _blocks(self, count: int) -> Iterator[slice]:
        return (slice(start, min(start + self._block, count)) for start in range(0, count, self._block))


def _check_distances(name: str, given: Tensor, height: int, width: int) -> None:
    if given.shape != (height, width):
        raise ValueError(f"{name} has shape {tuple(given.shape)}; beside this query_gallery it is {height} x {width}")
    lowest, highest = (float(value) for value in given.aminmax())
    if not (math.isfinite(lowest) and math.isfinite(highest)):
        raise ValueError(f"{name} holds a distance that is not finite")
    if lowest < -1e-4 * highest:
        raise ValueError(f"{name} holds {lowest:g}; distances are not negative (of similarities: 1 - similarity)")


# --- re-ranking -------------------------------------------------------------------------------------------------------


def _check_numbers(k1: int, k2: int, lambda_value: float, variant: Variant, block: int) -> None:
    for name, value in {"k1": k1, "k2": k2, "block": block}.items():
        if value < 1:
            raise ValueError(f"{name} is {value}; it is at least 1")
    if not 0 <= lambda_value <= 1:
        raise ValueError(f"lambda_value is {lambda_value}; it is from 0 to 1")
    if variant not in ("zhong", "fastreid"):
        raise ValueError(f'variant is {variant!r}; it is "zhong" or "fastreid"')


@torch.no_grad()
def _rerank(space: _Space, k1: int, k2: int, lambda_value: float, variant: Variant) -> Reranked:
    near = k1 + 1 if variant == "zhong" else k1
    kept = min(max(near, k2) if variant == "zhong" else near, space.size)
    squared, nearest, farthest = _neighbours(space, kept)
    if variant == "zhong":
        scale = 1 / farthest.clamp(min=torch.finfo(torch.float32).tiny)
        mixed = scale
    else:
        scale = torch.ones_like(farthest)
        mixed = scale * space.unit
    neighbours = nearest.cpu().numpy()
    # round() goes to the even one of two as near, as NumPy's does in both originals: 5 neighbours have halves of 2.
    sets = _expanded(neighbours[:, :near], round(k1 / 2) + 1)
    weights = _weights(sets, _distances_in(sets, space, neighbours, squared), scale.cpu().numpy())
    if k2 > 1:
        first = neighbours[:, :k2]
        weights = _lists(first, np.float32(1 / first.shape[1])) @ weights
    return Reranked(space, weights, mixed[: space.queries], lambda_value)


def _neighbours(space: _Space, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """The k nearest of each thing, itself among them (squared distances, numbers); and its largest squared distance."""
    squared = torch.full((space.size, k), torch.inf, device=space.device)
    nearest = torch.zeros(space.size, k, dtype=torch.int64, device=space.device)
    farthest = torch.zeros(space.size, device=space.device)
    for rows, first, tile in space.tiles():
        values, columns = smallest(tile, k)
        # What was found before has smaller numbers, and so comes first of what is equally far.
        squared[rows], order = smallest(torch.cat([squared[rows], values], 1), k)
        nearest[rows] = torch.cat([nearest[rows], columns + first], 1).gather(1, order)
        farthest[rows] = farthest[rows].maximum(tile.amax(1))
    return squared, nearest, farthest


def _expanded(neighbours: Indices, half: int) -> Sparse:
    """R*: who is among each other's neighbours, with the like of each that has more than 2/3 in common.

    Args:
        neighbours: the nearest of each thing first, N x k.
        half: how many of them the sets that are added are made of.
    """
    sets, smaller = _mutual(neighbours), _mutual(neighbours[:, :half])
    common = sets.multiply(sets @ smaller).tocsr()  # how many two sets share; `smaller` is its own transpose
    sizes = smaller.sum(1)
    common.data = (3 * common.data > 2 * sizes[common.indices]).astype(common.dtype)
    common.eliminate_zeros()
    expanded = (sets + common @ smaller).tocsr()
    expanded.sort_indices()
    return expanded


def _mutual(neighbours: Indices) -> Sparse:
    """R: ones where two things are among each other's neighbours."""
    lists = _lists(neighbours, np.int32(1))
    return lists.multiply(lists.T).tocsr()


def _lists(neighbours: Indices, value: np.generic) -> Sparse:
    """N x N with ``value`` at the neighbours of each thing."""
    count, k = neighbours.shape
    ends = np.arange(0, count * k + 1, k)
    return csr_array((np.full(count * k, value), neighbours.reshape(-1), ends), shape=(count, count))


def _distances_in(sets: Sparse, space: _Space, neighbours: Indices, squared: Tensor) -> NDArray[np.float32]:
    """Squared distances at the entries of ``sets``: most stand in the lists of neighbours, the others are computed."""
    order = neighbours.argsort(1)
    cells = np.arange(space.size)[:, None] * space.size + np.take_along_axis(neighbours, order, 1)
    known = cells.reshape(-1)
    values = np.take_along_axis(squared.cpu().numpy(), order, 1).reshape(-1)
    rows, columns = _row_numbers(sets), sets.indices.astype(np.int64)
    wanted = rows * space.size + columns
    places = np.searchsorted(known, wanted).clip(max=len(known) - 1)
    found: NDArray[np.float32] = values[places]
    missing = np.flatnonzero(known[places] != wanted)
    if len(missing):
        asked = (torch.from_numpy(numbers[missing]).to(space.device) for numbers in (rows, columns))
        found[missing] = space.pairs(*asked).cpu().numpy()
    return found


def _weights(sets: Sparse, squared: NDArray[np.float32], scale: NDArray[np.float32]) -> Sparse:
    """exp(-d²), each row scaled and divided by its sum. A thing with many doubles may have an empty set, and no row."""
    counts = np.diff(sets.indptr)
    starts, there = sets.indptr[:-1][counts > 0], counts[counts > 0]
    exponents = -squared * scale[_row_numbers(sets)]
    exponents -= np.repeat(np.maximum.reduceat(exponents, starts), there)  # one of each row is 0: no sum vanishes
    values = np.exp(exponents)
    values /= np.repeat(np.add.reduceat(values, starts), there)
    return csr_array((values, sets.indices, sets.indptr), shape=sets.shape)


def _row_numbers(sparse: Sparse) -> Indices:
    """The row of each entry."""
    return np.repeat(np.arange(sparse.shape[0]), np.diff(sparse.indptr))
