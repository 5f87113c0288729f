"""Predicted masks, stretched to their boxes, as run-length encoding (RLE) of the whole image."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from opabinia.contracts.masks import compress_rle

Floats = NDArray[np.floating[Any]]


def paste_masks(masks: Floats, boxes: Floats, size: tuple[int, int]) -> list[str]:
    """Stretch masks to their boxes and return each as compressed RLE of the image.

    Values are interpolated between the centers of a mask's cells and are 0 outside the mask; a pixel belongs to the
    object if the value at its center is at least 0.5 (detectron2's ``paste_masks_in_image``). Only pixels in the
    box are computed.

    Args:
        masks: probabilities, N x S x S.
        boxes: left, top, right, bottom in pixels of the image (N x 4). A box that is not finite has no pixels.
        size: height and width of the image.
    """
    height, width = size
    boxes = np.where(np.isfinite(boxes).all(1, keepdims=True), boxes, 0)
    starts = np.floor(boxes[:, :2]).clip(0, (width, height)).astype(np.int64)
    ends = np.maximum(np.ceil(boxes[:, 2:]).clip(0, (width, height)).astype(np.int64), starts)
    rows = zip(masks.astype(np.float32, copy=False), boxes.tolist(), starts.tolist(), ends.tolist(), strict=True)
    encoded = []
    for mask, box, (left, top), (right, bottom) in rows:
        down = _interpolation(box[1], box[3], top, bottom, mask.shape[0])
        across = _interpolation(box[0], box[2], left, right, mask.shape[1])
        inside = np.zeros((right - left, bottom - top + 2), bool)  # columns x rows, with a margin above and below
        inside[:, 1:-1] = (across @ torch.from_numpy(mask).T @ down.T >= 0.5).numpy()
        column, row = np.nonzero(inside[:, 1:] != inside[:, :-1])
        # Pixels, numbered column by column, at which runs begin and end. A run that ends with its column continues if
        # the next column begins with one: the same number then occurs twice.
        changes, times = np.unique((column + left) * height + row + top, return_counts=True)
        changes = changes[(times == 1) & (changes < height * width)]
        counts = np.diff(changes, prepend=0, append=height * width).tolist()
        encoded.append(compress_rle({"size": list(size), "counts": counts}, size))
    return encoded


def _interpolation(begin: float, end: float, first: int, last: int, cells: int) -> Tensor:
    """Return the weight of each of ``cells`` between ``begin`` and ``end`` for each pixel from ``first`` to
    ``last`` - 1 (pixels x cells)."""
    positions = (torch.arange(first, last) + (0.5 - begin)) * (cells / max(end - begin, 1e-6)) - 0.5
    return (1 - (positions[:, None] - torch.arange(cells)).abs()).clamp(min=0)
