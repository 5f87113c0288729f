"""Annotations of a dataset in flat arrays, whose memory the loader's workers share. Python objects would be copied into
every worker, because reading one writes its reference count."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from opabinia.contracts import Indices


class AnnotationArrays(NamedTuple):
    """M annotated objects in N images.

    Attributes:
        image_indices: index of each object's image (int64, M).
        ids: annotation id or line number in the file; unique within an image (int64, M).
        boxes: left, top, width, height in pixels, as in the file (float64, M x 4).
        labels: class labels (int64, M).
        areas: in pixels, of oriented boxes those of the rectangles of minimum area (float64, M).
        crowd: whether evaluation ignores the object (bool, M).
        trainable: whether it is trained on (bool, M).
        segmentations: rows in the :class:`SegmentationArrays` (int64, M); None if they are not read.
        keypoints: x, y, visibility (float64, M x P x 3); None if they are not read.
        corners: x, y of the four corners of oriented boxes (float64, M x 4 x 2); None for upright boxes.
    """

    image_indices: Indices
    ids: Indices
    boxes: NDArray[np.float64]
    labels: Indices
    areas: NDArray[np.float64]
    crowd: NDArray[np.bool_]
    trainable: NDArray[np.bool_]
    segmentations: Indices | None = None
    keypoints: NDArray[np.float64] | None = None
    corners: NDArray[np.float64] | None = None

    def take(self, rows: Any) -> AnnotationArrays:
        """Return the given rows: a slice, indices or a boolean mask."""
        return AnnotationArrays._make(None if column is None else column[rows] for column in self)

    def tobytes(self) -> bytes:
        """Return the content of all arrays, for fingerprints."""
        return b"".join(column.tobytes() for column in self if column is not None)


class SegmentationArrays:
    """Segmentations of objects, one per row: polygons or compressed run-length encoding (RLE)."""

    def __init__(self) -> None:
        self._coordinates = array("d")
        self._polygon_ends = array("q", [0])  # in _coordinates
        self._rle = bytearray()
        self._row_ends = array("q", [0])  # in _polygon_ends
        self._rle_ends = array("q", [0])  # in _rle

    def __len__(self) -> int:
        return len(self._row_ends) - 1

    def add(self, polygons: Iterable[Sequence[float]] = (), rle: bytes = b"") -> int:
        """Append the segmentation of one object and return its row.

        Args:
            polygons: each x, y, x, y ...
            rle: COCO's compressed counts, instead of polygons.
        """
        for polygon in polygons:
            self._coordinates.extend(polygon)
            self._polygon_ends.append(len(self._coordinates))
        self._rle += rle
        self._row_ends.append(len(self._polygon_ends) - 1)
        self._rle_ends.append(len(self._rle))
        return len(self) - 1

    def segment(self, row: int, size: tuple[int, int]) -> Any:
        """Return polygons or RLE in COCO's format; ``size`` is the (height, width) of the image."""
        first, last = self._row_ends[row], self._row_ends[row + 1]
        if first == last:
            counts = bytes(self._rle[self._rle_ends[row] : self._rle_ends[row + 1]])
            return {"size": list(size), "counts": counts.decode("ascii")}
        ends = self._polygon_ends[first : last + 1]
        return [self._coordinates[start:end].tolist() for start, end in pairwise(ends)]

    def bounds(self) -> NDArray[np.float64]:
        """Return left, top, right, bottom of each row's polygons (float64, rows x 4); zeros for RLE."""
        bounds = np.zeros((len(self), 4))
        if self._coordinates:
            points = np.frombuffer(self._coordinates).reshape(-1, 2)
            row_ends = np.asarray(self._row_ends)
            has_polygons = row_ends[1:] > row_ends[:-1]
            starts = np.asarray(self._polygon_ends)[row_ends[:-1][has_polygons]] // 2
            bounds[has_polygons, :2] = np.minimum.reduceat(points, starts)
            bounds[has_polygons, 2:] = np.maximum.reduceat(points, starts)
        return bounds

    def clip(self, row: int, size: tuple[int, int]) -> None:
        """Clip the polygons of a row to an image of this (height, width), in place."""
        points = np.frombuffer(self._coordinates).reshape(-1, 2)
        first, last = (self._polygon_ends[self._row_ends[i]] // 2 for i in (row, row + 1))
        np.clip(points[first:last], 0, size[::-1], out=points[first:last])

    def tobytes(self) -> bytes:
        """Return the content of all arrays, for fingerprints."""
        arrays = (self._coordinates, self._polygon_ends, self._row_ends, self._rle_ends)
        return b"".join(part.tobytes() for part in arrays) + bytes(self._rle)
