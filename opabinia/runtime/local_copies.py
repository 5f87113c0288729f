"""Local copies of files in remote storage (``s3://``, ``gs://``, ``az://`` and other protocols of fsspec).

A folder in remote storage is listed once and becomes a local folder, in which every object that is large or one of many
(images, videos, tar files) is a *placeholder*: a sparse file with the object's name and size, and without the
permission to read it. So whatever finds, counts or compares files works as it does on a local disk.
:func:`read_file`, :func:`fetch` and :class:`RangeFile` replace placeholders with content when it is needed; all other
objects (lists, annotations) are fetched at once. Content takes the place of a placeholder by renaming, so that a killed
process leaves a placeholder or the whole file. Content that is not that of the object that was listed is an error.

fsspec's own caches do not serve: ``filecache`` and ``simplecache`` fetch to the final name, where a killed process
leaves a part, ``blockcache`` loses blocks that two processes fetch, none has a limit of its size, and all list again.

In the folder of local copies, ``.listed`` holds a file for each folder that was listed, ``.chunks`` parts of tar files,
``.tmp`` what is being fetched, ``runs`` run folders, which are no part of the limited size, ``.room`` the number of
bytes that may be fetched before the size is counted again, and ``.counted`` has the time at which it was counted.

Environment:
    OPABINIA_REMOTE_CACHE: the local folder, by default ``~/.cache/opabinia/remote``.
    OPABINIA_REMOTE_CACHE_SIZE: the size of the fetched files in it, such as ``200GB``; by default the disk's, of which
        5 % stay free. Above it, those that were fetched first become placeholders again.
"""

from __future__ import annotations

import fcntl
import io
import json
import logging
import os
import re
import shutil
import stat
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any

from opabinia.runtime.files import disk_errors, wait_for_lock, write_atomic
from opabinia.runtime.storage import (
    RUNS,
    THREADS,
    StorageError,
    cache_root,
    check_unchanged,
    download_object,
    filesystem,
    list_marker,
    list_objects,
    local_path,
    modified_ns,
    normalize_url,
    parent_urls,
    refresh_hint,
    retry,
    url_of,
    version_of,
)
from opabinia.runtime.text import plural

log = logging.getLogger("opabinia")  # runtime/log.py imports torch

CHUNK = 1 << 22
"""Bytes of a part of a file that is read at once."""
COMPARE_EVERY = 60.0
"""Seconds after which an object of which parts are read is compared with the listed one again."""

_WILDCARD = re.compile(r"[{*?\[]")
_FETCHED_WHEN_READ = (
    *(".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif", ".ppm", ".pgm", ".tar"),
    *(".mp4", ".avi", ".mkv", ".mov", ".webm", ".mpg", ".mpeg", ".m4v", ".wmv", ".flv", ".3gp", ".ts"),
    *(".asf", ".f4v", ".m2ts", ".mjpeg", ".mts", ".ogv", ".vob"),
)
_PLACEHOLDER = stat.S_IWUSR
_COUNTED_EVERY = 10 * 10**9  # bytes that are fetched, at most, before the free space of the disk is looked at again
_RESERVES = 1000  # a process reserves 1/1000 of the room: many processes must leave most of it to the others

_used = False  # whether this process, or the one that forked it, reads local copies


def local_copy(url: str | Path) -> str:
    """Return the local file or folder that stands for one in remote storage; it is listed the first time.

    Args:
        url: URL of an object or a folder. What follows the last ``/`` before a wildcard (``*``, ``?``, ``[``, ``{``) is
            appended unchanged: ``s3://bucket/train-{00..99}.tar``.

    Raises:
        StorageError: there is no such object or folder, or it cannot be listed.
    """
    global _used
    _used = True
    url = normalize_url(url)
    wildcard = _WILDCARD.search(url)
    if wildcard is not None:
        folder, slash, pattern = url[: wildcard.start()].rpartition("/")
        return f"{local_copy(folder)}{slash}{pattern}{url[wildcard.start() :]}"
    path, marker = local_path(url), list_marker(url)
    if not any(list_marker(parent).exists() for parent in parent_urls(url)):
        with wait_for_lock(marker.with_suffix(".lock")):
            if not marker.exists():
                refresh(url)
    if file := next((parent for parent in path.parents if parent.is_file()), None):
        raise StorageError(f"there is no {url}: {url_of(file)} is an object, not a folder")
    if not path.exists():
        raise StorageError(f"there is no {url}: it was not there when the folder was listed; {refresh_hint(url)}")
    return str(path)


def refresh(url: str) -> int:
    """List an object or a folder in remote storage again; return the number of objects.

    Local copies of objects that have changed or are gone are removed.

    Raises:
        StorageError: there is no such object or folder, or it cannot be listed.
    """
    url = normalize_url(url)
    root, names, folders, fetched_now = local_path(url), set[str](), set[Path](), list[Path]()
    for name, info in list_objects(url):
        path = root / name if name else root
        if path.parent not in folders:
            existing = next(parent for parent in path.parents if parent.exists())
            if not existing.is_dir():
                _remove(existing)  # an object that is a folder now
            with disk_errors(path):
                path.parent.mkdir(parents=True, exist_ok=True)
            folders.add(path.parent)
        names.add(name)
        listed = int(info["size"]), modified_ns(info)
        with suppress(FileNotFoundError):
            status = path.stat()
            if stat.S_ISREG(status.st_mode) and version_of(status) == listed:
                if _is_placeholder(status) and not path.name.lower().endswith(_FETCHED_WHEN_READ):
                    fetched_now.append(path)  # the last listing was interrupted
                continue
            _remove(path)
        list_marker(url).unlink(missing_ok=True)  # until all changes are here
        _put_placeholder(path, *listed)
        if not path.name.lower().endswith(_FETCHED_WHEN_READ):
            fetched_now.append(path)
    for folder, _, files in os.walk(root):
        below = "" if folder == str(root) else f"{folder.removeprefix(str(root))[1:]}/"
        for name in files:
            if below + name not in names:
                _remove(Path(folder, name))
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(fetch, fetched_now))
    about = {"url": url, "objects": len(names), "listed": datetime.now(UTC).isoformat(timespec="seconds")}
    write_atomic(list_marker(url), json.dumps(about))
    log.info("%s: %s; the list is kept in %s", url, plural(len(names), "object"), root)
    return len(names)


def read_file(path: str | bytes | os.PathLike[str]) -> bytes:
    """Return the content of a local file; a placeholder is fetched first.

    Raises:
        OSError: it cannot be read.
        StorageError: it cannot be fetched.
    """
    while True:
        try:
            with open(path, "rb") as file:
                if not _is_placeholder(os.fstat(file.fileno())):  # root may open placeholders
                    return file.read()
        except PermissionError:
            if not is_placeholder(path):
                raise
        fetch(path)


def open_file(path: str | Path) -> io.FileIO | RangeFile:
    """Open a local file for reading; a placeholder is read by ranges.

    Raises:
        OSError: it cannot be opened.
    """
    return RangeFile(path) if is_placeholder(path) else io.FileIO(path)


def fetch(path: str | bytes | os.PathLike[str]) -> None:
    """Fetch the content of a placeholder; do nothing for other files.

    Raises:
        StorageError: it cannot be fetched, or has changed since it was listed.
    """
    local = Path(os.fsdecode(path))
    while _is_placeholder(status := local.stat()):
        url = url_of(local)
        with _temporary(status.st_size) as temporary:
            retry(url, partial(download_object, url, temporary, version_of(status)))
            os.utime(temporary, ns=(time.time_ns(), status.st_mtime_ns))
            if local.stat().st_mtime_ns == status.st_mtime_ns:  # or else it was listed again
                temporary.replace(local)


def fetch_all(paths: Iterable[str | bytes | os.PathLike[str]]) -> None:
    """Fetch the content of the placeholders among files, many at the same time: latency, not bandwidth, is the limit.

    Files that are missing are ignored. Returns at once in processes that use no remote storage.

    Raises:
        StorageError: one cannot be fetched, or has changed since it was listed.
    """
    missing = []
    for path in paths if _used else ():
        with suppress(OSError):
            if is_placeholder(path):
                missing.append(path)
    if len(missing) > 1:  # a single one is fetched when it is read
        with ThreadPoolExecutor(min(THREADS, len(missing))) as pool:
            list(pool.map(fetch, missing))


def is_placeholder(path: str | bytes | os.PathLike[str]) -> bool:
    """Return whether a file stands for an object whose content is not here."""
    return _is_placeholder(os.stat(path))


def _put_placeholder(path: Path, size: int, time_ns: int) -> None:
    with _temporary() as temporary:
        os.close(os.open(temporary, os.O_CREAT | os.O_WRONLY, _PLACEHOLDER))
        os.truncate(temporary, size)
        os.utime(temporary, ns=(time_ns, time_ns))
        status = os.stat(temporary)
        if not _is_placeholder(status) or status.st_mtime_ns != time_ns:
            where = f"the file system of {cache_root()}"
            raise StorageError(f"{where} keeps no permissions, or no exact times; $OPABINIA_REMOTE_CACHE sets another")
        temporary.replace(path)


def _is_placeholder(status: os.stat_result) -> bool:
    return stat.S_ISREG(status.st_mode) and stat.S_IMODE(status.st_mode) == _PLACEHOLDER


def _remove(path: Path) -> None:
    """Remove the local copy of an object, or of a folder in whose place there is an object now."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    shutil.rmtree(_chunks(str(path)), ignore_errors=True)


# --- content ----------------------------------------------------------------------------------------------------------


@contextmanager
def _temporary(size: int = 0) -> Iterator[Path]:
    """Yield the path of a new file, which is removed unless it was renamed. Room for ``size`` bytes is made."""
    path = cache_root() / ".tmp" / f"{os.urandom(8).hex()}-{size}"  # unique also between machines
    try:
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        if size:
            _make_room(path, size)
        yield path
    finally:
        path.unlink(missing_ok=True)


class RangeFile(io.RawIOBase):
    """A placeholder as a file. Whole chunks of it are fetched, when they are read, and kept.

    Reading raises StorageError if a chunk cannot be fetched, or the object has changed since it was listed.
    """

    def __init__(self, path: str | Path) -> None:
        self._path, self._status, self._position = str(path), os.stat(path), 0
        self._version = f"{_chunks(self._path)}/{self._status.st_mtime_ns:x}"  # the names of chunks begin with it

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._status.st_size}[whence]
        self._position = start + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        content = self.pread(len(buffer), self._position)
        buffer[: len(content)] = content
        self._position += len(content)
        return len(content)

    def pread(self, count: int, offset: int) -> bytes:
        """Return bytes from an offset, or fewer at the end of the file, as ``os.pread`` does."""
        end, parts = min(offset + count, self._status.st_size), list[bytes]()
        for start in range(offset - offset % CHUNK, end, CHUNK):
            first, stop = max(offset - start, 0), min(end - start, CHUNK)
            try:
                descriptor = os.open(f"{self._version}-{start:013d}", os.O_RDONLY | os.O_CLOEXEC)
                parts.append(os.pread(descriptor, stop - first, first))
                os.close(descriptor)
            except FileNotFoundError:
                parts.append(self._fetch_chunk(start)[first:stop])
            if len(parts[-1]) < stop - first:  # cut off by a crash of the machine
                parts[-1] = self._fetch_chunk(start)[first:stop]
        return b"".join(parts)

    def _fetch_chunk(self, start: int) -> bytes:
        url, size, folder = url_of(Path(self._path)), min(CHUNK, self._status.st_size - start), _chunks(self._path)

        def request() -> bytes:
            fs, path = filesystem(url)
            content: bytes = fs.cat_file(path, start=start, end=start + size)
            compared, recently = Path(self._version), False
            with suppress(FileNotFoundError):
                recently = time.time() - compared.stat().st_mtime < COMPARE_EVERY
            if not recently or len(content) != size:
                check_unchanged(url, version_of(self._status))
                os.makedirs(folder, exist_ok=True)
                compared.touch()
            if len(content) != size:
                raise OSError(f"{len(content)} of {size} bytes have arrived")
            return content

        chunk = Path(f"{self._version}-{start:013d}")
        with _temporary(size) as temporary:
            content = retry(url, request)
            with disk_errors(chunk):
                temporary.write_bytes(content)
                os.makedirs(folder, exist_ok=True)
                temporary.replace(chunk)
        return content


def _chunks(local: str) -> str:
    """Return the folder of the chunks of an object."""
    root = str(cache_root())
    return f"{root}/.chunks{local.removeprefix(root)}"


# --- the size of the cache --------------------------------------------------------------------------------------------


class _Reserve:
    """Bytes that this process may fetch before it looks at the room again."""

    def __init__(self) -> None:
        self.lock, self.bytes, self.counted = threading.Lock(), 0, ""


@cache
def _reserve_of(_process: int) -> _Reserve:
    return _Reserve()


def _make_room(temporary: Path, size: int) -> None:
    """Create a file, and reserve room for its content; remove what was fetched first if it would exceed the limit.

    A process reserves a thousandth of the room at once, since all processes of a machine, or of several, wait for the
    lock of ``.room``. The reserve is void when the files have been counted after that: then it is not part of the room.
    """
    text = os.environ.get("OPABINIA_REMOTE_CACHE_SIZE", "")
    with disk_errors(temporary):
        temporary.touch()  # first: who counts from now on counts it
    reserve = _reserve_of(os.getpid())
    with reserve.lock:
        if reserve.bytes >= size and reserve.counted == _last_count(text):
            reserve.bytes -= size
        else:
            reserve.bytes, reserve.counted = _reserve(size, text)


def _last_count(limit: str) -> str:
    """Return a text that changes when the files are counted; empty before that."""
    with suppress(FileNotFoundError):
        return f"{(cache_root() / '.counted').stat().st_mtime_ns} {limit}"
    return ""


def _reserve(size: int, text: str) -> tuple[int, str]:
    """Reserve room for a file, and a reserve for the next ones. Return the reserve, and when the files were counted."""
    limit = _parse_size(text) if text else None
    path = cache_root() / ".room"
    with disk_errors(path), path.open("a+") as file:
        with suppress(OSError):  # network file systems without locks
            fcntl.flock(file, fcntl.LOCK_EX)  # not lockf, which does not hold between threads
        try:
            file.seek(0)
            room, _, limit_then = file.read().partition(" ")
            left = int(room) - size if room.isdecimal() and limit_then == text and _last_count(text) else -1
            if left < 0:
                left = _evict(limit)
            reserve = left // _RESERVES
            file.truncate(0)
            file.write(f"{left - reserve} {text}")
            file.flush()
            return reserve, _last_count(text)
        finally:
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_UN)  # processes that were forked meanwhile have the file open, too


def _evict(limit: int | None) -> int:
    """Count the files, and remove what was fetched first if they exceed the limit; return how many more bytes may be
    fetched."""
    root, total, now = cache_root(), 0, time.time_ns()
    (root / ".counted").touch()
    os.utime(root / ".counted", ns=(now, now))  # before the files are counted: reserves are void from now on
    for temporary in (root / ".tmp").glob("*"):
        with suppress(FileNotFoundError):
            if temporary.stat().st_mtime < time.time() - 3600:  # of a process that was killed
                temporary.unlink()
            else:
                total += int(temporary.name.rpartition("-")[2])  # it is being fetched
    folders = [entry.path for entry in os.scandir(root) if entry.is_dir() and entry.name != RUNS]
    files = sorted(file for folder in folders for file in _fetched_files(folder))
    total += sum(file_size for _, file_size, _ in files)
    disk = shutil.disk_usage(root)
    available = total + disk.free
    available -= min(disk.total // 20, available // 2)
    limit = available if limit is None else min(limit, available)
    if total > limit:
        for _, file_size, path in files:
            if total <= 0.9 * limit:
                break
            _release(Path(path))
            total -= file_size
    return max(0, min(limit - total, _COUNTED_EVERY))


def _parse_size(text: str) -> int:
    from pydantic import ByteSize, TypeAdapter, ValidationError

    try:
        return int(TypeAdapter(ByteSize).validate_python(text))
    except ValidationError as error:
        raise StorageError(f"$OPABINIA_REMOTE_CACHE_SIZE is {text!r}; expected a size such as 200GB") from error


def _fetched_files(folder: Path | str) -> Iterator[tuple[int, int, str]]:
    """Yield when each file was fetched, its size and path, of those that are fetched when they are read."""
    for parent, _, names in os.walk(folder):
        are_chunks = f"{os.sep}.chunks{os.sep}" in f"{parent}{os.sep}"
        for name in names:
            if are_chunks or name.lower().endswith(_FETCHED_WHEN_READ):
                with suppress(FileNotFoundError):
                    status = os.stat(os.path.join(parent, name))
                    if not _is_placeholder(status):
                        yield status.st_atime_ns, status.st_size, os.path.join(parent, name)


def _release(path: Path) -> None:
    if path.is_relative_to(cache_root() / ".chunks"):
        path.unlink(missing_ok=True)
    else:
        with suppress(FileNotFoundError):
            status = path.stat()
            _put_placeholder(path, status.st_size, status.st_mtime_ns)
