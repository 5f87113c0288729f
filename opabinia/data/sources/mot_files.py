"""Files of a video in the layout of MOTChallenge: frames, ``seqinfo.ini``, ``gt/gt.txt`` and ``gt/labels.txt``.

The rows of ``gt.txt``: frame, track, left, top, width, height, whether the box counts, class, visibility. Older files
have -1 for the class and the visibility, and other tools append columns.
"""

from __future__ import annotations

from configparser import ConfigParser, Error, SectionProxy
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from opabinia.data.sources.annotation_values import (
    MAX_SIDE,
    errors_in,
    image_size,
    leaves_root,
    parse_number,
    parse_whole,
    shortened,
)
from opabinia.data.sources.annotation_values import text as checked_name
from opabinia.data.sources.list_files import read_text
from opabinia.data.sources.track_rows import BoxTable, TrackFiles, Videos, VideoTracks, list_frames
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
    frame_rate: float = 0
    length: int = 0


def mot_videos(files: TrackFiles) -> Videos:
    """Return the subfolders with a ``gt/gt.txt``.

    Raises:
        ValueError: there are none; a function raises it for damaged files.
    """
    names = sorted(folder.name for folder in files.root.iterdir() if (folder / "gt" / "gt.txt").is_file())
    if not names:
        raise ValueError(f"{files.root}: none of its folders has a gt/gt.txt")
    return {name: partial(_read_video, files, name) for name in names}


def _read_video(files: TrackFiles, name: str) -> VideoTracks:
    folder = files.root / name
    info, images = read_frame_list(files.root, name)
    labels = _read_names(folder / "gt" / "labels.txt") if files.names is None else files.names
    rows = _read_table(folder / "gt" / "gt.txt").check(files, images, len(labels))
    return VideoTracks(name, images, tuple(labels), rows, size=info.size, frame_rate=info.frame_rate)


def read_frame_list(root: Path, name: str) -> tuple[SequenceInfo, dict[int, str]]:
    """Return the content of ``seqinfo.ini`` of a video, and its frames: their paths below the root by number.

    Raises:
        ValueError: there are no frames, two with a number, or not as many as ``seqinfo.ini`` says.
    """
    file = root / name / "seqinfo.ini"
    info = _read_info(file)
    if leaves_root(root / name, info.images):
        raise ValueError(f"{file}: imDir {shortened(info.images)} leads out of the folder")
    images = list_frames(root, f"{name}/{info.images}")
    if info.length not in (0, len(images)):
        raise ValueError(f"{file}: seqLength is {info.length}, there are {len(images)} images")
    return info, images


def _read_info(file: Path) -> SequenceInfo:
    """Return the section ``Sequence`` of an INI file; nothing is known without the file."""
    if not file.is_file():
        return SequenceInfo()
    parser = ConfigParser(interpolation=None)
    try:
        parser.read_string(read_text(file))
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
    return SequenceInfo(section.get("imDir", "img1"), size, _frame_rate(section, file), number("seqLength"))


def _frame_rate(section: SectionProxy, file: Path) -> float:
    if "frameRate" not in section:
        return 0
    with errors_in(f"{file}: frameRate: "):
        rate = parse_number(section["frameRate"])
    if rate <= 0:
        raise ValueError(f"{file}: frameRate: {rate:g} is not above 0")
    return rate


def _read_names(file: Path) -> list[str]:
    """Return the lines of ``labels.txt``, or the names of MOTChallenge without it."""
    if not file.is_file():
        return list(CLASSES)
    names = []
    for number, line in enumerate(read_text(file).splitlines(), 1):
        with errors_in(f"{file}, line {number}: "):
            names.append(checked_name(line))
            if names.count(names[-1]) > 1:
                raise ValueError(f"two classes are called {shortened(names[-1])}")
    return names


def _read_table(file: Path) -> BoxTable:
    """Return the boxes of ``gt.txt``."""
    lines = [(number, line) for number, line in enumerate(read_text(file).splitlines(), 1) if line.strip()]
    if not lines:
        raise ValueError(f"{file} is empty")
    numbers, texts = zip(*lines, strict=True)
    return BoxTable(
        file, "line", numbers, texts, np.array([_numbers(f"{file}, line {row}", line) for row, line in lines])
    )


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
