"""Ranks of the matches of each query in a gallery, and the metrics computed from them.

The rank of a match is 1 plus the number of nearer gallery images; they are counted, the gallery is not sorted. Among
images at the same distance the one that comes first in the gallery is nearer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from opabinia.contracts import DataMismatch, Indices
from opabinia.evaluation.retrieval.distances import Array, Distances, query_blocks

_ROWS_TO_SORT = 64
"""Rows of a block that are sorted at once; sorting takes several times their memory."""


class Matches:
    """Matches by identity.

    Images of the same identity match; those of them from the query's own camera are junk, which is removed before the
    gallery is ranked (Zheng et al. 2015, Market-1501). Without cameras nothing is junk.

    Args:
        query_ids: identities, Q: integers or strings.
        gallery_ids: identities, G.
        query_cameras: cameras, Q.
        gallery_cameras: cameras, G.

    Raises:
        ValueError: lengths do not fit, one side has strings and the other numbers, or only one side has cameras.
    """

    def __init__(
        self,
        query_ids: Array,
        gallery_ids: Array,
        query_cameras: Array | None = None,
        gallery_cameras: Array | None = None,
    ) -> None:
        self.query_ids, self.gallery_ids = as_column("query_ids", query_ids), as_column("gallery_ids", gallery_ids)
        if (query_cameras is None) != (gallery_cameras is None):
            raise ValueError("cameras must be given for both the query and the gallery, or for neither")
        _check_kinds("ids", self.query_ids, self.gallery_ids)
        self._cameras: tuple[NDArray[Any], NDArray[Any]] | None = None
        if query_cameras is not None and gallery_cameras is not None:
            cameras = as_column("query_cameras", query_cameras), as_column("gallery_cameras", gallery_cameras)
            _check_kinds("cameras", *cameras)
            self._cameras = cameras
            sides = {"query": self.query_ids, "gallery": self.gallery_ids}
            for (name, ids), column in zip(sides.items(), cameras, strict=True):
                if len(column) != len(ids):
                    raise ValueError(f"there are {len(column)} {name}_cameras, but {len(ids)} {name}_ids")
        self._order = np.argsort(self.gallery_ids, kind="stable")
        ordered = self.gallery_ids[self._order]
        self._first = np.searchsorted(ordered, self.query_ids, "left")
        self._last = np.searchsorted(ordered, self.query_ids, "right")

    def of(self, query: int) -> tuple[Indices, Indices]:
        """Return the gallery indices of the matches of a query, and of its junk; both ascending."""
        same = self._order[self._first[query] : self._last[query]]
        if self._cameras is None:
            return same, same[:0]
        junk = self._cameras[1][same] == self._cameras[0][query]
        return same[~junk], same[junk]

    def select(self, queries: Indices) -> Matches:
        """Return the matches of some queries."""
        cameras = (None, None) if self._cameras is None else (self._cameras[0][queries], self._cameras[1])
        return Matches(self.query_ids[queries], self.gallery_ids, *cameras)

    def check(self, source: Distances) -> None:
        """Check that there is an identity for each image of ``source``.

        Raises:
            ValueError: there are more or fewer.
        """
        sides = {"query": (self.query_ids, source.queries), "gallery": (self.gallery_ids, source.gallery)}
        for name, (ids, rows) in sides.items():
            if len(ids) != rows:
                raise ValueError(f"there are {rows} {name} images, but {len(ids)} {name}_ids")

    def no_match_error(self) -> DataMismatch:
        """Return the error to raise if no query has a match."""
        common = len(np.intersect1d(self.query_ids, self.gallery_ids))
        removed = ", and images of the query's identity from its own camera were removed"
        return DataMismatch(
            f"none of the {len(self.query_ids)} queries has a match among the {len(self.gallery_ids)} gallery images: "
            f"{common} identities are in both{removed if self._cameras is not None else ''}"
        )


class ListedMatches:
    """Matches listed for each query, as in the annotations of Oxford, Paris and their revisited forms.

    Args:
        positives: gallery indices of the matches of each of Q queries.
        junk: gallery indices of the images to ignore (Q); None: none.

    Raises:
        ValueError: there are more or fewer lists of junk than queries.
    """

    def __init__(self, positives: Sequence[Sequence[int]], junk: Sequence[Sequence[int]] | None = None) -> None:
        self._positives, self._junk = positives, [()] * len(positives) if junk is None else junk
        if len(self._junk) != len(positives):
            raise ValueError(f"there are {len(positives)} lists of positives, but {len(self._junk)} of junk")

    def of(self, query: int) -> tuple[Indices, Indices]:
        """Return the gallery indices of the matches of a query, and of its junk; both ascending."""
        positives, junk = (np.unique(np.asarray(lists[query], np.int64)) for lists in (self._positives, self._junk))
        return positives, junk

    def check(self, source: Distances) -> None:
        """Check that there is a list for each query, and that all indices are in the gallery.

        Raises:
            ValueError: there is not, or they are not.
        """
        if len(self._positives) != source.queries:
            raise ValueError(f"there are {source.queries} queries, but {len(self._positives)} lists of positives")
        for query in range(source.queries):
            indices = np.concatenate(self.of(query))
            if len(invalid := indices[(indices < 0) | (indices >= source.gallery)]):
                raise ValueError(f"query {query} names image {invalid[0]} of a gallery of {source.gallery}")

    def no_match_error(self) -> DataMismatch:
        """Return the error to raise if no query has a match."""
        return DataMismatch(f"none of the {len(self._positives)} queries has a match")


Relevance = Matches | ListedMatches
"""The matches of each query and the images excluded from its ranking."""


@dataclass(frozen=True)
class Block:
    """Distances of some queries to the gallery.

    Attributes:
        queries: their indices.
        distances: one row per query; junk is NaN, which is neither nearer nor farther than anything.
        matches: gallery indices of the matches, by query.
    """

    queries: range
    distances: Tensor
    matches: list[Indices]


def distance_blocks(source: Distances, relevance: Relevance) -> Iterator[Block]:
    """Yield the distances of all queries (see :func:`opabinia.evaluation.retrieval.distances.query_blocks`)."""
    for start, stop in query_blocks(source):
        queries = range(start, stop)
        matches, junk = zip(*(relevance.of(query) for query in queries), strict=True)
        distances = source.distances(start, stop)
        distances[cell_indices(junk, distances.device)] = torch.nan
        yield Block(queries, distances, list(matches))


def cell_indices(columns: Sequence[Indices], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return rows and columns of the cells of a block, given the columns of each row."""
    rows = np.repeat(np.arange(len(columns)), [len(indices) for indices in columns])
    flat = np.concatenate([rows[:0], *columns])
    return torch.from_numpy(rows).to(device), torch.from_numpy(flat).to(device)


def ranks_on_cpu(row: NDArray[Any], columns: Indices) -> Indices:
    """Return the ranks (from 1, ascending) of ``columns`` in the ascending order of ``row`` (NaN: excluded).

    Only values up to the farthest match are looked at, unless these are much of the gallery.
    """
    values = row[columns]
    inside = row <= values.max()
    near = np.sort(row[inside] if 8 * np.count_nonzero(inside) < len(row) else row)
    nearer = np.searchsorted(near, values, "left")
    for tied in np.flatnonzero(np.searchsorted(near, values, "right") > nearer + 1):
        nearer[tied] += np.count_nonzero(row[: columns[tied]] == values[tied])
    return np.sort(nearer) + 1


def ranks_on_gpu(distances: Tensor, columns: Sequence[Indices]) -> list[Indices]:
    """Return the ranks for all rows, as :func:`ranks_on_cpu`, by sorting them: any number of matches takes as long."""
    matches = torch.zeros(distances.shape, dtype=torch.bool, device=distances.device)
    matches[cell_indices(columns, distances.device)] = True
    blocks = zip(torch.split(distances, _ROWS_TO_SORT), torch.split(matches, _ROWS_TO_SORT), strict=True)
    # A stable sort keeps images at the same distance in the order of the gallery.
    ordered = [match.gather(1, rows.argsort(dim=1, stable=True)).nonzero()[:, 1] for rows, match in blocks]
    ranks = torch.cat(ordered).cpu().numpy() + 1
    return np.split(ranks, np.cumsum([len(indices) for indices in columns])[:-1])


@dataclass(frozen=True)
class Ranking:
    """Ranks of the matches of each query.

    Attributes:
        queries: indices of the V queries that have a match.
        ranks: ranks of all their matches, from 1, ascending within a query.
        lengths: number of matches of each of them, V.
        without_match: number of queries without a match; they are in no mean.
    """

    queries: Indices
    ranks: Indices
    lengths: Indices
    without_match: int

    @property
    def _starts(self) -> Indices:
        return np.cumsum(self.lengths) - self.lengths

    @property
    def _matches_before(self) -> Indices:
        """For each match the number of nearer matches of its query."""
        return np.arange(len(self.ranks)) - np.repeat(self._starts, self.lengths)

    def _query_means(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        sums: NDArray[np.float64] = np.add.reduceat(values, self._starts)
        return sums / self.lengths

    @property
    def first_ranks(self) -> Indices:
        """Rank of the nearest match of each query, V."""
        return self.ranks[self._starts]

    @property
    def precisions(self) -> NDArray[np.float64]:
        """For each match the share of matches among the images up to it."""
        return (self._matches_before + 1) / self.ranks

    @property
    def average_precisions(self) -> NDArray[np.float64]:
        """Mean over the matches of a query of the precision at each, V: neither interpolated nor trapezoidal."""
        return self._query_means(self.precisions)

    @property
    def trapezoidal_precisions(self) -> NDArray[np.float64]:
        """Area under the line through the precisions of a query, V: at each match the mean of the precision there and
        of the one just before it (Philbin et al. 2007, Oxford buildings)."""
        before = np.where(self.ranks == 1, 1.0, self._matches_before / np.maximum(1, self.ranks - 1))
        return self._query_means((before + self.precisions) / 2)

    @property
    def inverse_penalties(self) -> NDArray[np.float64]:
        """Number of matches over the rank of the last one, V (Ye et al. 2021, section 3.4: INP)."""
        penalties: NDArray[np.float64] = self.lengths / self.ranks[self._starts + self.lengths - 1]
        return penalties

    def cmc(self, k: int) -> float:
        """Return the share of queries with a match among the k nearest, or in a smaller gallery.

        Raises:
            ValueError: ``k`` is below 1.
        """
        if k < 1:
            raise ValueError(f"ranks count from 1, not {k}")
        return float((self.first_ranks <= k).mean())

    def precision_at(self, k: int) -> float:
        """Return the mean over queries of the share of matches among the k nearest, or among those up to the last match
        if these are fewer (rule of the revisited Oxford and Paris datasets, Radenović et al. 2018).

        Raises:
            ValueError: ``k`` is below 1.
        """
        if k < 1:
            raise ValueError(f"ranks count from 1, not {k}")
        nearest = np.minimum(self.ranks[self._starts + self.lengths - 1], k)
        right = np.add.reduceat(self.ranks <= np.repeat(nearest, self.lengths), self._starts, dtype=np.int64)
        return float((right / nearest).mean())

    def mean_at_r(self, weights: NDArray[Any]) -> float:
        """Return the mean over queries of the sum of the ``weights`` of those of its R matches that are among its R
        nearest images, over R."""
        inside = self.ranks <= np.repeat(self.lengths, self.lengths)
        return float(self._query_means(np.where(inside, weights, 0.0)).mean())

    def counts(self) -> dict[str, float]:
        """Return the number of queries in the means, and of those without a match."""
        return {"queries": len(self.queries), "queries_without_match": self.without_match}

    def scores(self, ranks: Sequence[int]) -> dict[str, float]:
        """Return mAP, rank1 ..., mINP (fractions of 1), and :meth:`counts`."""
        return {
            "mAP": float(self.average_precisions.mean()),
            **{f"rank{k}": self.cmc(k) for k in ranks},
            "mINP": float(self.inverse_penalties.mean()),
            **self.counts(),
        }


def rank(source: Distances, relevance: Relevance) -> Ranking:
    """Rank the matches of every query.

    Raises:
        ValueError: matches do not fit the distances, or no query has a match.
    """
    relevance.check(source)
    queries: list[int] = []
    ranks: list[Indices] = []
    for block in distance_blocks(source, relevance):
        rows = [row for row, matches in enumerate(block.matches) if len(matches)]
        queries += [block.queries[row] for row in rows]
        if block.distances.device.type == "cpu":
            distances = block.distances.numpy()
            ranks += [ranks_on_cpu(distances[row], block.matches[row]) for row in rows]
        else:
            of_rows = ranks_on_gpu(block.distances, block.matches)
            ranks += [of_rows[row] for row in rows]
    if not queries:
        raise relevance.no_match_error()
    lengths = np.array([len(of_query) for of_query in ranks])
    return Ranking(np.array(queries), np.concatenate(ranks), lengths, source.queries - len(queries))


def as_column(name: str, labels: Array) -> NDArray[Any]:
    """Return labels as an array, N.

    Raises:
        ValueError: they have another shape, or are neither numbers nor strings.
    """
    column = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if column.ndim != 1:
        raise ValueError(f"{name} must be one number per image, not of shape {column.shape}")
    if column.dtype == object and len({type(label) for label in column}) == 1:  # strings of a data frame
        column = np.asarray(column.tolist())
    if column.dtype == object:
        kinds = sorted({type(label).__name__ for label in column})
        raise ValueError(f"{name} must be integers or strings, not {' and '.join(kinds)}")
    return column


def _check_kinds(name: str, query: NDArray[Any], gallery: NDArray[Any]) -> None:
    """Numbers and strings would be compared as strings."""
    if len(query) and len(gallery) and (query.dtype.kind in "US") != (gallery.dtype.kind in "US"):
        kinds = ["strings" if column.dtype.kind in "US" else "numbers" for column in (query, gallery)]
        raise ValueError(f"query_{name} are {kinds[0]}, gallery_{name} {kinds[1]}: none of them are equal")
