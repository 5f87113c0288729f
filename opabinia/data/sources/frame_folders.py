"""Films whose frames are picture files: a folder each, and a list."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Literal

from opabinia.config import register
from opabinia.contracts import Count, Positive, Video
from opabinia.data.decoding.video import FilmFolder
from opabinia.data.sources.folder import is_picture
from opabinia.data.sources.list_files import refuse_bad
from opabinia.data.sources.video_labels import classes_of, lines_of, numbered_labels
from opabinia.data.sources.videos import Films


@register.source
class FrameFolders(Films):
    """Films that were taken apart into pictures, as a list with a line each: folder, number of frames, label
    (PaddleVideo and mmaction2: ``v/1 120 4``); without the number the pictures of the folder are counted.

    A sample's id is its folder as it is written. Labels are names, or numbers from 0.

    Args:
        file: the list.
        root: the folder that the folders count from; the list's own folder when not given.
        pattern: names of the pictures, such as ``img_{:05d}.jpg``; when not given all pictures of the folder, in their
            natural order (``2.jpg`` before ``10.jpg``).
        first: number of the first picture in ``pattern``.
        fps: frames a second.
        classes: names in the order of their numbers; those that occur (0 to the largest number) when not given.
        class_file: in their place: a file with a name a line, or ``number name``.
        channels: 3 for colour, 1 for grey.
        directed: classes that a mirror image would change; ``clip_flip`` leaves them alone.

    Raises:
        ValueError: naming file and line: it is none of these, its label is no class, a folder is missing; or the
            pattern has no place for a number.
    """

    def __init__(
        self,
        *,
        file: Path,
        root: Path | None = None,
        pattern: str | None = None,
        first: int = 1,
        fps: Positive = 30.0,
        classes: list[str] | None = None,
        class_file: Path | None = None,
        channels: Literal[1, 3] = 3,
        directed: list[str] | None = None,
    ) -> None:
        file = file.expanduser()
        self.root = (root or file.parent).expanduser()
        self._pattern, self._first, self._fps = _checked(pattern), first, fps
        places, folders, found = [], [], []
        self._counts: list[Count | None] = []
        for where, line in lines_of(file):
            match = re.fullmatch(r"(.+?)(?:\s+(\d+))?\s+(\S+)", line)
            if match is None or match[2] == "0":
                raise ValueError(f"{file}, {where}: {line!r} is no folder, number of frames (1 or more) and label")
            places.append(where)
            folders.append(match[1])
            self._counts.append(int(match[2]) if match[2] else None)
            found.append([match[3]])
        labels, named = numbered_labels(file, places, found, classes_of(classes, class_file), False)
        lost = [
            f"{folder} ({place})"
            for folder, place in zip(folders, places, strict=True)
            if not os.path.isdir(os.path.join(self.root, folder))
        ]
        refuse_bad(file, lost, len(folders), f"folders in {self.root}")
        super().__init__([os.fsencode(folder) for folder in folders], labels, named, channels, directed or [])

    def film(self, index: int) -> Video:
        folder = os.path.join(self.root, os.fsdecode(self._names[index]))
        names = self._files(folder, self._counts[index])
        return FilmFolder(folder, names, fps=self._fps, channels=self.channels)

    def _files(self, folder: str, count: int | None) -> list[str]:
        if self._pattern is not None and count is not None:
            return [self._pattern.format(self._first + number) for number in range(count)]
        found = sorted((name for name in os.listdir(folder) if is_picture(os.fsencode(name))), key=_natural)
        if self._pattern is not None:
            there = set(found)
            numbers = range(self._first, self._first + len(found))
            return [name for name in map(self._pattern.format, numbers) if name in there]
        if count is not None and len(found) < count:
            raise ValueError(f"{folder} holds {len(found)} pictures, and its list says {count}")
        return found[:count]


def _checked(pattern: str | None) -> str | None:
    try:
        if pattern is None or pattern.format(1) != pattern.format(2):
            return pattern
    except (IndexError, KeyError, ValueError):
        pass
    raise ValueError(f"pattern: {pattern!r} has no place for one number; write it as img_{{:05d}}.jpg")


def _natural(name: str) -> list[tuple[int, str]]:
    """By value where there are digits."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
