"""Instance masks as polygons and as COCO run-length encoding (RLE): column by column, alternately pixels outside and
inside."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray


def encode_rle(mask: NDArray[np.bool_]) -> dict[str, Any]:
    """Return a mask (H x W) as uncompressed RLE.

    Example: [[False, True], [False, True]] is {"size": [2, 2], "counts": [2, 2]}.
    """
    pixels = mask.ravel(order="F")
    changes = np.flatnonzero(np.diff(pixels)) + 1
    ends = [0, *([0] if pixels[:1].any() else []), *changes.tolist(), pixels.size]
    return {"size": list(mask.shape), "counts": [end - start for start, end in pairwise(ends)]}


def compress_rle(segment: Any, size: tuple[int, int]) -> str:
    """Return the compressed RLE of an object (pycocotools' ``annToRLE``).

    Args:
        segment: polygons (lists of x, y, x, y ...), or RLE of either kind ({"size": [height, width], "counts": ...});
            a compressed one is returned unchanged.
        size: height and width of the image.

    Raises:
        ValueError: invalid RLE.
    """
    from faster_coco_eval.core import mask

    counts: Any = segment["counts"] if isinstance(segment, dict) else None
    if not isinstance(counts, str | bytes):
        try:
            counts = mask.segmToRle(segment, size[1], size[0])["counts"]
        except RuntimeError as error:
            raise ValueError(f"invalid run-length encoding: {error}") from error
    return counts if isinstance(counts, str) else counts.decode("ascii")


def compressed_mask(mask: NDArray[np.bool_]) -> dict[str, Any]:
    """Return a mask (H x W) as COCO's compressed RLE: ``{"size": [H, W], "counts": "..."}``."""
    size = (mask.shape[0], mask.shape[1])
    return {"size": list(size), "counts": compress_rle(encode_rle(mask), size)}


def decode_rle(segment: Any, size: tuple[int, int]) -> NDArray[np.uint8]:
    """Return the pixels (uint8 of 0 and 1, height x width; pycocotools' ``annToMask``) of a segment.

    Args:
        segment: see :func:`compress_rle`.
        size: height and width of the image.

    Raises:
        ValueError: invalid RLE, or one of another size.
    """
    from faster_coco_eval.core import mask

    try:
        pixels: NDArray[np.uint8] = mask.decode({"size": list(size), "counts": compress_rle(segment, size)})
    except RuntimeError as error:
        raise ValueError(f"{error}") from error
    return pixels


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
