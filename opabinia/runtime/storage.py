"""Names of files in remote storage (``s3://``, ``gs://``, ``az://`` and other protocols of fsspec), and requests.

:mod:`opabinia.runtime.local_copies` keeps local copies of them. The modification time of a copy is that of the object,
with a checksum of its MD5 or ETag as nanoseconds: the same size and time mean the same object. Credentials are those of
the protocol's own library, from the environment; none are written.

Requests, and the first attempts to repeat them, are those of fsspec's file systems. :func:`retry` is around them since
these count attempts, each in its own way, and give up in seconds; :func:`list_objects` since ``find`` would hold the
attributes of all objects in memory and make its requests one after the other.
"""

from __future__ import annotations

import base64
import errno
import logging
import os
import random
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache, partial
from hashlib import blake2b, md5
from pathlib import Path
from typing import Any, TypeVar

from opabinia.runtime.files import cache_folder, temporary_file

log = logging.getLogger("opabinia")  # runtime/log.py imports torch

PATIENCE = 180.0
"""Seconds after which a request that fails again and again is given up."""
FIRST_PATIENCE = 30.0
"""The same for a server that has not answered this process yet: its address may be wrong."""
THREADS = 32
"""Requests at the same time, while a folder is listed or the files of a batch are fetched."""
RUNS = "runs"
"""The folder of run folders, which are no part of the limited size, in the folder of local copies."""

_URL = re.compile(r"([a-z][a-z0-9+.-]+):/+([^/].*)", re.DOTALL)  # pathlib makes one slash of two
_ROOTED = ("file", "local", "memory")  # protocols whose paths begin with a slash
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "az": "azure", "abfs": "azure", "abfss": "azure"}
_MAX_HASHED = 1 << 24  # larger objects are uploaded in parts: their ETag is not their MD5
_NO_CONNECTION = ("ServiceRequestError", "EndpointConnectionError", "ClientConnectorError", "ConnectTimeoutError")
"""Errors of the libraries of Azure, Amazon and Google when no server is reached."""
_reached: set[str] = set()
"""Buckets with a request of this process that has succeeded."""
_Result = TypeVar("_Result")


class StorageError(Exception):
    """Remote storage does not answer, refuses, or has no such object. The text names the object.

    No ValueError or OSError, which would mean that a file is broken, and can be skipped.
    """

    exit_status = 2


def is_url(text: object) -> bool:
    """Return whether a text or path is a URL of remote storage: ``s3://bucket/folder``, ``gs://...``."""
    return isinstance(text, str | Path) and _URL.fullmatch(str(text)) is not None


def is_stored(text: object) -> bool:
    """Return whether a text or path is a URL of files; others, such as http://, may be those of video streams."""
    match = _URL.fullmatch(str(text))
    return match is not None and match[1] in (*_EXTRAS, *_ROOTED)


def url_of(path: Path) -> str:
    """Return the URL that a local copy stands for.

    Raises:
        StorageError: it is not below the folder of local copies.
    """
    root = cache_root()
    if not path.is_relative_to(root):
        raise StorageError(f"{path} is a placeholder of another folder than {root}, which $OPABINIA_REMOTE_CACHE names")
    protocol, *names = path.relative_to(root).parts
    return normalize_url(f"{protocol}://{'/'.join(names)}")


def local_path(url: str) -> Path:
    """Return where the local copy of a file or folder belongs; it may not be there yet."""
    return cache_root().joinpath(*_split(url))


def local_run(url: str) -> Path:
    """Return where the local copy of a run folder belongs. Commands write to it: its size is not limited."""
    return cache_root().joinpath(RUNS, *_split(url))


def shown_path(path: str | Path) -> str:
    """Return the URL that a local copy stands for, and any other path as text."""
    root, local = cache_root(), Path(path)
    return url_of(local) if local.is_relative_to(root) and not local.is_relative_to(root / RUNS) else str(path)


def filesystem(url: str) -> tuple[Any, str]:
    """Return fsspec's file system for a URL, and the path in it.

    Raises:
        StorageError: the protocol is unknown, or its library is missing.
    """
    protocol, name = _split(url)
    bucket = "/" if protocol in _ROOTED else name.partition("/")[0]
    fs = _connect(protocol, bucket, os.getpid())
    return fs, fs._strip_protocol(normalize_url(url))


@cache
def _connect(protocol: str, bucket: str, _process: int) -> Any:
    """Return the file system of a bucket, which the threads of a process share; fsspec makes one for each thread."""
    import fsspec

    url = f"{protocol}://{bucket}"
    try:
        is_azure = _EXTRAS.get(protocol) == "azure"
        # Not an instance of another bucket, whose client may be in use.
        fs = fsspec.url_to_fs(url, use_listings_cache=False, skip_instance_cache=is_azure)[0]
        if is_azure:
            from azure.storage.blob.aio import BlobServiceClient

            client = fs.service_client  # without an option of adlfs the SDK repeats each request for 84 seconds
            fs.service_client = BlobServiceClient(client.url, client.credential, retry_total=0)
        return fs
    except ImportError as error:
        extra = _EXTRAS.get(protocol)
        raise StorageError(f"{url}: {error}" + (f"; pip install 'opabinia[{extra}]'" if extra else "")) from error
    except ValueError as error:
        if protocol in _EXTRAS:  # adlfs without credentials, or with malformed ones
            raise _refused(url, str(error)) from error
        known = ", ".join(f"{name}://" for name in ("s3", "gs", "az"))
        raise StorageError(f"{url}: there is no protocol {protocol}; use {known} or another one of fsspec") from error


def _refused(url: str, reason: str) -> StorageError:
    import fsspec

    library = fsspec.get_filesystem_class(_split(url)[0]).__module__.partition(".")[0]
    return StorageError(f"{url}: access is refused ({reason}); credentials are those of {library}")


def retry(url: str, request: Callable[[], _Result]) -> _Result:
    """Return what a request returns; repeat it with growing pauses while it fails, for up to :data:`PATIENCE` seconds,
    or :data:`FIRST_PATIENCE`.

    Missing objects, refused access, missing credentials, invalid names and a full disk are not repeated.

    Raises:
        StorageError: with the URL and the last reason.
    """
    start, pause, is_reported = time.monotonic(), 0.1, False
    bucket = "/".join(url.split("/")[:3])
    while True:
        try:
            result = request()
            _reached.add(bucket)
            return result
        except StorageError:
            raise
        except FileNotFoundError as error:
            remedy = f"; {refresh_hint(url)}" if local_path(url).is_file() else ""
            raise StorageError(f"there is no {url}{remedy}") from error
        except Exception as error:
            name, number = type(error).__name__, getattr(error, "errno", None)
            is_azure = type(error).__module__.startswith("azure.")  # adlfs raises errors of the Azure SDK
            status = getattr(error, "status_code", None) if is_azure else None
            text = str(error).partition("\n")[0] if is_azure else str(error)
            reason = " ".join((text if isinstance(error, OSError) else f"{name}: {text}").split())
            if isinstance(error, PermissionError) or "Credential" in name or "Authentication" in name or status == 403:
                raise _refused(url, reason) from error
            if number in (errno.ENOSPC, errno.EDQUOT):
                message = (
                    f"{url} cannot be kept in {cache_root()}: {reason}; $OPABINIA_REMOTE_CACHE sets another folder"
                )
                raise StorageError(message) from error
            if number == errno.EINVAL or name == "ParamValidationError" or status in (400, 404):
                raise StorageError(f"{url}: {reason}") from error
            is_first = name in _NO_CONNECTION and bucket not in _reached
            patience = min(FIRST_PATIENCE, PATIENCE) if is_first else PATIENCE
            seconds = time.monotonic() - start
            if seconds + pause > patience:
                raise StorageError(f"{url}: no success for {patience:g} seconds: {reason}") from error
            report = log.warning if seconds > 3 and not is_reported else log.debug
            report("%s: %s; it is tried again for up to %g seconds", url, reason, patience)
            is_reported |= seconds > 3
            time.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(2 * pause, 10.0)


# --- objects ----------------------------------------------------------------------------------------------------------


def list_objects(url: str) -> Iterator[tuple[str, Any]]:
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


def objects(url: str) -> dict[str, dict[str, Any]]:
    """Return the attributes of all objects in a folder by their path below it; none if there is no such folder.

    Raises:
        StorageError: the protocol is unknown, its library is missing, or a path leads out of the folder.
        Exception: storage does not answer; see :func:`retry`.
    """
    fs, root = filesystem(url)
    root = root.rstrip("/")
    infos = fs.find(root, detail=True)
    if root in infos and (isinstance(infos, list) or infos[root]["size"]):  # a list: adlfs
        raise StorageError(f"{url} is an object, not a folder")
    # An empty object whose name ends with a slash stands for its folder; some servers list it without the slash.
    names = [name for name, info in infos.items() if info["size"] or not f"{name}/".endswith(("//", f"{root}/"))]
    found = {name.removeprefix(root).lstrip("/"): infos[name] for name in names}
    if outside := [name for name in found if not _is_local_name(name)]:
        raise StorageError(f"{url}: the object {outside[0]!r} cannot be a file below a folder")
    return found


def download(url: str, info: dict[str, Any], file: Path) -> None:
    """Fetch an object, unless the file is a copy of it that was fetched before.

    Args:
        url: URL of the object.
        info: its attributes.
        file: the local file, whose folder is created.

    Raises:
        StorageError: it cannot be fetched.
    """
    size, time_ns = int(info["size"]), modified_ns(info)
    with suppress(FileNotFoundError):
        if version_of(file.stat()) == (size, time_ns):
            return
    with temporary_file(file) as temporary:
        retry(url, lambda: download_object(url, temporary, (size, time_ns)))
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
    url = normalize_url(url)
    fs, path = filesystem(f"{url}/{last}")
    if retry(url, lambda: fs.exists(path)):
        retry(url, lambda: fs.rm_file(path))
    files = [file for file in sorted(folder.rglob("*")) if file.is_file() and file != folder / last]
    for file in [*files, folder / last]:
        target = f"{url}/{file.relative_to(folder).as_posix()}"
        retry(target, partial(upload, file, target))


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


def normalize_url(url: str | Path) -> str:
    """Return a URL in the form that all functions here give: two slashes, none at the end."""
    protocol, name = _split(str(url))
    return f"{protocol}://{'/' if protocol in _ROOTED else ''}{name}"


def cache_root() -> Path:
    """Return the folder of local copies."""
    return _absolute(os.environ.get("OPABINIA_REMOTE_CACHE") or str(cache_folder() / "remote"))


@cache
def _absolute(folder: str) -> Path:
    return Path(folder).expanduser().absolute()


def list_marker(url: str) -> Path:
    """Return the file that exists when all of a folder has been listed."""
    digest = blake2b(url.encode(), digest_size=8).hexdigest()
    return cache_root() / ".listed" / f"{digest}.json"


def parent_urls(url: str) -> Iterator[str]:
    """Yield the URL and those of the folders that it is in."""
    protocol, name = _split(url)
    names = name.split("/")
    for count in range(len(names), 0, -1):
        yield normalize_url(f"{protocol}://{'/'.join(names[:count])}")


def refresh_hint(url: str) -> str:
    """Return the command that lists the folder of an object again."""
    listed = next((folder for folder in parent_urls(url) if list_marker(folder).exists()), url)
    return f"opabinia data refresh {listed} lists it again"


# --- versions of objects ----------------------------------------------------------------------------------------------


_TIMES = ("LastModified", "last_modified", "mtime", "updated", "created")


def modified_ns(info: dict[str, Any]) -> int:
    """Return the modification time of an object, in whole seconds, plus a checksum of its MD5 or ETag."""
    modified = next((info[key] for key in _TIMES if info.get(key) is not None), 0)
    if isinstance(modified, str):
        modified = datetime.fromisoformat(modified)
    if isinstance(modified, datetime):
        modified = (modified if modified.tzinfo else modified.replace(tzinfo=UTC)).timestamp()
    if info.get("md5Hash"):  # of Google Cloud Storage
        tag = base64.b64decode(info["md5Hash"]).hex()
    elif md5_azure := (info.get("content_settings") or {}).get("content_md5"):
        tag = bytes(md5_azure).hex()
    else:
        tag = str(info.get("ETag") or info.get("etag") or info.get("mtime") or "")
    return int(modified) * 10**9 + _checksum(tag.strip('"'))


def _checksum(tag: str) -> int:
    return int.from_bytes(blake2b(tag.encode(), digest_size=4).digest(), "big") % 10**9


def version_of(status: os.stat_result) -> tuple[int, int]:
    """Return the size and the modification time of a local copy, which identify the object it stands for."""
    return status.st_size, status.st_mtime_ns


def download_object(url: str, file: Path, listed: tuple[int, int]) -> None:
    """Fetch an object into a file. ``listed``: its size and time when it was listed."""
    fs, path = filesystem(url)
    fs.get_file(path, str(file))
    size = file.stat().st_size
    if size == listed[0] <= _MAX_HASHED:
        checksum = _checksum(md5(file.read_bytes(), usedforsecurity=False).hexdigest())
        if checksum == listed[1] % 10**9:
            return
    check_unchanged(url, listed)
    if size != listed[0]:
        raise OSError(f"{size} of {listed[0]} bytes have arrived")


def check_unchanged(url: str, listed: tuple[int, int]) -> None:
    """Raise a StorageError if an object is not the one that was listed, also when asked three times."""
    fs, path = filesystem(url)
    for _ in range(3):
        info = fs.info(path)
        if (info["size"], modified_ns(info)) == listed:
            return
        time.sleep(0.1)
    raise StorageError(f"{url} has changed since it was listed; {refresh_hint(url)}")
