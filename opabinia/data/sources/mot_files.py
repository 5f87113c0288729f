"""Files of a sequence in the layout of MOTChallenge: frames, ``seqinfo.ini``, ``gt/gt.txt`` and ``gt/labels.txt``.

The rows of ``gt.txt``: frame, track, left, top, width, height, whether the box counts, class, visibility. Older files
have -1 for the class and the visibility, and other tools append columns.
"""

from __future__ import annotations

import os
import re
from configparser import ConfigParser, Error
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from opabinia.contracts.tracking import FrameTracks, Role, TrackGroundTruth
from opabinia.data.sources.annotation_values import MAX_SIDE, errors_in, image_size, leaves_root, parse_whole, shortened
from opabinia.data.sources.annotation_values import text as checked_name
from opabinia.data.sources.folder import existing_folder, is_image_file
from opabinia.runtime.text import plural

CLASSES = (
    *("pedestrian", "person on vehicle", "car", "bicycle", "motorbike", "non motorized vehicle", "static person"),
    *("distractor", "occluder", "occluder on the ground", "occluder full", "reflection", "crowd"),
)
"""Names of the class numbers 1, 2 ... of files without ``labels.txt``, those of MOTChallenge."""


class SequenceInfo(NamedTuple):
    """Content of ``seqinfo.ini``: folder of the frames, their height and width (0: unknown), frames per second (0:
    unknown), and number of frames (0: unknown)."""

    images: str = "img1"
    size: tuple[int, int] = (0, 0)
    frame_rate: int = 0
    length: int = 0


class MotRows(NamedTuple):
    """The N boxes of ``gt.txt``.

    Attributes:
        lines: line of each box in the file (int64, N).
        frames, ids: frame and track of each box (int64, N).
        boxes: left, top, right, bottom; the image's corner is 0, 0 (float64, N x 4).
        classes: class number of each box, from 1; -1: unknown (int64, N).
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


class MotSequence(NamedTuple):
    """A sequence with its annotated boxes.

    Attributes:
        name: name of its folder.
        images: path of each frame below the folder of all sequences, by number of the frame.
        info: content of ``seqinfo.ini``.
        names: names of the class numbers 1, 2 ...
        rows: its boxes.
    """

    name: str
    images: dict[int, str]
    info: SequenceInfo
    names: tuple[str, ...]
    rows: MotRows

    def labels(self, classes: list[str]) -> NDArray[np.int64]:
        """Return the label of each box by the names of its class (N); -1: another class. Boxes of unknown class are of
        the first one."""
        label_of = {name: label for label, name in enumerate(classes)}
        by_number = np.array([-1, *(label_of.get(name, -1) for name in self.names), 0])  # -1 is the last one
        result: NDArray[np.int64] = by_number[self.rows.classes]
        return result

    def ground_truth(self, classes: list[str], distractors: list[str]) -> TrackGroundTruth:
        """Return the tracks as evaluators need them: boxes of the classes count, unless they are marked otherwise,
        predictions of distractors are ignored, and other boxes are excluded."""
        labels = self.labels(classes)
        is_distractor = self.labels([*distractors]) >= 0 if distractors else np.zeros(len(labels), bool)
        is_distractor &= self.rows.classes > 0
        counted = (labels >= 0) & self.rows.counted & ~is_distractor
        roles = np.select([counted, is_distractor], [Role.COUNTED, Role.DISTRACTOR], Role.EXCLUDED)
        return TrackGroundTruth(self.rows.frames, self.rows.ids, self.rows.boxes, np.where(counted, labels, -1), roles)

    def frames(self, truth: TrackGroundTruth, numbers: list[int]) -> list[FrameTracks]:
        """Return frames with their part of the ground truth of the sequence; times are known with the frame rate."""
        truth = truth.select(np.argsort(truth.frames, kind="stable"))
        first, rate = min(self.images), self.info.frame_rate
        starts, ends = (np.searchsorted(truth.frames, numbers, side).tolist() for side in ("left", "right"))
        return [
            FrameTracks(self.name, number, (number - first) / rate if rate else None, truth.select(slice(start, end)))
            for number, start, end in zip(numbers, starts, ends, strict=True)
        ]


def read_sequences(
    root: Path, sequences: list[str] | None, exclude: list[str], names: list[str] | None, first_pixel: int
) -> list[MotSequence]:
    """Return the sequences in a folder, sorted by name: its subfolders with a ``gt/gt.txt``.

    Args:
        root: the folder.
        sequences: names of those to read; None: all.
        exclude: names of those not to read.
        names: names of the class numbers; None: those of ``gt/labels.txt``, or :data:`CLASSES`.
        first_pixel: coordinate of the first pixel in the files.

    Raises:
        ValueError: a name is unknown, there is no sequence, or a file is damaged; the text names file and line.
    """
    root = existing_folder(root, "root is the folder that holds the folders of the sequences")
    present = sorted(folder.name for folder in root.iterdir() if (folder / "gt" / "gt.txt").is_file())
    if not present:
        raise ValueError(f"{root}: none of its folders has a gt/gt.txt")
    for option, chosen in (("sequences", sequences or []), ("exclude", exclude)):
        if unknown := [name for name in chosen if name not in present]:
            listed = ", ".join(present[:5]) + (" ..." if len(present) > 5 else "")
            raise ValueError(f"{option}: {root} has no sequence {shortened(unknown[0])}; it has {listed}")
    selected = [name for name in present if (sequences is None or name in sequences) and name not in exclude]
    if not selected:
        raise ValueError(f"{root}: no sequence is left of {plural(len(present), 'sequence')}")
    return [_read_sequence(root, name, names, first_pixel) for name in selected]


def _read_sequence(root: Path, name: str, names: list[str] | None, first_pixel: int) -> MotSequence:
    folder = root / name
    info = _read_info(folder / "seqinfo.ini")
    images = _list_images(folder, info.images)
    if info.length not in (0, len(images)):
        raise ValueError(f"{folder / 'seqinfo.ini'}: seqLength is {info.length}, there are {len(images)} images")
    labels = _read_names(folder / "gt" / "labels.txt") if names is None else names
    rows = _read_rows(folder / "gt" / "gt.txt", images, len(labels), first_pixel)
    return MotSequence(name, {number: f"{name}/{path}" for number, path in images.items()}, info, tuple(labels), rows)


def _read_text(file: Path) -> str:
    with errors_in(f"{file}: ", OSError):
        content = file.read_bytes()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not UTF-8: {error.reason} at byte {error.start}") from None


def _read_info(file: Path) -> SequenceInfo:
    """Return the section ``Sequence`` of an INI file; nothing is known without the file."""
    if not file.is_file():
        return SequenceInfo()
    parser = ConfigParser(interpolation=None)
    try:
        parser.read_string(_read_text(file))
    except Error as error:
        raise ValueError(f"{file} is not an INI file: {str(error).splitlines()[0]}") from None
    if not parser.has_section("Sequence"):
        raise ValueError(f"{file} has no section [Sequence]")
    section = parser["Sequence"]

    def number(key: str) -> int:
        with errors_in(f"{file}: {key}: "):
            return parse_whole(section[key], 1, MAX_SIDE) if key in section else 0

    size = number("imHeight"), number("imWidth")
    with errors_in(f"{file}: imWidth x imHeight: "):
        size = image_size(*size) if all(size) else (0, 0)
    return SequenceInfo(section.get("imDir", "img1"), size, number("frameRate"), number("seqLength"))


def _list_images(folder: Path, images: str) -> dict[int, str]:
    """Return the images by the number in their names, as paths below the folder."""
    if leaves_root(folder, images):
        raise ValueError(f"{folder / 'seqinfo.ini'}: imDir {shortened(images)} leads out of the folder")
    path = folder / images
    if not path.is_dir():
        raise ValueError(f"{path} is missing: the folder of the frames")
    result: dict[int, str] = {}
    for name in sorted(os.listdir(path)):
        if not is_image_file(os.fsencode(name)) or name.startswith("."):
            continue
        numbers = re.findall(r"\d{1,18}", name)
        if not numbers:
            raise ValueError(f"{path / name}: the name of a frame needs its number")
        number = int(numbers[-1])
        if number in result:
            raise ValueError(f"{path} has two frames with the number {number}: {Path(result[number]).name} and {name}")
        result[number] = f"{images}/{name}"
    if not result:
        raise ValueError(f"{path} has no images")
    return result


def _read_names(file: Path) -> list[str]:
    """Return the lines of ``labels.txt``, or the names of MOTChallenge without it."""
    if not file.is_file():
        return list(CLASSES)
    names = []
    for number, line in enumerate(_read_text(file).splitlines(), 1):
        with errors_in(f"{file}, line {number}: "):
            names.append(checked_name(line))
            if names.count(names[-1]) > 1:
                raise ValueError(f"two classes are called {shortened(names[-1])}")
    return names


def _read_rows(file: Path, images: dict[int, str], classes: int, first_pixel: int) -> MotRows:
    """Return the boxes of ``gt.txt``."""
    rows = [(number, line) for number, line in enumerate(_read_text(file).splitlines(), 1) if line.strip()]
    if not rows:
        raise ValueError(f"{file} is empty")
    lines = np.array([number for number, _ in rows])
    table = np.array([_numbers(f"{file}, line {number}", line) for number, line in rows])
    frames, ids, left, top, width, height, counted, label, visibility = table.T
    order = np.lexsort((ids, frames))
    repeated = np.zeros(len(rows), bool)
    repeated[order[1:]] = (np.diff(frames[order]) == 0) & (np.diff(ids[order]) == 0)
    problems = {
        "frame and track are not whole numbers": (table[:, :2] % 1 != 0).any(1),
        f"there is no image of the frame; there are {min(images)} to {max(images)}": ~np.isin(frames, list(images)),
        "the track is negative": ids < 0,
        "the box has no area": (width <= 0) | (height <= 0),
        "the mark whether the box counts is neither 0 nor 1": ~np.isin(counted, (0, 1)),
        f"the class is neither -1 nor 1 to {classes}": ~np.isin(label, [-1, *range(1, classes + 1)]),
        "the visibility is neither -1 nor from 0 to 1": (visibility != -1) & ~((visibility >= 0) & (visibility <= 1)),
        "the track has two boxes in the frame": repeated,
    }
    for problem, mask in problems.items():
        for row in np.flatnonzero(mask)[:1]:
            raise ValueError(f"{file}, line {lines[row]}: {problem}: {shortened(rows[row][1])}")
    boxes = np.stack([left, top, left + width, top + height], 1) - first_pixel
    whole = table[:, [0, 1, 7]].astype(np.int64).T
    visible = np.where(visibility < 0, 1, visibility)
    return MotRows(lines, whole[0], whole[1], boxes, whole[2], counted == 1, visible)


def _numbers(where: str, line: str) -> list[float]:
    """Return the nine columns of a row; class and visibility are -1 where there are none."""
    fields = line.split(",")
    if not 7 <= len(fields) <= 10:
        raise ValueError(f"{where}: {plural(len(fields), 'column')} in place of 9: {shortened(line)}")
    values = []
    for field in fields[:9]:
        try:
            values.append(float(field))
        except ValueError:
            raise ValueError(f"{where}: {shortened(field)} is not a number") from None
        if not abs(values[-1]) <= MAX_SIDE:
            raise ValueError(f"{where}: {shortened(field)} is not a number of at most {MAX_SIDE}")
    return values + [-1.0] * (9 - len(values))
