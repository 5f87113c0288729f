"""Files that are either whole or not there: written aside, flushed to the disk, renamed into place."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class DiskError(OSError):
    """Something could not be written. The text names the file, the reason and what is still whole."""

    exit_status = 1


_REASONS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "permission denied",
}


@contextmanager
def disk_errors(path: Path, consequence: str = "") -> Iterator[None]:
    """Turn an ``OSError`` while ``path`` is written into one clear :class:`DiskError`."""
    try:
        yield
    except DiskError:
        raise
    except OSError as error:
        reason = _REASONS.get(error.errno or 0, error.strerror or str(error))
        raise DiskError(f"cannot write {path}: {reason}" + (f"; {consequence}" if consequence else "")) from error


def flush_to_disk(path: Path) -> None:
    """Make the file or folder survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomic(path: Path, content: bytes | str) -> None:
    """Write ``content`` to ``path`` so that a reader sees the old content or the new, never a part.

    Raises:
        DiskError: nothing was changed.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with disk_errors(path):
        try:
            with aside.open("wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
            aside.replace(path)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
        flush_to_disk(path.parent)


@contextmanager
def temporary_folder(path: Path) -> Iterator[Path]:
    """A new folder to be filled; it becomes ``path``, replacing what is there, when the block ends well."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        yield aside
        rename_into_place(aside, path)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def rename_into_place(aside: Path, path: Path) -> None:
    """Let the folder ``aside``, safely on the disk, become ``path`` and replace what is there."""
    for file in [*aside.rglob("*"), aside]:
        flush_to_disk(file)
    if path.exists():
        old = path.with_name(f".{path.name}.{os.getpid()}.old")
        path.rename(old)
        aside.rename(path)
        shutil.rmtree(old, ignore_errors=True)
    else:
        aside.rename(path)
    flush_to_disk(path.parent)


_LEFT = re.compile(r"\.(.+)\.\d+\.(tmp|old)")


def mend(folder: Path) -> None:
    """Clear away what :func:`write_atomic` and :func:`temporary_folder` left in ``folder`` when they were killed.

    A folder that was just being replaced and has no successor yet gets its name back. Only for who is the only writer.
    """
    for path in folder.glob(".*"):
        match = _LEFT.fullmatch(path.name)
        if match is None:
            continue
        if match[2] == "old" and not (folder / match[1]).exists():
            path.rename(folder / match[1])
        elif path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


class InUse(Exception):
    """Another process is writing there."""

    exit_status = 2


@contextmanager
def exclusive_lock(folder: Path) -> Iterator[None]:
    """Make sure that nobody else writes to ``folder`` meanwhile; the lock ends with the process, killed or not.

    Raises:
        InUse: somebody does.
    """
    with disk_errors(folder):
        lock = (folder / ".lock").open("w")
    with lock:
        try:
            # Not flock: forked workers inherit that one, and hold it for seconds after the main process was killed.
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            raise InUse(f"{folder}: another process is writing this run") from error
        except OSError as error:  # some network file systems know no locks
            logging.getLogger("opabinia").warning(
                "%s cannot be locked (%s): let no second process write there", folder, error.strerror
            )
        yield


def cache_folder() -> Path:
    """``$XDG_CACHE_HOME/opabinia`` or ``~/.cache/opabinia``."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "opabinia"
