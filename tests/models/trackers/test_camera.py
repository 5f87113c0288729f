"""Phase correlation of frames cut from one image."""

from __future__ import annotations

import numpy as np
import pytest

from opabinia.models.trackers.camera import camera_shift


def textured(height: int, width: int) -> np.ndarray:
    """Smoothed noise."""
    noise = np.random.default_rng(0).normal(size=(height, width))
    spectrum = np.fft.rfft2(noise) / (0.02 + np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)))
    return np.asarray(np.fft.irfft2(spectrum, (height, width)))


@pytest.mark.parametrize(("right", "down"), [(0, 0), (7, 0), (-12, 5), (3, -20)])
def test_the_shift_of_a_background_with_an_object_that_moves_otherwise(right: int, down: int) -> None:
    image = textured(200, 300)
    before, after = image[40:140, 40:200].copy(), image[40 - down : 140 - down, 40 - right : 200 - right].copy()
    before[20:40, 30:50] = after[25:45, 60:80] = image.max()
    assert camera_shift(before, after) == pytest.approx((right, down), abs=0.5)


def test_parts_of_a_pixel() -> None:
    image = textured(200, 300)
    half = (image + np.roll(image, 1, 1)) / 2  # moved by half a pixel
    assert camera_shift(image, half)[0] == pytest.approx(0.5, abs=0.2)


def test_frames_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match=r"\(4, 4\) and \(4, 5\): both must be gray, of one size"):
        camera_shift(np.zeros((4, 4)), np.zeros((4, 5)))
    with pytest.raises(ValueError, match="must be gray"):
        camera_shift(np.zeros((4, 4, 3)), np.zeros((4, 4, 3)))
    assert camera_shift(np.zeros((8, 8)), np.zeros((8, 8))) == (0, 0)
