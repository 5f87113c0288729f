"""Files in remote storage (``s3://``, ``gs://``, ``az://`` and other protocols of fsspec), read through local copies.

A folder in remote storage is listed once and becomes a local folder, in which every object that is large or one of many
(images, videos, tar files) is a *placeholder*: a sparse file with the object's name and size, and without the
permission to read it. So whatever finds, counts or compares files works as it does on a local disk.
:func:`read_file`, :func:`fetch` and :func:`read_range` replace placeholders with content when it is needed; all other
objects (lists, annotations) are fetched at once. Content takes the place of a placeholder by renaming, so that a killed
process leaves a placeholder or the whole file.

The modification time of a local file is that of the object, with a checksum of its MD5 or ETag as nanoseconds: the same
size and time mean the same object, and content that is not that of the object that was listed is an error. Credentials
are those of the protocol's own library, from the environment; none are written.

In the folder of local copies, ``.listed`` holds a file for each folder that was listed, ``.chunks`` parts of tar files,
``.tmp`` what is being fetched, ``runs`` run folders, which are no part of the limited size, and ``.room`` the number of
bytes that may be fetched before the size is counted again.

Environment:
    OPABINIA_REMOTE_CACHE: the local folder, by default ``~/.cache/opabinia/remote``.
    OPABINIA_REMOTE_CACHE_SIZE: the size of the fetched files in it, such as ``200GB``; by default the disk's, of which
        5 % stay free. Above it, those that were fetched first become placeholders again.
"""

from __future__ import annotations

import base64
import errno
import fcntl
import io
import json
import logging
import os
import random
import re
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cache, partial
from hashlib import blake2b, md5
from pathlib import Path
from typing import Any, TypeVar

from opabinia.runtime.files import cache_folder, disk_errors, temporary_file, wait_for_lock, write_atomic
from opabinia.runtime.text import plural

log = logging.getLogger("opabinia")  # runtime/log.py imports torch

PATIENCE = 180.0
"""Seconds after which a request that fails again and again is given up."""
CHUNK = 1 << 22
"""Bytes of a part of a file that is read at once."""
THREADS = 32
"""Requests at the same time, while a folder is listed."""
COMPARE_EVERY = 60.0
"""Seconds after which an object of which parts are read is compared with the listed one again."""

_URL = re.compile(r"([a-z][a-z0-9+.-]+):/+([^/].*)", re.DOTALL)  # pathlib makes one slash of two
_ROOTED = ("file", "local", "memory")  # protocols whose paths begin with a slash
_WILDCARD = re.compile(r"[{*?\[]")
_FETCHED_WHEN_READ = (
    *(".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif", ".ppm", ".pgm", ".tar"),
    *(".mp4", ".avi", ".mkv", ".mov", ".webm", ".mpg", ".mpeg", ".m4v", ".wmv", ".flv", ".3gp", ".ts"),
    *(".asf", ".f4v", ".m2ts", ".mjpeg", ".mts", ".ogv", ".vob"),
)
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "az": "azure", "abfs": "azure", "abfss": "azure"}
_PLACEHOLDER = stat.S_IWUSR
_RUNS = "runs"
_MAX_HASHED = 1 << 24  # larger objects are uploaded in parts: their ETag is not their MD5
_COUNTED_EVERY = 10 * 10**9  # bytes that are fetched, at most, before the free space of the disk is looked at again
_Result = TypeVar("_Result")


class StorageError(Exception):
    """Remote storage does not answer, refuses, or has no such object. The text names the object.

    No ValueError or OSError, which would mean that a file is broken, and can be skipped.
    """

    exit_status = 2


_used = False  # whether this process, or the one that forked it, reads local copies


def is_url(text: object) -> bool:
    """Return whether a text or path is a URL of remote storage: ``s3://bucket/folder``, ``gs://...``."""
    return isinstance(text, str | Path) and _URL.fullmatch(str(text)) is not None


def is_stored(text: object) -> bool:
    """Return whether a text or path is a URL of files; others, such as http://, may be those of video streams."""
    match = _URL.fullmatch(str(text))
    return match is not None and match[1] in (*_EXTRAS, *_ROOTED)


def local_copy(url: str | Path) -> str:
    """Return the local file or folder that stands for one in remote storage; it is listed the first time.

    Args:
        url: of an object or a folder. What follows the last ``/`` before a wildcard (``*``, ``?``, ``[``, ``{``) is
            appended unchanged: ``s3://bucket/train-{00..99}.tar``.

    Raises:
        StorageError: there is no such object or folder, or it cannot be listed.
    """
    global _used
    _used = True
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
    if file := next((parent for parent in path.parents if parent.is_file()), None):
        raise StorageError(f"there is no {url}: {url_of(file)} is an object, not a folder")
    if not path.exists():
        raise StorageError(f"there is no {url}: it was not there when the folder was listed; {_remedy(url)}")
    return str(path)


def refresh(url: str) -> int:
    """List an object or a folder in remote storage again; return the number of objects.

    Local copies of objects that have changed or are gone are removed.

    Raises:
        StorageError: there is no such object or folder, or it cannot be listed.
    """
    url = _normalize(url)
    root, names, folders, fetched_now = local_path(url), set[str](), set[Path](), list[Path]()
    for name, info in _list(url):
        path = root / name if name else root
        if path.parent not in folders:
            existing = next(parent for parent in path.parents if parent.exists())
            if not existing.is_dir():
                _remove(existing)  # an object that is a folder now
            with disk_errors(path):
                path.parent.mkdir(parents=True, exist_ok=True)
            folders.add(path.parent)
        names.add(name)
        listed = int(info["size"]), _time_ns(info)
        with suppress(FileNotFoundError):
            status = path.stat()
            if stat.S_ISREG(status.st_mode) and _listed(status) == listed:
                if _is_placeholder(status) and not path.name.lower().endswith(_FETCHED_WHEN_READ):
                    fetched_now.append(path)  # the last listing was interrupted
                continue
            _remove(path)
        _marker(url).unlink(missing_ok=True)  # until all changes are here
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
    write_atomic(_marker(url), json.dumps(about))
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
    while _is_placeholder(status := local.stat()):
        url = url_of(local)
        with _temporary(status.st_size) as temporary:
            retry(url, partial(_download, url, temporary, _listed(status)))
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


def read_range(path: str | bytes | os.PathLike[str], offset: int, count: int) -> bytes:
    """Return bytes of a placeholder, or fewer at the end of the file; whole chunks of it are fetched and kept.

    Raises:
        StorageError: they cannot be fetched, or the object has changed since it was listed.
    """
    local = Path(os.fsdecode(path))
    status = local.stat()
    end, parts = min(offset + count, status.st_size), list[bytes]()
    for start in range(offset - offset % CHUNK, end, CHUNK):
        stop = min(end, start + CHUNK)
        parts.append(_read_chunk(local, status, start, max(offset, start) - start, stop - start))
    return b"".join(parts)


def objects(url: str) -> dict[str, dict[str, Any]]:
    """Return the attributes of all objects in a folder by their path below it; none if there is no such folder.

    Raises:
        StorageError: the protocol is unknown, its library is missing, or a path leads out of the folder.
        Exception: storage does not answer; see :func:`retry`.
    """
    fs, root = filesystem(url)
    root = root.rstrip("/")
    infos = fs.find(root, detail=True)
    # An empty object whose name ends with a slash stands for its folder; some servers list it without the slash.
    names = [name for name, info in infos.items() if info["size"] or not f"{name}/".endswith(("//", f"{root}/"))]
    found = {name.removeprefix(root).lstrip("/"): infos[name] for name in names}
    if outside := [name for name in found if not _is_local_name(name)]:
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
        if _listed(file.stat()) == (size, time_ns):
            return
    with temporary_file(file) as temporary:
        retry(url, lambda: _download(url, temporary, (size, time_ns)))
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


def upload_folder(folder: Path, url: str | Path, last: str) -> None:
    """Write the files of a folder to remote storage. The file ``last``, which marks them as complete, is deleted first
    and written last.

    Raises:
        StorageError: they cannot be written.
    """
    url = _normalize(url)
    fs, path = filesystem(f"{url}/{last}")
    if retry(url, lambda: fs.exists(path)):
        retry(url, lambda: fs.rm_file(path))
    files = [file for file in sorted(folder.rglob("*")) if file.is_file() and file != folder / last]
    for file in [*files, folder / last]:
        target = f"{url}/{file.relative_to(folder).as_posix()}"
        retry(target, partial(upload, file, target))


def is_placeholder(path: str | bytes | os.PathLike[str]) -> bool:
    """Return whether a file stands for an object whose content is not here."""
    return _is_placeholder(os.stat(path))


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


def local_run(url: str) -> Path:
    """Return where the local copy of a run folder belongs. Commands write to it: its size is not limited."""
    return _root().joinpath(_RUNS, *_split(url))


def filesystem(url: str) -> tuple[Any, str]:
    """Return fsspec's file system for a URL, and the path in it.

    Raises:
        StorageError: the protocol is unknown, or its library is missing.
    """
    protocol, name = _split(url)
    bucket = "/" if protocol in _ROOTED else name.partition("/")[0]
    fs = _connect(protocol, bucket, os.getpid())
    return fs, fs._strip_protocol(_normalize(url))


@cache
def _connect(protocol: str, bucket: str, _process: int) -> Any:
    """Return the file system of a bucket, which the threads of a process share; fsspec makes one for each thread."""
    import fsspec

    url = f"{protocol}://{bucket}"
    try:
        return fsspec.url_to_fs(url, use_listings_cache=False)[0]
    except ImportError as error:
        extra = _EXTRAS.get(protocol)
        raise StorageError(f"{url}: {error}" + (f"; pip install 'opabinia[{extra}]'" if extra else "")) from error
    except ValueError as error:
        known = ", ".join(f"{name}://" for name in ("s3", "gs", "az"))
        raise StorageError(f"{url}: there is no protocol {protocol}; use {known} or another one of fsspec") from error


def retry(url: str, request: Callable[[], _Result]) -> _Result:
    """Return what a request returns; repeat it with growing pauses while it fails, for up to :data:`PATIENCE` seconds.

    Missing objects, refused access, missing credentials, invalid names and a full disk are not repeated.

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
            remedy = f"; {_remedy(url)}" if local_path(url).is_file() else ""
            raise StorageError(f"there is no {url}{remedy}") from error
        except Exception as error:
            name, number = type(error).__name__, getattr(error, "errno", None)
            reason = " ".join((str(error) if isinstance(error, OSError) else f"{name}: {error}").split())
            if isinstance(error, PermissionError) or "Credential" in name:
                library = type(filesystem(url)[0]).__module__.partition(".")[0]
                message = f"{url}: access is refused ({reason}); credentials are those of {library}"
                raise StorageError(message) from error
            if number in (errno.ENOSPC, errno.EDQUOT):
                message = f"{url} cannot be kept in {_root()}: {reason}; $OPABINIA_REMOTE_CACHE sets another folder"
                raise StorageError(message) from error
            if number == errno.EINVAL or name == "ParamValidationError":
                raise StorageError(f"{url}: {reason}") from error
            if time.monotonic() + pause > deadline:
                raise StorageError(f"{url}: no success for {PATIENCE:g} seconds: {reason}") from error
            report = log.warning if 2 < pause < 5 else log.debug  # once, after some seconds
            report("%s: %s; it is tried again for up to %g seconds", url, reason, PATIENCE)
            time.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(2 * pause, 10.0)


# --- names ------------------------------------------------------------------------------------------------------------


def _split(url: str) -> tuple[str, str]:
    match = _URL.fullmatch(url)
    if match is None:
        raise StorageError(f"{url} is no URL; expected one such as s3://bucket/folder")
    name = match[2].strip("/")
    if ":" in name.partition("/")[0].rpartition("@")[0]:
        raise StorageError(f"a URL of {match[1]}:// holds a password; credentials come from the environment")
    if not _is_local_name(name):
        raise StorageError(f"{url} has an empty part, or one that is . or .. or too long; it has no local copy")
    return match[1], name


def _is_local_name(name: str) -> bool:
    """Return whether the name of an object is that of a file below a folder."""
    parts = name.split("/")
    return not any(part in ("", ".", "..") or "\0" in part or len(os.fsencode(part)) > 255 for part in parts)


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
    listed = next((folder for folder in _parents(url) if _marker(folder).exists()), url)
    return f"opabinia data refresh {listed} lists it again"


# --- listing ----------------------------------------------------------------------------------------------------------


def _list(url: str) -> Iterator[tuple[str, Any]]:
    """Yield the path below ``url`` and the attributes of each object; the path of an object itself is empty."""
    fs, root = filesystem(url)
    root = root.rstrip("/")
    info = retry(url, lambda: fs.info(root))
    if info["type"] == "file":
        yield "", info
        return

    def entries(folder: str) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = retry(url, lambda: fs.ls(folder, detail=True))
        return listed

    folders, empty = [root], True
    with ThreadPoolExecutor(THREADS) as pool:
        while folders:
            some, folders = folders[-THREADS:], folders[:-THREADS]
            for folder, listed in zip(some, pool.map(entries, some), strict=True):
                below = {entry["name"].rstrip("/") for entry in listed if entry["type"] == "directory"} - {folder}
                folders += sorted(below)
                for entry in listed:
                    name = entry["name"].removeprefix(root).removeprefix("/")
                    if entry["type"] == "directory":
                        if entry["name"] == f"{folder}/" and _split(url)[0] in _EXTRAS:
                            raise StorageError(
                                f"{url}: objects {name}//... have an empty part: they have no local copy"
                            )
                        continue
                    if not entry["size"] and (entry["name"] in below or name.endswith("/") or not name):
                        continue  # an empty object stands for its folder
                    if entry["name"] in below or not _is_local_name(name):
                        why = "is also a folder" if entry["name"] in below else "is no name of a file below a folder"
                        raise StorageError(f"{url}: the object {name!r} {why}: it has no local copy")
                    empty = False
                    yield name, entry
    if empty:
        raise StorageError(f"{url} holds no objects")


_TIMES = ("LastModified", "last_modified", "mtime", "updated", "created")


def _time_ns(info: dict[str, Any]) -> int:
    """The modification time of an object, in whole seconds, plus a checksum of its MD5 or ETag as nanoseconds."""
    modified = next((info[key] for key in _TIMES if info.get(key) is not None), 0)
    if isinstance(modified, str):
        modified = datetime.fromisoformat(modified)
    if isinstance(modified, datetime):
        modified = (modified if modified.tzinfo else modified.replace(tzinfo=UTC)).timestamp()
    if info.get("md5Hash"):  # of Google Cloud Storage
        tag = base64.b64decode(info["md5Hash"]).hex()
    else:
        tag = str(info.get("ETag") or info.get("etag") or info.get("mtime") or "")
    return int(modified) * 10**9 + _checksum(tag.strip('"'))


def _checksum(tag: str) -> int:
    return int.from_bytes(blake2b(tag.encode(), digest_size=4).digest(), "big") % 10**9


def _put_placeholder(path: Path, size: int, time_ns: int) -> None:
    with _temporary() as temporary:
        os.close(os.open(temporary, os.O_CREAT | os.O_WRONLY, _PLACEHOLDER))
        os.truncate(temporary, size)
        os.utime(temporary, ns=(time_ns, time_ns))
        status = os.stat(temporary)
        if not _is_placeholder(status) or status.st_mtime_ns != time_ns:
            where = f"the file system of {_root()}"
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
    shutil.rmtree(_chunks(path), ignore_errors=True)


# --- content ----------------------------------------------------------------------------------------------------------


@contextmanager
def _temporary(size: int = 0) -> Iterator[Path]:
    """Yield the path of a new file, which is removed unless it was renamed. Room for ``size`` bytes is made."""
    path = _root() / ".tmp" / f"{os.urandom(8).hex()}-{size}"  # unique also between machines
    try:
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        if size:
            _make_room(path, size)
        yield path
    finally:
        path.unlink(missing_ok=True)


def _listed(status: os.stat_result) -> tuple[int, int]:
    return status.st_size, status.st_mtime_ns


def _download(url: str, file: Path, listed: tuple[int, int]) -> None:
    """Fetch an object into a file. ``listed``: its size and time when it was listed."""
    fs, path = filesystem(url)
    fs.get_file(path, str(file))
    size = file.stat().st_size
    if size == listed[0] <= _MAX_HASHED:
        checksum = _checksum(md5(file.read_bytes(), usedforsecurity=False).hexdigest())
        if checksum == listed[1] % 10**9:
            return
    _check_unchanged(url, listed)
    if size != listed[0]:
        raise OSError(f"{size} of {listed[0]} bytes have arrived")


def _check_unchanged(url: str, listed: tuple[int, int]) -> None:
    """Raise a StorageError if an object is not the one that was listed, also when asked three times."""
    fs, path = filesystem(url)
    for _ in range(3):
        info = fs.info(path)
        if (info["size"], _time_ns(info)) == listed:
            return
        time.sleep(0.1)
    raise StorageError(f"{url} has changed since it was listed; {_remedy(url)}")


def _read_chunk(local: Path, status: os.stat_result, start: int, first: int, stop: int) -> bytes:
    """Return the bytes from ``first`` up to ``stop`` of the chunk of a placeholder that begins at ``start``."""
    url, version = url_of(local), f"{status.st_mtime_ns:x}"
    chunk, compared = _chunks(local) / f"{version}-{start:013d}", _chunks(local) / version
    size = min(CHUNK, status.st_size - start)
    with suppress(FileNotFoundError), chunk.open("rb", buffering=0) as file:
        if os.fstat(file.fileno()).st_size == size:
            return os.pread(file.fileno(), stop - first, first)

    def request() -> bytes:
        fs, path = filesystem(url)
        content: bytes = fs.cat_file(path, start=start, end=start + size)
        recently = False
        with suppress(FileNotFoundError):
            recently = time.time() - compared.stat().st_mtime < COMPARE_EVERY
        if not recently or len(content) != size:
            _check_unchanged(url, _listed(status))
            compared.parent.mkdir(parents=True, exist_ok=True)
            compared.touch()
        if len(content) != size:
            raise OSError(f"{len(content)} of {size} bytes have arrived")
        return content

    with _temporary(size) as temporary:
        content = retry(url, request)
        with disk_errors(chunk):
            temporary.write_bytes(content)
            chunk.parent.mkdir(parents=True, exist_ok=True)
            temporary.replace(chunk)
    return content[first:stop]


def _chunks(local: Path) -> Path:
    """The folder of the chunks of an object."""
    return _root() / ".chunks" / local.relative_to(_root())


# --- the size of the cache --------------------------------------------------------------------------------------------


def _make_room(temporary: Path, size: int) -> None:
    """Create a file, and reserve room for its content; remove what was fetched first if it would exceed the limit."""
    text = os.environ.get("OPABINIA_REMOTE_CACHE_SIZE", "")
    limit = _parse_size(text) if text else None
    path = _root() / ".room"
    with disk_errors(path), path.open("a+") as file:
        with suppress(OSError):  # network file systems without locks
            fcntl.flock(file, fcntl.LOCK_EX)  # not lockf, which does not hold between threads
        try:
            file.seek(0)
            reserve, _, limit_then = file.read().partition(" ")
            room = int(reserve) - size if reserve.isdecimal() and limit_then == text else -1
            if room < 0:
                room = _evict(size, limit)
            temporary.touch()
            file.truncate(0)
            file.write(f"{room} {text}")
            file.flush()
        finally:
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_UN)  # processes that were forked meanwhile have the file open, too


def _evict(size: int, limit: int | None) -> int:
    """Remove what was fetched first until there is room for ``size`` bytes; return how many more may be fetched."""
    root, total = _root(), 0
    for temporary in (root / ".tmp").glob("*"):
        with suppress(FileNotFoundError):
            if temporary.stat().st_mtime < time.time() - 3600:  # of a process that was killed
                temporary.unlink()
            else:
                total += int(temporary.name.rpartition("-")[2])  # it is being fetched
    folders = [entry.path for entry in os.scandir(root) if entry.is_dir() and entry.name != _RUNS]
    files = sorted(file for folder in folders for file in _fetched_files(folder))
    total += sum(file_size for _, file_size, _ in files)
    disk = shutil.disk_usage(root)
    available = total + disk.free
    available -= min(disk.total // 20, available // 2)
    limit = available if limit is None else min(limit, available)
    if total + size > limit:
        for _, file_size, path in files:
            if total + size <= 0.9 * limit:
                break
            _release(Path(path))
            total -= file_size
    return max(0, min(limit - total - size, _COUNTED_EVERY))


def _parse_size(text: str) -> int:
    from pydantic import ByteSize, TypeAdapter, ValidationError

    try:
        return int(TypeAdapter(ByteSize).validate_python(text))
    except ValidationError as error:
        raise StorageError(f"$OPABINIA_REMOTE_CACHE_SIZE is {text!r}; expected a size such as 200GB") from error


def _fetched_files(folder: Path | str) -> Iterator[tuple[int, int, str]]:
    """Yield when each file was fetched, its size and path, of those that are fetched when they are read."""
    chunks = f"{os.sep}.chunks{os.sep}" in f"{folder}{os.sep}"
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _fetched_files(entry.path)
            elif chunks or entry.name.lower().endswith(_FETCHED_WHEN_READ):
                with suppress(FileNotFoundError):
                    status = entry.stat()
                    if not _is_placeholder(status):
                        yield status.st_atime_ns, status.st_size, entry.path


def _release(path: Path) -> None:
    if path.is_relative_to(_root() / ".chunks"):
        path.unlink(missing_ok=True)
    else:
        with suppress(FileNotFoundError):
            status = path.stat()
            _put_placeholder(path, status.st_size, status.st_mtime_ns)
