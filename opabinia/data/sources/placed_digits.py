"""The embedded dataset for self-supervised learning: a handwritten digit anywhere, among fragments of others."""

from __future__ import annotations

import numpy as np

from opabinia.config import register
from opabinia.contracts import Batch, Indices
from opabinia.data.sampling.samplers import uniform
from opabinia.data.sources.digit_rendering import Bytes, Floats, by_blocks, interpolate, rotation, to_bytes
from opabinia.data.sources.digits import Arrays, Split, load_cached, load_digits, split_digits
from opabinia.data.sources.in_memory import ImageArray, collate_arrays
from opabinia.runtime.seeds import hash32

SIDE, SHOTS, FRAGMENTS = 40, 5, 2
_KEY = hash32(1797, 7)  # fixed, so that a run's seed does not change the images
_VERSION = "placed_digits-2"


@register.source
class PlacedDigits(ImageArray):
    """Self-supervised learning for trials and tests: one of scikit-learn's handwritten digits, bright and complete,
    anywhere in a noisy image, with dim fragments of two others that may lie below it.

    Images are gray, 40 x 40. A digit is 12 to 22 pixels high and rotated by up to 23 degrees. Each is shown five times:
    7,185 images of 1,437 digits for training, 1,800 of 360 others for validation (those of ``digits``, in the same
    split). Labels are for evaluation: 20 nearest neighbors (``knn``) classify 0.58 of the validation images correctly
    by their pixels, and 0.32 by the features of the untrained network of ``selfsup/digits_simclr``.

    Digits: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, 1998.

    Args:
        split: train or val.
    """

    def __init__(self, *, split: Split = "train") -> None:
        arrays = load_images(split)
        super().__init__(arrays["images"], arrays["labels"].astype(np.int64), tuple("0123456789"))
        self._split = split

    def id(self, index: int) -> str:
        """Return the split, the index of the digit in it and the number of the image of this digit."""
        return f"{self._split}/{index // SHOTS:04d}_{index % SHOTS}"

    def batch(self, indices: Indices) -> Batch:
        return collate_arrays(self, self._images, indices)

    def fingerprint(self) -> str:
        """Return a text that changes with the images."""
        return f"{_VERSION} {self._split}"


# --- rendering --------------------------------------------------------------------------------------------------------


def load_images(split: Split) -> Arrays:
    """Return ``images`` (uint8, N x 40 x 40) and ``labels`` (uint8, N) of a split, from the cache folder.

    Rendering takes some seconds, reading the cached file some milliseconds.
    """

    def render() -> Arrays:
        digits, labels = load_digits()
        numbers = split_digits(labels)[split]
        key = hash32(_KEY, ("train", "val").index(split))
        shown = np.repeat(np.arange(len(numbers)), SHOTS)
        return {"images": place(digits[numbers], shown, key), "labels": labels[numbers[shown]]}

    return load_cached(f"{_VERSION}-{split}.npz", render)


def place(digits: Bytes, shown: Indices, key: int) -> Bytes:
    """Render one image per entry of ``shown`` (uint8, N x 40 x 40), the same on every machine.

    Args:
        digits: to choose from (uint8, M x 8 x 8).
        shown: indices of the digits to show (int64, N).
        key: of the random numbers, 32 bits.
    """
    return by_blocks(lambda block: _render(digits, shown[block], hash32(key, block.start)), len(shown))


def _render(digits: Bytes, shown: Indices, key: int) -> Bytes:
    drawn = uniform(hash32(key, 0), np.arange((1 + FRAGMENTS) * 7 * len(shown)))
    whole, *fragments = drawn.reshape(1 + FRAGMENTS, 7, len(shown), 1, 1)
    images = np.repeat(np.repeat(20 * whole[0], SIDE, axis=1), SIDE, axis=2)
    for which, turn, height, x, y, brightness, cut in fragments:  # half a digit or less, anywhere, at any angle
        fragment = digits[(which.ravel() * len(digits)).astype(np.int64)]
        center = SIDE * x, SIDE * y
        _paint(images, fragment, 2 * turn - 1, 1.5 + 1.2 * height, center, 30 + 40 * brightness, 2 * cut)
    turn, height, x, y, brightness = whole[1:6]  # the whole digit lies within the image
    scale = 1.5 + 1.2 * height
    half = 4 * scale
    center = half + (SIDE - 2 * half) * x, half + (SIDE - 2 * half) * y
    _paint(images, digits[shown], 0.4 * turn - 0.2, scale, center, 215 + 40 * brightness, np.full_like(scale, -np.inf))
    noise = 20 * (uniform(hash32(key, 1), np.arange(images.size)).reshape(images.shape) - 0.5)
    return to_bytes(images + noise)


def _paint(
    images: Floats, digits: Bytes, turn: Floats, scale: Floats, center: tuple[Floats, Floats], ink: Floats, cut: Floats
) -> None:
    """Paint digits (uint8, N x 8 x 8) into images (N x 40 x 40), in place.

    Args:
        images: what is painted on.
        digits: one for each image.
        turn: tangent of half the rotation angle, counterclockwise; this and the others are arrays, N x 1 x 1.
        scale: image pixels per pixel of the digit.
        center: x and y of the digit, in pixels from the upper left corner.
        ink: its brightness, 0 to 255.
        cut: rows above this one are not drawn, in pixels of the digit below its center.
    """
    centers = np.arange(SIDE) + 0.5
    x, y = centers - center[0], centers.reshape(-1, 1) - center[1]
    cosine, sine = rotation(turn)
    u, v = (cosine * x - sine * y) / scale, (sine * x + cosine * y) / scale
    images += interpolate(digits, v + 3.5, u + 3.5) / 255 * (v > cut) * (ink - images)
