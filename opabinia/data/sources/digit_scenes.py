"""The embedded data for detection: scenes of handwritten digits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torchvision import tv_tensors

from opabinia.config import register
from opabinia.contracts import GroundTruth, Sample
from opabinia.contracts.masks import run_lengths
from opabinia.data.sampling.samplers import uniform
from opabinia.data.sources.digit_views import between
from opabinia.data.sources.digits import Arrays, cached, load_digits, split_digits
from opabinia.runtime.seeds import hash32

Split = Literal["train", "val"]

SIDE = 128
SCENES: dict[Split, int] = {"train": 1600, "val": 400}
MOST = 6
_KEY = hash32(1797, 6)  # a seed of its own, so that no run's seed changes the pictures
_VERSION = "digit_scenes-4"

Floats = NDArray[np.float64]
Bytes = NDArray[np.uint8]


@register.source
class DigitScenes:
    """Detection for trying things and for tests: one to six of scikit-learn's handwritten digits in a noisy picture.

    Pictures are grey, 128 x 128; 1,600 for training and 400 for validation, whose digits are others (those of
    ``digits``, in the same split). A digit is about 24 to 55 pixels high, slightly turned and sheared, brighter than
    what is around it, and may cover up to a tenth of another. Its mask is what is seen of it, its box the box of the
    mask. Its points are the middles of its uppermost and lowest rows and of its left-most and right-most columns; where
    another digit covers them, they are hidden (visible: 1).

    Digits: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, 1998.

    Args:
        split: which part.
        masks: whether samples tell the pixels of digits.
        keypoints: whether they tell their points.
    """

    channels = 1
    classes = tuple("0123456789")
    category_ids = tuple(range(1, 11))
    has_boxes = True

    def __init__(self, *, split: Split = "train", masks: bool = False, keypoints: bool = False) -> None:
        scenes = load_scenes(split)
        self.has_masks = masks
        self.keypoints = POINTS if keypoints else ()
        self.sizes = np.full((SCENES[split], 2), SIDE)
        self._split = split
        self._images = torch.from_numpy(scenes["images"]).unsqueeze(1)
        self._owners = scenes["owners"]
        self._labels, self._boxes = scenes["labels"].astype(np.int64), scenes["boxes"].astype(np.int64)
        self._points = scenes["points"].astype(np.int64)
        self._ends = np.cumsum(scenes["counts"], dtype=np.int64)
        self.present = [np.unique(self._labels[self._things(index)]) for index in range(len(self))]

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> Sample:
        index = range(len(self))[index]
        here = self._things(index)
        numbers = np.arange(1, here.stop - here.start + 1, dtype=np.uint8)
        masks = self._owners[index] == numbers[:, None, None]
        boxes = torch.from_numpy(self._boxes[here]).float()
        sample = {
            "image": tv_tensors.Image(self._images[index].clone()),  # a transform may work in place
            "boxes": tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=(SIDE, SIDE)),
            "labels": torch.from_numpy(self._labels[here].copy()),
            "id": self.id(index),
            "original_size": (SIDE, SIDE),
            "ground_truth": self._truth(index, masks),
        }
        if self.has_masks:
            sample["masks"] = tv_tensors.Mask(torch.from_numpy(masks.astype(np.uint8)))
        if self.keypoints:
            points = torch.from_numpy(self._points[here])
            sample["keypoints"] = tv_tensors.KeyPoints(points[:, :, :2] + 0.5, canvas_size=(SIDE, SIDE))
            sample["visible"] = points[:, :, 2].clone()
            sample["mirror"] = list(MIRROR)
        return sample

    def id(self, index: int) -> str:
        """The path that :func:`write_coco` gives a picture."""
        return f"{self._split}/{index:06d}.png"

    def fingerprint(self) -> str:
        """Changes with the pictures."""
        return f"{_VERSION} {self._split}"

    def _things(self, index: int) -> slice:
        """Where the digits of a scene stand among all."""
        return slice(int(self._ends[index - 1]) if index else 0, int(self._ends[index]))

    def _truth(self, index: int, masks: NDArray[np.bool_]) -> GroundTruth:
        here = self._things(index)
        boxes = self._boxes[here].astype(np.float64)
        return GroundTruth(
            image_id=index,
            size=(SIDE, SIDE),
            ids=np.arange(here.start, here.stop) + 1,  # COCO's own evaluation takes 0 for no annotation
            boxes=np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], axis=1),
            labels=self._labels[here].copy(),
            areas=masks.sum((1, 2)).astype(np.float64),
            crowd=np.zeros(len(masks), dtype=bool),
            segments=[run_lengths(mask) for mask in masks] if self.has_masks else None,
            keypoints=self._points[here].astype(np.float64) if self.keypoints else None,
        )


def write_coco(folder: Path) -> None:
    """Write the scenes (PNG) with their annotations as COCO has them, for whatever reads that.

    Args:
        folder: where ``train``, ``val`` and ``annotations/instances_{train,val}.json`` are made.
    """
    (folder / "annotations").mkdir(parents=True, exist_ok=True)
    for split in SCENES:
        (folder / split).mkdir(exist_ok=True)
        source = DigitScenes(split=split, masks=True, keypoints=True)
        pictures: list[dict[str, Any]] = []
        annotations: list[dict[str, Any]] = []
        for sample in (source[index] for index in range(len(source))):
            ground_truth: GroundTruth = sample["ground_truth"]
            Image.fromarray(sample["image"][0].numpy()).save(folder / sample["id"])
            name = sample["id"].removeprefix(f"{split}/")
            pictures.append({"id": ground_truth.image_id, "file_name": name, "height": SIDE, "width": SIDE})
            annotations.extend(_annotations(ground_truth))
        categories = [
            {"id": number, "name": name, "keypoints": POINTS, "skeleton": [[1, 2], [3, 4]]}
            for number, name in zip(source.category_ids, source.classes, strict=True)
        ]
        content = {"images": pictures, "annotations": annotations, "categories": categories}
        (folder / "annotations" / f"instances_{split}.json").write_text(json.dumps(content))


def _annotations(ground_truth: GroundTruth) -> Iterator[dict[str, Any]]:
    assert ground_truth.segments is not None and ground_truth.keypoints is not None
    for row, segment in enumerate(ground_truth.segments):
        yield {
            "id": int(ground_truth.ids[row]),
            "image_id": ground_truth.image_id,
            "category_id": DigitScenes.category_ids[ground_truth.labels[row]],
            "bbox": ground_truth.boxes[row].tolist(),
            "area": float(ground_truth.areas[row]),
            "iscrowd": 0,
            "segmentation": segment,
            "keypoints": ground_truth.keypoints[row].astype(int).ravel().tolist(),
            "num_keypoints": int((ground_truth.keypoints[row, :, 2] > 0).sum()),
        }


# --- making them ------------------------------------------------------------------------------------------------------


POINTS = ("top", "bottom", "left", "right")
MIRROR = (0, 1, 3, 2)


def load_scenes(split: Split) -> Arrays:
    """All scenes of a part, kept in the cache folder; all arrays are uint8.

    ``images`` (N x 128 x 128); ``owners`` (N x 128 x 128): which thing of the scene, from 1 on, a pixel belongs to, or
    0; ``counts`` (N), of things in a scene; and of all things one after another ``labels``, ``boxes`` (4: left, top,
    right, bottom) and ``points`` (4 x 3: column, row, visibility as in COCO).

    Making them takes some seconds, reading the cached file some milliseconds.
    """
    return cached(f"{_VERSION}-{split}.npz", lambda: _all_scenes(split))


def _all_scenes(split: Split) -> Arrays:
    digits, labels = load_digits()
    numbers = split_digits(labels)[split]
    keys = (hash32(_KEY, list(SCENES).index(split), number) for number in range(SCENES[split]))
    scenes = [make_scene(digits[numbers], key) for key in keys]
    things = [thing for scene in scenes for thing in scene.things]
    return {
        "images": np.stack([scene.image for scene in scenes]),
        "owners": np.stack([scene.owners for scene in scenes]),
        "counts": np.array([len(scene.things) for scene in scenes], dtype=np.uint8),
        "labels": labels[numbers[[thing.digit for thing in things]]],
        "boxes": np.array([thing.box for thing in things], dtype=np.uint8),
        "points": np.array([thing.points for thing in things], dtype=np.uint8),
    }


_Box = tuple[int, int, int, int]


class Thing(NamedTuple):
    """A digit in a scene: which one, its box (left, top, right, bottom) and points (column, row, visibility)."""

    digit: int
    box: _Box
    points: list[tuple[int, int, int]]


class Scene(NamedTuple):
    """A picture (uint8, 128 x 128), to which thing each pixel belongs (from 1 on; 0 is none), and the things."""

    image: Bytes
    owners: Bytes
    things: list[Thing]


class _Glyph(NamedTuple):
    """A digit that may be put into a scene: ink (0 to 1) in a square, with its place and its brightness."""

    digit: int
    ink: Floats
    top: int
    left: int
    bright: float

    @property
    def place(self) -> tuple[slice, slice]:
        side = len(self.ink)
        return slice(self.top, self.top + side), slice(self.left, self.left + side)

    @property
    def mask(self) -> NDArray[np.bool_]:
        return self.ink >= _INKED

    @property
    def box(self) -> _Box:
        """Left, top, right, bottom in the scene."""
        columns, rows = (np.flatnonzero(self.mask.any(axis)) for axis in (0, 1))
        left, top, right, bottom = (int(edge) for edge in (columns[0], rows[0], columns[-1] + 1, rows[-1] + 1))
        return left + self.left, top + self.top, right + self.left, bottom + self.top


_INKED = 0.5
_TRIES = 6 * MOST
_LEAST_SEEN = 0.9
_MOST_SHARED = 0.2


def make_scene(digits: Bytes, key: int) -> Scene:
    """A scene, the same on every machine.

    Args:
        digits: to choose from (uint8, N x 8 x 8).
        key: of the random numbers, 32 bits.
    """
    count = 1 + int(uniform(hash32(key, 0), np.arange(1))[0] * MOST)
    drawn = uniform(hash32(key, 1), np.arange(7 * _TRIES)).reshape(_TRIES, 7)
    image = _background(hash32(key, 2))
    owners = np.zeros((SIDE, SIDE), dtype=np.uint8)
    glyphs: list[_Glyph] = []
    for row in drawn.tolist():
        glyph = _glyph(digits, row)
        if any(_shared(glyph.box, one.box) > _MOST_SHARED for one in glyphs):
            continue
        covered = owners.copy()
        covered[glyph.place][glyph.mask] = len(glyphs) + 1
        if all(_seen(covered, number, one) for number, one in enumerate(glyphs, 1)):
            owners = covered
            glyphs.append(glyph)
            image[glyph.place] += glyph.ink * (glyph.bright - image[glyph.place])
        if len(glyphs) == count:
            break
    noise = 20 * (uniform(hash32(key, 3), np.arange(SIDE * SIDE)).reshape(SIDE, SIDE) - 0.5)
    pixels = np.floor(np.clip(image + noise, 0, 255) + 0.5).astype(np.uint8)
    return Scene(pixels, owners, [_thing(owners, number, one) for number, one in enumerate(glyphs, 1)])


def _background(key: int) -> Floats:
    """Clouds of 20 to 100, over some 25 pixels."""
    drawn = uniform(key, np.arange(37))
    coarse = np.floor(255 * drawn[:36]).astype(np.uint8).reshape(1, 6, 6)
    rows, columns = np.indices((1, SIDE, SIDE))[1:] * (5 / SIDE)
    clouds: Floats = 20 + 40 * float(drawn[36]) + 40 / 255 * between(coarse, rows, columns)[0]
    return clouds


def _glyph(digits: Bytes, drawn: list[float]) -> _Glyph:
    """One of the digits as seven numbers (0 to 1) say: which, height, turn, shear, brightness, row and column."""
    which, high, turned, sheared, bright, down, across = drawn
    digit = int(which * len(digits))
    scale = (24 + 32 * high) / 8
    turn, shear = 0.2 * turned - 0.1, 0.4 * sheared - 0.2
    side = int(10 * scale)  # a turned digit needs more room than its 8 x 8
    places = np.arange(side) - (side - 1) / 2
    x, y = places[None, None, :], places[None, :, None]
    # From the tangent of half the angle: sine and cosine of the C library differ in the last bit between machines.
    cosine, sine = (1 - turn * turn) / (1 + turn * turn), 2 * turn / (1 + turn * turn)
    u, v = (cosine * x - sine * y) / scale, (sine * x + cosine * y) / scale
    grey = between(digits[digit : digit + 1], v + 3.5, u + shear * v + 3.5)[0] / 255
    ink = np.clip((grey - 0.3) / 0.3, 0, 1)  # sharper: where a digit ends is to be seen
    room = SIDE - side + 1
    return _Glyph(digit, ink, int(down * room), int(across * room), 160 + 95 * bright)


def _shared(box: _Box, other: _Box) -> float:
    """The part of the smaller one that lies in the other, too."""
    width, height = (min(box[end + 2], other[end + 2]) - max(box[end], other[end]) for end in (0, 1))
    smaller = min((right - left) * (bottom - top) for left, top, right, bottom in (box, other))
    return max(0, width) * max(0, height) / smaller


def _seen(owners: Bytes, number: int, glyph: _Glyph) -> bool:
    """Whether enough of a digit is seen."""
    return bool((owners[glyph.place] == number).sum() >= _LEAST_SEEN * glyph.mask.sum())


def _thing(owners: Bytes, number: int, glyph: _Glyph) -> Thing:
    rows, columns = np.nonzero(owners == number)
    box = (int(columns.min()), int(rows.min()), int(columns.max()) + 1, int(rows.max()) + 1)
    points = [
        (column, row, 2 if owners[row, column] == number else 1)
        for column, row in ((column + glyph.left, row + glyph.top) for column, row in _extremes(glyph.mask))
    ]
    return Thing(glyph.digit, box, points)


def _extremes(mask: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Column and row of the middle pixel in the top row of a mask, its bottom row, left and right column."""
    rows, columns = np.nonzero(mask)
    for edge, along in (
        (rows == rows.min(), columns),
        (rows == rows.max(), columns),
        (columns == columns.min(), rows),
        (columns == columns.max(), rows),
    ):
        there = np.flatnonzero(edge)
        middle = there[np.argsort(along[there])[len(there) // 2]]
        yield int(columns[middle]), int(rows[middle])
