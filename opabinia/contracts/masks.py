"""The pixels of things: polygons, and COCO's run lengths (column by column, in turn pixels outside and inside)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray


def run_lengths(mask: NDArray[np.bool_]) -> dict[str, Any]:
    """A mask (H x W) as uncompressed run lengths.

    Example: [[False, True], [False, True]] is {"size": [2, 2], "counts": [2, 2]}.
    """
    pixels = mask.ravel(order="F")
    changes = np.flatnonzero(np.diff(pixels)) + 1
    ends = [0, *([0] if pixels[:1].any() else []), *changes.tolist(), pixels.size]
    return {"size": list(mask.shape), "counts": [end - start for start, end in pairwise(ends)]}


def compressed(segment: Any, size: tuple[int, int]) -> str:
    """The compressed run lengths (pycocotools' ``annToRLE``) of a thing.

    Args:
        segment: polygons (lists of x, y, x, y ...), or run lengths of either kind ({"size": [height, width],
            "counts": ...}); compressed ones are given back as they are.
        size: height and width of the picture.

    Raises:
        ValueError: run lengths that are none.
    """
    from faster_coco_eval.core import mask

    counts: Any = segment["counts"] if isinstance(segment, dict) else None
    if not isinstance(counts, str | bytes):
        try:
            counts = mask.segmToRle(segment, size[1], size[0])["counts"]
        except RuntimeError as error:
            raise ValueError(f"no run lengths: {error}") from error
    return counts if isinstance(counts, str) else counts.decode("ascii")


def decoded(segment: Any, size: tuple[int, int]) -> NDArray[np.uint8]:
    """The pixels (uint8 of 0 and 1, height x width; pycocotools' ``annToMask``) of what :func:`compressed` takes.

    Raises:
        ValueError: run lengths that are none, or of another size.
    """
    from faster_coco_eval.core import mask

    try:
        pixels: NDArray[np.uint8] = mask.decode({"size": list(size), "counts": compressed(segment, size)})
    except RuntimeError as error:
        raise ValueError(f"{error}") from error
    return pixels
