"""Many things in pictures, in flat arrays: workers share these, while objects would be copied into every worker, as
reading one writes its reference count."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from opabinia.contracts import Indices


class Things(NamedTuple):
    """M things in N pictures.

    Attributes:
        pictures: which picture each is in (int64, M).
        ids: its number in the file: of the annotation, or the line; unique in its picture (int64, M).
        boxes: left, top, width, height in pixels, as the file says (float64, M x 4).
        labels: class numbers (int64, M).
        areas: in pixels (float64, M).
        crowd: whether evaluations pass over it (bool, M).
        learnt: whether it is trained on (bool, M).
        outlines: its row in the :class:`Outlines` (int64, M); None where they are not read.
        keypoints: x, y, visibility (float64, M x P x 3); None where they are not read.
    """

    pictures: Indices
    ids: Indices
    boxes: NDArray[np.float64]
    labels: Indices
    areas: NDArray[np.float64]
    crowd: NDArray[np.bool_]
    learnt: NDArray[np.bool_]
    outlines: Indices | None = None
    keypoints: NDArray[np.float64] | None = None

    def take(self, rows: Any) -> Things:
        """Some of them, or all in another order: ``rows`` is a slice, numbers, or truth values."""
        columns: Iterable[Any] = (None if column is None else column[rows] for column in self)
        return Things(*columns)

    def content(self) -> bytes:
        """All of it."""
        return b"".join(column.tobytes() for column in self if column is not None)


class Ragged(Sequence[Indices]):
    """N lists of whole numbers, of any lengths."""

    def __init__(self, lists: Iterable[Iterable[int]]) -> None:
        found = [np.fromiter(one, dtype=np.int64) for one in lists]
        self._values = np.concatenate([np.zeros(0, dtype=np.int64), *found])
        self._ends = np.cumsum([len(one) for one in found], dtype=np.int64)

    @classmethod
    def grouped(cls, groups: Indices, values: Indices, count: int) -> Ragged:
        """The different ``values`` of each of ``count`` groups, sorted; ``groups`` says where each belongs."""
        made = cls([])
        pairs = np.unique(np.stack([groups, values], 1), axis=0)
        made._values = pairs[:, 1].copy()
        made._ends = np.searchsorted(pairs[:, 0], np.arange(count), "right")
        return made

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> Indices: ...

    @overload
    def __getitem__(self, index: slice) -> list[Indices]: ...

    def __getitem__(self, index: int | slice) -> Indices | list[Indices]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(f"index {index} of {len(self)}")
        return self._values[self._ends[index - 1] if index else 0 : self._ends[index]]

    def content(self) -> bytes:
        """All of it."""
        return self._values.tobytes() + self._ends.tobytes()


class Outlines:
    """The outlines of things: polygons, or run lengths."""

    def __init__(self) -> None:
        self._coordinates = array("d")
        self._polygon_ends = array("q", [0])  # in _coordinates
        self._runs = bytearray()
        self._rows = array("q", [0])  # ends in _polygon_ends
        self._run_rows = array("q", [0])  # ends in _runs

    def __len__(self) -> int:
        return len(self._rows) - 1

    def add(self, polygons: Iterable[Sequence[float]] = (), runs: bytes = b"") -> int:
        """Keep the outline of one more thing.

        Args:
            polygons: each x, y, x, y ...
            runs: in place of polygons, COCO's compressed run lengths.

        Returns:
            its row.
        """
        for polygon in polygons:
            self._coordinates.extend(polygon)
            self._polygon_ends.append(len(self._coordinates))
        self._runs += runs
        self._rows.append(len(self._polygon_ends) - 1)
        self._run_rows.append(len(self._runs))
        return len(self) - 1

    def segment(self, row: int, size: tuple[int, int]) -> Any:
        """Polygons or run lengths of a thing in a picture of this size (height, width), as in COCO's files."""
        first, last = self._rows[row], self._rows[row + 1]
        if first == last:
            counts = bytes(self._runs[self._run_rows[row] : self._run_rows[row + 1]])
            return {"size": list(size), "counts": counts.decode("ascii")}
        ends = self._polygon_ends[first : last + 1]
        return [self._coordinates[a:b].tolist() for a, b in pairwise(ends)]

    def bounds(self) -> NDArray[np.float64]:
        """Left, top, right, bottom of each outline (float64, rows x 4); zeros for run lengths."""
        found = np.zeros((len(self), 4))
        if self._coordinates:
            points = np.frombuffer(self._coordinates).reshape(-1, 2)
            rows = np.asarray(self._rows)
            drawn = rows[1:] > rows[:-1]
            starts = np.asarray(self._polygon_ends)[rows[:-1][drawn]] // 2
            found[drawn, :2] = np.minimum.reduceat(points, starts)
            found[drawn, 2:] = np.maximum.reduceat(points, starts)
        return found

    def cut(self, row: int, size: tuple[int, int]) -> None:
        """Move the points of polygons that lie outside a picture of this size (height, width) to its edge."""
        points = np.frombuffer(self._coordinates).reshape(-1, 2)
        first, last = (self._polygon_ends[self._rows[number]] // 2 for number in (row, row + 1))
        np.clip(points[first:last], 0, size[::-1], out=points[first:last])

    def content(self) -> bytes:
        """All of it."""
        parts = (self._coordinates, self._polygon_ends, self._rows, self._run_rows)
        return b"".join(part.tobytes() for part in parts) + bytes(self._runs)
