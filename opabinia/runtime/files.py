"""Atomic writes: files are written under a temporary name, flushed to disk and renamed."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class DiskError(OSError):
    """A file or folder could not be written. The text names it and the reason."""

    exit_status = 1


_REASONS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "permission denied",
}


@contextmanager
def disk_errors(path: Path, consequence: str = "") -> Iterator[None]:
    """Turn an ``OSError`` while writing ``path`` into a :class:`DiskError` with a clear message."""
    try:
        yield
    except DiskError:
        raise
    except OSError as error:
        reason = _REASONS.get(error.errno or 0, error.strerror or str(error))
        raise DiskError(f"cannot write {path}: {reason}" + (f"; {consequence}" if consequence else "")) from error


def flush_to_disk(path: Path) -> None:
    """Flush a file or folder to disk, so that it survives a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def temporary_file(path: Path) -> Iterator[Path]:
    """Yield the path of a new file that replaces ``path`` when the block ends without an error; its folder is created.

    Raises:
        DiskError: it failed; the old content is unchanged.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield temporary
            flush_to_disk(temporary)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        flush_to_disk(path.parent)


def write_atomic(path: Path, content: bytes | str) -> None:
    """Write ``content`` to ``path`` so that a reader sees either the old content or the new one; create its folder.

    In text, bytes of file names that are not valid UTF-8 are escaped.

    Raises:
        DiskError: it failed; the old content is unchanged.
    """
    with temporary_file(path) as temporary:
        temporary.write_bytes(content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content)


@contextmanager
def temporary_folder(path: Path) -> Iterator[Path]:
    """Yield a new empty folder that replaces ``path`` when the block ends without an error."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        replace_folder(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def replace_folder(temporary: Path, path: Path) -> None:
    """Flush the folder ``temporary`` to disk and rename it to ``path``, replacing what is there."""
    for file in [*temporary.rglob("*"), temporary]:
        flush_to_disk(file)
    if path.exists():
        old = path.with_name(f".{path.name}.{os.getpid()}.old")
        path.rename(old)
        temporary.rename(path)
        shutil.rmtree(old, ignore_errors=True)
    else:
        temporary.rename(path)
    flush_to_disk(path.parent)


_LEFTOVER = re.compile(r"\.(.+)\.\d+\.(tmp|old)")


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files that :func:`temporary_file` and :func:`temporary_folder` left when they were killed.

    A folder that was being replaced gets its name back if the new one is missing. Call it only as the only writer.
    """
    for path in folder.glob(".*"):
        match = _LEFTOVER.fullmatch(path.name)
        if match is None:
            continue
        if match[2] == "old" and not (folder / match[1]).exists():
            path.rename(folder / match[1])
        elif path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


class FolderInUse(Exception):
    """Another process is writing to the folder."""

    exit_status = 2


@contextmanager
def exclusive_lock(folder: Path) -> Iterator[None]:
    """Lock ``folder`` against other writers; the lock ends with the process, even if that is killed.

    Raises:
        FolderInUse: another process holds the lock.
    """
    with disk_errors(folder):
        lock = (folder / ".lock").open("w")
    with lock:
        try:
            # Not flock: forked workers inherit it and hold it for seconds after the main process was killed.
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            raise FolderInUse(f"{folder}: another process is writing this run") from error
        except OSError as error:  # some network file systems have no locks
            logging.getLogger("opabinia").warning(
                "%s cannot be locked (%s): no second process may write there", folder, error.strerror
            )
        yield


@contextmanager
def wait_for_lock(path: Path) -> Iterator[None]:
    """Lock the file ``path``, which is created, after waiting for the process that holds the lock. On network file
    systems without locks, nothing is locked.

    Raises:
        DiskError: the file cannot be created.
    """
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w")
    with file:
        with suppress(OSError):
            fcntl.lockf(file, fcntl.LOCK_EX)
        yield


def cache_folder() -> Path:
    """Return ``$XDG_CACHE_HOME/opabinia`` or ``~/.cache/opabinia``."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "opabinia"


def split_folder(path: Path) -> Path:
    """Return ``path`` with ``~`` expanded; for a missing folder ``val`` the first of ``validation``, ``valid`` and
    ``test`` beside it that exists."""
    path = path.expanduser()
    if path.name != "val" or path.exists():
        return path
    siblings = (path.with_name(name) for name in ("validation", "valid", "test"))
    return next((folder for folder in siblings if folder.is_dir()), path)


def describe_missing(path: Path) -> str:
    """Return the nearest existing parent of a missing path, and the first names in it, as text for an error; names with
    the suffix of the path come first."""
    parent = next(parent for parent in path.expanduser().absolute().parents if parent.is_dir())
    visible = (entry.name for entry in parent.iterdir() if not entry.name.startswith("."))
    names = sorted(visible, key=lambda name: (not name.endswith(path.suffix), name))
    more = ", ..." if len(names) > 8 else ""
    return f"the nearest existing folder is {parent}, which holds {', '.join(names[:8]) or 'nothing'}{more}"
