"""Index of the samples in tar files, built once and kept in a file that all processes share."""

from __future__ import annotations

import json
import os
import re
import tarfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from hashlib import blake2b
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from opabinia.contracts import Indices
from opabinia.data.decoding.images import EXTENSIONS
from opabinia.data.sources.annotation_values import errors_in, parse_json, shortened
from opabinia.data.sources.file_names import decode_name
from opabinia.data.sources.list_files import cell_text
from opabinia.runtime.files import DiskError, disk_errors, temporary_folder, wait_for_lock
from opabinia.runtime.local_copies import open_file
from opabinia.runtime.log import log

BLOCK = 512
"""Bytes; headers and contents in a tar file begin at multiples of it."""

ROW = np.dtype([("offset", "<i8"), ("size", "<u4"), ("label", "<i4"), ("head", "<u2")])
"""A sample in 18 bytes: the offset of its image's headers, the bytes of the image after them, the number of its label
text, and the number of blocks of the headers."""

Rows = NDArray[np.void]

_FORMAT = 1
_THREADS = 8  # hide the latency of network file systems and remote storage
_MEMBER = re.compile(r"(?P<key>(?:.*/)?[^/.]+)\.(?P<suffix>[^/]+)")
"""WebDataset's division of names: ``dir/0001.left.png`` is the member ``left.png`` of the sample ``dir/0001``."""


@dataclass(frozen=True)
class ShardIndex:
    """Positions of the samples in tar files, in the order of the files and of the samples in them.

    Attributes:
        folder: holds ``rows.npy`` and ``shards.json``.
        counts: number of samples in each file (int64).
        labels: the label texts that rows refer to by number, sorted.
        digest: changes with the names of the files, and with the positions and labels of the samples.
    """

    folder: Path
    counts: Indices
    labels: tuple[str, ...]
    digest: str

    @cached_property
    def rows(self) -> Rows:
        """A :data:`ROW` for each sample, memory-mapped: only accessed rows are read."""
        return np.lib.format.open_memmap(self.folder / "rows.npy", "r")

    def __getstate__(self) -> dict[str, Any]:
        # A memory map would be pickled with all its content.
        return {name: value for name, value in self.__dict__.items() if name != "rows"}


def parse_member(headers: bytes) -> tarfile.TarInfo:
    """Parse the header blocks of a member.

    Raises:
        tarfile.TarError: they are not the headers of a member.
    """
    with tarfile.open(fileobj=BytesIO(headers), mode="r:") as tar:
        member = tar.next()
    if member is None:
        raise tarfile.ReadError("no header")
    return member


# --- the cached index -------------------------------------------------------------------------------------------------


def load_index(paths: Sequence[str], names: Sequence[str], json_label: str | None, cache: Path) -> ShardIndex:
    """Load the index of files with these names, sizes and times from ``cache``; build it if it is missing.

    Args:
        paths: absolute paths of the tar files.
        names: the same files as messages name them.
        json_label: the field of the ``.json`` members that holds the label; None takes the ``.cls`` members.
        cache: a folder; the index is a folder in it.

    Raises:
        ValueError: a file is missing, broken or not understood; the text names file and member.
    """
    try:
        stats = [(path, os.stat(path)) for path in paths]
    except OSError as error:  # such as a link to itself
        raise ValueError(f"{error.filename} cannot be read: {error.strerror}") from error
    files = [[path, stat.st_size, stat.st_mtime_ns] for path, stat in stats]
    key = blake2b(json.dumps([_FORMAT, json_label, files]).encode(), digest_size=8).hexdigest()
    folder = cache / key
    if not folder.is_dir():
        try:
            with wait_for_lock(folder.with_suffix(".lock")):
                if not folder.is_dir():
                    log.info("scanning %d shards; the index is kept in %s", len(paths), folder)
                    with ThreadPoolExecutor(_THREADS) as pool:
                        shards = list(pool.map(partial(_scan, json_label=json_label), map(Path, paths)))
                    _write(folder, names, shards)
        except DiskError as error:
            raise ValueError(f"{error}; index_dir sets another folder") from error
    try:
        content = json.loads((folder / "shards.json").read_bytes())
        counts = np.array(content["counts"], dtype=np.int64)
        index = ShardIndex(folder, counts, tuple(content["labels"]), content["digest"])
        if index.rows.dtype != ROW or len(index.rows) != counts.sum():
            raise ValueError(f"rows.npy holds {len(index.rows)} rows of {index.rows.dtype}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{folder} is damaged ({error}); delete it, and it is rebuilt") from error
    return index


def _write(folder: Path, names: Sequence[str], shards: Sequence[tuple[Rows, list[str]]]) -> None:
    """Write the rows and the label texts of scanned shards."""
    texts = {label for _, shard_labels in shards for label in shard_labels}
    # Numbers by value, before names.
    labels = sorted(texts, key=lambda text: (0, int(text), text) if text.isdecimal() else (1, 0, text))
    number_of = {label: number for number, label in enumerate(labels)}
    counts = [len(rows) for rows, _ in shards]
    digest = blake2b("\0".join([*names, *labels]).encode(), digest_size=8)
    digest.update(np.array(counts, dtype="<i8").tobytes())
    header = {"descr": np.lib.format.dtype_to_descr(ROW), "fortran_order": False, "shape": (sum(counts),)}
    with disk_errors(folder), temporary_folder(folder) as temporary:
        # Not through a memory map: on a full disk, writing to one kills the process.
        with (temporary / "rows.npy").open("wb") as file:
            np.lib.format.write_array_header_1_0(file, header)
            for rows, shard_labels in shards:
                rows["label"] = np.array([number_of[label] for label in shard_labels])[rows["label"]]
                content = rows.tobytes()
                file.write(content)
                digest.update(content)
        index = {"counts": counts, "labels": labels, "digest": digest.hexdigest()}
        (temporary / "shards.json").write_text(json.dumps(index))


# --- scanning tar files -----------------------------------------------------------------------------------------------


def _scan(path: Path, json_label: str | None) -> tuple[Rows, list[str]]:
    """Return the rows of a tar file, in the order of the samples' first members, and the label texts."""
    with (
        errors_in(f"{path} is not a complete, uncompressed tar file: ", OSError, tarfile.TarError),
        BufferedReader(open_file(path)) as file,
    ):
        labels: dict[str, int] = {}
        rows = [
            _make_row(f"{path}, sample {key!r}", file, members, json_label, labels)
            for key, members in _group_members(path, file).items()
        ]
    if not rows:
        raise ValueError(f"{path} has no samples; expected an image and its label, such as 0001.jpg and 0001.cls")
    return np.array(rows, dtype=ROW), list(labels)


def _group_members(path: Path, file: BinaryIO) -> dict[str, dict[str, tarfile.TarInfo]]:
    """Return members by sample and suffix. Those without key or suffix (folders, hidden files) are ignored."""
    samples: dict[str, dict[str, tarfile.TarInfo]] = defaultdict(dict)
    with tarfile.open(fileobj=file, mode="r:") as tar:
        for member in tar:
            match = _MEMBER.fullmatch(member.name)
            if match is None or not member.isreg():
                continue
            members, suffix = samples[match["key"]], match["suffix"].lower()
            if suffix in members:
                raise ValueError(f"{path} holds {member.name} twice")
            members[suffix] = member
        # tarfile takes any invalid header for the end.
        file.seek(tar.offset)
        if file.read(BLOCK) != bytes(BLOCK):
            raise tarfile.ReadError(f"it is truncated or damaged at byte {tar.offset}")
    return samples


def _make_row(
    where: str, file: BinaryIO, members: Mapping[str, tarfile.TarInfo], json_label: str | None, labels: dict[str, int]
) -> tuple[int, int, int, int]:
    """Return a :data:`ROW`; a label text that is not yet in ``labels`` gets the next number."""
    where = f"{where} ({', '.join(sorted(members))})"
    images = [member for suffix, member in members.items() if f".{suffix}" in EXTENSIONS]
    if len(images) != 1:
        raise ValueError(f"{where}: expected one image ({', '.join(EXTENSIONS)}), found {len(images)}")
    suffix = "json" if json_label else "cls"
    if suffix not in members:
        raise ValueError(f"{where}: the label is missing, .{suffix}")
    label = members[suffix]
    file.seek(label.offset_data)
    content = file.read(label.size)
    text = (_read_json_label(where, content, json_label) if json_label else content.decode("utf-8", "replace")).strip()
    text = decode_name(os.fsencode(cell_text(text, f"{where}: its label")))
    if text.isdecimal() and len(text) > 18:
        raise ValueError(f"{where}: its label is {shortened(text)}: too many classes")
    if re.fullmatch(r"-\d+", text):
        raise ValueError(f"{where}: its label is {text}; class numbers count from 0")
    number = labels.setdefault(str(int(text)) if text.isdecimal() else text, len(labels))
    image = images[0]
    return image.offset, image.size, number, (image.offset_data - image.offset) // BLOCK


def _read_json_label(where: str, content: bytes, field: str) -> str:
    values = parse_json(content, f"{where}: its .json")
    if not isinstance(values, dict) or field not in values:
        present = f"{', '.join(values):.60}" if isinstance(values, dict) else type(values).__name__
        raise ValueError(f"{where}: its .json has no field {field!r}; there is {present or 'none'}")
    value = values[field]
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"{where}: {field} is {shortened(value)}, expected a class number or name")
    return str(value)
