"""Distances of queries to a gallery, some queries at a time: never a matrix of all of them.

Which of two gallery images is nearer must not hang on chance. Three things see to it. Equal distances are told apart by
the order of the gallery. Rows of the gallery that are the same bit by bit get the same distance: it is computed for the
first of them and copied. And products are computed in tiles of so many queries as the size of the gallery says, so that
the number of queries held at once changes no bit. What remains is float noise: another device, number of threads or
version of a library may swap images whose distances differ in the last bits.
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
"""``cosine`` is 1 - cos, 0 to 2. FastReID's ``euclidean`` is what is called squared_euclidean here; they rank alike."""

METRICS: tuple[Metric, ...] = ("cosine", "euclidean", "squared_euclidean")


class Distances(Protocol):
    """Of Q queries to G gallery images.

    Attributes:
        queries: Q.
        gallery: G.
    """

    @property
    def queries(self) -> int: ...

    @property
    def gallery(self) -> int: ...

    def distances(self, start: int, stop: int) -> Tensor:
        """Those of queries ``start`` to ``stop`` (floats, (stop - start) x G). The caller may write into them; the
        next call may, too."""
        ...


class FeatureDistances:
    """Distances between features (:class:`Distances`).

    The cosine of a vector of length 0 is taken as 0. ``euclidean`` is ranked by its square: the root would only make
    neighbouring numbers equal.

    Args:
        query: Q x D, numbers of any type; they are computed with in float32, on the device of the query.
        gallery: G x D.
        metric: what is computed.

    Raises:
        ValueError: shapes do not fit, a feature is not finite, or there is no such metric.
    """

    def __init__(self, query: Array, gallery: Array, metric: Metric = "cosine") -> None:
        if metric not in METRICS:
            raise ValueError(f"no metric {metric!r}; there are: {', '.join(METRICS)}")
        query, gallery = as_features("query", query), as_features("gallery", gallery)
        gallery = gallery.to(query.device)
        if query.shape[1] != gallery.shape[1]:
            raise ValueError(f"query features have {query.shape[1]} numbers, gallery features {gallery.shape[1]}")
        self._copies, self._originals = _copies(gallery)
        size = torch.linalg.vector_norm if metric == "cosine" else _squared_length
        of_query, of_gallery = (size(one, dim=1) for one in (query, gallery))
        _refuse_infinite("query", query, of_query)
        _refuse_infinite("gallery", gallery, of_gallery)
        if metric == "cosine":
            of_query, of_gallery = of_query.clamp(min=1e-12), of_gallery.clamp(min=1e-12).reciprocal()
        self._cosine, self._one = metric == "cosine", of_gallery.new_ones(1)
        self._query, self._gallery = query, gallery
        self._of_query, self._of_gallery = of_query[:, None], of_gallery
        self._tile = tile(len(gallery))
        self._held = query.new_empty(0)

    @property
    def queries(self) -> int:
        """Q."""
        return len(self._query)

    @property
    def gallery(self) -> int:
        """G."""
        return len(self._gallery)

    def distances(self, start: int, stop: int) -> Tensor:
        """What ranks the gallery for these queries: 1 - cos, or squared Euclidean distances; see :class:`Distances`.

        ``start`` is to be a multiple of ``tile(G)`` where every bit matters.
        """
        if len(self._held) < stop - start:  # made once: new memory costs more than a pass over it
            self._held = self._query.new_empty(stop - start, self.gallery)
        held = self._held[: stop - start]
        for first in range(start, stop, self._tile):
            last = min(first + self._tile, stop)
            self._compute(self._query[first:last], self._of_query[first:last], held[first - start : last - start])
        if len(self._copies):
            held[:, self._copies] = held[:, self._originals]
        return held

    def _compute(self, query: Tensor, of_query: Tensor, found: Tensor) -> None:
        """Write the distances of a tile. A gallery of unit length would need twice the memory."""
        if self._cosine:
            torch.mm(query / of_query, self._gallery.T, out=found)
            torch.addcmul(self._one, found, self._of_gallery, value=-1, out=found)
        else:
            torch.addmm(self._of_gallery, query, self._gallery.T, alpha=-2, out=found)
            found += of_query
        found.clamp_(min=0)


class MatrixDistances:
    """Distances that somebody has computed (:class:`Distances`).

    Args:
        matrix: Q x G.

    Raises:
        ValueError: it is no matrix, or a distance is not a number.
    """

    def __init__(self, matrix: Array) -> None:
        self._matrix = as_tensor(matrix)
        if self._matrix.ndim != 2:
            raise ValueError(f"distances are to be Q x G, not of shape {tuple(self._matrix.shape)}")
        broken = torch.cat([part.isnan().any(1) for part in torch.split(self._matrix, 512)])
        if broken.any():
            raise ValueError(f"distances of query {int(broken.nonzero()[0])} are not numbers (NaN)")

    @property
    def queries(self) -> int:
        """Q."""
        return self._matrix.shape[0]

    @property
    def gallery(self) -> int:
        """G."""
        return self._matrix.shape[1]

    def distances(self, start: int, stop: int) -> Tensor:
        """See :class:`Distances`. Doubles and whole numbers are not rounded to float32, which would make ties."""
        given = self._matrix.dtype
        kept = torch.promote_types(given, torch.float32) if given.is_floating_point else torch.float64
        return self._matrix[start:stop].to(kept, copy=True)


def distances(query_features: Array, gallery_features: Array, *, metric: Metric = "cosine") -> Tensor:
    """All distances at once (float32, Q x G): for what is small enough.

    Args:
        query_features: Q x D.
        gallery_features: G x D.
        metric: see :data:`Metric`.

    Raises:
        ValueError: see :class:`FeatureDistances`.

    Example: (3, 4) and (0, 1): cosine 0.2, euclidean 4.2426, squared_euclidean 18.
    """
    found = FeatureDistances(query_features, gallery_features, metric)
    return _handed_out(found.distances(0, found.queries), metric)


def nearest(
    query_features: Array, gallery_features: Array, k: int, metric: Metric = "cosine", *, block: int | None = None
) -> tuple[Tensor, Tensor]:
    """The k nearest gallery images of each query, nearest first.

    Args:
        query_features: Q x D.
        gallery_features: G x D.
        k: how many; all of a smaller gallery.
        metric: see :data:`Metric`.
        block: see :func:`blocks`.

    Returns: distances (float32, Q x k) and places in the gallery (int64, Q x k). Of equal distances the one that comes
    first in the gallery is nearer.

    Raises:
        ValueError: see :class:`FeatureDistances`.
    """
    source = FeatureDistances(query_features, gallery_features, metric)
    found = [smallest(source.distances(*span), k) for span in blocks(source, block)]
    if not found:
        raise ValueError("there is no query")
    values, columns = (torch.cat(parts) for parts in zip(*found, strict=True))
    return _handed_out(values, metric), columns


def smallest(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k smallest of each row, ascending, and their columns (both B x k); of equal ones the smaller column first.

    Args:
        values: B x G, without NaN.
        k: at least 1; all of a row that has fewer.
    """
    if k >= values.shape[1]:
        whole = values.sort(dim=1, stable=True)
        return whole.values, whole.indices
    found, columns = values.topk(k + 1, largest=False)
    found, columns, beyond = found[:, :k], columns[:, :k], found[:, k:]
    # Which of equal ones topk takes is open: where the next has the value of the last, take the first of them.
    tied = (found[:, -1:] == beyond).nonzero()[:, 0]
    rows, last = values[tied], beyond[tied]
    equal, below = rows == last, rows < last
    taken = below | (equal & (equal.cumsum(1) <= k - below.sum(1, keepdim=True)))
    columns[tied] = taken.nonzero()[:, 1].view(-1, k)
    columns = columns.sort(1).values
    found, order = values.gather(1, columns).sort(dim=1, stable=True)
    return found, columns.gather(1, order)


def tile(gallery: int) -> int:
    """How many queries' distances are computed in one product: a power of two, 16 to 1,024; 512 MiB where that allows.

    A product of fewer rows takes longer: the gallery is read anew for each.
    """
    return 1 << (min(1024, max(16, 2**27 // max(1, gallery))).bit_length() - 1)


def blocks(source: Distances, block: int | None = None) -> Iterator[tuple[int, int]]:
    """First and last (exclusive) query of each block.

    Args:
        source: whose queries.
        block: how many queries' distances are held at once, rounded up to whole tiles (:func:`tile`); null: one tile.
            It changes the memory that is needed, and no bit of a result.

    Raises:
        ValueError: ``block`` is below 1.
    """
    if block is not None and block < 1:
        raise ValueError(f"block is to be at least 1, not {block}")
    whole = tile(source.gallery)
    size = -(-(block or whole) // whole) * whole
    for start in range(0, source.queries, size):
        yield start, min(start + size, source.queries)


def as_features(name: str, features: Array) -> Tensor:
    """``features`` as float32, N x D.

    Raises:
        ValueError: they have another shape.
    """
    found = as_tensor(features)
    if found.ndim != 2 or not found.shape[1]:
        raise ValueError(f"{name} features are to be N x D, not of shape {tuple(found.shape)}")
    return found.detach().float()


def as_tensor(numbers: Array) -> Tensor:
    """The same numbers, in the same memory unless torch cannot take it: of an array that runs backwards, or that must
    not be written to."""
    if isinstance(numbers, np.ndarray) and (min(numbers.strides, default=0) < 0 or not numbers.flags.writeable):
        numbers = numbers.copy()
    return torch.as_tensor(numbers)


def _squared_length(features: Tensor, dim: int) -> Tensor:
    squares: Tensor = torch.linalg.vecdot(features, features, dim=dim)
    return squares


def _refuse_infinite(name: str, features: Tensor, sizes: Tensor) -> None:
    """``sizes``, one number a row, are finite only if all numbers of the row are."""
    if not sizes.isfinite().all():
        row = int((~sizes.isfinite()).nonzero()[0])
        wrong = features[row][~features[row].isfinite()]
        what = f"holds {float(wrong[0])}" if len(wrong) else "is too long for float32"
        raise DataMismatch(f"row {row} of the {name} features {what}")


def _copies(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers of the rows that equal an earlier one bit by bit, and of the first that they equal (int64).

    Rows are grouped by their first numbers, those that are not alone by the next ones, too, and so on: of features that
    are not meant to be equal hardly any is looked at twice.
    """
    left = torch.arange(len(rows), device=rows.device)
    group, start, width = torch.zeros_like(left), 0, 16
    while len(left) and start < rows.shape[1]:
        numbers = rows[:, start : start + width][left].view(torch.int32)
        keys = torch.cat([group[:, None], numbers], 1)
        _, group, counts = torch.unique(keys, dim=0, return_inverse=True, return_counts=True)
        several = counts[group] > 1
        left, group = left[several], group[several]
        start, width = start + width, min(2 * width, 256)
    first = torch.zeros(len(rows), dtype=torch.int64, device=rows.device)
    first = first.scatter_reduce_(0, group, left, "amin", include_self=False)[group]
    return left[first != left], first[first != left]


def _handed_out(values: Tensor, metric: Metric) -> Tensor:
    return values.sqrt() if metric == "euclidean" else values
