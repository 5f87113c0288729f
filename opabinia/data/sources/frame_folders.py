"""Videos as folders of frames (image files), listed in a file."""

from __future__ import annotations

import os
import re
from contextlib import suppress

from opabinia.config import register
from opabinia.contracts import Channels, InputPath, Positive, Video
from opabinia.data.decoding.frames import FrameFolder
from opabinia.data.sources.annotation_values import shortened
from opabinia.data.sources.folder import is_image_file
from opabinia.data.sources.labels import encode_labels, read_classes
from opabinia.data.sources.list_files import raise_for_invalid, read_lines
from opabinia.data.sources.videos import VideoSource


@register.source
class FrameFolders(VideoSource):
    """Videos as folders of image files, as a list with a line each: folder, number of frames, label (PaddleVideo and
    mmaction2: ``v/1 120 4``); without the number the images in the folder are counted.

    A sample's id is its folder as written. Labels are names, or integers from 0.

    Args:
        file: the list.
        root: the folder that the folders are relative to; the list's own folder when not given.
        pattern: names of the images, such as ``img_{:05d}.jpg``; when not given all images of the folder, in natural
            order (``2.jpg`` before ``10.jpg``).
        start_index: number of the first image in ``pattern``.
        fps: frames per second.
        classes: names in the order of their numbers; those that occur (0 to the largest number) when not given.
        class_file: instead of ``classes``: a file with a name per line, or ``number name``.
        channels: 3 for color, 1 for gray; images are converted.
        flip_sensitive_classes: classes whose mirror image belongs to another class; ``clip_flip`` does not flip them.

    Raises:
        ValueError: a line cannot be parsed, a label is unknown, or a folder is missing, with file and line; or the
            pattern has no placeholder for a number.
    """

    def __init__(
        self,
        *,
        file: InputPath,
        root: InputPath | None = None,
        pattern: str | None = None,
        start_index: int = 1,
        fps: Positive = 30.0,
        classes: list[str] | None = None,
        class_file: InputPath | None = None,
        channels: Channels = 3,
        flip_sensitive_classes: list[str] | None = None,
    ) -> None:
        file = file.expanduser()
        self.root = (root or file.parent).expanduser()
        _check_pattern(pattern)
        self._pattern, self._start, self._fps = pattern, start_index, fps
        entries: list[tuple[str, re.Match[str]]] = []
        for location, line in read_lines(file):
            match = re.fullmatch(r"(.+?)(?:\s+(\d{1,9}))?\s+(\S+)", line)
            if match is None or match[2] == "0":
                expected = "a folder, number of frames (1 or more) and label"
                raise ValueError(f"{file}, {location}: {shortened(line)} is not {expected}")
            entries.append((location, match))
        locations, labels = [location for location, _ in entries], [[match[3]] for _, match in entries]
        encoded, names = encode_labels(file, locations, labels, read_classes(classes, class_file), False)
        folders = [(location, match[1]) for location, match in entries]
        missing = [f"{path} ({where})" for where, path in folders if not os.path.isdir(os.path.join(self.root, path))]
        raise_for_invalid(file, missing, len(folders), f"folders in {self.root}")
        self._counts = [int(match[2]) if match[2] else None for _, match in entries]
        super().__init__([os.fsencode(path) for _, path in folders], encoded, names, channels, flip_sensitive_classes)

    def video(self, index: int) -> Video:
        folder = os.path.join(self.root, os.fsdecode(self.names[index]))
        names = self._frame_names(folder, self._counts[index])
        return FrameFolder(folder, names, fps=self._fps, channels=self.channels)

    def _frame_names(self, folder: str, count: int | None) -> list[str]:
        if self._pattern is not None and count is not None:
            return [self._pattern.format(self._start + i) for i in range(count)]
        names = sorted((name for name in os.listdir(folder) if is_image_file(os.fsencode(name))), key=_natural_key)
        if self._pattern is not None:
            existing = set(names)
            candidates = (self._pattern.format(self._start + i) for i in range(len(names)))
            return [name for name in candidates if name in existing]
        if count is not None and len(names) < count:
            raise ValueError(f"{folder} has {len(names)} images, its list says {count}")
        return names[:count]


def _check_pattern(pattern: str | None) -> None:
    with suppress(IndexError, KeyError, ValueError):
        if pattern is None or pattern.format(1) != pattern.format(2):
            return
    raise ValueError(f"pattern: {pattern!r} has no placeholder for one number; write it as img_{{:05d}}.jpg")


def _natural_key(name: str) -> list[tuple[int, str]]:
    """Return a sort key that compares digits by value."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]
