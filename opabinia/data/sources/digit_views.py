"""The embedded data for re-identification: handwritten digits seen by four cameras."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torchvision import tv_tensors

from opabinia.config import register
from opabinia.contracts import Batch, Indices
from opabinia.data.sampling.permutation import Permutation
from opabinia.data.sampling.samplers import uniform
from opabinia.data.sources.digits import cached, load_digits
from opabinia.data.sources.reid_base import Identities, Part, Picture, Split, listed
from opabinia.runtime.seeds import hash32

DIGITS, TRAIN_IDENTITIES = 1797, 1000
SIDE, SHOTS = 32, 2
_KEY = hash32(DIGITS, 5)  # a seed of its own, so that no run's seed changes the pictures
_FILE = "digit_views-2.npz"
_FOLDERS: dict[Part, str] = {"train": "bounding_box_train", "query": "query", "gallery": "bounding_box_test"}

Floats = NDArray[np.float64]


class Camera(NamedTuple):
    """What all pictures of a camera have in common.

    Attributes:
        turn: tangent of half the angle, anticlockwise.
        shear: columns to the right per row down.
        scale: pixels of the picture per pixel of the digit.
        contrast: between paper and ink, as a share of 0 to 255; below 0 the ink is dark.
        across, down: how much brighter the right is than the left, and the bottom than the top, as shares of 127.5.
        right, lower: place of the digit, in pixels from the middle.
    """

    turn: float
    shear: float
    scale: float
    contrast: float
    across: float
    down: float
    right: float = 0.0
    lower: float = 0.0


CAMERAS = (
    Camera(turn=0.2, shear=0.0, scale=2.9, contrast=0.8, across=0.0, down=0.2),
    Camera(turn=-0.2, shear=0.25, scale=2.5, contrast=0.7, across=0.2, down=0.0),
    Camera(turn=0.0, shear=-0.3, scale=2.7, contrast=0.6, across=-0.2, down=0.2),
    Camera(turn=0.1, shear=0.1, scale=2.6, contrast=-0.8, across=-0.2, down=-0.2),
)
SPREAD = Camera(turn=0.18, shear=0.22, scale=0.4, contrast=0.2, across=0.4, down=0.4, right=1.0, lower=1.0)
"""How far a single picture may be from what its camera does, either way."""


@register.source
class DigitViews(Identities):
    """Re-identification for trying things and for tests: an identity is one handwritten digit of scikit-learn's 1,797.

    Four cameras have seen each of them twice, 32 x 32, grey. A camera turns, shears and scales in its own way, has its
    own contrast and light, and with one of them the ink is dark; single pictures differ from that as much again. 1,000
    identities (8,000 pictures) are for training. Of the other 797 the first picture by each camera is a query (3,188),
    the second lies in the gallery (3,188); as in Market-1501 those of the query's own camera are no matches, so there
    are three each.

    Digits: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, 1998.

    Args:
        split: ``train``; ``test`` (``query`` and ``gallery``, or one of the two); or ``all`` to train on everything.
    """

    def __init__(self, *, split: Split = "train") -> None:
        listing = listed("digit_views", split, _pictures)
        super().__init__(Path(), listing, cameras=len(CAMERAS), channels=1)
        self._images = torch.from_numpy(load_views()[[_number(one.name) for one in listing.pictures]]).unsqueeze(1)

    def image(self, index: int) -> tv_tensors.Image:
        """A picture (uint8, 1 x 32 x 32)."""
        return tv_tensors.Image(self._images[index].clone())  # a transform may work in place

    def file(self, index: int) -> None:
        """There are no files."""

    def batch(self, indices: Indices) -> Batch:
        """Samples by their indices (int64, B), as a whole batch."""
        columns = {"label": self.labels, "camera": self.cameras, "query": self.queries}
        found = {key: torch.from_numpy(column[indices]) for key, column in columns.items() if column is not None}
        return {"image": self._images[indices], **found, "id": [self.id(int(index)) for index in indices]}


def write_market(folder: Path) -> None:
    """Write the pictures (PNG) in the layout of Market-1501, for whatever reads that.

    Args:
        folder: where the folders ``bounding_box_train``, ``query`` and ``bounding_box_test`` are made.
    """
    for name in _FOLDERS.values():
        (folder / name).mkdir(parents=True, exist_ok=True)
    for source in (DigitViews(split="train"), DigitViews(split="test")):
        for index in range(len(source)):
            Image.fromarray(source.image(index)[0].numpy()).save(folder / source.id(index))


# --- what there is ----------------------------------------------------------------------------------------------------


def _pictures(part: Part) -> list[Picture]:
    shots = {"train": (1, 2), "query": (1,), "gallery": (2,)}[part]
    return [
        Picture(f"{_FOLDERS[part]}/{name}_c{camera + 1}s{shot}_000001_00.png".encode(), name, camera)
        for name in [f"{number + 1:04d}" for number in _numbers(part)]  # in Market-1501 identity 0 is a distractor
        for camera in range(len(CAMERAS))
        for shot in shots
    ]


def _numbers(part: Part) -> list[int]:
    """The digits that are trained on, or those that are searched, ascending."""
    shuffled = Permutation(DIGITS, _KEY)(np.arange(DIGITS))
    chosen = shuffled[:TRAIN_IDENTITIES] if part == "train" else shuffled[TRAIN_IDENTITIES:]
    return sorted(chosen.tolist())


def _number(name: bytes) -> int:
    """Where the picture ``query/0001_c2s1_000001_00.png`` stands among all: by digit, camera, shot."""
    identity, taken, *_ = name.split(b"/")[1].split(b"_")
    return ((int(identity) - 1) * len(CAMERAS) + int(taken[1:2]) - 1) * SHOTS + int(taken[3:4]) - 1


def load_views() -> NDArray[np.uint8]:
    """All pictures (uint8, 14376 x 32 x 32), by digit, camera and shot, kept in the cache folder.

    Making them takes a second, reading the cached file some milliseconds.
    """
    return cached(_FILE, _all_views)["views"]


def _all_views() -> dict[str, NDArray[np.uint8]]:
    digits, _ = load_digits()
    views = [
        [see(digits, camera, hash32(_KEY, number, shot)) for shot in range(SHOTS)]
        for number, camera in enumerate(CAMERAS)
    ]
    return {"views": np.array(views).transpose(2, 0, 1, 3, 4).reshape(-1, SIDE, SIDE)}


# --- how a camera sees ------------------------------------------------------------------------------------------------


def see(digits: NDArray[np.uint8], camera: Camera, key: int) -> NDArray[np.uint8]:
    """One picture of each digit by a camera (uint8, N x 32 x 32), the same on every machine.

    Args:
        digits: uint8, N x 8 x 8.
        camera: what all of them have in common.
        key: of the random numbers, 32 bits.
    """
    drawn = 2 * uniform(key, np.arange(len(camera) * len(digits))).reshape(len(camera), -1, 1, 1) - 1
    few = [slice(start, start + _TOGETHER) for start in range(0, len(digits), _TOGETHER)]
    return np.concatenate([_seen(digits[some], camera, drawn[:, some]) for some in few])


_TOGETHER = 64
"""So many digits are seen at once that all numbers on the way to their pictures stay in the processor's cache."""


def _seen(digits: NDArray[np.uint8], camera: Camera, drawn: Floats) -> NDArray[np.uint8]:
    """As :func:`see`; ``drawn`` is how far each picture is from what its camera does, -1 to 1 (8 x N x 1 x 1)."""
    turn, shear, scale, contrast, across, down, right, lower = (
        value + spread * far for value, spread, far in zip(camera, SPREAD, drawn, strict=True)
    )
    middle = (SIDE - 1) / 2
    columns = np.arange(SIDE).reshape(1, 1, -1) - middle
    rows = np.arange(SIDE).reshape(1, -1, 1) - middle
    x, y = columns - right, rows - lower
    # From the tangent of half the angle: sine and cosine of the C library differ in the last bit between machines.
    cosine, sine = (1 - turn * turn) / (1 + turn * turn), 2 * turn / (1 + turn * turn)
    u, v = (cosine * x - sine * y) / scale, (sine * x + cosine * y) / scale
    centre = (digits.shape[1] - 1) / 2
    ink = between(digits, v + centre, u + shear * v + centre)
    values = 127.5 + contrast * (ink - 127.5) + 127.5 * (across * columns + down * rows) / SIDE
    found: NDArray[np.uint8] = np.floor(np.clip(values, 0, 255) + 0.5).astype(np.uint8)
    return found


def between(images: NDArray[np.uint8], rows: Floats, columns: Floats) -> Floats:
    """Values of images at places between their pixels (bilinear), 0 outside.

    Args:
        images: uint8, N x h x w.
        rows, columns: the places in each of them, N x H x W; whole numbers are the middles of pixels.
    """
    height, width = images.shape[1:]
    padded = np.pad(images, ((0, 0), (1, 2), (1, 2))).astype(np.float64)
    rows, columns = np.clip(rows, -1, height) + 1, np.clip(columns, -1, width) + 1
    top, left = np.floor(rows).astype(np.int64), np.floor(columns).astype(np.int64)
    lower, right = rows - top, columns - left
    wide = padded.shape[2]
    first = (np.arange(len(images)).reshape(-1, 1, 1) * padded.shape[1] + top) * wide + left
    above = padded.take(first) * (1 - right) + padded.take(first + 1) * right
    first += wide
    below = padded.take(first) * (1 - right) + padded.take(first + 1) * right
    found: Floats = above * (1 - lower) + below * lower
    return found
