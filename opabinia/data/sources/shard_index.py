"""Where each sample lies in a set of tar files, found once and kept in a file that all processes share."""

from __future__ import annotations

import fcntl
import json
import os
import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from opabinia.contracts import Indices
from opabinia.data.decoding.images import EXTENSIONS
from opabinia.runtime.files import DiskError, disk_errors, temporary_folder
from opabinia.runtime.log import log

BLOCK = 512
"""Bytes; headers and contents of a tar file begin at multiples of it."""

ROW = np.dtype([("offset", "<i8"), ("size", "<u4"), ("label", "<i4"), ("head", "<u2")])
"""A sample in 18 bytes: the place of its picture's headers, the bytes of the picture after them, the number of its
label's text, and the blocks that the headers take."""

Rows = NDArray[np.void]

_FORMAT = 1
_MEMBER = re.compile(r"(?P<key>(?:.*/)?[^/.]+)\.(?P<kind>[^/]+)")
"""As WebDataset divides names: ``dir/0001.left.png`` is the kind ``left.png`` of the sample ``dir/0001``."""


@dataclass(frozen=True)
class ShardIndex:
    """Where the samples of some tar files lie, in the order of the files and of the samples in them.

    Attributes:
        folder: holds ``rows.npy`` and ``shards.json``.
        counts: samples of each file (int64).
        labels: the texts that the rows give numbers of, sorted.
        digest: changes with the names of the files, and with the places and labels of the samples.
    """

    folder: Path
    counts: Indices
    labels: tuple[str, ...]
    digest: str

    @cached_property
    def rows(self) -> Rows:
        """A :data:`ROW` for each sample, mapped into memory: only what is looked at is read."""
        rows: Rows = np.lib.format.open_memmap(self.folder / "rows.npy", "r")
        return rows

    def __getstate__(self) -> dict[str, Any]:
        # A map would be pickled with all its content.
        return {name: value for name, value in self.__dict__.items() if name != "rows"}


def member_of(headers: bytes) -> tarfile.TarInfo:
    """The member that these blocks are the headers of.

    Raises:
        tarfile.TarError: they are none.
    """
    with tarfile.open(fileobj=BytesIO(headers), mode="r:") as tar:
        member = tar.next()
    if member is None:
        raise tarfile.ReadError("no header")
    return member


# --- kept -------------------------------------------------------------------------------------------------------------


def indexed(paths: Sequence[str], names: Sequence[str], json_label: str | None, cache: Path) -> ShardIndex:
    """The index of these files, made now if ``cache`` holds none for files of these names, sizes and times.

    Args:
        paths: of the tar files, absolute.
        names: of the same, as they are told.
        json_label: the field of the ``.json`` members that holds the label; None where ``.cls`` members do.
        cache: a folder; the index is a folder in it.

    Raises:
        ValueError: naming file and member: something is missing, broken, or not understood.
    """
    folder = cache / _key(paths, json_label)
    if not folder.is_dir():
        try:
            with _one_at_a_time(folder.with_suffix(".lock")):
                if not folder.is_dir():
                    log.info("looking through %d shards; the index is kept in %s", len(paths), folder)
                    _write(folder, names, [_scan(Path(path), json_label) for path in paths])
        except DiskError as error:
            raise ValueError(f"{error}; the key index names another folder") from error
    return _read(folder)


def _read(folder: Path) -> ShardIndex:
    try:
        known = json.loads((folder / "shards.json").read_bytes())
        counts = np.array(known["counts"], dtype=np.int64)
        index = ShardIndex(folder, counts, tuple(known["labels"]), known["digest"])
        if index.rows.dtype != ROW or len(index.rows) != counts.sum():
            raise ValueError(f"rows.npy holds {len(index.rows)} rows of {index.rows.dtype}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{folder} is damaged ({error}); once it is removed, it is made anew") from error
    return index


def _key(paths: Sequence[str], json_label: str | None) -> str:
    stats = map(os.stat, paths)
    files = [[path, stat.st_size, stat.st_mtime_ns] for path, stat in zip(paths, stats, strict=True)]
    return blake2b(json.dumps([_FORMAT, json_label, files]).encode(), digest_size=8).hexdigest()


@contextmanager
def _one_at_a_time(lock: Path) -> Iterator[None]:
    """Processes that start together find the index that the first of them has made."""
    with disk_errors(lock):
        lock.parent.mkdir(parents=True, exist_ok=True)
        file = lock.open("w")
    with file:
        with suppress(OSError):  # some network file systems know no locks: then each makes it, all the same one
            fcntl.lockf(file, fcntl.LOCK_EX)
        yield


class _Scanned(NamedTuple):
    rows: Rows
    labels: list[str]


def _write(folder: Path, names: Sequence[str], shards: Sequence[_Scanned]) -> None:
    labels = _sorted({label for shard in shards for label in shard.labels})
    number = {label: place for place, label in enumerate(labels)}
    counts = [len(shard.rows) for shard in shards]
    digest = blake2b("\0".join([*names, *labels]).encode(), digest_size=8)
    digest.update(np.array(counts, dtype="<i8").tobytes())
    header = {"descr": np.lib.format.dtype_to_descr(ROW), "fortran_order": False, "shape": (sum(counts),)}
    with disk_errors(folder), temporary_folder(folder) as aside:
        # Not through a map: on a full disk writing to one ends the process.
        with (aside / "rows.npy").open("wb") as file:
            np.lib.format.write_array_header_1_0(file, header)
            for shard in shards:
                shard.rows["label"] = np.array([number[label] for label in shard.labels])[shard.rows["label"]]
                content = shard.rows.tobytes()
                file.write(content)
                digest.update(content)
        known = {"counts": counts, "labels": labels, "digest": digest.hexdigest()}
        (aside / "shards.json").write_text(json.dumps(known))


def _sorted(labels: set[str]) -> list[str]:
    """Numbers by value, before names."""
    return sorted(labels, key=lambda label: (0, int(label), label) if label.isdecimal() else (1, 0, label))


# --- scanned ----------------------------------------------------------------------------------------------------------


def _scan(path: Path, json_label: str | None) -> _Scanned:
    """The samples of one tar file, in the order of their first members."""
    try:
        with path.open("rb") as file:
            samples = _samples(path, _members(file))
            labels: dict[str, int] = {}
            rows = [_row(path, file, key, parts, json_label, labels) for key, parts in samples.items()]
    except (OSError, tarfile.TarError) as error:
        raise ValueError(f"{path} is no whole, plain tar file: {error}") from error
    if not rows:
        raise ValueError(f"{path} holds no sample: a picture 0001.jpg and its label 0001.cls, for instance")
    return _Scanned(np.array(rows, dtype=ROW), list(labels))


def _members(file: BinaryIO) -> Iterator[tarfile.TarInfo]:
    with tarfile.open(fileobj=file, mode="r:") as tar:
        yield from tar
        # tarfile takes whatever is no header for the end.
        if os.pread(file.fileno(), BLOCK, tar.offset) != bytes(BLOCK):
            raise tarfile.ReadError(f"it is cut short or damaged at byte {tar.offset}")


def _samples(path: Path, members: Iterable[tarfile.TarInfo]) -> dict[str, dict[str, tarfile.TarInfo]]:
    """Members by sample and kind. What has no key or no kind (folders, hidden files) is passed over."""
    samples: dict[str, dict[str, tarfile.TarInfo]] = {}
    for member in members:
        match = _MEMBER.fullmatch(member.name)
        if match is None or not member.isreg():
            continue
        parts = samples.setdefault(match["key"], {})
        kind = match["kind"].lower()
        if kind in parts:
            raise ValueError(f"{path} holds {member.name} twice")
        parts[kind] = member
    return samples


def _row(
    path: Path,
    file: BinaryIO,
    key: str,
    parts: Mapping[str, tarfile.TarInfo],
    json_label: str | None,
    labels: dict[str, int],
) -> tuple[int, int, int, int]:
    """A :data:`ROW`; a text that ``labels`` does not number yet gets the next number."""
    where = f"{path}, sample {key!r} ({', '.join(sorted(parts))})"
    pictures = [member for kind, member in parts.items() if f".{kind}" in EXTENSIONS]
    if len(pictures) != 1:
        raise ValueError(f"{where}: one picture is expected ({', '.join(EXTENSIONS)}), there are {len(pictures)}")
    kind = "json" if json_label else "cls"
    if kind not in parts:
        raise ValueError(f"{where}: the label is missing, .{kind}")
    label = parts[kind]
    content = os.pread(file.fileno(), label.size, label.offset_data)
    text = _json_label(where, content, json_label) if json_label else content.decode("utf-8", "replace")
    number = labels.setdefault(_label(where, text), len(labels))
    picture = pictures[0]
    return picture.offset, picture.size, number, (picture.offset_data - picture.offset) // BLOCK


def _json_label(where: str, content: bytes, field: str) -> str:
    try:
        values = json.loads(content)
    except ValueError as error:
        raise ValueError(f"{where}: its .json cannot be read: {error}") from error
    if not isinstance(values, dict) or field not in values:
        known = ", ".join(values) if isinstance(values, dict) else type(values).__name__
        raise ValueError(f"{where}: its .json has no field {field!r}; there is {known or 'none'}")
    value = values[field]
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"{where}: {field} is {value!r} where a class number or name is expected")
    return str(value)


def _label(where: str, text: str) -> str:
    text = text.strip()
    if not text:
        raise ValueError(f"{where}: its label is empty")
    if re.fullmatch(r"-\d+", text):
        raise ValueError(f"{where}: its label is {text}; class numbers count from 0")
    return str(int(text)) if text.isdecimal() else text
