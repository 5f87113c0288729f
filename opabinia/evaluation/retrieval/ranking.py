"""Ranking a gallery: at which place each match of a query stands, and what follows from it.

The place of a match is 1 plus the number of gallery images that are nearer; they are counted, the gallery is not
sorted. Of two images at the same distance the one that comes first in the gallery is nearer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from opabinia.contracts import DataMismatch
from opabinia.evaluation.retrieval.distances import Array, Distances, blocks

Indices = NDArray[np.int64]


class Answers(Protocol):
    """What is right for each query, and what is left out of its ranking: :class:`Matches`, :class:`Listed`."""

    def of(self, query: int) -> tuple[Indices, Indices]:
        """Places in the gallery of the matches of a query, and of its junk."""
        ...

    def fit(self, source: Distances) -> None:
        """See that this is about ``source``."""
        ...

    def none_left(self) -> DataMismatch:
        """What is wrong when no query has a match."""
        ...


class Matches:
    """Which gallery images match a query, and which are left out of its ranking.

    Images of the same identity match; those of them that come from the query's camera are junk, which is removed before
    the gallery is ranked (Zheng et al. 2015, Market-1501). Without cameras nothing is junk.

    Args:
        query_ids: identities, Q: whole numbers or texts.
        gallery_ids: identities, G.
        query_cameras: cameras, Q.
        gallery_cameras: cameras, G.

    Raises:
        ValueError: lengths do not fit, one side has texts and the other numbers, or the cameras of one side only are
            given.
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
            raise ValueError("cameras are to be given for both the query and the gallery, or for neither")
        _same_kind("ids", self.query_ids, self.gallery_ids)
        self._cameras: tuple[NDArray[Any], NDArray[Any]] | None = None
        if query_cameras is not None and gallery_cameras is not None:
            cameras = as_column("query_cameras", query_cameras), as_column("gallery_cameras", gallery_cameras)
            _same_kind("cameras", *cameras)
            self._cameras = cameras
            _same_length("query_cameras", cameras[0], "query_ids", self.query_ids)
            _same_length("gallery_cameras", cameras[1], "gallery_ids", self.gallery_ids)
        self._order = np.argsort(self.gallery_ids, kind="stable")
        ordered = self.gallery_ids[self._order]
        self._first = np.searchsorted(ordered, self.query_ids, "left")
        self._last = np.searchsorted(ordered, self.query_ids, "right")

    def of(self, query: int) -> tuple[Indices, Indices]:
        """Places in the gallery of the matches of a query, and of its junk; each in the order of the gallery."""
        same = self._order[self._first[query] : self._last[query]]
        if self._cameras is None:
            return same, same[:0]
        junk = self._cameras[1][same] == self._cameras[0][query]
        return same[~junk], same[junk]

    def only(self, queries: Indices) -> Matches:
        """The same of some queries only."""
        cameras = (None, None) if self._cameras is None else (self._cameras[0][queries], self._cameras[1])
        return Matches(self.query_ids[queries], self.gallery_ids, *cameras)

    def fit(self, source: Distances) -> None:
        """See that these are the labels of ``source``.

        Raises:
            ValueError: there are more or fewer.
        """
        for name, ids, rows in (
            ("query", self.query_ids, source.queries),
            ("gallery", self.gallery_ids, source.gallery),
        ):
            if len(ids) != rows:
                raise ValueError(f"there are {rows} {name} images, but {len(ids)} {name}_ids")

    def none_left(self) -> DataMismatch:
        """What is wrong when no query has a match."""
        common = len(np.intersect1d(self.query_ids, self.gallery_ids))
        text = (
            f"none of the {len(self.query_ids)} queries has a match among the {len(self.gallery_ids)} gallery images: "
            f"{common} identities are in both"
        )
        removed = ", and images of the query's identity from its own camera were removed"
        return DataMismatch(text + (removed if self._cameras is not None else ""))


class Listed:
    """Answers that a file tells for each query, as those of Oxford, Paris and their revisited forms do.

    Args:
        positives: places in the gallery of what is to be found, for each of Q queries.
        junk: places of what is neither right nor wrong (Q); None: there is none.

    Raises:
        ValueError: there are more or fewer lists of junk than queries.
    """

    def __init__(self, positives: Sequence[Sequence[int]], junk: Sequence[Sequence[int]] | None = None) -> None:
        self._positives, self._junk = positives, [()] * len(positives) if junk is None else junk
        if len(self._junk) != len(positives):
            raise ValueError(f"there are {len(positives)} lists of positives, but {len(self._junk)} of junk")

    def of(self, query: int) -> tuple[Indices, Indices]:
        """Places in the gallery of the matches of a query, and of its junk; each in the order of the gallery."""
        positives, junk = (np.unique(np.asarray(one[query], np.int64)) for one in (self._positives, self._junk))
        return positives, junk

    def fit(self, source: Distances) -> None:
        """See that there is a list for each query, and that all places are in the gallery.

        Raises:
            ValueError: there is not, or they are not.
        """
        if len(self._positives) != source.queries:
            raise ValueError(f"there are {source.queries} queries, but {len(self._positives)} lists of positives")
        for query in range(source.queries):
            places = np.concatenate(self.of(query))
            if len(places) and not 0 <= places.min() <= places.max() < source.gallery:
                wrong = places[(places < 0) | (places >= source.gallery)][0]
                raise ValueError(f"query {query} names image {wrong} of a gallery of {source.gallery}")

    def none_left(self) -> DataMismatch:
        """What is wrong when no query has a match."""
        return DataMismatch(f"none of the {len(self._positives)} queries has anything to find")


@dataclass(frozen=True)
class Block:
    """Distances of some queries to the gallery.

    Attributes:
        queries: their numbers.
        distances: one row for each of them; junk is NaN, which is neither nearer nor farther than anything.
        matches: places of their matches in the gallery, by query.
    """

    queries: range
    distances: Tensor
    matches: list[Indices]


def masked(source: Distances, matches: Answers, block: int | None = None) -> Iterator[Block]:
    """The distances of all queries, in blocks (see :func:`opabinia.evaluation.retrieval.distances.blocks`)."""
    for start, stop in blocks(source, block):
        queries = range(start, stop)
        found = [matches.of(query) for query in queries]
        distances = source.distances(start, stop)
        distances[indices_of([junk for _, junk in found], distances.device)] = torch.nan
        yield Block(queries, distances, [positives for positives, _ in found])


def indices_of(columns: Sequence[Indices], device: torch.device) -> tuple[Tensor, Tensor]:
    """Rows and columns of a block, from the columns of each row."""
    rows = np.repeat(np.arange(len(columns)), [len(one) for one in columns])
    together = np.concatenate([rows[:0], *columns])
    return torch.from_numpy(rows).to(device), torch.from_numpy(together).to(device)


def places_on_host(row: NDArray[Any], columns: Indices) -> Indices:
    """Places (from 1, ascending) of ``columns`` when the numbers of ``row`` (NaN: left out) are put in order.

    Only what is at most as far as the farthest match is looked at, unless that is much of the gallery.
    """
    values = row[columns]
    inside = row <= values.max()
    near = np.sort(row[inside] if 8 * np.count_nonzero(inside) < len(row) else row)
    nearer = np.searchsorted(near, values, "left")
    for tied in np.flatnonzero(np.searchsorted(near, values, "right") > nearer + 1):
        nearer[tied] += np.count_nonzero(row[: columns[tied]] == values[tied])
    return np.sort(nearer) + 1


def places_on_device(distances: Tensor, columns: Sequence[Indices]) -> list[Indices]:
    """The same for all rows at once: a pass for the first match of all, one for the second ..."""
    lengths = np.array([len(one) for one in columns])
    padded = np.zeros((len(columns), lengths.max(initial=0)), np.int64)
    there = np.arange(padded.shape[1]) < lengths[:, None]
    padded[there] = np.concatenate([padded[:0, 0], *columns])
    numbers = torch.arange(distances.shape[1], device=distances.device)
    nearer = torch.from_numpy(padded).to(distances.device)
    for own in torch.split(nearer, 1, dim=1):
        value = distances.gather(1, own)
        own.copy_(((distances < value) | ((distances == value) & (numbers < own))).sum(1, keepdim=True))
    found = nearer.cpu().numpy()
    return [np.sort(row[:length]) + 1 for row, length in zip(found, lengths, strict=True)]


@dataclass(frozen=True)
class Ranking:
    """Where the matches of each query stand.

    Attributes:
        queries: numbers of the V queries that have a match.
        places: of all their matches, from 1, ascending within a query.
        lengths: how many matches each of them has, V.
        left_out: how many queries have none; they are in no mean.
    """

    queries: Indices
    places: Indices
    lengths: Indices
    left_out: int

    @property
    def _starts(self) -> Indices:
        return np.cumsum(self.lengths) - self.lengths

    @property
    def firsts(self) -> Indices:
        """Place of the nearest match of each query, V."""
        return self.places[self._starts]

    @property
    def precisions(self) -> NDArray[np.float64]:
        """Of all their matches: which share of the images up to it are matches."""
        number = np.arange(len(self.places)) - np.repeat(self._starts, self.lengths) + 1
        return number / self.places

    @property
    def average_precisions(self) -> NDArray[np.float64]:
        """Mean over the matches of a query of the precision at each, V: neither interpolated nor a trapezoid."""
        sums: NDArray[np.float64] = np.add.reduceat(self.precisions, self._starts)
        return sums / self.lengths

    @property
    def trapezoids(self) -> NDArray[np.float64]:
        """Area under the line through the precisions of a query, V: at each match the mean of the precision there and
        of the one just before it (Philbin et al. 2007, Oxford buildings)."""
        number = np.arange(len(self.places)) - np.repeat(self._starts, self.lengths)
        before = np.where(self.places == 1, 1.0, number / np.maximum(1, self.places - 1))
        sums: NDArray[np.float64] = np.add.reduceat((before + self.precisions) / 2, self._starts)
        return sums / self.lengths

    @property
    def inverse_penalties(self) -> NDArray[np.float64]:
        """Number of matches over the place of the last one, V (Ye et al. 2021, section 3.4: INP)."""
        lasts: NDArray[np.float64] = self.lengths / self.places[self._starts + self.lengths - 1]
        return lasts

    def rank(self, k: int) -> float:
        """Share of queries with a match among the k nearest (CMC). A gallery of fewer images than k counts whole."""
        return float((self.firsts <= k).mean())

    def among_first(self, weights: NDArray[Any]) -> float:
        """Sum of ``weights`` of those matches of a query that are among its R nearest, R being how many it has, over R;
        the mean of that over the queries."""
        inside = self.places <= np.repeat(self.lengths, self.lengths)
        return float((np.add.reduceat(np.where(inside, weights, 0.0), self._starts) / self.lengths).mean())

    def scores(self, ranks: Sequence[int]) -> dict[str, float]:
        """mAP, rank1 ..., mINP (fractions of 1), and how many queries are in the means and how many are not."""
        return {
            "mAP": float(self.average_precisions.mean()),
            **{f"rank{k}": self.rank(k) for k in ranks},
            "mINP": float(self.inverse_penalties.mean()),
            "queries": len(self.queries),
            "queries_without_match": self.left_out,
        }


def rank(source: Distances, matches: Answers, block: int | None = None) -> Ranking:
    """Rank the gallery for every query.

    Raises:
        ValueError: labels do not fit the distances, or no query has a match.
    """
    matches.fit(source)
    queries: list[int] = []
    places: list[Indices] = []
    for one in masked(source, matches, block):
        there = [row for row, columns in enumerate(one.matches) if len(columns)]
        queries += [one.queries[row] for row in there]
        if one.distances.device.type == "cpu":
            rows = one.distances.numpy()
            places += [places_on_host(rows[row], one.matches[row]) for row in there]
        else:
            found = places_on_device(one.distances, one.matches)
            places += [found[row] for row in there]
    if not queries:
        raise matches.none_left()
    lengths = np.array([len(one) for one in places])
    return Ranking(np.array(queries), np.concatenate(places), lengths, source.queries - len(queries))


def as_column(name: str, labels: Array) -> NDArray[Any]:
    """Labels as an array, N.

    Raises:
        ValueError: they have another shape, or are neither numbers nor texts.
    """
    column = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if column.ndim != 1:
        raise ValueError(f"{name} are to be one number an image, not of shape {column.shape}")
    if column.dtype == object and len({type(one) for one in column}) == 1:  # as tables keep their texts
        column = np.asarray(column.tolist())
    if column.dtype == object:
        kinds = sorted({type(one).__name__ for one in column})
        raise ValueError(f"{name} are to be whole numbers or texts, not {' and '.join(kinds)}")
    return column


def _same_kind(what: str, query: NDArray[Any], gallery: NDArray[Any]) -> None:
    """Compared with texts, numbers would be texts, too."""
    texts = [one.dtype.kind in "US" for one in (query, gallery)]
    if len(query) and len(gallery) and texts[0] != texts[1]:
        kinds = ["texts" if one else "numbers" for one in texts]
        raise ValueError(f"query_{what} are {kinds[0]}, gallery_{what} {kinds[1]}: nothing of them is the same")


def _same_length(name: str, column: NDArray[Any], other: str, like: NDArray[Any]) -> None:
    if len(column) != len(like):
        raise ValueError(f"there are {len(column)} {name}, but {len(like)} {other}")
