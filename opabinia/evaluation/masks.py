"""Masks of things: from a detector's squares, and from what files say, to pixels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


def pasted(masks: Tensor, boxes: Tensor, size: tuple[int, int]) -> NDArray[np.bool_]:
    """Masks as a detector gives them (N x S x S, chances) at their boxes (N x 4) in a picture (bool, N x H x W).

    Args:
        masks: on the CPU.
        boxes: left, top, right, bottom, in pixels of the picture.
        size: height and width of the picture.
    """
    from torchvision.models.detection.roi_heads import paste_masks_in_image

    if not len(masks):
        return np.zeros((0, *size), dtype=bool)
    whole: Tensor = paste_masks_in_image(masks.unsqueeze(1), boxes, size)
    return (whole[:, 0] >= 0.5).numpy()


def run_lengths(segment: Any, size: tuple[int, int]) -> dict[str, Any]:
    """Polygons, or run lengths in either form of COCO, as its compressed run lengths (pycocotools' annToRLE).

    Args:
        segment: see :class:`opabinia.contracts.Truth`.
        size: height and width of the picture.
    """
    from faster_coco_eval import mask

    if isinstance(segment, Mapping):
        counts = segment["counts"]
        found = segment if isinstance(counts, str | bytes) else mask.frPyObjects(segment, *size)
    else:
        found = mask.merge(mask.frPyObjects(segment, *size))
    return dict(found)


def decoded(segment: Any, size: tuple[int, int]) -> NDArray[np.bool_]:
    """What :func:`run_lengths` takes, as pixels (bool, H x W)."""
    from faster_coco_eval import mask

    pixels: NDArray[np.uint8] = mask.decode(run_lengths(segment, size))
    return pixels.astype(bool)
