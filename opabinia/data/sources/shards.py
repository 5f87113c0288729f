"""Pictures and labels in tar files, as WebDataset writes them."""

from __future__ import annotations

import os
import re
import tarfile
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from glob import glob
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import MinLen
from numpy.typing import NDArray

from opabinia.config import register
from opabinia.contracts import Indices, Sample
from opabinia.data.decoding.images import Encoded, whole
from opabinia.data.sources.shard_index import BLOCK, indexed, member_of
from opabinia.runtime.files import cache_folder


@register.source
class Shards:
    """Pictures and labels in tar files (shards), as WebDataset writes them: members whose names agree up to the first
    dot are one sample, ``0001.jpg`` and ``0001.cls``.

    The files are looked through once; the index takes 18 bytes a sample on the disk, all processes share it, and any
    sample is one read. The sampler ``by_shard`` goes through a few shards at a time. A sample's id is the name of its
    shard and of the picture in it, ``train-003.tar/0001.jpg``.

    A label is a class number or a name of a class.

    Args:
        files: the tar files, not compressed: ``data/train-{000..099}.tar``, a pattern such as ``data/*.tar``, or a list
            of these. Samples are in their order; those of a pattern are sorted.
        json_label: the field of the ``.json`` members that holds the label; null takes the ``.cls`` members.
        classes: in the order of their numbers. When not given: the numbers from 0 to the largest label, or all names
            that occur, sorted.
        channels: 3 for colour, 1 for grey; pictures of the other kind are converted.
        index: the folder to keep the index in; null takes ``opabinia/shards`` in ``$XDG_CACHE_HOME`` or ``~/.cache``.

    Attributes:
        shards: samples of each shard, in the order of the source (int64).

    Raises:
        ValueError: naming file and member: a file is missing, cut short or compressed, a sample has no picture or no
            label, or its label is no class.
    """

    def __init__(
        self,
        *,
        files: str | Annotated[list[str], MinLen(1)],
        json_label: str | None = None,
        classes: list[str] | None = None,
        channels: Literal[1, 3] = 3,
        index: Path | None = None,
    ) -> None:
        self.channels = channels
        paths = _found([files] if isinstance(files, str) else files)
        common = os.path.commonpath({os.path.dirname(path) for path in paths})
        self._names = [_printable(path[len(common) :].lstrip(os.sep)) for path in paths]
        self._files = Files(paths)
        self._index = indexed(paths, self._names, json_label, index.expanduser() if index else _cache())
        self.shards: Indices = self._index.counts
        self._ends = np.cumsum(self.shards)
        self.classes = tuple(_classes(self._index.labels)) if classes is None else tuple(classes)
        self._numbers = self._class_numbers()

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> Sample:
        return whole(self.encoded(index))

    def encoded(self, index: int) -> Sample:
        """The sample with its picture not decoded yet."""
        name, content = self._read(index)
        return {"image": Encoded(content, name, self.channels), "label": int(self.labels[index]), "id": name}

    @cached_property
    def labels(self) -> NDArray[np.int32]:
        """Class numbers (N), a view of the index where that already counts in classes."""
        stored: NDArray[np.int32] = self._index.rows["label"]
        in_turn = np.array_equal(self._numbers, np.arange(len(self._numbers)))
        return stored if in_turn else self._numbers[stored]

    def fingerprint(self) -> str:
        """Changes with the shards' names, the places and labels of the samples, and the classes."""
        content = "\0".join([self._index.digest, *self.classes]).encode()
        digest = blake2b(content, digest_size=8).hexdigest()
        return f"{len(self)} pictures of {len(self.classes)} classes, {digest}"

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "labels"}

    def _read(self, index: int) -> tuple[str, bytes]:
        """The id of a sample and the bytes of its picture."""
        if not 0 <= index < len(self):
            raise IndexError(f"index {index} of {len(self)} pictures")
        shard = int(np.searchsorted(self._ends, index, "right"))
        offset, size, _, head = self._index.rows[index].tolist()
        content = self._files.read(shard, offset, head * BLOCK + size)
        picture = content[head * BLOCK :]
        try:
            member = member_of(content[: head * BLOCK])
            if not member.size == size == len(picture):
                raise tarfile.ReadError(f"{member.name} has {member.size} bytes, not {size}, or ends early")
        except tarfile.TarError as error:
            place = f"{self._names[shard]}, byte {offset}"
            raise ValueError(f"{place}: the shard has changed since it was looked through ({error})") from error
        return f"{self._names[shard]}/{_printable(member.name)}", picture

    def _class_numbers(self) -> NDArray[np.int32]:
        """The class of each text that occurs as a label.

        Raises:
            ValueError: one is no class, or a class is listed twice.
        """
        number = {name: label for label, name in enumerate(self.classes)}
        if len(number) < len(self.classes):
            twice = next(name for label, name in enumerate(self.classes) if number[name] != label)
            raise ValueError(f"classes: {twice!r} is listed twice")
        found = [int(text) if text.isdecimal() else number.get(text, -1) for text in self._index.labels]
        for place, (text, label) in enumerate(zip(self._index.labels, found, strict=True)):
            if not 0 <= label < len(self.classes):
                first, _ = self._read(int(np.argmax(self._index.rows["label"] == place)))
                listed = ", ".join(self.classes[:5]) + ("" if len(self.classes) <= 5 else " ...")
                raise ValueError(f"{first}: its label {text} is none of the {len(self.classes)} classes ({listed})")
        return np.array(found, dtype=np.int32)


def _printable(name: str) -> str:
    """A name whose bytes may be no UTF-8, as a text that can be written anywhere."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _cache() -> Path:
    return cache_folder() / "shards"


def _classes(labels: Sequence[str]) -> list[str]:
    """Classes that nobody has named."""
    numbers = [int(label) for label in labels if label.isdecimal()]
    names = [label for label in labels if not label.isdecimal()]
    if numbers and names:
        raise ValueError(f"some labels are numbers ({numbers[0]}), others are names ({names[0]}): list the classes")
    if numbers and max(numbers) >= _MOST_CLASSES:
        raise ValueError(f"a label is {max(numbers)}, and there would be as many classes: class numbers count from 0")
    return names or [str(number) for number in range(max(numbers) + 1)]


_MOST_CLASSES = 10_000_000


# --- files ------------------------------------------------------------------------------------------------------------


def _found(patterns: Sequence[str]) -> list[str]:
    """Absolute paths of the files that patterns with ``{000..099}``, ``*``, ``?`` and ``[...]`` stand for.

    Raises:
        ValueError: one of them is not there, or is named twice.
    """
    paths: dict[str, None] = {}
    for pattern in patterns:
        for name in _ranged(os.path.expanduser(pattern)):
            # A file may be called just so.
            found = [name] if os.path.isfile(name) else sorted(glob(name, recursive=True))
            if not found:
                raise ValueError(f"there is no file {name}" + (f" ({pattern})" if name != pattern else ""))
            for path in map(os.path.abspath, found):
                if path in paths:
                    raise ValueError(f"{path} is named twice")
                paths[path] = None
    return list(paths)


_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")


def _ranged(pattern: str) -> Iterator[str]:
    """``a-{08..10}`` is a-08, a-09, a-10; as in a shell, leading zeros make all as wide."""
    match = _RANGE.search(pattern)
    if match is None:
        yield pattern
        return
    first, last = match.groups()
    if int(first) > int(last):
        raise ValueError(f"files: {match[0]} counts down")
    width = len(first) if first.startswith("0") else 0
    for number in range(int(first), int(last) + 1):
        for rest in _ranged(pattern[match.end() :]):
            yield f"{pattern[: match.start()]}{number:0{width}d}{rest}"


class Files:
    """Files that are read at any place, of which the last few stay open.

    Reading moves no file position, so processes that are forked later may share what is open.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths
        self._open: OrderedDict[int, int] = OrderedDict()

    def read(self, number: int, offset: int, count: int) -> bytes:
        """``count`` bytes from ``offset`` on, or fewer at the end of the file."""
        if number in self._open:
            self._open.move_to_end(number)
        else:
            self._open[number] = os.open(self._paths[number], os.O_RDONLY | os.O_CLOEXEC)
            if len(self._open) > _KEPT_OPEN:
                os.close(self._open.popitem(last=False)[1])
        return os.pread(self._open[number], count, offset)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": OrderedDict()}

    def __del__(self) -> None:
        with suppress(OSError, TypeError):  # at the end of the program
            for descriptor in self._open.values():
                os.close(descriptor)


_KEPT_OPEN = 64
