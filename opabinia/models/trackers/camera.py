"""Motion of the camera between two frames as a shift, by phase correlation (Kuglin and Hines 1975)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from opabinia.models.trackers.kalman import Floats

_EPS = 1e-12
_MAX_SIDE = 512
"""Side in pixels of the frames that :class:`Camera` measures in, at most."""


class Camera:
    """Measure the motion of the camera from frame to frame.

    Attributes:
        before: the frame before, gray and perhaps reduced (uint8, H x W); None before the first one.
    """

    def __init__(self) -> None:
        self.before: NDArray[np.uint8] | None = None

    def shift(self, gray: NDArray[np.uint8]) -> tuple[float, float]:
        """Return by how many pixels the background has moved to the right and down since the frame before; 0 for the
        first frame, and where the size changes.

        Args:
            gray: the frame (H x W).
        """
        factor = -(-max(gray.shape) // _MAX_SIDE)
        rows, columns = (side // factor for side in gray.shape)
        blocks = gray[: rows * factor, : columns * factor].reshape(rows, factor, columns, factor)
        reduced = blocks.mean((1, 3)).round().astype(np.uint8)
        before, self.before = self.before, reduced
        if before is None or before.shape != reduced.shape:
            return 0.0, 0.0
        right, down = camera_shift(before, reduced)
        return right * factor, down * factor


def camera_shift(before: NDArray[np.generic], frame: NDArray[np.generic]) -> tuple[float, float]:
    """Return by how many pixels the background has moved to the right and down from one frame to the next.

    The peak of the phase correlation is the shift that most of the image agrees on; a parabola through it and its
    neighbors gives parts of a pixel. Shifts of more than half of the image's width or height cannot be recognized, nor
    are rotation and zoom.

    Args:
        before: the frame before, gray (H x W).
        frame: the frame, gray (H x W).

    Raises:
        ValueError: the frames are not gray, or of different sizes.
    """
    if before.shape != frame.shape or frame.ndim != 2:
        raise ValueError(f"frames of the shapes {before.shape} and {frame.shape}: both must be gray, of one size")
    window = np.outer(*(np.hanning(size) for size in frame.shape))
    spectra = [np.fft.rfft2((image - image.mean(dtype=float)) * window) for image in (before, frame)]
    product = spectra[0].conj() * spectra[1]
    correlation = np.fft.irfft2(product / (np.abs(product) + _EPS), frame.shape)
    row, column = np.unravel_index(correlation.argmax(), frame.shape)
    down = _signed(_refined(correlation[:, column], int(row)), frame.shape[0])
    right = _signed(_refined(correlation[row], int(column)), frame.shape[1])
    return right, down


def _refined(values: Floats, peak: int) -> float:
    """Return the position of the vertex of the parabola through a peak and its neighbors, around the ends."""
    low, middle, high = (float(values[(peak + offset) % len(values)]) for offset in (-1, 0, 1))
    curvature = low - 2 * middle + high
    return peak + (0.5 * (low - high) / curvature if curvature < 0 else 0.0)


def _signed(position: float, size: int) -> float:
    """Return a shift around the ends as one of at most half the size in either direction."""
    return position - size if position > size / 2 else position
