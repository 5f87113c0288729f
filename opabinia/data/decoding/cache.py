"""Cache of decoded images in one file, so that only the first epoch decodes them.

File layout: a header, an entry of fixed size for each image, then pixels in the order in which they arrived. All
workers and processes fill the file together: a process reserves space under a lock, writes the pixels, then the entry,
which holds checksums of both. If it is killed in between, the space stays unused. A missing, damaged or outdated image
counts as not cached and is decoded again, so the state of the cache never changes the pixels of a batch.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import struct
from collections.abc import Callable
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

from opabinia.contracts import Sample, Source, are_8bit_images
from opabinia.data.decoding.images import Box, LazyImage, decode_sample
from opabinia.data.sources.wrapper import Wrapper
from opabinia.runtime.files import cache_folder
from opabinia.runtime.log import log
from opabinia.runtime.processes import all_gather, local_rank, world_size
from opabinia.runtime.resources import memory_limits

Kind = Literal["ram", "disk"]
Pixels = NDArray[np.uint8]

# --- the file ---------------------------------------------------------------------------------------------------------

_HEADER = struct.Struct("<16sQ40x")  # magic, number of images
_MAGIC = b"opabinia pixels2"
_ENTRY = struct.Struct("<16sQIIBxxxI")  # stamp, offset, height, width, channels, checksum of the pixels
_CHECKSUM = struct.Struct("<I")  # of the entry
_ENTRY_SIZE = _ENTRY.size + _CHECKSUM.size

_SPACE_CHECK_INTERVAL = 2**24
"""Written bytes after which the free space is checked again."""


class Entry(NamedTuple):
    """Location of an image in the file, H x W x C, row by row."""

    stamp: bytes
    offset: int
    height: int
    width: int
    channels: int
    checksum: int


class PixelFile:
    """Images by index in a file that any number of processes read and write.

    Args:
        path: of the file.
        images: maximum number of images.
        name: for messages.
        has_space: returns whether this number of further bytes may be written.

    Raises:
        OSError: the file cannot be opened for reading and writing.
        ValueError: it is not such a file, or for another number of images.
    """

    def __init__(self, path: Path, images: int, name: str, has_space: Callable[[int], bool]) -> None:
        self.path, self.name = path, name
        self._images, self._has_space = images, has_space
        self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        finalize(self, os.close, self._descriptor)
        if os.pread(self._descriptor, _HEADER.size, 0) != _HEADER.pack(_MAGIC, images):
            raise ValueError(f"{name} is not a cache of {images} images")
        self._mapped: Pixels = np.empty(0, dtype=np.uint8)
        # Shared with forked workers. Byte 0: whether the file is full; byte 1 + index: whether the checksum of this
        # image was verified.
        self._flags = mmap.mmap(-1, 1 + images)

    def __reduce__(self) -> tuple[Any, ...]:
        return PixelFile, (self.path, self._images, self.name, self._has_space)

    @property
    def used(self) -> int:
        """Bytes on the disk or in memory."""
        return os.fstat(self._descriptor).st_blocks * 512

    def find(self, index: int, stamp: bytes) -> Entry | None:
        """Return the entry of image ``index`` if it is cached with this stamp (16 bytes) and undamaged."""
        content = os.pread(self._descriptor, _ENTRY_SIZE, _HEADER.size + index * _ENTRY_SIZE)
        if len(content) < _ENTRY_SIZE or not content.startswith(stamp):
            return None
        if _CHECKSUM.pack(crc32(content[: _ENTRY.size])) != content[_ENTRY.size :]:
            return None
        entry = Entry(*_ENTRY.unpack(content[: _ENTRY.size]))
        end = entry.offset + entry.height * entry.width * entry.channels
        if end > len(self._mapped):  # map the file up to its present end
            size = os.fstat(self._descriptor).st_size
            if end > size:
                return None
            self._mapped = np.frombuffer(mmap.mmap(self._descriptor, size, prot=mmap.PROT_READ), dtype=np.uint8)
        if not self._flags[1 + index]:
            if crc32(self.rows(entry, 0, entry.height).data) != entry.checksum:
                return None
            self._flags[1 + index] = 1
        return entry

    def rows(self, entry: Entry, top: int, bottom: int) -> Pixels:
        """Return rows of a cached image (rows x W x C), read-only."""
        row = entry.width * entry.channels
        pixels = self._mapped[entry.offset + top * row : entry.offset + bottom * row]
        return pixels.reshape(bottom - top, entry.width, entry.channels)

    def add(self, index: int, stamp: bytes, pixels: Pixels) -> None:
        """Cache an image (H x W x C) if there is space; the first failure is logged and ends caching."""
        if self._flags[0]:
            return
        try:
            offset = self._reserve(pixels.nbytes)
            _write(self._descriptor, pixels.reshape(-1).data, offset)
            entry = _ENTRY.pack(stamp, offset, *pixels.shape, crc32(pixels.data))
            _write(self._descriptor, entry + _CHECKSUM.pack(crc32(entry)), _HEADER.size + index * _ENTRY_SIZE)
            self._flags[1 + index] = 1
        except OSError as error:
            reason = "the disk is full" if error.errno == errno.ENOSPC else error.strerror or str(error)
            if not self._flags[0]:  # no other process has logged it in the meantime
                self._flags[0] = 1
                log.warning("data.cache: %s is full: %s; the other images are decoded every time", self.name, reason)

    def _reserve(self, size: int) -> int:
        """Extend the file for this process and return the offset.

        Raises:
            OSError: there is no space.
        """
        # Not flock: forked workers would share the lock.
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX)
        try:
            end = os.fstat(self._descriptor).st_size
            crosses = end // _SPACE_CHECK_INTERVAL != (end + size) // _SPACE_CHECK_INTERVAL
            if crosses and not self._has_space(max(size, _SPACE_CHECK_INTERVAL)):
                raise OSError("there is no more space")
            os.ftruncate(self._descriptor, end + size)
            return end
        finally:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN)


def _write(descriptor: int, content: bytes | memoryview, offset: int) -> None:
    remaining = memoryview(content)
    while remaining:
        written = os.pwrite(descriptor, remaining, offset)
        remaining, offset = remaining[written:], offset + written


def _initialize(descriptor: int, images: int) -> None:
    """Turn an empty file into a cache without images."""
    os.ftruncate(descriptor, _HEADER.size + images * _ENTRY_SIZE)
    _write(descriptor, _HEADER.pack(_MAGIC, images), 0)


# --- on disk, in memory -----------------------------------------------------------------------------------------------


def disk_file(path: Path, images: int) -> PixelFile:
    """Open the cache at ``path``; create it if there is none, or none that can be used.

    Raises:
        OSError: it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for _ in range(2):
        with suppress(FileNotFoundError, ValueError):
            return PixelFile(path, images, str(path), partial(_disk_has_space, path.parent))
        _create(path, images)
    raise OSError(errno.EIO, "the file just written cannot be read", str(path))


def _create(path: Path, images: int) -> None:
    """Replace ``path`` by a new file. Processes that have the old one open keep using that."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            _initialize(file.fileno(), images)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def memory_file(images: int, name: str) -> PixelFile:
    """Create a cache in memory, which disappears with the last process that has it open, however that ends.

    The processes of a machine share the one of the first of them; so all processes call this together.
    """
    descriptor = os.memfd_create("opabinia images")
    try:
        _initialize(descriptor, images)
        local = PixelFile(Path(f"/proc/{os.getpid()}/fd/{descriptor}"), images, name, _memory_has_space)
    except BaseException:
        os.close(descriptor)
        raise
    finalize(local, os.close, descriptor)  # not earlier: other processes open the file by its path at any time
    if world_size() == 1:
        return local
    offers = all_gather((_machine_id(), local_rank(), local.path))
    path = min(offer for offer in offers if offer[0] == _machine_id())[2]
    shared = local
    if path != local.path:
        try:
            shared = PixelFile(path, images, name, _memory_has_space)
        except (OSError, ValueError) as error:
            log.warning("data.cache: %s cannot be shared between processes (%s); each has its own", name, error)
    all_gather(None)  # a barrier: no process may close its file before the others have opened it
    return shared


def _machine_id() -> str:
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip() + os.uname().nodename
    return os.uname().nodename


def _disk_has_space(folder: Path, size: int) -> bool:
    """Return whether a twentieth of the disk stays free."""
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize - size > disk.f_blocks * disk.f_frsize / 20


def _memory_has_space(size: int) -> bool:
    """Return whether a quarter of the memory stays free: of the machine's and of this process's limits."""
    return all(free - size > total / 4 for free, total in memory_limits(reclaimable=("inactive_file", "active_file")))


# --- the source -------------------------------------------------------------------------------------------------------


class CachedSource(Wrapper):
    """A source whose images are decoded once and cached.

    Its samples are those of the source; crops from ``encoded`` are cut out of the whole decoded image, whether it was
    cached already or not.

    Args:
        source: has ``encoded``.
        file: the cache; None caches nothing and gives the same samples.
        size: downscale larger images to this length of the shorter side.
    """

    def __init__(self, source: Source, file: PixelFile | None, size: int | None = None) -> None:
        super().__init__(source, source.info)
        self._file, self._size = file, size

    def __getitem__(self, index: int) -> Sample:
        return decode_sample(self.encoded(index))

    def encoded(self, index: int) -> Sample:
        """Return the sample with a :class:`CachedImage`.

        Raises:
            OSError: the image file cannot be read.
            ValueError: it is not an image, or a broken one.
        """
        sample = self.source.encoded(index)
        image: LazyImage = sample["image"]
        text = f"{_VERSION} {image.stamp()} {image.channels} {self._size}"
        stamp = blake2b(text.encode("utf-8", "backslashreplace"), digest_size=16).digest()
        entry = self._file.find(index, stamp) if self._file else None
        if self._file and entry:
            cached = CachedImage(image, (entry.height, entry.width), partial(self._file.rows, entry), 0)
            return {**sample, "image": cached}
        array: Pixels = np.ascontiguousarray(decode_shrunk(image, self._size).permute(1, 2, 0).numpy())
        if self._file:
            self._file.add(index, stamp, array)
        decoded = CachedImage(image, array.shape[:2], lambda top, bottom: array[top:bottom], array.nbytes)
        return {**sample, "image": decoded}


_VERSION = 1
"""To be incremented when decoding changes the pixels of an image."""


class CachedImage(LazyImage):
    """A decoded image, possibly downscaled.

    Args:
        image: the encoded image.
        size: height and width.
        rows: returns the rows (rows x W x C) from the first argument to before the second.
        held_bytes: memory of this process that the pixels take.
    """

    def __init__(
        self, image: LazyImage, size: tuple[int, int], rows: Callable[[int, int], Pixels], held_bytes: int
    ) -> None:
        self.name, self.channels = image.name, image.channels
        self._image, self._size, self._rows, self._held_bytes = image, size, rows, held_bytes

    @property
    def held_bytes(self) -> int:
        """Memory of this process that the pixels take."""
        return self._held_bytes

    def stamp(self) -> str:
        """Return the stamp of the encoded image."""
        return self._image.stamp()

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return self._size

    def decode(self) -> Tensor:
        """Return the whole image, the channels of a pixel adjacent in memory as after decoding."""
        return torch.from_numpy(self._rows(0, self.size[0]).copy()).permute(2, 0, 1)

    def crop(self, box: Box, min_size: tuple[int, int]) -> Tensor:
        """Return a crop at full resolution."""
        rows = self._rows(box.top, box.top + box.height)
        return torch.from_numpy(rows[:, box.left : box.left + box.width].copy()).permute(2, 0, 1)


def decode_shrunk(image: LazyImage, size: int | None) -> Tensor:
    """Decode an image (uint8, C x H x W) and downscale it to a shorter side of at most ``size`` pixels. It is decoded
    at the lowest of libjpeg's resolutions that is not below that."""
    if size is None or image.size is None:
        pixels = image.decode()
    else:
        height, width = image.size
        pixels = image.crop(Box(0, 0, height, width), (min(size, height), min(size, width)))
    if size is None or min(pixels.shape[-2:]) <= size:
        return pixels
    resized: Tensor = resize(pixels, [size], antialias=True)
    return resized


_files: WeakKeyDictionary[Source, dict[tuple[Kind, int | None], PixelFile | None]] = WeakKeyDictionary()


def with_cache(source: Source, kind: Kind, size: int | None, name: str) -> CachedSource:
    """Return the source with a cache, the same cache every time. All processes call this together.

    If the cache cannot be written, this is logged, and images are decoded every time.

    Args:
        source: of the images.
        kind: ``ram``: in memory, shared by all workers and processes of a machine, until the run ends; ``disk``: below
            ``$XDG_CACHE_HOME/opabinia`` or ``~/.cache/opabinia``, for later runs, too.
        size: as in :class:`CachedSource`.
        name: of the dataset, for messages.

    Raises:
        ValueError: the source has no ``encoded``, or other images than 8-bit ones, or this system cannot share memory.
    """
    if not source.info.encoded:
        raise ValueError(
            f"{kind}: {type(source).__name__} has no image files whose pixels could be cached; image_folder, images, "
            "table, shards, identities and concatenations of them have, for others take null"
        )
    if not are_8bit_images(source.channels):
        raise ValueError(
            f"{kind}: the cache holds 8-bit gray and color images, not channels: {source.channels}; take null"
        )
    if kind == "ram" and not hasattr(os, "memfd_create"):
        raise ValueError("ram: only Linux can share memory in this way; take disk")
    files = _files.setdefault(source, {})
    if (kind, size) not in files:
        files[kind, size] = _open_file(source, kind, size, name)
    return CachedSource(source, files[kind, size], size)


def _open_file(source: Source, kind: Kind, size: int | None, name: str) -> PixelFile | None:
    if not len(source):
        return None
    if kind == "ram":
        return memory_file(len(source), f"{name} in memory")
    path = cache_folder() / "pictures" / f"{_digest(source, size)}.pixels"
    try:
        file = disk_file(path, len(source))
    except OSError as error:
        log.warning("data.cache: cannot write %s: %s; images are decoded every time", path, error.strerror or error)
        return None
    log.info("decoded images of %s are cached in %s, %.1f MB so far", name, path, file.used / 1e6)
    return file


def _digest(source: Source, size: int | None) -> str:
    """Return a file name for the source. Only the stamps of the images decide whether the content fits."""
    try:
        first = source.encoded(0)["image"].name
    except (OSError, ValueError):
        first = ""
    content = [source.fingerprint(), os.path.abspath(first), len(source), source.channels, size]
    return blake2b(repr(content).encode(), digest_size=8).hexdigest()
