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
