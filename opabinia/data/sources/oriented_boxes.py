"""Oriented (rotated) bounding boxes from the corners or outlines of objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial import ConvexHull, QhullError

from opabinia.contracts import Indices
from opabinia.contracts.masks import decode_rle
from opabinia.contracts.rotated_boxes import box_corners
from opabinia.data.sources.annotation_arrays import AnnotationArrays, SegmentationArrays

Floats = NDArray[np.float64]

_BLOCK = 4096
"""Sets of points that are computed at once: bounds the memory."""


def min_area_boxes(points: Floats) -> Floats:
    """Return the rectangle of minimum area around each set of points, in torchvision's format ``CXCYWHR``.

    One of its sides lies along an edge of the convex hull (Freeman and Shapira 1975), so that the best of all
    directions from one point to another has the minimum area.

    Args:
        points: x, y in pixels, N x P x 2; few of them in each set, such as four corners or those of a convex hull.

    Returns:
        center x, center y, width, height, counterclockwise rotation in degrees (N x 5): the width is the longer side,
        the rotation at least -90 and less than 90.
    """
    if len(points) > _BLOCK:
        return np.concatenate([min_area_boxes(points[i : i + _BLOCK]) for i in range(0, len(points), _BLOCK)])
    first, second = np.triu_indices(points.shape[1], 1)
    edges = points[:, second] - points[:, first]
    lengths = np.sqrt((edges**2).sum(-1, keepdims=True))
    along = np.divide(edges, lengths, out=np.broadcast_to([1.0, 0.0], edges.shape).copy(), where=lengths > 0)
    axes = np.stack([along, along[..., ::-1] * [-1, 1]], 2)  # N x directions x 2 x (x, y): the sides of rectangles
    spans = (points[:, None, None] * axes[:, :, :, None]).sum(-1)
    low, high = spans.min(-1), spans.max(-1)
    best = np.arange(len(points)), (high - low).prod(-1).argmin(1)
    axes, sides = axes[best], (high - low)[best]
    centers = ((low + high)[best][..., None] / 2 * axes).sum(1)
    upright = sides[:, 0] < sides[:, 1]
    degrees = np.degrees(np.arctan2(-axes[:, 0, 1], axes[:, 0, 0])) + 90 * upright  # y points down
    return np.column_stack([centers, sides.max(1), sides.min(1), (degrees + 90) % 180 - 90])


def with_corners(annotations: AnnotationArrays, corners: Floats) -> AnnotationArrays:
    """Return M annotations with corners (M x 4 x 2), the upright boxes around them, and the areas of the rectangles of
    minimum area."""
    low, high = corners.min(1), corners.max(1)
    areas = min_area_boxes(corners)[:, 2:4].prod(1)
    return annotations._replace(boxes=np.concatenate([low, high - low], 1), areas=areas, corners=corners)


def from_segmentations(
    annotations: AnnotationArrays,
    segmentations: SegmentationArrays,
    sizes: Indices,
    report: Callable[[int, ValueError], object],
) -> AnnotationArrays:
    """Return annotations whose corners are those of the rectangles of minimum area around their segmentations, without
    area where all points of a segmentation lie on a line.

    Args:
        annotations: with rows of ``segmentations``.
        segmentations: polygons or RLE.
        sizes: height and width of each image (N x 2).
        report: called with the index of an annotation whose RLE cannot be decoded and the error; it is dropped.
    """
    assert annotations.segmentations is not None
    rows = zip(annotations.segmentations.tolist(), sizes[annotations.image_indices].tolist(), strict=True)
    corners: dict[int, Floats] = {}
    for index, (row, size) in enumerate(rows):
        try:
            corners[index] = _surround(segmentations.segment(row, tuple(size)), tuple(size))
        except ValueError as error:
            report(index, error)
    kept = annotations._replace(segmentations=None).take(list(corners))
    return with_corners(kept, np.array(list(corners.values())).reshape(-1, 4, 2))


def _surround(segment: Any, size: tuple[int, int]) -> Floats:
    """Return the corners (4 x 2) of the rectangle of minimum area around polygons or RLE."""
    if isinstance(segment, dict):
        rows, columns = np.nonzero(decode_rle(segment, size))
        points = np.concatenate([np.stack([columns + x, rows + y], 1) for x in (0, 1) for y in (0, 1)])
    else:
        points = np.concatenate([np.reshape(polygon, (-1, 2)) for polygon in segment])
    try:
        hull = points[ConvexHull(points).vertices]
    except (QhullError, ValueError):  # on a line; an empty mask
        return np.repeat(points[:1] if len(points) else np.zeros((1, 2)), 4, 0)
    corners: Floats = box_corners(torch.from_numpy(min_area_boxes(hull[None].astype(np.float64)))).numpy()[0]
    return corners
