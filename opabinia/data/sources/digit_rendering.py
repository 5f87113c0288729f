"""Rendering of the embedded digit datasets, bitwise identical on every machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bytes = NDArray[np.uint8]


def by_blocks(make: Callable[[slice], Bytes], count: int) -> Bytes:
    """Make ``count`` images in blocks of 64, so that intermediate results stay in the processor's cache."""
    return np.concatenate([make(slice(start, start + 64)) for start in range(0, count, 64)])


def to_bytes(values: Floats) -> Bytes:
    """Round gray values to uint8, clipped to 0 to 255."""
    return np.floor(np.clip(values, 0, 255) + 0.5).astype(np.uint8)


def rotation(tangent: Floats | float) -> tuple[Any, Any]:
    """Return cosine and sine of an angle from the tangent of its half.

    The C library's functions differ in the last bit between machines; this does not.
    """
    square = tangent * tangent
    return (1 - square) / (1 + square), 2 * tangent / (1 + square)


def interpolate(images: Bytes, rows: Floats, columns: Floats) -> Floats:
    """Return bilinear values of images between their pixels, 0 outside.

    Args:
        images: uint8, N x h x w.
        rows, columns: coordinates in each of them, N x H x W; integers are pixel centers.
    """
    height, width = images.shape[1:]
    padded = np.pad(images, ((0, 0), (1, 2), (1, 2))).astype(np.float64)
    rows, columns = np.clip(rows, -1, height) + 1, np.clip(columns, -1, width) + 1
    top, left = np.floor(rows).astype(np.int64), np.floor(columns).astype(np.int64)
    below, right = rows - top, columns - left
    stride = padded.shape[2]
    first = (np.arange(len(images)).reshape(-1, 1, 1) * padded.shape[1] + top) * stride + left
    upper = padded.take(first) * (1 - right) + padded.take(first + 1) * right
    first += stride
    lower = padded.take(first) * (1 - right) + padded.take(first + 1) * right
    values: Floats = upper * (1 - below) + lower * below
    return values
