"""Images and labels in tar files, in WebDataset's format."""

from __future__ import annotations

import os
import re
import tarfile
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from glob import glob
from io import FileIO
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import MinLen
from numpy.typing import NDArray

from opabinia.config import register
from opabinia.contracts import Channels, Sample, Source, SourceInfo
from opabinia.data.decoding.images import EncodedImage, decode_sample
from opabinia.data.sources.annotation_values import shortened
from opabinia.data.sources.file_names import decode_name, short_digest
from opabinia.data.sources.labels import class_indices, numbered_classes
from opabinia.data.sources.shard_index import BLOCK, load_index, parse_member
from opabinia.runtime.files import cache_folder
from opabinia.runtime.local_copies import RangeFile, open_file

_MAX_OPEN_FILES = 64


@register.source
class Shards(Source):
    """Images and labels in tar files (shards), in WebDataset's format: members whose names agree up to the first dot
    are one sample, ``0001.jpg`` and ``0001.cls``.

    The files are scanned once; the index takes 18 bytes per sample on disk, all processes share it, and each sample is
    one read. The sampler ``shard_shuffle`` reads a few shards at a time. A sample's id is the name of its shard and of
    its image, ``train-003.tar/0001.jpg``.

    A label is a class number or a class name.

    Args:
        files: the tar files, not compressed: ``data/train-{000..099}.tar``, a pattern such as ``data/*.tar``, or a list
            of these. Samples are in their order; files of a pattern are sorted.
        json_label: the field of the ``.json`` members that holds the label; null takes the ``.cls`` members.
        classes: in the order of their numbers. When not given: the numbers from 0 to the largest label, or all names
            that occur, sorted.
        channels: 3 for color, 1 for gray; images are converted.
        index_dir: the folder for the index; null takes ``opabinia/shards`` in ``$XDG_CACHE_HOME`` or ``~/.cache``.

    Raises:
        ValueError: a file is missing, truncated or compressed, a sample has no image or no label, or its label is
            unknown. The text names file and member.
    """

    def __init__(
        self,
        *,
        files: str | Annotated[list[str], MinLen(1)],
        json_label: str | None = None,
        classes: list[str] | None = None,
        channels: Channels = 3,
        index_dir: Path | None = None,
    ) -> None:
        paths = _find_shards([files] if isinstance(files, str) else files)
        common = os.path.commonpath({os.path.dirname(path) for path in paths})
        self._names = [decode_name(os.fsencode(path[len(common) :].lstrip(os.sep))) for path in paths]
        self._files = FileReader(paths)
        folder = index_dir.expanduser() if index_dir else cache_folder() / "shards"
        self._index = load_index(paths, self._names, json_label, folder)
        self._ends = np.cumsum(self._index.counts)
        self._facts = SourceInfo(
            channels=channels,
            classes=tuple(self._infer_classes() if classes is None else classes),
            encoded=True,
            shards=self._index.counts,
        )
        by_name = class_indices(self._facts.classes)
        labels = [int(text) if text.isdecimal() else by_name.get(text, -1) for text in self._index.labels]
        for number, (text, label) in enumerate(zip(self._index.labels, labels, strict=True)):
            if not 0 <= label < len(by_name):
                first = self._first_with(number)
                listed = ", ".join(list(by_name)[:5]) + ("" if len(by_name) <= 5 else " ...")
                raise ValueError(f"{first}: its label {text} is none of the {len(by_name)} classes ({listed})")
        self._label_of = np.array(labels, dtype=np.int32)  # the class label of each label text of the index

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> Sample:
        return decode_sample(self.encoded(index))

    def encoded(self, index: int) -> Sample:
        """Return the sample with its image not yet decoded."""
        name, content = self._read(index)
        return {"image": EncodedImage(content, name, self.channels), **self.info.labels_of(index), "id": name}

    @cached_property
    def info(self) -> SourceInfo:  # type: ignore[override]
        """The labels are a view of the index if its label texts are numbered like the classes."""
        stored: NDArray[np.int32] = self._index.rows["label"]
        same = np.array_equal(self._label_of, np.arange(len(self._label_of)))
        return replace(self._facts, labels=stored if same else self._label_of[stored])

    def split_keys(self) -> Iterable[str]:
        """Return the name of the shard and the position in it of each sample, because ids are in the shards only."""
        offsets = np.split(self._index.rows["offset"], self._ends[:-1])
        return (f"{name}@{at}" for name, own in zip(self._names, offsets, strict=True) for at in own.tolist())

    def fingerprint(self) -> str:
        """Return a text that changes with the shards' names, the positions and labels of the samples, the classes."""
        digest = short_digest("\0".join([self._index.digest, *self.classes]).encode())
        return f"{len(self)} pictures of {len(self.classes)} classes, {digest}"

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "info"}

    def _infer_classes(self) -> list[str]:
        labels = self._index.labels
        numbers = [label for label in labels if label.isdecimal()]
        names = [label for label in labels if not label.isdecimal()]
        if numbers and names:
            places = [self._first_with(labels.index(label)) for label in (numbers[0], names[0])]
            raise ValueError(
                f"some labels are numbers ({numbers[0]} of {places[0]}), others are names ({shortened(names[0])} of "
                f"{places[1]}): list the classes"
            )
        if names:
            return names
        largest = max(numbers, key=int)
        return numbered_classes(self._first_with(labels.index(largest)), largest, len(self))

    def _first_with(self, number: int) -> str:
        """Return the id of the first sample with the label text of this number."""
        return self._read(int(np.argmax(self._index.rows["label"] == number)))[0]

    def _read(self, index: int) -> tuple[str, bytes]:
        """Return the id of a sample and the bytes of its image."""
        if not 0 <= index < len(self):
            raise IndexError(f"index {index} of {len(self)} images")
        shard = int(np.searchsorted(self._ends, index, "right"))
        offset, size, _, head = self._index.rows[index].tolist()
        content = self._files.read(shard, offset, head * BLOCK + size)
        image = content[head * BLOCK :]
        try:
            member = parse_member(content[: head * BLOCK])
            if not member.size == size == len(image):
                raise tarfile.ReadError(f"{member.name} has {member.size} bytes, not {size}, or ends early")
        except tarfile.TarError as error:
            position = f"{self._names[shard]}, byte {offset}"
            raise ValueError(f"{position}: the shard has changed since it was indexed ({error})") from error
        return f"{self._names[shard]}/{decode_name(os.fsencode(member.name))}", image


# --- files ------------------------------------------------------------------------------------------------------------


def _find_shards(patterns: Sequence[str]) -> list[str]:
    """Return the absolute paths of the files that patterns with ``{000..099}``, ``*``, ``?`` and ``[...]`` match.

    Raises:
        ValueError: a file is missing, or matched twice.
    """
    paths: dict[str, None] = {}
    for pattern in patterns:
        for name in _expand_ranges(os.path.expanduser(pattern)):
            # The name of an existing file may contain special characters.
            matches = [name] if os.path.isfile(name) else sorted(glob(name, recursive=True))
            if not matches:
                raise ValueError(f"there is no file {name}" + (f" ({pattern})" if name != pattern else ""))
            for path in map(os.path.abspath, matches):
                if path in paths:
                    raise ValueError(f"{path} is listed twice")
                paths[path] = None
    return list(paths)


def _expand_ranges(pattern: str) -> Iterator[str]:
    """Expand ``a-{08..10}`` to a-08, a-09, a-10; as in a shell, leading zeros set the width."""
    match = re.search(r"\{(\d+)\.\.(\d+)\}", pattern)
    if match is None:
        yield pattern
        return
    first, last = match.groups()
    if int(first) > int(last):
        raise ValueError(f"files: {match[0]} counts down")
    width = len(first) if first.startswith("0") else 0
    for number in range(int(first), int(last) + 1):
        for rest in _expand_ranges(pattern[match.end() :]):
            yield f"{pattern[: match.start()]}{number:0{width}d}{rest}"


class FileReader:
    """Reads parts of files, of which the most recently used stay open.

    Reading moves no file position, so forked processes may share open files.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths
        self._open: OrderedDict[int, FileIO | RangeFile] = OrderedDict()

    def read(self, number: int, offset: int, count: int) -> bytes:
        """Return ``count`` bytes from ``offset``, or fewer at the end of the file."""
        if number in self._open:
            self._open.move_to_end(number)
        else:
            self._open[number] = open_file(self._paths[number])
            if len(self._open) > _MAX_OPEN_FILES:
                self._open.popitem(last=False)[1].close()
        file = self._open[number]
        return file.pread(count, offset) if isinstance(file, RangeFile) else os.pread(file.fileno(), count, offset)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": OrderedDict()}

    def __del__(self) -> None:
        for file in self._open.values():
            file.close()
