"""The embedded data for learning without labels: handwritten digits anywhere, among pieces of others."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torchvision import tv_tensors

from opabinia.config import register
from opabinia.contracts import Batch, Indices, Sample
from opabinia.data.sampling.samplers import uniform
from opabinia.data.sources.digit_views import between
from opabinia.data.sources.digits import Arrays, cached, load_digits, split_digits
from opabinia.runtime.seeds import hash32

Split = Literal["train", "val"]

SIDE, SHOTS, PIECES = 40, 5, 2
_KEY = hash32(1797, 7)  # a seed of its own, so that no run's seed changes the pictures
_VERSION = "placed_digits-2"

Floats = NDArray[np.float64]
Bytes = NDArray[np.uint8]


@register.source
class PlacedDigits:
    """Learning without labels, for trying things and for tests: one of scikit-learn's handwritten digits, bright and
    whole, anywhere in a noisy picture, with pieces of two others, which are dim and may lie beneath it.

    Pictures are grey, 40 x 40. A digit is 12 to 22 pixels high and turned by up to 23 degrees. Each is shown five
    times: 7,185 pictures of 1,437 digits for training, 1,800 of 360 others for validation (those of ``digits``, in the
    same split).
    Labels are for measuring: 20 nearest neighbours (``knn``) know 0.58 of the validation pictures by their pixels, and
    0.32 by what the untrained network of ``selfsup/digits_simclr`` makes of them.

    Digits: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, 1998.

    Args:
        split: which part.
    """

    channels = 1
    classes = tuple("0123456789")

    def __init__(self, *, split: Split = "train") -> None:
        arrays = load_pictures(split)
        self.labels = arrays["labels"].astype(np.int64)
        self._images = torch.from_numpy(arrays["images"]).unsqueeze(1)
        self._split = split

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Sample:
        index = range(len(self))[index]
        image = tv_tensors.Image(self._images[index].clone())  # a transform may work in place
        return {"image": image, "label": int(self.labels[index]), "id": self.id(index)}

    def id(self, index: int) -> str:
        """Which digit of its part a picture shows, and for the how many-th time."""
        return f"{self._split}/{index // SHOTS:04d}_{index % SHOTS}"

    def batch(self, indices: Indices) -> Batch:
        """Samples by their indices (int64, B), as a whole batch."""
        labels = torch.from_numpy(self.labels[indices])
        return {"image": self._images[indices], "label": labels, "id": [self.id(int(index)) for index in indices]}

    def fingerprint(self) -> str:
        """Changes with the pictures."""
        return f"{_VERSION} {self._split}"


# --- making them ------------------------------------------------------------------------------------------------------


def load_pictures(split: Split) -> Arrays:
    """All pictures of a part (uint8): ``images`` (N x 40 x 40) and ``labels`` (N), kept in the cache folder.

    Making them takes some seconds, reading the cached file some milliseconds.
    """
    return cached(f"{_VERSION}-{split}.npz", lambda: _all_pictures(split))


def _all_pictures(split: Split) -> Arrays:
    digits, labels = load_digits()
    numbers = split_digits(labels)[split]
    key = hash32(_KEY, ("train", "val").index(split))
    shown = np.repeat(np.arange(len(numbers)), SHOTS)
    return {"images": place(digits[numbers], shown, key), "labels": labels[numbers[shown]]}


class Look(NamedTuple):
    """How digits are seen, one in each picture; all are arrays (N x 1 x 1).

    Attributes:
        turn: tangent of half the angle, anticlockwise.
        scale: pixels of the picture per pixel of the digit.
        right, lower: where the middle is, in pixels from the upper left.
        bright: of the ink, 0 to 255.
        cut: how far below its middle, in pixels of the digit, it begins to be seen.
    """

    turn: Floats
    scale: Floats
    right: Floats
    lower: Floats
    bright: Floats
    cut: Floats


def place(digits: Bytes, shown: Indices, key: int) -> Bytes:
    """One picture of each digit that is shown (uint8, N x 40 x 40), the same on every machine.

    Args:
        digits: to choose from (uint8, M x 8 x 8).
        shown: numbers of those that are shown (int64, N).
        key: of the random numbers, 32 bits.
    """
    few = [slice(start, start + _TOGETHER) for start in range(0, len(shown), _TOGETHER)]
    return np.concatenate([_placed(digits, shown[some], hash32(key, some.start)) for some in few])


_TOGETHER = 64
"""So many are made at once that all numbers on the way stay in the processor's cache."""


def _placed(digits: Bytes, shown: Indices, key: int) -> Bytes:
    drawn = uniform(hash32(key, 0), np.arange((1 + PIECES) * 7 * len(shown)))
    whole, *pieces = drawn.reshape(1 + PIECES, 7, len(shown), 1, 1)
    images = np.repeat(np.repeat(20 * whole[0], SIDE, axis=1), SIDE, axis=2)
    for piece in pieces:
        _paint(images, digits[(piece[0].ravel() * len(digits)).astype(np.int64)], _piece(*piece[1:]))
    _paint(images, digits[shown], _whole(*whole[1:6]))
    noise = 20 * (uniform(hash32(key, 1), np.arange(images.size)).reshape(images.shape) - 0.5)
    found: Bytes = np.floor(np.clip(images + noise, 0, 255) + 0.5).astype(np.uint8)
    return found


def _whole(turned: Floats, high: Floats, across: Floats, down: Floats, bright: Floats) -> Look:
    """A digit that lies within the picture, as five numbers (0 to 1) say."""
    scale = 1.5 + 1.2 * high
    half = 4 * scale
    right, lower = (half + (SIDE - 2 * half) * where for where in (across, down))
    return Look(0.4 * turned - 0.2, scale, right, lower, 215 + 40 * bright, np.full_like(scale, -np.inf))


def _piece(turned: Floats, high: Floats, across: Floats, down: Floats, bright: Floats, cut: Floats) -> Look:
    """Half a digit or less, anywhere and turned at will, as six numbers (0 to 1) say."""
    return Look(2 * turned - 1, 1.5 + 1.2 * high, SIDE * across, SIDE * down, 30 + 40 * bright, 2 * cut)


def _paint(images: Floats, digits: Bytes, look: Look) -> None:
    """Put digits (uint8, N x 8 x 8) into images (N x 40 x 40), in place."""
    places = np.arange(SIDE) + 0.5
    x, y = places - look.right, places.reshape(-1, 1) - look.lower
    # From the tangent of half the angle: sine and cosine of the C library differ in the last bit between machines.
    turn = look.turn
    cosine, sine = (1 - turn * turn) / (1 + turn * turn), 2 * turn / (1 + turn * turn)
    u, v = (cosine * x - sine * y) / look.scale, (sine * x + cosine * y) / look.scale
    ink = between(digits, v + 3.5, u + 3.5) / 255 * (v > look.cut)
    images += ink * (look.bright - images)
