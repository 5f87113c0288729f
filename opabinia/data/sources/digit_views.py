"""The embedded dataset for re-identification: handwritten digits seen by four cameras."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torchvision import tv_tensors

from opabinia.config import register
from opabinia.contracts import Batch, Indices, Sample
from opabinia.data.sampling.epoch_order import Permutation
from opabinia.data.sampling.samplers import uniform
from opabinia.data.sources.digit_rendering import Floats, by_blocks, interpolate, rotation, to_bytes
from opabinia.data.sources.digits import Arrays, load_cached, load_digits
from opabinia.data.sources.in_memory import collate_arrays
from opabinia.data.sources.named import NamedSamples
from opabinia.data.sources.reid_base import MARKET_FOLDERS, ReidImage, Split, Subset, identity_info, read_split
from opabinia.runtime.seeds import hash32

DIGITS, TRAIN_IDENTITIES = 1797, 1000
SIDE, SHOTS = 32, 2
_KEY = hash32(DIGITS, 5)  # fixed, so that a run's seed does not change the images


class Camera(NamedTuple):
    """Properties shared by all images of a camera.

    Attributes:
        turn: tangent of half the rotation angle, counterclockwise.
        shear: columns to the right per row down.
        scale: image pixels per pixel of the digit.
        contrast: between paper and ink, as a share of 0 to 255; negative for dark ink.
        gradient_x, gradient_y: how much brighter the right is than the left, and the bottom than the top, as shares of
            127.5.
        x, y: position of the digit, in pixels from the center.
    """

    turn: float
    shear: float
    scale: float
    contrast: float
    gradient_x: float
    gradient_y: float
    x: float = 0.0
    y: float = 0.0


CAMERAS = (
    Camera(turn=0.2, shear=0.0, scale=2.9, contrast=0.8, gradient_x=0.0, gradient_y=0.2),
    Camera(turn=-0.2, shear=0.25, scale=2.5, contrast=0.7, gradient_x=0.2, gradient_y=0.0),
    Camera(turn=0.0, shear=-0.3, scale=2.7, contrast=0.6, gradient_x=-0.2, gradient_y=0.2),
    Camera(turn=0.1, shear=0.1, scale=2.6, contrast=-0.8, gradient_x=-0.2, gradient_y=-0.2),
)
JITTER = Camera(turn=0.18, shear=0.22, scale=0.4, contrast=0.2, gradient_x=0.4, gradient_y=0.4, x=1.0, y=1.0)
"""Maximum deviation of a single image from its camera, in either direction."""


@register.source
class DigitViews(NamedSamples):
    """Re-identification for trials and tests: each identity is one handwritten digit of scikit-learn's 1,797.

    Four cameras have seen each of them twice, 32 x 32, gray. Each camera has its own rotation, shear, scale, contrast
    and lighting, and one of them sees dark ink; single images deviate from their camera as much again. 1,000 identities
    (8,000 images) are for training. The first image of the other 797 by each camera is a query (3,188), the second is
    in the gallery (3,188); as in Market-1501 those of the query's own camera are not matches, so there are three each.

    Digits: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, 1998.

    Args:
        split: ``train``; ``test`` (``query`` and ``gallery``, or one of the two); or ``all`` to train on everything.
    """

    def __init__(self, *, split: Split = "train") -> None:
        listing = read_split("digit_views", split, _list_images)
        super().__init__(
            [image.name for image in listing.images], identity_info(listing, cameras=len(CAMERAS), channels=1)
        )
        self._images = torch.from_numpy(load_views()[[_row(image.name) for image in listing.images]]).unsqueeze(1)

    def __getitem__(self, index: int) -> Sample:
        return self.sample(tv_tensors.Image(self._images[index].clone()), index)  # a transform may work in place

    def batch(self, indices: Indices) -> Batch:
        """Return the collated samples of ``indices`` (int64, B)."""
        return collate_arrays(self, self._images, indices)


# --- images and their names -------------------------------------------------------------------------------------------


def _list_images(subset: Subset) -> list[ReidImage]:
    shuffled = Permutation(DIGITS, _KEY)(np.arange(DIGITS))
    digits = shuffled[:TRAIN_IDENTITIES] if subset == "train" else shuffled[TRAIN_IDENTITIES:]
    shots = {"train": (1, 2), "query": (1,), "gallery": (2,)}[subset]
    names = [f"{digit + 1:04d}" for digit in sorted(digits.tolist())]  # in Market-1501 identity 0 is a distractor
    return [
        ReidImage(f"{MARKET_FOLDERS[subset]}/{name}_c{camera + 1}s{shot}_000001_00.png".encode(), name, camera)
        for name in names
        for camera in range(len(CAMERAS))
        for shot in shots
    ]


def _row(name: bytes) -> int:
    """Return the row of the image ``query/0001_c2s1_000001_00.png`` in the array of :func:`load_views`."""
    identity, camera_shot, *_ = name.split(b"/")[1].split(b"_")
    return ((int(identity) - 1) * len(CAMERAS) + int(camera_shot[1:2]) - 1) * SHOTS + int(camera_shot[3:4]) - 1


def load_views() -> NDArray[np.uint8]:
    """Return all images (uint8, 14376 x 32 x 32) by digit, camera and shot, from the cache folder.

    Rendering takes a second, reading the cached file some milliseconds.
    """

    def render_all() -> Arrays:
        digits, _ = load_digits()
        views = [
            [render(digits, camera, hash32(_KEY, number, shot)) for shot in range(SHOTS)]
            for number, camera in enumerate(CAMERAS)
        ]
        return {"views": np.array(views).transpose(2, 0, 1, 3, 4).reshape(-1, SIDE, SIDE)}

    return load_cached("digit_views-2.npz", render_all)["views"]


# --- rendering --------------------------------------------------------------------------------------------------------


def render(digits: NDArray[np.uint8], camera: Camera, key: int) -> NDArray[np.uint8]:
    """Render one image of each digit by a camera (uint8, N x 32 x 32), the same on every machine.

    Args:
        digits: uint8, N x 8 x 8.
        camera: the properties that they share.
        key: of the random numbers, 32 bits.
    """
    drawn = 2 * uniform(key, np.arange(len(camera) * len(digits))).reshape(len(camera), -1, 1, 1) - 1
    return by_blocks(lambda block: _render(digits[block], camera, drawn[:, block]), len(digits))


def _render(digits: NDArray[np.uint8], camera: Camera, drawn: Floats) -> NDArray[np.uint8]:
    """Render a block; ``drawn`` are the deviations from the camera, -1 to 1 of :data:`JITTER` (8 x N x 1 x 1)."""
    turn, shear, scale, contrast, gradient_x, gradient_y, x_offset, y_offset = (
        value + jitter * share for value, jitter, share in zip(camera, JITTER, drawn, strict=True)
    )
    middle = (SIDE - 1) / 2
    columns = np.arange(SIDE).reshape(1, 1, -1) - middle
    rows = np.arange(SIDE).reshape(1, -1, 1) - middle
    x, y = columns - x_offset, rows - y_offset
    cosine, sine = rotation(turn)
    u, v = (cosine * x - sine * y) / scale, (sine * x + cosine * y) / scale
    center = (digits.shape[1] - 1) / 2
    ink = interpolate(digits, v + center, u + shear * v + center)
    return to_bytes(127.5 + contrast * (ink - 127.5) + 127.5 * (gradient_x * columns + gradient_y * rows) / SIDE)
