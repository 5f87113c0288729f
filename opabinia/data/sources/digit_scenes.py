"""The embedded dataset for detection: scenes of handwritten digits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from opabinia.config import register
from opabinia.contracts import GroundTruth, RaggedArray, Sample, Source, SourceInfo
from opabinia.contracts.masks import encode_rle
from opabinia.data.sampling.samplers import uniform
from opabinia.data.sources.detection_base import check_not_both, make_sample
from opabinia.data.sources.digit_rendering import Bytes, Floats, interpolate, rotation, to_bytes
from opabinia.data.sources.digits import Arrays, Split, load_cached, load_digits, split_digits
from opabinia.runtime.seeds import hash32

SIDE = 128
SCENES: dict[Split, int] = {"train": 1600, "val": 400}
MAX_OBJECTS = 6  # at most 255
KEYPOINTS = ("top", "bottom", "left", "right")
FLIP_PAIRS = (0, 1, 3, 2)
_KEY = hash32(1797, 6)  # fixed, so that a run's seed does not change the images
_VERSION = "digit_scenes-4"


@register.source
class DigitScenes(Source):
    """Detection for trials and tests: one to six of scikit-learn's handwritten digits in a noisy image.

    Images are gray, 128 x 128; 1,600 for training and 400 for validation, with different digits (those of ``digits``,
    in the same split). A digit is about 24 to 55 pixels high, slightly rotated and sheared, brighter than the
    background, and may cover up to a tenth of another. Its mask is its visible part, its box the bounding box of the
    mask. Its keypoints are the centers of its top and bottom rows and of its leftmost and rightmost columns; if another
    digit covers them, they are hidden (visibility 1).

    With ``rotated`` the digits are rotated by up to 90 degrees either way (a 6 stays different from a 9), and the boxes
    are oriented: rectangles in the direction of the digit around its visible pixels.

    Digits: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, 1998.

    Args:
        split: train or val.
        masks: whether samples have instance masks.
        keypoints: whether samples have keypoints.
        rotated: rotated digits with oriented boxes, without masks.

    Raises:
        ValueError: both masks and oriented boxes are asked for.
    """

    def __init__(
        self, *, split: Split = "train", masks: bool = False, keypoints: bool = False, rotated: bool = False
    ) -> None:
        check_not_both(masks, rotated)
        scenes = load_scenes(split, rotated=rotated)
        self._split = split
        self._images = torch.from_numpy(scenes["images"]).unsqueeze(1)
        self._owners = scenes["owners"]
        self._labels, self._boxes = scenes["labels"].astype(np.int64), scenes["boxes"].astype(np.float64)
        self._points = scenes["points"].astype(np.int64)
        if rotated:
            self._corners = scenes["corners"]
            self._boxes = np.concatenate([self._corners.min(1), self._corners.max(1)], 1)
        self._ends = np.cumsum(scenes["counts"], dtype=np.int64)
        self.info = SourceInfo(
            channels=1,
            classes=tuple("0123456789"),
            sizes=np.full((SCENES[split], 2), SIDE),
            boxes=True,
            masks=masks,
            oriented=rotated,
            keypoints=KEYPOINTS if keypoints else (),
            category_ids=tuple(range(1, 11)),
            present=RaggedArray(np.unique(self._labels[self._rows(index)]) for index in range(len(self))),
        )

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> Sample:
        index = range(len(self))[index]
        rows = self._rows(index)
        numbers = np.arange(1, rows.stop - rows.start + 1, dtype=np.uint8)
        owned = self._owners[index] == numbers[:, None, None]
        boxes = self._boxes[rows]
        ground_truth = GroundTruth(
            image_id=index,
            size=(SIDE, SIDE),
            ids=np.arange(rows.start, rows.stop) + 1,  # COCO's own evaluation takes 0 for no annotation
            boxes=np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], axis=1),
            labels=self._labels[rows].copy(),
            areas=owned.sum((1, 2)).astype(np.float64),
            crowd=np.zeros(len(owned), dtype=bool),
            segments=[encode_rle(mask) for mask in owned] if self.info.masks else None,
            keypoints=self._points[rows].astype(np.float64) if self.info.keypoints else None,
            corners=self._corners[rows] if self.info.oriented else None,
        )
        image = self._images[index].clone()  # a transform may work in place
        masks = owned.astype(np.uint8) if self.info.masks else None
        return make_sample(image, self.id(index), ground_truth, ~ground_truth.crowd, masks, FLIP_PAIRS)

    def id(self, index: int) -> str:
        """Return a path-like name of an image."""
        return f"{self._split}/{index:06d}.png"

    def fingerprint(self) -> str:
        """Return a text that changes with the images."""
        return f"{_VERSION} {self._split}{' rotated' * self.info.oriented}"

    def _rows(self, index: int) -> slice:
        """Return the rows of a scene's digits among those of all scenes."""
        return slice(int(self._ends[index - 1]) if index else 0, int(self._ends[index]))


# --- rendering --------------------------------------------------------------------------------------------------------


def load_scenes(split: Split, *, rotated: bool = False) -> Arrays:
    """Return all scenes of a split from the cache folder; all arrays are uint8, but for ``corners``.

    ``images`` (N x 128 x 128); ``owners`` (N x 128 x 128): the number of the object of the scene, from 1, that a pixel
    belongs to, or 0; ``counts`` (N): objects per scene; and, for the objects of all scenes, ``labels``, ``boxes`` (4:
    left, top, right, bottom) and ``points`` (4 x 3: column, row, visibility as in COCO), of rotated digits also
    ``corners`` (float64, 4 x 2: x, y).

    Rendering takes some seconds, reading the cached file some milliseconds.
    """

    def render() -> Arrays:
        digits, labels = load_digits()
        numbers = split_digits(labels)[split]
        keys = (hash32(_KEY, list(SCENES).index(split), number) for number in range(SCENES[split]))
        scenes = [make_scene(digits[numbers], key, rotated=rotated) for key in keys]
        instances = [instance for scene in scenes for instance in scene.instances]
        corners = {"corners": np.array([instance.corners for instance in instances])} if rotated else {}
        return corners | {
            "images": np.stack([scene.image for scene in scenes]),
            "owners": np.stack([scene.owners for scene in scenes]),
            "counts": np.array([len(scene.instances) for scene in scenes], dtype=np.uint8),
            "labels": labels[numbers[[instance.digit for instance in instances]]],
            "boxes": np.array([instance.box for instance in instances], dtype=np.uint8),
            "points": np.array([instance.points for instance in instances], dtype=np.uint8),
        }

    return load_cached(f"{_VERSION}-{'rotated-' * rotated}{split}.npz", render)


_Box = tuple[int, int, int, int]


class Instance(NamedTuple):
    """A digit in a scene: its index, box (left, top, right, bottom), keypoints (column, row, visibility), and the
    corners of its oriented box (4 x 2: x, y)."""

    digit: int
    box: _Box
    points: list[tuple[int, int, int]]
    corners: Floats


class Scene(NamedTuple):
    """An image (uint8, H x W), the number of the object of each pixel (from 1; 0 is none), and the objects."""

    image: Bytes
    owners: Bytes
    instances: list[Instance]


class _Glyph(NamedTuple):
    """A digit to be put into a scene: ink (0 to 1) in a square, its upper left corner, its brightness, and cosine and
    sine of its rotation."""

    digit: int
    ink: Floats
    top: int
    left: int
    brightness: float
    rotation: tuple[float, float]

    @property
    def region(self) -> tuple[slice, slice]:
        side = len(self.ink)
        return slice(self.top, self.top + side), slice(self.left, self.left + side)

    @property
    def mask(self) -> NDArray[np.bool_]:
        return self.ink >= 0.5

    @property
    def box(self) -> _Box:
        """Left, top, right, bottom in the scene."""
        left, top, right, bottom = _bounds(self.mask)
        return left + self.left, top + self.top, right + self.left, bottom + self.top


_MIN_VISIBLE = 0.9
_MAX_OVERLAP = 0.2


def make_scene(digits: Bytes, key: int, *, rotated: bool = False) -> Scene:
    """Render a scene, the same on every machine.

    Args:
        digits: to choose from (uint8, N x 8 x 8).
        key: of the random numbers, 32 bits.
        rotated: rotate digits by up to 90 degrees instead of up to 11.
    """
    count = 1 + int(uniform(hash32(key, 0), np.arange(1))[0] * MAX_OBJECTS)
    drawn = uniform(hash32(key, 1), np.arange(7 * 6 * MAX_OBJECTS)).reshape(-1, 7)
    image = _background(hash32(key, 2))
    owners = np.zeros((SIDE, SIDE), dtype=np.uint8)
    glyphs: list[_Glyph] = []
    for row in drawn.tolist():
        glyph = _make_glyph(digits, row, rotated=rotated)
        if any(_overlap(glyph.box, other.box) > _MAX_OVERLAP for other in glyphs):
            continue
        covered = owners.copy()
        covered[glyph.region][glyph.mask] = len(glyphs) + 1
        visible = [(covered[other.region] == number).sum() for number, other in enumerate(glyphs, 1)]
        if all(pixels >= _MIN_VISIBLE * other.mask.sum() for pixels, other in zip(visible, glyphs, strict=True)):
            owners = covered
            glyphs.append(glyph)
            image[glyph.region] += glyph.ink * (glyph.brightness - image[glyph.region])
        if len(glyphs) == count:
            break
    noise = 20 * (uniform(hash32(key, 3), np.arange(SIDE * SIDE)).reshape(SIDE, SIDE) - 0.5)
    instances = [_make_instance(owners, number, glyph) for number, glyph in enumerate(glyphs, 1)]
    return Scene(to_bytes(image + noise), owners, instances)


def _background(key: int) -> Floats:
    """Return clouds with values of 20 to 100 and a size of about 25 pixels."""
    cells = 5 * SIDE // 128
    drawn = uniform(key, np.arange((cells + 1) ** 2 + 1))
    coarse = np.floor(255 * drawn[:-1]).astype(np.uint8).reshape(1, cells + 1, cells + 1)
    rows, columns = np.indices((1, SIDE, SIDE))[1:] * (cells / SIDE)
    clouds: Floats = 20 + 40 * float(drawn[-1]) + 40 / 255 * interpolate(coarse, rows, columns)[0]
    return clouds


def _make_glyph(digits: Bytes, drawn: list[float], *, rotated: bool) -> _Glyph:
    """Render a digit from seven random numbers in 0 to 1."""
    which, height, turn, shear, brightness, top, left = drawn
    digit = int(which * len(digits))
    scale = (24 + 32 * height) / 8
    cosine, sine = rotation(2 * turn - 1 if rotated else 0.2 * turn - 0.1)
    side = int((12 if rotated else 10) * scale)  # a rotated digit needs more space than its 8 x 8
    centered = np.arange(side) - (side - 1) / 2
    x, y = centered[None, None, :], centered[None, :, None]
    u, v = (cosine * x - sine * y) / scale, (sine * x + cosine * y) / scale
    gray = interpolate(digits[digit : digit + 1], v + 3.5, u + (0.4 * shear - 0.2) * v + 3.5)[0] / 255
    ink = np.clip((gray - 0.3) / 0.3, 0, 1)  # sharper edges
    free = SIDE - side + 1
    return _Glyph(digit, ink, int(top * free), int(left * free), 160 + 95 * brightness, (cosine, sine))


def _overlap(box: _Box, other: _Box) -> float:
    """Return the share of the smaller box that the other one covers."""
    width, height = (min(box[end + 2], other[end + 2]) - max(box[end], other[end]) for end in (0, 1))
    smaller = min((right - left) * (bottom - top) for left, top, right, bottom in (box, other))
    return max(0, width) * max(0, height) / smaller


def _make_instance(owners: Bytes, number: int, glyph: _Glyph) -> Instance:
    points = [(column, row, 2 if owners[row, column] == number else 1) for column, row in _extremes(glyph)]
    rows, columns = np.nonzero(owners == number)
    return Instance(glyph.digit, _bounds(owners == number), points, _corners(rows, columns, *glyph.rotation))


def _corners(rows: NDArray[np.int64], columns: NDArray[np.int64], cosine: float, sine: float) -> Floats:
    """Return the corners (4 x 2: x, y) of the tightest box around pixels, rotated counterclockwise by the angle with
    this cosine and sine."""
    x, y = columns[:, None] + [0, 1, 1, 0], rows[:, None] + [0, 0, 1, 1]
    along, across = cosine * x - sine * y, sine * x + cosine * y
    u = np.array([along.min(), along.max()])[[0, 1, 1, 0]]
    v = np.array([across.min(), across.max()])[[0, 0, 1, 1]]
    return np.stack([cosine * u + sine * v, cosine * v - sine * u], 1)


def _bounds(mask: NDArray[np.bool_]) -> _Box:
    rows, columns = np.nonzero(mask)
    return int(columns.min()), int(rows.min()), int(columns.max()) + 1, int(rows.max()) + 1


def _extremes(glyph: _Glyph) -> Iterator[tuple[int, int]]:
    """Yield (column, row) in the scene of the middle pixel in the top row, the bottom row, the left and the right
    column."""
    rows, columns = np.nonzero(glyph.mask)
    for across, along in ((rows, columns), (columns, rows)):
        for edge in (across.min(), across.max()):
            pixels = np.flatnonzero(across == edge)
            middle = pixels[np.argsort(along[pixels])[len(pixels) // 2]]
            yield int(columns[middle]) + glyph.left, int(rows[middle]) + glyph.top
