"""Masks that a detector found, stretched to their boxes, as run lengths of the picture."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from opabinia.contracts.masks import compressed

Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.int64]


def paste(masks: Floats, boxes: Floats, size: tuple[int, int], threshold: float = 0.5) -> list[str]:
    """Masks stretched to their boxes, as compressed run lengths of the picture.

    Between the middles of a mask's cells its values are interpolated, outside of it they are 0; a pixel belongs to the
    thing if the value at its middle reaches the threshold (detectron2's ``paste_masks_in_image``). Only pixels in the
    box are computed.

    Args:
        masks: chances, N x S x S.
        boxes: left, top, right, bottom in the picture's pixels (N x 4). One that is not finite holds no pixel.
        size: height and width of the picture.
        threshold: from where on a pixel belongs to the thing.
    """
    return [_compressed(changes, size) for changes in _pasted(masks, boxes, size, threshold)]


def _pasted(masks: Floats, boxes: Floats, size: tuple[int, int], threshold: float) -> Iterator[Ints]:
    """For each mask the places in the picture (columns one after the other) where it begins and ends in turn."""
    height, width = size
    boxes = np.where(np.isfinite(boxes).all(1, keepdims=True), boxes, 0)
    starts = np.floor(boxes[:, :2]).clip(0, (width, height)).astype(np.int64)
    ends = np.ceil(boxes[:, 2:]).clip(0, (width, height)).astype(np.int64)
    places = zip(masks.astype(np.float32, copy=False), boxes.tolist(), starts.tolist(), ends.tolist(), strict=True)
    for mask, box, (left, top), (right, bottom) in places:
        if right <= left or bottom <= top:
            yield np.zeros(0, np.int64)
            continue
        down = _interpolation(box[1], box[3], top, bottom, mask.shape[0])
        across = _interpolation(box[0], box[2], left, right, mask.shape[1])
        inside = (across @ torch.from_numpy(mask).T @ down.T >= threshold).numpy()  # columns x rows
        edged = np.zeros((right - left, bottom - top + 2), bool)
        edged[:, 1:-1] = inside
        column, row = np.nonzero(edged[:, 1:] != edged[:, :-1])
        changes = (column + left) * height + row + top
        # A run to the end of a column goes on if the next one begins with it.
        again = changes[1:] == changes[:-1]
        twice = np.zeros(len(changes), bool)
        twice[1:] |= again
        twice[:-1] |= again
        yield changes[~twice]


def _interpolation(begin: float, end: float, first: int, last: int, cells: int) -> Tensor:
    """How much each of ``cells`` between ``begin`` and ``end`` counts for each pixel from ``first`` to ``last`` (one
    less), pixels x cells."""
    places = (torch.arange(first, last) + (0.5 - begin)) * (cells / max(end - begin, 1e-6)) - 0.5
    return (1 - (places[:, None] - torch.arange(cells)).abs()).clamp(min=0)


def _compressed(changes: Ints, size: tuple[int, int]) -> str:
    end = size[0] * size[1]
    counts = np.diff(changes[changes < end], prepend=0, append=end).tolist()
    return compressed({"size": list(size), "counts": counts}, size)
