"""Videos in one folder per class, and what sources of videos share."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from opabinia.config import register
from opabinia.contracts import Channels, InputPath, Sample, Video
from opabinia.data.decoding.video import EXTENSIONS, VideoFile
from opabinia.data.sources.file_names import short_digest
from opabinia.data.sources.folder import find_class_files
from opabinia.data.sources.labels import check_class
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
        channels: Channels,
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
        return VideoFile(os.fsdecode(self.paths(index)[0]), self.channels)

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
        channels: Channels = 3,
        classes: list[str] | None = None,
        flip_sensitive_classes: list[str] | None = None,
    ) -> None:
        self.root, chosen, names, labels = find_class_files(root, classes, "video", EXTENSIONS)
        super().__init__(names, labels, chosen, channels, flip_sensitive_classes)
