"""Objects that were drawn in an annotation tool: polygons, rectangles, ellipses and brush masks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from opabinia.data.sources.annotation_arrays import AnnotationArrays, AnnotationRow, SegmentationArrays

Polygon = list[float]
"""Corners x, y, x, y ..., in pixels."""


def rectangle(left: float, top: float, right: float, bottom: float) -> Polygon:
    """Return the corners of a rectangle."""
    return [left, top, right, top, right, bottom, left, bottom]


def ellipse(x: float, y: float, radius_x: float, radius_y: float) -> Polygon:
    """Return a polygon of 90 corners around the center ``x``, ``y``."""
    angles = 2 * np.pi * np.arange(90) / 90
    points = np.stack([x + radius_x * np.cos(angles), y + radius_y * np.sin(angles)], 1)
    return points.ravel().tolist()


def rotate(polygon: Polygon, degrees: float) -> Polygon:
    """Return a symmetric polygon turned clockwise about its center."""
    points, angle = np.reshape(polygon, (-1, 2)), np.deg2rad(degrees)
    center, turn = points.mean(0), [[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]]
    return ((points - center) @ np.array(turn) + center).ravel().tolist()  # type: ignore[no-any-return]


class Shapes:
    """Collects the objects of a dataset.

    Attributes:
        segmentations: of the objects.
    """

    def __init__(self) -> None:
        self.segmentations = SegmentationArrays()
        self._rows: list[AnnotationRow] = []

    def add(self, image: int, number: int, label: int, polygons: Sequence[Polygon]) -> None:
        """Add an object of one or more polygons to the image with this index; ``number`` is unique in the image."""
        points = np.concatenate([np.reshape(polygon, (-1, 2)) for polygon in polygons])
        (left, top), (right, bottom) = points.min(0).tolist(), points.max(0).tolist()
        row = self.segmentations.add(polygons)
        self._rows.append(
            AnnotationRow(image, number, (left, top, right - left, bottom - top), label, segmentation=row)
        )

    def add_mask(self, image: int, number: int, label: int, box: Sequence[float], rle: bytes) -> None:
        """Add an object with a mask in COCO's compressed RLE and its box: left, top, width, height."""
        row = self.segmentations.add(rle=rle)
        self._rows.append(AnnotationRow(image, number, box, label, segmentation=row))

    def annotations(self, *, masks: bool) -> AnnotationArrays:
        """Return the objects, with their segmentations if ``masks``."""
        return AnnotationArrays.from_rows(self._rows, segmentations=masks)
