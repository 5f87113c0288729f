"""Files in remote storage (``s3://``, ``gs://``, ``az://`` and other protocols of fsspec), read through local copies.

A folder in remote storage is listed once and becomes a local folder, in which every object that is large or one of many
(images, videos, tar files) is a *placeholder*: a sparse file with the object's name and size, and without the
permission to read it. So whatever finds, counts or compares files works as it does on a local disk.
:func:`read_file`, :func:`fetch` and :func:`read_range` replace placeholders with content when it is needed; all other
objects (lists, annotations) are fetched at once. Content takes the place of a placeholder by renaming, so that a killed
process leaves a placeholder or the whole file.

The modification time of a local file is that of the object, with a checksum of its ETag as nanoseconds: the same size
and time mean the same object. Credentials are those of the protocol's own library, from the environment; none are
written.

Environment:
    OPABINIA_REMOTE_CACHE: the local folder, by default ``~/.cache/opabinia/remote``.
    OPABINIA_REMOTE_CACHE_SIZE: the size of the fetched files in it, such as ``200GB``; by default the disk's, of which
        5 % stay free. Above it, those that were fetched first become placeholders again.
"""

from __future__ import annotations

import io
import json
import logging
import os
import random
import re
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from opabinia.runtime.files import cache_folder, temporary_file, wait_for_lock, write_atomic
from opabinia.runtime.text import plural

log = logging.getLogger("opabinia")  # runtime/log.py imports torch

PATIENCE = 180.0
"""Seconds after which a request that fails again and again is given up."""
CHUNK = 1 << 22
"""Bytes of a part of a file that is read at once."""
THREADS = 32
"""Of requests at the same time, while a folder is listed."""

_URL = re.compile(r"([a-z][a-z0-9+.-]+):/+([^/].*)")  # pathlib makes one slash of two
_ROOTED = ("file", "local", "memory")  # protocols whose paths begin with a slash
_WILDCARD = re.compile(r"[{*?\[]")
_FETCHED_WHEN_READ = (
    *(".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif", ".ppm", ".pgm", ".tar"),
    *(".mp4", ".avi", ".mkv", ".mov", ".webm", ".mpg", ".mpeg", ".m4v", ".wmv", ".flv", ".3gp", ".ts"),
)
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "az": "azure", "abfs": "azure", "abfss": "azure"}
_PLACEHOLDER = stat.S_IWUSR
_Result = TypeVar("_Result")


class StorageError(ValueError):
    """Remote storage does not answer, refuses, or has no such object. The text names the object."""

    exit_status = 2


def is_url(text: object) -> bool:
    """Return whether a text or path is a URL of remote storage: ``s3://bucket/folder``, ``gs://...``."""
    return isinstance(text, str | Path) and _URL.fullmatch(str(text)) is not None


def local_copy(url: str | Path) -> str:
    """Return the local file or folder that stands for one in remote storage; it is listed the first time.

    Args:
        url: of an object or a folder. What follows the last ``/`` before a wildcard (``*``, ``?``, ``[``, ``{``) is
            appended unchanged: ``s3://bucket/train-{00..99}.tar``.

    Raises:
        StorageError: there is no such object or folder, or it cannot be listed.
    """
    url = _normalize(url)
    wildcard = _WILDCARD.search(url)
    if wildcard is not None:
        folder, slash, pattern = url[: wildcard.start()].rpartition("/")
        return f"{local_copy(folder)}{slash}{pattern}{url[wildcard.start() :]}"
    path, marker = local_path(url), _marker(url)
    if not any(_marker(parent).exists() for parent in _parents(url)):
        with wait_for_lock(marker.with_suffix(".lock")):
            if not marker.exists():
                refresh(url)
    if not path.exists():
        raise StorageError(f"there is no {url}: it was not there when the folder was listed; {_remedy(url)}")
    return str(path)


def refresh(url: str) -> int:
    """List an object or a folder in remote storage anew; return the number of objects.

    Local copies of objects that have changed or are gone are removed.

    Raises:
        StorageError: there is no such object or folder, or it cannot be listed.
    """
    url = _normalize(url)
    root, found, folders = local_path(url), set[str](), set[Path]()
    eager = []
    for name, info in _list(url):
        path = root / name if name else root
        if ".." in PurePosixPath(name).parts or path.is_dir():
            raise StorageError(f"{url}: the object {name!r} cannot be a file below a folder")
        if path.parent not in folders:
            path.parent.mkdir(parents=True, exist_ok=True)
            folders.add(path.parent)
        found.add(str(path))
        time_ns = _time_ns(info)
        with suppress(FileNotFoundError):
            status = path.stat()
            if (status.st_size, status.st_mtime_ns) == (info["size"], time_ns):
                continue
        _put_placeholder(path, int(info["size"]), time_ns)
        if not path.name.lower().endswith(_FETCHED_WHEN_READ):
            eager.append(path)
    for path in root.rglob("*") if root.is_dir() else ():
        if path.is_file() and not path.name.startswith(".") and str(path) not in found:
            path.unlink()
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(fetch, eager))
    about = {"url": url, "objects": len(found), "listed": datetime.now(UTC).isoformat(timespec="seconds")}
    write_atomic(_marker(url), json.dumps(about))
    log.info("%s: %s; the list is kept in %s", url, plural(len(found), "object"), root)
    return len(found)


def read_file(path: str | bytes | os.PathLike[str]) -> bytes:
    """Return the content of a local file; a placeholder is fetched first.

    Raises:
        OSError: it cannot be read.
        StorageError: it cannot be fetched.
    """
    while True:
        try:
            with open(path, "rb") as file:
                if os.fstat(file.fileno()).st_mode & stat.S_IRUSR:  # root may open placeholders
                    return file.read()
        except PermissionError:
            if not is_placeholder(path):
                raise
        fetch(path)


def open_file(path: Path) -> io.BufferedReader:
    """Open a local file for reading; a placeholder is read by ranges, see :func:`read_range`.

    Raises:
        OSError: it cannot be opened.
    """
    return io.BufferedReader(_Ranges(path)) if is_placeholder(path) else path.open("rb")


class _Ranges(io.RawIOBase):
    """A placeholder as a file."""

    def __init__(self, path: Path) -> None:
        self._path, self._position = path, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._path.stat().st_size}[whence]
        self._position = start + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        content = read_range(self._path, self._position, len(buffer))
        buffer[: len(content)] = content
        self._position += len(content)
        return len(content)


def fetch(path: str | bytes | os.PathLike[str]) -> None:
    """Fetch the content of a placeholder; do nothing for other files.

    Raises:
        StorageError: it cannot be fetched, or has changed since it was listed.
    """
    local = Path(os.fsdecode(path))
    if not is_placeholder(local):
        return
    url, status = url_of(local), local.stat()
    _make_room(status.st_size)
    temporary = local.with_name(f".{local.name}.{os.getpid()}.tmp")
    try:
        retry(url, lambda: _download(url, temporary, status.st_size))
        os.utime(temporary, ns=(time.time_ns(), status.st_mtime_ns))
        temporary.replace(local)
    finally:
        temporary.unlink(missing_ok=True)


def read_range(path: str | bytes | os.PathLike[str], offset: int, count: int) -> bytes:
    """Return bytes of a placeholder, or fewer at the end of the file; whole chunks of it are fetched and kept.

    Raises:
        StorageError: they cannot be fetched, or the object has changed since it was listed.
    """
    local = Path(os.fsdecode(path))
    size = local.stat().st_size
    end, parts = min(offset + count, size), list[bytes]()
    for start in range(offset - offset % CHUNK, end, CHUNK):
        chunk = local.with_name(f".{local.name}.chunks") / f"{start:013d}"
        content = _read_chunk(chunk, url_of(local), start, min(start + CHUNK, size))
        parts.append(content[max(0, offset - start) : end - start])
    return b"".join(parts)


def objects(url: str) -> dict[str, dict[str, Any]]:
    """Return the attributes of all objects in a folder by their path below it; none if there is no such folder.

    Raises:
        StorageError: the protocol is unknown, its library is missing, or a path leads out of the folder.
        Exception: storage does not answer; see :func:`retry`.
    """
    fs, root = filesystem(url)
    root = root.rstrip("/")
    found = {name.removeprefix(root).lstrip("/"): info for name, info in fs.find(root, detail=True).items()}
    if outside := [name for name in found if ".." in PurePosixPath(name).parts]:
        raise StorageError(f"{url}: the object {outside[0]!r} cannot be a file below a folder")
    return found


def download(url: str, info: dict[str, Any], file: Path) -> None:
    """Fetch an object, unless the file is a copy of it that was fetched before.

    Args:
        url: of the object.
        info: its attributes.
        file: the local file, whose folder is created.

    Raises:
        StorageError: it cannot be fetched.
    """
    size, time_ns = int(info["size"]), _time_ns(info)
    with suppress(FileNotFoundError):
        status = file.stat()
        if (status.st_size, status.st_mtime_ns) == (size, time_ns):
            return
    with temporary_file(file) as temporary:
        retry(url, lambda: _download(url, temporary, size))
        os.utime(temporary, ns=(time_ns, time_ns))


def upload(file: Path, url: str) -> None:
    """Write a local file to remote storage, once; readers see all of it or nothing.

    Raises:
        StorageError: the protocol is unknown, or its library is missing.
        Exception: storage does not answer; see :func:`retry`.
    """
    fs, path = filesystem(url)
    if _split(url)[0] in _EXTRAS:  # object storage: it has no folders, and an object appears when it is complete
        fs.put_file(str(file), path)
        return
    fs.makedirs(path.rpartition("/")[0], exist_ok=True)
    fs.put_file(str(file), f"{path}.part")
    fs.mv(f"{path}.part", path)


def is_placeholder(path: str | bytes | os.PathLike[str]) -> bool:
    """Return whether a file stands for an object whose content is not here."""
    mode = os.stat(path).st_mode
    return stat.S_ISREG(mode) and stat.S_IMODE(mode) == _PLACEHOLDER


def url_of(path: Path) -> str:
    """Return the URL that a local copy stands for.

    Raises:
        StorageError: it is not below the folder of local copies.
    """
    root = _root()
    if not path.is_relative_to(root):
        raise StorageError(f"{path} is a placeholder of another folder than {root}, which $OPABINIA_REMOTE_CACHE names")
    protocol, *names = path.relative_to(root).parts
    return _normalize(f"{protocol}://{'/'.join(names)}")


def local_path(url: str) -> Path:
    """Return where the local copy of a file or folder belongs; it may not be there yet."""
    return _root().joinpath(*_split(url))


def filesystem(url: str) -> tuple[Any, str]:
    """Return fsspec's file system for a URL, and the path in it.

    Raises:
        StorageError: the protocol is unknown, or its library is missing.
    """
    import fsspec

    protocol, url = _split(url)[0], _normalize(url)
    try:
        fs, path = fsspec.url_to_fs(url, use_listings_cache=False)
    except ImportError as error:
        extra = _EXTRAS.get(protocol)
        raise StorageError(f"{url}: {error}" + (f"; pip install 'opabinia[{extra}]'" if extra else "")) from error
    except ValueError as error:
        known = ", ".join(f"{name}://" for name in ("s3", "gs", "az"))
        raise StorageError(f"{url}: there is no protocol {protocol}; use {known} or another one of fsspec") from error
    return fs, path


def retry(url: str, request: Callable[[], _Result]) -> _Result:
    """Return what a request returns; repeat it with growing pauses while it fails, for up to :data:`PATIENCE` seconds.

    Missing objects, refused access and missing credentials are not repeated.

    Raises:
        StorageError: with the URL and the last reason.
    """
    deadline, pause = time.monotonic() + PATIENCE, 0.1
    while True:
        try:
            return request()
        except StorageError:
            raise
        except FileNotFoundError as error:
            raise StorageError(f"there is no {url}") from error
        except Exception as error:
            reason = f"{type(error).__name__}: {error}" if not isinstance(error, OSError) else str(error)
            if isinstance(error, PermissionError) or "Credential" in type(error).__name__:
                library = type(filesystem(url)[0]).__module__.partition(".")[0]
                message = f"{url}: access is refused ({reason}); credentials are those of {library}"
                raise StorageError(message) from error
            if time.monotonic() + pause > deadline:
                raise StorageError(f"{url}: no success for {PATIENCE:g} seconds: {reason}") from error
            log.debug("%s: %s; again in %.1f s", url, reason, pause)
            time.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(2 * pause, 10.0)


# --- names ------------------------------------------------------------------------------------------------------------


def _split(url: str) -> tuple[str, str]:
    match = _URL.fullmatch(url)
    if match is None:
        raise StorageError(f"{url} is no URL; expected one such as s3://bucket/folder")
    return match[1], match[2].strip("/")


def _normalize(url: str | Path) -> str:
    protocol, name = _split(str(url))
    return f"{protocol}://{'/' if protocol in _ROOTED else ''}{name}"


def _root() -> Path:
    return Path(os.environ.get("OPABINIA_REMOTE_CACHE") or cache_folder() / "remote").expanduser().absolute()


def _marker(url: str) -> Path:
    """The file that exists when all of a folder has been listed."""
    digest = blake2b(url.encode(), digest_size=8).hexdigest()
    return _root() / ".listed" / f"{digest}.json"


def _parents(url: str) -> Iterator[str]:
    """The URL and those of the folders that it is in."""
    protocol, name = _split(url)
    names = name.split("/")
    for count in range(len(names), 0, -1):
        yield _normalize(f"{protocol}://{'/'.join(names[:count])}")


def _remedy(url: str) -> str:
    return f"opabinia data refresh {url} lists it anew"


# --- listing ----------------------------------------------------------------------------------------------------------


def _list(url: str) -> Iterator[tuple[str, Any]]:
    """Yield the path below ``url`` and the attributes of each object; the path of an object itself is empty."""
    fs, root = filesystem(url)
    root = root.rstrip("/")
    info = retry(url, lambda: fs.info(root))
    if info["type"] == "file":
        yield "", info
        return
    folders, empty = [root], True
    while folders:
        folder = folders.pop()
        for entry in retry(f"{url}", lambda folder=folder: fs.ls(folder, detail=True)):  # type: ignore[misc]
            name = entry["name"].rstrip("/")
            if entry["type"] == "directory" and name != folder:
                folders.append(name)
            elif entry["type"] == "file" and not entry["name"].endswith("/"):
                empty = False
                yield name.removeprefix(root).lstrip("/"), entry
    if empty:
        raise StorageError(f"{url} holds no objects")


_TIMES = ("LastModified", "last_modified", "mtime", "updated", "created")
_TAGS = ("ETag", "etag", "content_settings", "md5Hash")


def _time_ns(info: dict[str, Any]) -> int:
    """The modification time of an object, in whole seconds, plus a checksum of its ETag as nanoseconds."""
    modified = next((info[key] for key in _TIMES if info.get(key) is not None), 0)
    if isinstance(modified, str):
        modified = datetime.fromisoformat(modified)
    seconds = modified.timestamp() if isinstance(modified, datetime) else float(modified)
    tag = next((str(info[key]) for key in _TAGS if info.get(key)), "")
    checksum = int.from_bytes(blake2b(f"{modified} {tag}".encode(), digest_size=4).digest(), "big")
    return int(seconds) * 10**9 + checksum % 10**9


def _put_placeholder(path: Path, size: int, time_ns: int) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    os.close(os.open(temporary, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, _PLACEHOLDER))
    os.truncate(temporary, size)
    os.utime(temporary, ns=(time_ns, time_ns))
    temporary.replace(path)


# --- content ----------------------------------------------------------------------------------------------------------


def _download(url: str, file: Path, size: int) -> None:
    fs, path = filesystem(url)
    fs.get_file(path, str(file))
    _check_size(url, file.stat().st_size, size, fs, path)


def _check_size(url: str, count: int, size: int, fs: Any, path: str) -> None:
    """Raise an error that is repeated for an answer that was cut off, and one that is not for a changed object."""
    if count == size:
        return
    current = fs.info(path)["size"]
    if current != size:
        raise StorageError(f"{url} has {current} bytes, and {size} when it was listed; {_remedy(url)}")
    raise OSError(f"{count} of {size} bytes have arrived")


def _read_chunk(chunk: Path, url: str, start: int, end: int) -> bytes:
    """Return a chunk of an object, from its file or else after fetching it."""
    with suppress(FileNotFoundError):
        content = chunk.read_bytes()
        if len(content) == end - start:
            return content

    def request() -> bytes:
        fs, path = filesystem(url)
        content: bytes = fs.cat_file(path, start=start, end=end)
        if len(content) != end - start:
            _check_size(url, -1, fs.info(path)["size"], fs, path)
        return content

    _make_room(end - start)
    content = retry(url, request)
    chunk.parent.mkdir(exist_ok=True)
    temporary = chunk.with_name(f".{chunk.name}.{os.getpid()}.tmp")
    temporary.write_bytes(content)
    temporary.replace(chunk)
    return content


# --- the size of the cache --------------------------------------------------------------------------------------------


_fetched = 0  # bytes of this process since it last compared the size of the cache with its limit


def _make_room(size: int) -> None:
    """Remove the content that was fetched first if the cache is above its limit."""
    global _fetched
    _fetched += size
    root, text = _root(), os.environ.get("OPABINIA_REMOTE_CACHE_SIZE")
    disk = shutil.disk_usage(root)
    limit = _parse_size(text) if text else None
    if disk.free - size > disk.total // 20 and (limit is None or _fetched < limit // 20):
        return
    _fetched = size
    with wait_for_lock(root / ".evict.lock"):
        files = sorted(_fetched_files(root))
        total = sum(size for _, size, _ in files)
        if limit is None or disk.free - size <= disk.total // 20:
            limit = min(limit or total, total - size - disk.total // 20 + disk.free)
        for _, file_size, path in files:
            if total + size <= 0.9 * limit:
                break
            _release(Path(path))
            total -= file_size


def _parse_size(text: str) -> int:
    from pydantic import ByteSize, TypeAdapter, ValidationError

    try:
        return int(TypeAdapter(ByteSize).validate_python(text))
    except ValidationError as error:
        raise StorageError(f"$OPABINIA_REMOTE_CACHE_SIZE is {text!r}; expected a size such as 200GB") from error


def _fetched_files(folder: Path) -> Iterator[tuple[int, int, str]]:
    """Yield when each file was fetched, its size and path, of those that are fetched when they are read."""
    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False):
            yield from _fetched_files(Path(entry.path))
        elif os.path.basename(folder).endswith(".chunks") or entry.name.lower().endswith(_FETCHED_WHEN_READ):
            with suppress(FileNotFoundError):
                status = entry.stat()
                if stat.S_IMODE(status.st_mode) != _PLACEHOLDER:
                    yield status.st_atime_ns, status.st_size, entry.path


def _release(path: Path) -> None:
    if path.parent.name.endswith(".chunks"):
        path.unlink(missing_ok=True)
    else:
        with suppress(FileNotFoundError):
            status = path.stat()
            _put_placeholder(path, status.st_size, status.st_mtime_ns)
