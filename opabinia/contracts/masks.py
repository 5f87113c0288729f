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
