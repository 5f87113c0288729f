"""Outlines of instance masks, as polygons."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def mask_outlines(mask: NDArray[np.uint8]) -> list[list[float]]:
    """Return the outer outlines of a mask (H x W) as COCO polygons (x, y, x, y ...), clockwise along the edges of
    pixels; holes are filled. Parts that only touch at a corner have outlines of their own.

    Example: [[0, 1], [0, 1]] is [[1, 0, 2, 0, 2, 2, 1, 2]].
    """
    rows, columns = (np.flatnonzero(mask.any(axis)) for axis in (1, 0))
    if not len(rows):
        return []
    top, left_end = int(rows[0]), int(columns[0])
    padded = np.pad(mask[top : rows[-1] + 1, left_end : columns[-1] + 1].astype(bool), 1)
    above, below = padded[:-1], padded[1:]
    left, right, lower_left, lower_right = above[:, :-1], above[:, 1:], below[:, :-1], below[:, 1:]
    crossing = (left == lower_right) & (right == lower_left) & (left != right)  # two outlines pass through such a point
    times = (left ^ right ^ lower_left ^ lower_right) + 2 * crossing
    corners = np.argwhere(times).repeat(times[times > 0], axis=0)  # by row; neighbors 2i and 2i + 1 end the same edge
    numbers = np.arange(len(corners))
    # By column, too. At a crossing the first corner has the edge to the left, and that of its own pixel: up or down.
    turns_down = (crossing & right)[tuple(corners.T)]
    by_column = np.lexsort((np.where(turns_down, -numbers, numbers), corners[:, 0], corners[:, 1]))
    opposite = np.empty_like(numbers)
    opposite[by_column] = by_column[numbers ^ 1]
    polygons, seen = [], np.zeros(len(numbers), dtype=bool)
    for start in numbers[::2].tolist():
        outline: list[int] = []
        end = start
        while not seen[end]:
            seen[[end, end ^ 1]] = True
            outline += [end, end ^ 1]
            end = int(opposite[end ^ 1])
        if outline and lower_right[tuple(corners[start])]:  # otherwise it surrounds a hole
            polygons.append((corners[outline, ::-1] + [left_end, top]).astype(float).ravel().tolist())
    return polygons
