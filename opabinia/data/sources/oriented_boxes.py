"""Oriented (rotated) bounding boxes from the corners or outlines of objects."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial import ConvexHull, QhullError

from opabinia.contracts.masks import decode_rle
from opabinia.contracts.rotated_boxes import box_corners

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


def surround(polygons: Sequence[Sequence[float]], rle: bytes, size: tuple[int, int]) -> Floats:
    """Return the corners (4 x 2) of the rectangle of minimum area around an object, without area if its points lie on a
    line.

    Args:
        polygons: each x, y, x, y ...
        rle: COCO's compressed counts, instead of polygons.
        size: height and width of the image.

    Raises:
        ValueError: the counts cannot be decoded.
    """
    if rle:
        rows, columns = np.nonzero(decode_rle({"size": list(size), "counts": rle.decode("ascii")}, size))
        points = np.concatenate([np.stack([columns + x, rows + y], 1) for x in (0, 1) for y in (0, 1)])
    else:
        points = np.concatenate([np.reshape(polygon, (-1, 2)) for polygon in polygons])
    try:
        hull = points[ConvexHull(points).vertices]
    except (QhullError, ValueError):  # on a line; an empty mask
        return np.repeat(points[:1] if len(points) else np.zeros((1, 2)), 4, 0)
    corners: Floats = box_corners(torch.from_numpy(min_area_boxes(hull[None].astype(np.float64)))).numpy()[0]
    return corners
