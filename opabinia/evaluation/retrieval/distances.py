"""Distances of queries to a gallery, block by block: the full matrix is never in memory.

Rankings are reproducible. Among equal distances the one that comes first in the gallery is nearer. Bitwise identical
rows of the gallery get the same distance: it is computed for the first of them and copied. Products are computed in
tiles whose number of queries depends on the size of the gallery only.
Floating-point noise remains: another device, number of threads or library version may swap images whose
distances differ in the last bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from opabinia.contracts import DataMismatch

Array = NDArray[Any] | Tensor
Metric = Literal["cosine", "euclidean", "squared_euclidean"]
"""``cosine`` is 1 - cos, 0 to 2. FastReID's ``euclidean`` is squared_euclidean here; the two rank alike."""

METRICS: tuple[Metric, ...] = ("cosine", "euclidean", "squared_euclidean")


class Distances(Protocol):
    """Distances of Q queries to G gallery images.

    Attributes:
        queries: Q.
        gallery: G.
    """

    queries: int
    gallery: int

    def distances(self, start: int, stop: int) -> Tensor:
        """Return those of queries ``start`` to ``stop`` (floats, (stop - start) x G). The caller may write into them;
        so may the next call."""
        ...


class FeatureDistances:
    """Distances between features (:class:`Distances`).

    The cosine of a vector of length 0 is 0. ``euclidean`` is ranked by its square: the root would only make neighboring
    numbers equal.

    Args:
        query: Q x D, numbers of any type; computation is in float32, on the device of the query.
        gallery: G x D.
        metric: see :data:`Metric`.

    Raises:
        ValueError: shapes do not fit, a feature is not finite, or the metric is unknown.
    """

    def __init__(self, query: Array, gallery: Array, metric: Metric = "cosine") -> None:
        if metric not in METRICS:
            raise ValueError(f"no metric {metric!r}; there are: {', '.join(METRICS)}")
        query, gallery = feature_pair(query, gallery)
        self._copies, self._originals = _duplicate_rows(gallery)
        query_norms, gallery_norms = (
            torch.linalg.vector_norm(rows, dim=1) if metric == "cosine" else torch.linalg.vecdot(rows, rows)
            for rows in (query, gallery)
        )
        _check_finite("query", query, query_norms)
        _check_finite("gallery", gallery, gallery_norms)
        if metric == "cosine":
            query_norms, gallery_norms = query_norms.clamp(min=1e-12), gallery_norms.clamp(min=1e-12).reciprocal()
        self._cosine, self._one = metric == "cosine", gallery_norms.new_ones(1)
        self.queries, self.gallery = len(query), len(gallery)
        self._query, self._gallery = query, gallery
        self._query_norms, self._gallery_norms = query_norms[:, None], gallery_norms
        self._tile = tile_size(len(gallery))
        self._buffer = query.new_empty(0)

    def distances(self, start: int, stop: int) -> Tensor:
        """Return the distances that rank the gallery: 1 - cos, or squared Euclidean; see :class:`Distances`.

        ``start`` must be a multiple of ``tile_size(G)`` for bitwise identical results.
        """
        if len(self._buffer) < stop - start:  # allocated once: new memory costs more than a pass over it
            self._buffer = self._query.new_empty(stop - start, self.gallery)
        block = self._buffer[: stop - start]
        for first in range(start, stop, self._tile):
            last = min(first + self._tile, stop)
            query, norms = self._query[first:last], self._query_norms[first:last]
            tile = block[first - start : last - start]
            if self._cosine:  # a normalized copy of the gallery would take twice the memory
                torch.mm(query / norms, self._gallery.T, out=tile)
                torch.addcmul(self._one, tile, self._gallery_norms, value=-1, out=tile)
            else:
                torch.addmm(self._gallery_norms, query, self._gallery.T, alpha=-2, out=tile)
                tile += norms
            tile.clamp_(min=0)
        if len(self._copies):
            block[:, self._copies] = block[:, self._originals]
        return block


class MatrixDistances:
    """Distances computed elsewhere (:class:`Distances`).

    Args:
        matrix: Q x G.

    Raises:
        ValueError: it is no matrix, or a distance is not a number.
    """

    def __init__(self, matrix: Array) -> None:
        self._matrix = as_tensor(matrix)
        if self._matrix.ndim != 2:
            raise ValueError(f"distances must be Q x G, not of shape {tuple(self._matrix.shape)}")
        self.queries, self.gallery = self._matrix.shape
        invalid = torch.cat([rows.isnan().any(1) for rows in torch.split(self._matrix, 512)])
        if invalid.any():
            raise ValueError(f"distances of query {int(invalid.nonzero()[0])} are not numbers (NaN)")

    def distances(self, start: int, stop: int) -> Tensor:
        """See :class:`Distances`. Doubles and integers are not rounded to float32, which would make ties."""
        given = self._matrix.dtype
        dtype = torch.promote_types(given, torch.float32) if given.is_floating_point else torch.float64
        return self._matrix[start:stop].to(dtype, copy=True)


def nearest(query_features: Array, gallery_features: Array, k: int, metric: Metric = "cosine") -> tuple[Tensor, Tensor]:
    """Return the k nearest gallery images of each query, nearest first; see :func:`nearest_of`.

    Args:
        query_features: Q x D.
        gallery_features: G x D.
        k: at least 1; all of a smaller gallery.
        metric: see :data:`Metric`.

    Raises:
        ValueError: see :class:`FeatureDistances` and :func:`nearest_of`.
    """
    values, columns = nearest_of(FeatureDistances(query_features, gallery_features, metric), k)
    return values.sqrt() if metric == "euclidean" else values, columns


def nearest_of(source: Distances, k: int) -> tuple[Tensor, Tensor]:
    """Return distances (float32, Q x k) and gallery indices (int64, Q x k) of the k nearest images of each query,
    nearest first. Among equal distances the one that comes first in the gallery is nearer.

    Args:
        source: the distances.
        k: at least 1; all of a smaller gallery.

    Raises:
        ValueError: there is no query, or ``k`` is less than 1.
    """
    if k < 1:
        raise ValueError(f"k is {k}; it is at least 1")
    blocks = [smallest(source.distances(*span), k) for span in query_blocks(source)]
    if not blocks:
        raise ValueError("there is no query")
    values, columns = zip(*blocks, strict=True)
    return torch.cat(values), torch.cat(columns)


def smallest(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k smallest of each row, ascending, and their columns (both B x k); of equal ones the smaller column
    first.

    Args:
        values: B x G, without NaN.
        k: at least 1; all of a shorter row.
    """
    if k >= values.shape[1]:
        whole = values.sort(dim=1, stable=True)
        return whole.values, whole.indices
    candidates, columns = values.topk(k + 1, largest=False)
    candidates, columns, next_value = candidates[:, :k], columns[:, :k], candidates[:, k:]
    # topk may take any of equal values: if the next value equals the last, take the first columns instead.
    tied = (candidates[:, -1:] == next_value).nonzero()[:, 0]
    rows, last = values[tied], next_value[tied]
    equal, below = rows == last, rows < last
    taken = below | (equal & (equal.cumsum(1) <= k - below.sum(1, keepdim=True)))
    columns[tied] = taken.nonzero()[:, 1].view(-1, k)
    columns = columns.sort(1).values
    sorted_values, order = values.gather(1, columns).sort(dim=1, stable=True)
    return sorted_values, columns.gather(1, order)


def tile_size(gallery: int) -> int:
    """Return the number of queries per matrix product: a power of two, 16 to 1,024; 512 MiB where that allows.

    Products of fewer rows take longer, because the whole gallery is read for each.
    """
    return 1 << (min(1024, max(16, 2**27 // max(1, gallery))).bit_length() - 1)


def query_blocks(source: Distances) -> Iterator[tuple[int, int]]:
    """Yield the first and last (exclusive) query of each tile; the distances of one are held at once."""
    tile = tile_size(source.gallery)
    for start in range(0, source.queries, tile):
        yield start, min(start + tile, source.queries)


def feature_pair(query: Array, gallery: Array) -> tuple[Tensor, Tensor]:
    """Return query (Q x D) and gallery features (G x D) as float32 on the device of the query.

    Raises:
        ValueError: shapes do not fit.
    """
    query, gallery = as_features("query", query), as_features("gallery", gallery)
    if query.shape[1] != gallery.shape[1]:
        raise ValueError(f"query features have {query.shape[1]} numbers, gallery features {gallery.shape[1]}")
    return query, gallery.to(query.device)


def as_features(name: str, features: Array) -> Tensor:
    """Return ``features`` as float32, N x D.

    Raises:
        ValueError: they have another shape.
    """
    rows = as_tensor(features)
    if rows.ndim != 2 or not rows.shape[1]:
        raise ValueError(f"{name} features must be N x D, not of shape {tuple(rows.shape)}")
    return rows.detach().float()


def as_tensor(array: Array) -> Tensor:
    """Return a tensor of the same memory, or a copy of an array with negative strides or that is read-only."""
    if isinstance(array, np.ndarray) and (min(array.strides, default=0) < 0 or not array.flags.writeable):
        array = array.copy()
    return torch.as_tensor(array)


def _check_finite(name: str, features: Tensor, norms: Tensor) -> None:
    """``norms``, one per row, are finite only if all numbers of the row are."""
    if not norms.isfinite().all():
        row = int((~norms.isfinite()).nonzero()[0])
        invalid = features[row][~features[row].isfinite()]
        problem = f"holds {float(invalid[0])}" if len(invalid) else "is too long for float32"
        raise DataMismatch(f"row {row} of the {name} features {problem}")


def _duplicate_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the indices of rows that are bitwise equal to an earlier one, and of the first that they equal (int64).

    Rows are grouped by their first numbers, those that are not alone by the next ones, and so on: of features that
    differ, few numbers are looked at twice.
    """
    remaining = torch.arange(len(rows), device=rows.device)
    group, start, width = torch.zeros_like(remaining), 0, 16
    while len(remaining) and start < rows.shape[1]:
        numbers = rows[:, start : start + width][remaining].view(torch.int32)
        keys = torch.cat([group[:, None], numbers], 1)
        _, group, counts = torch.unique(keys, dim=0, return_inverse=True, return_counts=True)
        several = counts[group] > 1
        remaining, group = remaining[several], group[several]
        start, width = start + width, min(2 * width, 256)
    # A stable sort rather than a minimum by group (scatter_reduce), which torch refuses on CUDA in deterministic mode.
    sorted_group, order = group.sort(stable=True)
    first = remaining[order[torch.searchsorted(sorted_group, group)]]
    return remaining[first != remaining], first[first != remaining]
