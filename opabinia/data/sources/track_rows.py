"""Videos with tracks as their files have them: frames, and boxes that are checked."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from opabinia.contracts import FrameTracks
from opabinia.contracts.tracking import Role, TrackGroundTruth
from opabinia.data.file_search import list_images
from opabinia.data.sources.annotation_values import shortened

REGION = 0
"""Class number of regions in which objects are not annotated."""


class TrackFiles(NamedTuple):
    """Files with tracks, and the meaning of the numbers in them.

    Attributes:
        root: the folder with all files.
        file: the annotation file below it, of formats that have one for all videos.
        names: names of the class numbers 1, 2 ... in place of those of the format.
        first_pixel: coordinate of the first pixel.
        first_frame: number of the first image in the annotations; None: the one in its name.
    """

    root: Path
    file: str | None = None
    names: list[str] | None = None
    first_pixel: int = 0
    first_frame: int | None = None


class TrackRows(NamedTuple):
    """The N boxes of a video.

    Attributes:
        lines: number of each box in its file (int64, N).
        frames, ids: frame and track of each box (int64, N).
        boxes: left, top, right, bottom; the image's corner is 0, 0 (float64, N x 4).
        classes: class number of each box, from 1; :data:`REGION`; -1: unknown (int64, N).
        counted: whether the box is marked as one that counts (bool, N).
        visibility: visible share of the object; 1 if unknown (float64, N).
    """

    lines: NDArray[np.int64]
    frames: NDArray[np.int64]
    ids: NDArray[np.int64]
    boxes: NDArray[np.float64]
    classes: NDArray[np.int64]
    counted: NDArray[np.bool_]
    visibility: NDArray[np.float64]


class VideoTracks(NamedTuple):
    """A video with its annotated boxes.

    Attributes:
        name: its name.
        images: path of each frame below the root, by number of the frame.
        names: names of the class numbers 1, 2 ...
        rows: its boxes.
        noun: what messages call a box in the file.
        size: height and width of the frames (0: unknown).
        frame_rate: frames per second (0: unknown).
    """

    name: str
    images: dict[int, str]
    names: tuple[str, ...]
    rows: TrackRows
    noun: str = "line"
    size: tuple[int, int] = (0, 0)
    frame_rate: float = 0

    def labels(self, classes: list[str]) -> NDArray[np.int64]:
        """Return the label of each box by the names of its class (N); -1: another class. Boxes of unknown class are of
        the first one."""
        label_of = {name: label for label, name in enumerate(classes)}
        by_number = np.array([-1, *(label_of.get(name, -1) for name in self.names), 0])  # -1 is the last one
        result: NDArray[np.int64] = by_number[self.rows.classes]
        return result

    def ground_truth(self, classes: list[str], distractors: list[str]) -> TrackGroundTruth:
        """Return the tracks as evaluators need them: boxes of the classes count, unless they are marked otherwise,
        predictions of distractors and in regions are ignored, and other boxes are excluded."""
        labels = self.labels(classes)
        is_distractor = self.labels([*distractors]) >= 0 if distractors else np.zeros(len(labels), bool)
        is_distractor &= self.rows.classes > 0
        is_region = self.rows.classes == REGION
        counted = (labels >= 0) & self.rows.counted & ~is_distractor
        roles = np.select(
            [counted, is_distractor, is_region], [Role.COUNTED, Role.DISTRACTOR, Role.REGION], Role.EXCLUDED
        )
        return TrackGroundTruth(self.rows.frames, self.rows.ids, self.rows.boxes, np.where(counted, labels, -1), roles)

    def frames(self, truth: TrackGroundTruth, numbers: list[int]) -> list[FrameTracks]:
        """Return frames with their part of the ground truth of the video; times are known with the frame rate."""
        order = np.argsort(truth.frames, kind="stable")
        truth, visibility = truth.select(order), self.rows.visibility[order]
        first, rate = min(self.images), self.frame_rate
        starts, ends = (np.searchsorted(truth.frames, numbers, side).tolist() for side in ("left", "right"))
        rows = [slice(start, end) for start, end in zip(starts, ends, strict=True)]
        return [
            FrameTracks(
                self.name, number, (number - first) / rate if rate else None, truth.select(own), visibility[own]
            )
            for number, own in zip(numbers, rows, strict=True)
        ]


Videos = dict[str, Callable[[], VideoTracks]]
"""A function for each video by its name, which reads it."""


def list_frames(root: Path, folder: str) -> dict[int, str]:
    """Return the images in a folder by the last number in their names, as paths below the root.

    Raises:
        ValueError: the folder is missing or has no images, or two frames have the same number or none.
    """
    path = root / folder
    if not path.is_dir():
        raise ValueError(f"{path} is missing: the folder of the frames")
    result: dict[int, str] = {}
    for name in map(os.fsdecode, list_images(path)):
        numbers = re.findall(r"\d{1,18}", name)
        if not numbers:
            raise ValueError(f"{path / name}: the name of a frame needs its number")
        number = int(numbers[-1])
        if number in result:
            raise ValueError(f"{path} has two frames with the number {number}: {Path(result[number]).name} and {name}")
        result[number] = f"{folder}/{name}"
    if not result:
        raise ValueError(f"{path} has no images")
    return result


class BoxTable(NamedTuple):
    """The N boxes of a video in a file, to be checked.

    Attributes:
        file: the file.
        noun: what messages call a box in it.
        lines: number of each box in the file.
        texts: each box as text, for messages.
        values: frame, track, left, top, width, height, whether the box counts (0 or 1), class number, visibility (-1:
            unknown) of each box (float64, N x 9).
        regions: class number :data:`REGION` is allowed; boxes of it have no track.
    """

    file: Path
    noun: str
    lines: Sequence[int]
    texts: Sequence[str]
    values: NDArray[np.float64]
    regions: bool = False

    def check(self, files: TrackFiles, images: dict[int, str], classes: int) -> TrackRows:
        """Return the boxes.

        Args:
            files: meaning of the numbers.
            images: the frames of the video.
            classes: number of classes.

        Raises:
            ValueError: a number is none that its column can have; the text names file and line.
        """
        frames, ids, left, top, width, height, counted, label, visibility = self.values.T
        if files.first_frame is not None:
            frames = frames - files.first_frame + min(images)
        objects = (label != REGION) | (not self.regions)
        order = np.lexsort((ids, frames, ~objects))
        repeated = np.zeros(len(order), bool)
        repeated[order[1:]] = (np.diff(frames[order]) == 0) & (np.diff(ids[order]) == 0)
        problems = {
            "frame and track are not whole numbers": (self.values[:, :2] % 1 != 0).any(1),
            _missing_frames(frames, images): ~np.isin(frames, list(images)),
            "the track is negative": (ids < 0) & objects,
            "the box has no area": (width <= 0) | (height <= 0),
            "the mark whether the box counts is neither 0 nor 1": ~np.isin(counted, (0, 1)),
            f"the class is neither -1 nor 1 to {classes}": ~np.isin(label, [-1, *range(1, classes + 1)]) & objects,
            "the visibility is neither -1 nor from 0 to 1": (visibility != -1)
            & ~((visibility >= 0) & (visibility <= 1)),
            "the track has two boxes in the frame": repeated & objects,
        }
        for problem, mask in problems.items():
            for row in np.flatnonzero(mask)[:1]:
                raise ValueError(f"{self.file}, {self.noun} {self.lines[row]}: {problem}: {shortened(self.texts[row])}")
        whole = np.stack([frames, ids, label]).astype(np.int64)
        return TrackRows(
            np.array(self.lines, dtype=np.int64),
            whole[0],
            whole[1],
            np.stack([left, top, left + width, top + height], 1) - files.first_pixel,
            whole[2],
            counted == 1,
            np.where(visibility < 0, 1, visibility),
        )


def _missing_frames(frames: NDArray[np.float64], images: dict[int, str]) -> str:
    """Return the error of a frame without image; with the remedy if counting from another number explains it."""
    text = f"there is no image of the frame; there are {min(images)} to {max(images)}"
    for shift in (-1, 1):
        if np.isin(frames + shift, list(images)).all():
            text += f" (first_frame: {min(images) - shift} would fit)"
    return text
