"""Videos in one folder per class, as folders of frames, and several views of each; what sources of videos share."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import MinLen

from opabinia.config import register
from opabinia.contracts import (
    Count,
    FrameChannels,
    InputPath,
    Positive,
    Sample,
    Source,
    SourcePart,
    Video,
    frame_channels,
)
from opabinia.data.decoding.image_sequences import FrameFolder
from opabinia.data.decoding.video import EXTENSIONS, VideoFile
from opabinia.data.file_search import list_images
from opabinia.data.sources.annotation_values import shortened
from opabinia.data.sources.file_names import short_digest
from opabinia.data.sources.folder import find_class_files
from opabinia.data.sources.labels import check_class, encode_labels, read_classes
from opabinia.data.sources.list_files import raise_for_invalid, read_lines
from opabinia.data.sources.named import NamedSamples
from opabinia.data.sources.table import label_info


class VideoSource(NamedSamples):
    """Videos with labels; subclasses define ``video``.

    Args:
        names: paths as written, which are the ids.
        labels: int64, N; of multi-label data float32 of 0 and 1, N x K.
        classes: their names.
        channels: 3 for color, 1 for gray.
        flip_sensitive_classes: classes whose mirror image belongs to another class.

    Raises:
        ValueError: one of ``flip_sensitive_classes`` is unknown.
    """

    def __init__(
        self,
        names: Sequence[bytes],
        labels: Any,
        classes: Sequence[str],
        channels: FrameChannels,
        flip_sensitive_classes: Sequence[str] | None,
    ) -> None:
        super().__init__(names, label_info(classes, labels, channels))
        for name in flip_sensitive_classes or ():
            check_class("flip_sensitive_classes: the source", name, self.classes)
        self._flip_sensitive = np.isin(np.array(self.classes, dtype=object), list(flip_sensitive_classes or ()))

    def __getitem__(self, index: int) -> Sample:
        labels = self.info.labels_of(index)
        classes = np.flatnonzero(labels["label"]) if self.info.multi_label else labels["label"]
        changes = bool(self._flip_sensitive[classes].any())
        return {"video": self.video(index), **labels, "flip_changes_label": changes, "id": self.id(index)}

    def video(self, index: int) -> Video:
        """Return a video, not yet read."""
        raise NotImplementedError

    def fingerprint(self) -> str:
        """Return a text that changes with the classes, the names, the labels and their order."""
        digest = short_digest(
            self.names.tobytes(), np.asarray(self.info.labels).tobytes(), "\0".join(self.classes).encode()
        )
        return f"{len(self)} films of {len(self.classes)} classes, {digest}"


class VideoFiles(VideoSource):
    """Video files below the folder ``root``."""

    root: Path

    def video(self, index: int) -> Video:
        return VideoFile(os.fsdecode(self.paths(index)[0]), frame_channels(self.channels))

    def paths(self, index: int) -> Sequence[bytes]:
        """Return the files of a sample."""
        return (os.path.join(os.fsencode(self.root), self.names[index]),)


@register.source
class Videos(VideoFiles):
    """Videos in one folder per class (``root/juggling/001.mp4``), including subfolders, without hidden files.

    mp4, m4v, mov, avi, webm, mkv, mpeg, mpg, gif, wmv, asf, flv, f4v, ts, mts, m2ts, ogv, vob, 3gp and mjpeg, in lower
    or upper case. Classes and files are sorted. A sample's id is its path below the root. Nothing is decoded until the
    transform ``clip`` requests frames.

    Args:
        root: the folder that holds the class folders.
        channels: 3 for color, 1 for gray; videos are converted.
        classes: folders to use, in the order of their labels; all of them, sorted, when not given.
        list_file: use the videos in this list: a path below the root in each line, and perhaps a label after it.
        flip_sensitive_classes: classes whose mirror image belongs to another class, such as turning left; ``clip_flip``
            does not flip them.

    Raises:
        ValueError: the root or a class is missing or has no videos, or one of ``flip_sensitive_classes`` is unknown.

    Example::

        source: {name: videos, root: kinetics/train}
        transforms: [{name: clip, frames: 16, stride: 4}, {name: scale_jitter, size: 224}, clip_flip]
    """

    def __init__(
        self,
        *,
        root: InputPath,
        channels: FrameChannels = 3,
        classes: list[str] | None = None,
        list_file: InputPath | None = None,
        flip_sensitive_classes: list[str] | None = None,
    ) -> None:
        self.root, chosen, names, labels = find_class_files(root, classes, "video", EXTENSIONS, list_file)
        super().__init__(names, labels, chosen, channels, flip_sensitive_classes)


# --- folders of frames ------------------------------------------------------------------------------------------------


@register.source
class FrameFolders(VideoSource):
    """Videos as folders of image files, as a list with a line each: folder, number of frames, label (PaddleVideo and
    mmaction2: ``v/1 120 4``); without the number the images in the folder are counted. With a separator folder and
    label: ``1;Swiping Left``.

    A sample's id is its folder as written. Labels are names, or integers from 0.

    Args:
        file: the list.
        root: the folder that the folders are relative to; the list's own folder when not given.
        pattern: names of the images, such as ``img_{:05d}.jpg``; when not given all images of the folder, in natural
            order (``2.jpg`` before ``10.jpg``).
        start_index: number of the first image in ``pattern``.
        fps: frames per second.
        separator: between folder and label.
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
        separator: Annotated[str, MinLen(1)] | None = None,
        classes: list[str] | None = None,
        class_file: InputPath | None = None,
        channels: FrameChannels = 3,
        flip_sensitive_classes: list[str] | None = None,
    ) -> None:
        file = file.expanduser()
        self.root = (root or file.parent).expanduser()
        _check_pattern(pattern)
        self._pattern, self._start, self._fps = pattern, start_index, fps
        entries: list[tuple[str, re.Match[str]]] = []
        line_form = rf"(.+)(){re.escape(separator)}\s*(.+)" if separator else r"(.+?)(?:\s+(\d{1,9}))?\s+(\S+)"
        for location, line in read_lines(file):
            match = re.fullmatch(line_form, line)
            if match is None or match[2] == "0":
                between = repr(separator) if separator else "number of frames (1 or more)"
                expected = f"a folder, {between} and label"
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
        return FrameFolder(folder, names, fps=self._fps, channels=frame_channels(self.channels))

    def _frame_names(self, folder: str, count: int | None) -> list[str]:
        if self._pattern is not None and count is not None:
            return [self._pattern.format(self._start + i) for i in range(count)]
        names = sorted(map(os.fsdecode, list_images(Path(folder))), key=natural_key)
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


def natural_key(name: str) -> list[tuple[int, str]]:
    """Return a sort key that compares digits by value."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


# --- views ------------------------------------------------------------------------------------------------------------


@register.source(name="video_views")
class VideoViews(Source):
    """Each video of a source as n clips with m crops each, as consecutive samples with the video's id: for multi-view
    evaluation (Wang et al. 2018, Non-local Neural Networks: 10 x 3).

    ``clip`` and ``three_crop`` take the clip and the crop that the sample's ``view`` gives: ((i, n), (j, m)).

    Args:
        source: the source of the videos.
        clips: n, evenly spaced over the video.
        crops: m, evenly spaced along the longer side.

    Example::

        source: {name: video_views, source: {name: videos, root: val}, clips: 10, crops: 3}
        transforms: [{name: clip, frames: 16, stride: 4, position: middle}, {name: three_crop, size: 256}]
    """

    def __init__(self, *, source: SourcePart, clips: Count = 10, crops: Count = 3) -> None:
        self.source, self._clips, self._crops = source, clips, crops
        self.info = source.info.select(np.repeat(np.arange(len(source)), clips * crops))

    def __len__(self) -> int:
        return len(self.source) * self._clips * self._crops

    def __getitem__(self, index: int) -> Sample:
        video, view = divmod(range(len(self))[index], self._clips * self._crops)
        clip, crop = divmod(view, self._crops)
        return {**self.source[video], "view": ((clip, self._clips), (crop, self._crops))}

    def id(self, index: int) -> str:
        """Return the id of the video."""
        return self.source.id(index // (self._clips * self._crops))

    def paths(self, index: int) -> Sequence[bytes]:
        """Return the files of the video."""
        return self.source.paths(index // (self._clips * self._crops))

    def fingerprint(self) -> str:
        """Return the source's and the number of views."""
        return f"{self._clips} x {self._crops} views of {self.source.fingerprint()}"
