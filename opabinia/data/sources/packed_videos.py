"""Videos converted to JPEG frames in a few large files, as ``opabinia data pack`` writes them."""

from __future__ import annotations

import json
import os
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from opabinia.config import register
from opabinia.contracts import FrameChannels, InputPath, Sample, Video
from opabinia.data.decoding.image_sequences import FrameSequence
from opabinia.data.decoding.images import decode_bytes
from opabinia.data.sources.folder import existing_folder
from opabinia.data.sources.labels import multi_hot
from opabinia.data.sources.shards import FileReader
from opabinia.data.sources.videos import VideoSource

INDEX_FILE = "films.json"
FORMAT = 1
FRAME_RECORD = np.dtype([("offset", "<i8"), ("size", "<u4")])
"""Position of a frame in its shard, in bytes."""

INDEX_COLUMNS = ("id", "label", "directed", "frames", "fps", "seconds", "shard", "place", "place_size")
"""Columns of the index, one row per video (``directed``: a mirror image belongs to another class). ``place`` and
``place_size`` locate its :data:`FRAME_RECORD` array, a member of the shard in numpy's format."""


def shard_name(number: int) -> str:
    """Return the name of the tar file with this number."""
    return f"{number:05d}.tar"


@register.source
class PackedVideos(VideoSource):
    """Videos converted by ``opabinia data pack`` to JPEG frames in tar files. A clip reads its own frames only, so that
    one from the end of a long video costs as little as one from its start.

    Samples are those of the source that was packed: the same order, ids, labels, frame counts and frame rates, so that
    the same clips are drawn. Their pixels are those of the JPEGs, in the size that they were packed with.

    Args:
        root: the folder that was written.
        channels: 3 for color, 1 for gray; as packed when not given.
        flip_sensitive_classes: classes whose mirror image belongs to another class; those of the packed source when not
            given.

    Raises:
        ValueError: the folder or a file in it is missing, damaged or truncated, or one of ``flip_sensitive_classes`` is
            unknown.
    """

    def __init__(
        self, *, root: InputPath, channels: FrameChannels | None = None, flip_sensitive_classes: list[str] | None = None
    ) -> None:
        self.root = existing_folder(root, "root is the folder that opabinia data pack has written")
        index, videos = _read_index(self.root)
        names = [str(name).encode() for name in videos["id"]]
        classes = [str(name) for name in index["classes"]]
        labels = videos["label"]
        encoded = multi_hot(labels, len(classes)) if index["multi_label"] else np.array(labels, dtype=np.int64)
        super().__init__(names, encoded, classes, channels or index["channels"], flip_sensitive_classes)
        self._flip_changes_label = np.array(videos["directed"], dtype=bool) if flip_sensitive_classes is None else None
        self._columns = {name: np.array(videos[name]) for name in INDEX_COLUMNS[3:]}
        self._sizes = [int(size) for size in index["sizes"]]
        paths = [str(self.root / shard_name(number)) for number in range(len(self._sizes))]
        for path, size in zip(paths, self._sizes, strict=True):
            if not os.path.isfile(path):
                raise ValueError(f"{path} is missing; pack the videos again")
            if (actual := os.path.getsize(path)) != size:
                raise ValueError(f"{path} has {actual} bytes, {INDEX_FILE} says {size}; pack the videos again")
        self._files = FileReader(paths)

    def __getitem__(self, index: int) -> Sample:
        sample = super().__getitem__(index)
        if self._flip_changes_label is not None:
            sample["flip_changes_label"] = bool(self._flip_changes_label[index])
        return sample

    def video(self, index: int) -> Video:
        row = {name: column[index].item() for name, column in self._columns.items()}
        return _PackedVideo(f"{self.root / shard_name(row['shard'])}, {self.id(index)}", row, self)

    def read(self, shard: int, offset: int, size: int, name: str) -> bytes:
        """Read bytes of a shard.

        Raises:
            ValueError: there are no such bytes; the text begins with ``name``.
        """
        if not 0 <= offset <= offset + size <= self._sizes[shard]:
            raise ValueError(f"{name}: its index is damaged: there are no bytes {offset} to {offset + size}")
        return self._files.read(shard, offset, size)


class _PackedVideo(FrameSequence):
    """A video in a shard.

    Args:
        path: the name that messages use.
        row: of the index: ``frames``, ``fps``, ``seconds``, and the position of its frame records.
        source: reads the shard.
    """

    def __init__(self, path: str, row: dict[str, Any], source: PackedVideos) -> None:
        super().__init__(path, row["frames"], row["fps"], row["seconds"])
        self._row, self._source = row, source

    def frame(self, number: int) -> Tensor:
        offset, size = self._records[number].tolist()
        content = self._source.read(self._row["shard"], offset, size, self.path)
        return decode_bytes(content, f"{self.path}: {self.name(number)}", self._source.channels)

    def name(self, number: int) -> str:
        return f"frame {number}"

    @cached_property
    def _records(self) -> NDArray[np.void]:
        shard, offset, size = (self._row[name] for name in ("shard", "place", "place_size"))
        content = self._source.read(shard, offset, size, self.path)
        try:
            records: NDArray[np.void] = np.load(BytesIO(content), allow_pickle=False)
            if records.dtype != FRAME_RECORD or records.shape != (self.frames,):
                raise ValueError(f"{records.shape} of {records.dtype}")
        except Exception as error:  # NumPy parses the header as Python source, which can fail in any way
            raise ValueError(f"{self.path}: the shard has changed since it was written ({error})") from error
        return records


def _read_index(root: Path) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Return the content of the index file, and a list for each of :data:`INDEX_COLUMNS`."""
    file = root / INDEX_FILE
    if not file.is_file():
        started = ": packing has started there and not finished" if any(root.glob("*.tar")) else ""
        raise ValueError(f"{root} has no {INDEX_FILE}{started}; opabinia data pack writes it last")
    try:
        index = json.loads(file.read_bytes())
        videos = index["films"]
        if index["format"] != FORMAT:
            raise ValueError(f"format {index['format']}, expected {FORMAT}")
        if not videos["id"] or len({len(videos[name]) for name in INDEX_COLUMNS}) > 1:
            raise ValueError("it lists no videos, or its columns differ in length")
        if index["channels"] not in (1, 3) or not {*videos["shard"]} <= {*range(len(index["sizes"]))}:
            raise ValueError("its channels or shards are invalid")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{file} is damaged ({error}); pack the videos again") from error
    return index, videos
