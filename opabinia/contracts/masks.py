"""Instance masks: in files as polygons and as COCO run-length encoding (RLE), column by column, alternately pixels
outside and inside; in batches as runs of pixels, because dense masks of many objects are larger than all else there."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_PIXELS_AT_ONCE = 2**22


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


def masks_at_once(height: int, width: int) -> int:
    """Return how many masks to convert to float32 at a time: those of 16 MiB, at least one. Larger tensors take longer
    on the CPU, too."""
    return max(1, _PIXELS_AT_ONCE // max(1, height * width))


@dataclass(frozen=True)
class InstanceMasks:
    """The masks of the N objects of an image.

    Attributes:
        runs: runs of pixels of each object, row by row: number of the first pixel, and of the one after the last
            (int32, N x R x 2); objects with fewer than R runs have empty ones of H x W.
        size: height and width of the masks.
    """

    runs: Tensor
    size: tuple[int, int]

    @classmethod
    def encode(cls, masks: Tensor, size: tuple[int, int] | None = None) -> InstanceMasks:
        """Encode masks (0 and 1, N x h x w on the CPU), within larger ones of ``size`` (height, width) at their upper
        left corner if it is given.

        Example: [[0, 1], [1, 1]] in a size of (2, 4) has the runs [[1, 2], [4, 6]].
        """
        height, width = size or masks.shape[1:]
        pixels = np.zeros(height * width + 2, dtype=np.bool_)  # with one at each end that is outside every object
        window = pixels[1:-1].reshape(height, width)[: masks.shape[1], : masks.shape[2]]
        changes = []
        for mask in masks.numpy():
            window[:] = mask
            changes.append(np.flatnonzero(pixels[1:] != pixels[:-1]))
        runs = np.full((len(masks), max(map(len, changes), default=0)), height * width, dtype=np.int32)
        for row, positions in zip(runs, changes, strict=True):
            row[: len(positions)] = positions
        return cls(torch.from_numpy(runs.reshape(len(masks), runs.shape[1] // 2, 2)), (height, width))

    def __len__(self) -> int:
        return len(self.runs)

    def dense(self, objects: slice = slice(None)) -> Tensor:
        """Return the pixels of masks (uint8 of 0 and 1, N x H x W)."""
        runs = self.runs[objects]
        pixels = self.size[0] * self.size[1]
        first_pixels = pixels * torch.arange(len(runs), device=runs.device)
        positions = (runs + first_pixels[:, None, None]).flatten()
        # 1 where a run begins and -1 after its end add up to 1 within. CUDA scans one long row fastest.
        steps = torch.arange(1, -3, -2, dtype=torch.int8, device=runs.device).repeat(len(positions) // 2)
        covered = torch.zeros(pixels * len(runs) + 1, dtype=torch.int8, device=runs.device)
        covered = covered.scatter_add_(0, positions, steps).cumsum_(0)
        return covered[:-1].view(torch.uint8).view(len(runs), *self.size)
