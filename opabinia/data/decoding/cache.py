"""Decoded pictures in one file, so that only the first epoch decodes them.

The file: a header, an entry of fixed size for each picture, pixels in the order in which they came. Workers and
processes fill it together: space is taken under a lock, pixels are written, then the entry, which holds checksums of
both. Who is killed in between leaves space that nobody uses. What is not there, of another file, or damaged counts as
missing and is decoded anew, so what stands in the cache never decides which pixels a batch has.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, NamedTuple
from weakref import WeakKeyDictionary, finalize
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchvision.transforms.v2.functional import resize

from opabinia.contracts import Sample, Source
from opabinia.data.decoding.images import Box, LazyImage, whole
from opabinia.runtime.files import cache_folder
from opabinia.runtime.log import log
from opabinia.runtime.processes import gather, local_rank, world_size

Kind = Literal["ram", "disk"]
Pixels = NDArray[np.uint8]

# --- the file ---------------------------------------------------------------------------------------------------------

_HEADER = struct.Struct("<16sQI36x")  # magic, pictures, checksum of both
_MAGIC = b"opabinia pixels1"
_ENTRY = struct.Struct("<16sQIIBxxxI")  # stamp, place, height, width, channels, checksum of the pixels
_SUM = struct.Struct("<I")  # of the entry
_ENTRY_SIZE = _ENTRY.size + _SUM.size

_LOOK = 2**24
"""Bytes after which is looked how much room is left."""


class Entry(NamedTuple):
    """Where a picture lies in the file, H x W x C, row by row."""

    stamp: bytes
    place: int
    height: int
    width: int
    channels: int
    checksum: int

    @property
    def bytes(self) -> int:
        """Of its pixels."""
        return self.height * self.width * self.channels


class PixelFile:
    """Pictures by number in a file, for any number of processes.

    Args:
        path: of the file.
        pictures: how many there may be.
        name: for messages.
        room: whether so many more bytes may be written.

    Raises:
        OSError: the file cannot be opened for reading and writing.
        ValueError: it is none of these, or of another number of pictures.
    """

    def __init__(self, path: Path, pictures: int, name: str, room: Callable[[int], bool]) -> None:
        self.path, self.name = path, name
        self._pictures, self._room = pictures, room
        self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        finalize(self, os.close, self._descriptor)
        if os.pread(self._descriptor, _HEADER.size, 0) != _header(pictures):
            raise ValueError(f"{name} holds no {pictures} pictures")
        self._mapped: Pixels = np.empty(0, dtype=np.uint8)
        # Shared with workers that are forked: whether there is room, then for each picture whether its pixels are known
        # to be whole.
        self._flags = mmap.mmap(-1, 1 + pictures)

    def __reduce__(self) -> tuple[Any, ...]:
        return PixelFile, (self.path, self._pictures, self.name, self._room)

    @property
    def used(self) -> int:
        """Bytes on the disk or in memory."""
        return os.fstat(self._descriptor).st_blocks * 512

    def find(self, number: int, stamp: bytes) -> Entry | None:
        """Where picture ``number`` lies, if it is there with this stamp (16 bytes) and whole."""
        content = os.pread(self._descriptor, _ENTRY_SIZE, _HEADER.size + number * _ENTRY_SIZE)
        if len(content) < _ENTRY_SIZE or not content.startswith(stamp):
            return None
        if _SUM.pack(crc32(content[: _ENTRY.size])) != content[_ENTRY.size :]:
            return None
        entry = Entry(*_ENTRY.unpack(content[: _ENTRY.size]))
        if not self._maps(entry.place + entry.bytes):
            return None
        if not self._flags[1 + number]:
            if crc32(self.rows(entry, 0, entry.height).data) != entry.checksum:
                return None
            self._flags[1 + number] = 1
        return entry

    def rows(self, entry: Entry, top: int, bottom: int) -> Pixels:
        """Some rows of a picture that was found (rows x W x C), not to be written to."""
        row = entry.width * entry.channels
        part = self._mapped[entry.place + top * row : entry.place + bottom * row]
        return part.reshape(bottom - top, entry.width, entry.channels)

    def add(self, number: int, stamp: bytes, pixels: Pixels) -> None:
        """Keep a picture (H x W x C), if there is room; if not, it is told once."""
        if self._flags[0]:
            return
        try:
            place = self._take(pixels.nbytes)
            if place is None:
                self._stop("there is no more room")
                return
            _write(self._descriptor, pixels.reshape(-1).data, place)
            entry = _ENTRY.pack(stamp, place, *pixels.shape, crc32(pixels.data))
            _write(self._descriptor, entry + _SUM.pack(crc32(entry)), _HEADER.size + number * _ENTRY_SIZE)
            self._flags[1 + number] = 1
        except OSError as error:
            self._stop("the disk is full" if error.errno == errno.ENOSPC else error.strerror or str(error))

    def _take(self, size: int) -> int | None:
        """The beginning of so many bytes that are nobody else's."""
        # Not flock: forked workers share that one.
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX)
        try:
            end = os.fstat(self._descriptor).st_size
            if end // _LOOK != (end + size) // _LOOK and not self._room(max(size, _LOOK)):
                return None
            os.ftruncate(self._descriptor, end + size)
            return end
        finally:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN)

    def _stop(self, why: str) -> None:
        if not self._flags[0]:
            self._flags[0] = 1
            log.warning("data.cache: %s takes no more pictures, %s; the others are decoded anew", self.name, why)

    def _maps(self, end: int) -> bool:
        """Whether the file reaches as far; it is mapped as far as it does."""
        if end > len(self._mapped):
            size = os.fstat(self._descriptor).st_size
            if end > size:
                return False
            mapped = mmap.mmap(self._descriptor, size, prot=mmap.PROT_READ)
            self._mapped = np.frombuffer(mapped, dtype=np.uint8)
        return True


def _header(pictures: int) -> bytes:
    return _HEADER.pack(_MAGIC, pictures, crc32(b"%d" % pictures))


def _write(descriptor: int, content: bytes | memoryview, place: int) -> None:
    left = memoryview(content)
    while left:
        written = os.pwrite(descriptor, left, place)
        left, place = left[written:], place + written


def _prepare(descriptor: int, pictures: int) -> None:
    """Make an empty file one for so many pictures."""
    os.ftruncate(descriptor, _HEADER.size + pictures * _ENTRY_SIZE)
    _write(descriptor, _header(pictures), 0)


# --- on the disk, in memory -------------------------------------------------------------------------------------------


def on_disk(path: Path, pictures: int) -> PixelFile:
    """The file at ``path``, made anew if there is none, or none that can be used.

    Raises:
        OSError: it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for _ in range(2):
        with suppress(FileNotFoundError, ValueError):
            return PixelFile(path, pictures, str(path), partial(_disk_has_room, path.parent))
        _make(path, pictures)
    raise OSError(errno.EIO, "what was just written cannot be read", str(path))


def _make(path: Path, pictures: int) -> None:
    """Put a new file in place. Who has the old one open goes on with that."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    descriptor = os.open(aside, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        _prepare(descriptor, pictures)
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)


def in_memory(pictures: int, name: str) -> PixelFile:
    """A file in memory, which is gone with the last process that has it open, killed or not.

    Processes of one machine share that of the first of them.
    """
    descriptor = os.memfd_create("opabinia pictures")
    try:
        _prepare(descriptor, pictures)
        own = PixelFile(Path(f"/proc/{os.getpid()}/fd/{descriptor}"), pictures, name, _memory_has_room)
    except BaseException:
        os.close(descriptor)
        raise
    finalize(own, os.close, descriptor)  # others, who look for it by its path, may come at any time
    if world_size() == 1:
        return own
    offers = gather((_machine(), local_rank(), own.path))
    path = min(offer for offer in offers if offer[0] == _machine())[2]
    found = own if path == own.path else _shared(path, pictures, name) or own
    gather(None)  # nobody gives up what others are about to open
    return found


def _shared(path: Path, pictures: int, name: str) -> PixelFile | None:
    try:
        return PixelFile(path, pictures, name, _memory_has_room)
    except (OSError, ValueError) as error:
        log.warning("data.cache: %s cannot be shared between processes (%s); each has its own", name, error)
        return None


def _machine() -> str:
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip() + os.uname().nodename
    return os.uname().nodename


def _disk_has_room(folder: Path, size: int) -> bool:
    """Whether a twentieth of the disk stays free."""
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize - size > disk.f_blocks * disk.f_frsize / 20


def _memory_has_room(size: int) -> bool:
    """Whether a quarter of the memory stays free, of the machine's and of what this process may have (cgroup v2)."""
    return all(free - size > total / 4 for free, total in (_of_machine(), *_of_group()))


def _of_machine() -> tuple[int, int]:
    """Bytes that are available, and all."""
    known = dict(_numbers(Path("/proc/meminfo")))
    return known["MemAvailable:"] * 1024, known["MemTotal:"] * 1024


def _of_group() -> Iterator[tuple[int, int]]:
    with suppress(OSError, ValueError, KeyError):
        group = Path("/proc/self/cgroup").read_text().split("0::", 1)[1].split()[0]
        folder = Path("/sys/fs/cgroup" + group)
        total = int((folder / "memory.max").read_text())
        known = dict(_numbers(folder / "memory.stat"))
        used = int((folder / "memory.current").read_text()) - known["inactive_file"] - known["active_file"]
        yield total - used, total


def _numbers(path: Path) -> Iterator[tuple[str, int]]:
    for line in path.read_text().splitlines():
        name, number, *_ = line.split()
        yield name, int(number)


# --- the source -------------------------------------------------------------------------------------------------------


class Cached:
    """A source whose pictures are decoded once and kept.

    Its samples are those of the source; ``encoded`` gives pictures whose parts are those of the whole picture, whether
    it was there already or not.

    Args:
        source: has ``encoded``.
        file: where they are kept; None keeps none, with the same samples.
        size: shrink larger pictures until their shorter side has so many pixels.
    """

    def __init__(self, source: Source, file: PixelFile | None, size: int | None = None) -> None:
        self._source, self._file, self._size = source, file, size
        self.channels, self.classes = source.channels, source.classes

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Sample:
        return whole(self.encoded(index))

    def encoded(self, index: int) -> Sample:
        """The sample, of whose picture a part may be taken.

        Raises:
            OSError: its file cannot be read.
            ValueError: it is no picture, or a broken one.
        """
        sample = self._source.encoded(index)  # type: ignore[attr-defined]
        return {**sample, "image": self._kept(index, sample["image"])}

    def _kept(self, index: int, image: LazyImage) -> LazyImage:
        stamp = self._stamp(image)
        found = self._file.find(index, stamp) if self._file else None
        if self._file and found:
            return Kept(image, (found.height, found.width), partial(self._file.rows, found))
        pixels = shrunk(image, self._size)
        array: Pixels = np.ascontiguousarray(pixels.permute(1, 2, 0).numpy())
        if self._file:
            self._file.add(index, stamp, array)
        return Kept(image, array.shape[:2], lambda top, bottom: array[top:bottom])

    def _stamp(self, image: LazyImage) -> bytes:
        text = f"{_DECODED} {image.stamp()} {image.channels} {self._size}"
        return blake2b(text.encode("utf-8", "backslashreplace"), digest_size=16).digest()

    def __getattr__(self, name: str) -> Any:
        # What else the source has (labels, fingerprint ...), but whole batches, which would pass by the cache.
        if name.startswith("_") or name == "batch":
            raise AttributeError(name)
        return getattr(self._source, name)


_DECODED = 1
"""Raised when pictures are decoded to other pixels."""


class Kept(LazyImage):
    """A decoded picture, perhaps a shrunk one.

    Args:
        image: what it was decoded from.
        size: height and width.
        rows: gives some rows (rows x W x C), from the first to before the second.
    """

    def __init__(self, image: LazyImage, size: tuple[int, int], rows: Callable[[int, int], Pixels]) -> None:
        self.name, self.channels = image.name, image.channels
        self._image, self._size, self._rows = image, size, rows

    def stamp(self) -> str:
        """What changes with its file."""
        return self._image.stamp()

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return self._size

    def pixels(self) -> Tensor:
        """All of it, the channels of a pixel beside each other, as decoders give them."""
        return torch.from_numpy(self._rows(0, self.size[0]).copy()).permute(2, 0, 1)

    def part(self, box: Box, least: tuple[int, int]) -> Tensor:
        """A part, in full size."""
        rows = self._rows(box.top, box.top + box.height)
        return torch.from_numpy(rows[:, box.left : box.left + box.width].copy()).permute(2, 0, 1)


def shrunk(image: LazyImage, size: int | None) -> Tensor:
    """All of a picture (uint8, C x H x W), its shorter side of at most ``size`` pixels; decoded in the smallest of
    libjpeg's sizes that is not below that."""
    if size is None or image.size is None:
        pixels = image.pixels()
    else:
        height, width = image.size
        least = (min(size, height), min(size, width))
        pixels = image.part(Box(0, 0, height, width), least)
    if size is None or min(pixels.shape[-2:]) <= size:
        return pixels
    resized: Tensor = resize(pixels, [size], antialias=True)
    return resized


_files: WeakKeyDictionary[Source, dict[tuple[Kind, int | None], PixelFile | None]] = WeakKeyDictionary()


def cached(source: Source, kind: Kind, size: int | None, name: str) -> Cached:
    """The source with a cache, the same one every time. To be called by all processes at the same time.

    Where the cache cannot be written, it is told, and pictures are decoded every time.

    Args:
        source: where pictures come from.
        kind: ``ram``: in memory, shared by all workers and by the processes of a machine, until the run ends; ``disk``:
            below ``$XDG_CACHE_HOME/opabinia`` or ``~/.cache/opabinia``, for later runs, too.
        size: as in :class:`Cached`.
        name: of the data set, for messages.

    Raises:
        ValueError: the source has no ``encoded``, or this system cannot share memory.
    """
    if not hasattr(source, "encoded"):
        raise ValueError(
            f"{kind}: {type(source).__name__} has no pictures in files that could be kept decoded; "
            "image_folder, images, table, shards, identities and what joins them have, others take null"
        )
    if kind == "ram" and not hasattr(os, "memfd_create"):
        raise ValueError("ram: only Linux shares memory in this way; take disk")
    known = _files.setdefault(source, {})
    if (kind, size) not in known:
        known[kind, size] = _file(source, kind, size, name)
    return Cached(source, known[kind, size], size)


def _file(source: Source, kind: Kind, size: int | None, name: str) -> PixelFile | None:
    if not len(source):
        return None
    if kind == "ram":
        return in_memory(len(source), f"{name} in memory")
    path = _folder() / f"{_digest(source, size)}.pixels"
    try:
        file = on_disk(path, len(source))
    except OSError as error:
        log.warning("data.cache: cannot write %s: %s; pictures are decoded every time", path, error.strerror or error)
        return None
    log.info("pictures of %s are kept in %s, %.1f MB so far", name, path, file.used / 1e6)
    return file


def _folder() -> Path:
    return cache_folder() / "pictures"


def _digest(source: Source, size: int | None) -> str:
    """Tells sources apart, so that each has its own file; what is in it is told apart by stamps."""
    own = getattr(source, "fingerprint", None)
    try:
        first = source.encoded(0)["image"].name  # type: ignore[attr-defined]
    except (OSError, ValueError):
        first = ""
    content = [own() if callable(own) else "", os.path.abspath(first), len(source), source.channels, size]
    return blake2b(repr(content).encode(), digest_size=8).hexdigest()
