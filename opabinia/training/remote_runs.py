"""Runs in remote storage: uploaded while they are trained, fetched to be resumed or evaluated.

The upload itself is in :mod:`opabinia.engine.checkpointing.upload`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

from opabinia.config import ConfigError, Problem, Resolved
from opabinia.config.paths import holds_run
from opabinia.engine.checkpointing.manager import read_pointer, step_of
from opabinia.engine.checkpointing.upload import MANIFEST, POINTERS
from opabinia.runtime import storage
from opabinia.runtime.elastic_agent import is_restart
from opabinia.runtime.files import temporary_folder, wait_for_lock, write_atomic
from opabinia.runtime.log import log

UPLOAD_SECONDS = 1500.0
"""Seconds that a machine waits until a checkpoint of another one is uploaded; less than the timeout of ranks."""

_Objects = Mapping[str, dict[str, Any]]


class UploadError(Exception):
    """A run is complete on the local disk only."""

    exit_status = 1


@contextmanager
def _errors(resolved: Resolved, folder: Path) -> Iterator[None]:
    """Report a StorageError as an error of ``checkpoint.upload``. A process that replaces one that crashed continues
    without storage."""
    try:
        yield
    except storage.StorageError as error:
        if not is_restart() or not holds_run(folder):
            origin = resolved.origins.get("checkpoint.upload", "")
            cause = f" ({error.__cause__})" if isinstance(error.__cause__, FileNotFoundError) else ""  # of the bucket
            raise ConfigError(Problem(origin, "checkpoint.upload", f"{error}{cause}")) from error
        log.warning("%s; continuing with what is in %s", error, folder)


def run_url(resolved: Resolved, folder: Path, out: Path) -> str:
    """Return where a run is uploaded: below ``checkpoint.upload`` as below ``out``.

    A run keeps the URL that it began with, also where it is resumed from another folder than ``out``.

    Raises:
        ConfigError: ``checkpoint.upload`` is no URL, its protocol is unknown, or the library for it is missing.
    """
    upload = resolved.config["checkpoint"]["upload"]
    with _errors(resolved, folder):
        storage.filesystem(upload)
    base, saved = f"{upload.rstrip('/')}/", folder / ".upload"
    url = saved.read_text(encoding="utf-8") if saved.is_file() else ""
    name = folder.relative_to(out) if folder.is_relative_to(out) else Path(folder.name)
    return url if url.startswith(base) else f"{base}{name.as_posix()}"


def check_upload(folder: Path, url: str, resolved: Resolved, *, new: bool) -> None:
    """Check, before anything is computed, that a run can be uploaded, and overwrites no other if it is new.

    Raises:
        ConfigError: storage refuses or does not answer, there is no such bucket, or it holds a run.
    """
    with _errors(resolved, folder):
        objects = _objects(url)
        metrics = objects.get("metrics.jsonl", {"size": 0})["size"]
        if new and (metrics or any(name.startswith("checkpoints/step-") for name in objects)):
            message = f"{url} holds a run, which is never overwritten: --resume continues it, --name begins another"
            raise ConfigError(Problem("command line", "", message))
        write_atomic(folder / ".upload", url)
        storage.retry(url, lambda: storage.upload(folder / ".upload", f"{url}/.upload"))


@contextmanager
def uploading(folder: Path, url: str, keep: int) -> Iterator[None]:
    """Upload a run folder in the background, and what is left of it at the end of the block.

    Args:
        folder: the run folder.
        url: of its copy.
        keep: number of newest checkpoints to keep there.

    Raises:
        UploadError: storage has failed for long at the end.
    """
    process = _start(folder, url, keep)
    try:
        yield
    except SystemExit:  # a second signal
        process.kill()
        raise
    except BaseException:
        _finish(process, url)
        raise
    if _finish(process, url) < 0:  # it was killed, perhaps long ago
        process = _start(folder, url, keep)
        _finish(process, url)
    if process.returncode:
        raise UploadError(f"{folder} is complete, but not in {url}; opabinia train {folder} --resume uploads the rest")


def _start(folder: Path, url: str, keep: int) -> subprocess.Popen[bytes]:
    command = ["-m", "opabinia.engine.checkpointing.upload", str(folder), url, str(keep), str(os.getpid())]
    path = os.pathsep.join(filter(None, sys.path))
    return subprocess.Popen(
        [sys.executable, *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": path},
    )


def _finish(process: subprocess.Popen[bytes], url: str) -> int:
    log.info("waiting for the upload to %s", url)
    with suppress(BrokenPipeError):
        process.communicate(b"end\n")
    return process.wait()


# --- fetching ---------------------------------------------------------------------------------------------------------


def fetch_newer(url: str, folder: Path, resolved: Resolved) -> bool:
    """Fetch a run to its folder, unless that has a checkpoint as new; return whether anything was fetched.

    Raises:
        ConfigError: storage refuses or does not answer.
    """
    with _errors(resolved, folder), _lock(url):
        objects = _objects(url)
        last = read_pointer(folder / "checkpoints", "last")
        there = _pointed(url, objects, "last")
        is_newer = there is not None and (last is None or step_of(last) < step_of(Path(there)))
        if is_newer or ("config.yaml" in objects and not holds_run(folder)):
            log.warning("fetching %s: %s", url, there or "it has no checkpoint")
            _fetch(url, objects, folder)
            return True
    return False


def await_checkpoint(url: str, path: Path) -> None:
    """Fetch a checkpoint that is on another machine, when that has uploaded it; do nothing if the path exists.

    Raises:
        ConfigError: storage refuses or does not answer, or the checkpoint is not uploaded in time.
    """
    end, manifest = time.monotonic() + UPLOAD_SECONDS, f"checkpoints/{path.name}/{MANIFEST}"
    try:
        with _lock(url):
            while not path.is_dir() and time.monotonic() < end:
                if manifest in (objects := _objects(url)):
                    return _fetch_checkpoint(url, objects, path)
                time.sleep(1)
    except storage.StorageError as error:
        raise ConfigError(Problem("", "checkpoint.upload", str(error))) from error


def fetch_run(url: str) -> Path:
    """Fetch what has changed of a run, to be read only, with the checkpoints ``last`` and ``best``; return its folder.

    Raises:
        StorageError: there is no run, or it cannot be fetched.
    """
    folder = storage.local_run(url)
    with _lock(url):
        objects = _objects(url)
        while True:
            if "config.yaml" not in objects:
                raise storage.StorageError(f"{url} holds no run (no config.yaml in it)")
            try:
                _fetch(url, objects, folder)
                return folder
            except storage.StorageError:
                before, objects = objects, _objects(url)
                if objects == before:  # otherwise it is being trained
                    raise


def _lock(url: str) -> AbstractContextManager[None]:
    """Let one process of this machine fetch a run, of several ranks."""
    return wait_for_lock(storage.local_run(url) / ".fetch.lock")


def _objects(url: str) -> _Objects:
    return storage.retry(url, lambda: storage.objects(url))


def _read(url: str) -> bytes:
    fs, path = storage.filesystem(url)
    content: bytes = storage.retry(url, lambda: fs.cat_file(path))
    return content


def _pointed(url: str, objects: _Objects, pointer: str) -> str | None:
    """The complete checkpoint that ``last`` or ``best`` names."""
    if f"checkpoints/{pointer}" not in objects:
        return None
    name = _read(f"{url}/checkpoints/{pointer}").decode().strip()
    return name if f"checkpoints/{name}/{MANIFEST}" in objects else None


def _fetch(url: str, objects: _Objects, folder: Path) -> None:
    _download(url, objects, {name: folder / name for name in objects if not name.startswith((".", "checkpoints/"))})
    for pointer in reversed(POINTERS):  # by ``last`` a later call knows that all is here
        if (name := _pointed(url, objects, pointer)) is not None:
            _fetch_checkpoint(url, objects, folder / "checkpoints" / name)
            write_atomic(folder / "checkpoints" / pointer, f"{name}\n")


def _fetch_checkpoint(url: str, objects: _Objects, path: Path) -> None:
    prefix = f"checkpoints/{path.name}"
    manifest = _read(f"{url}/{prefix}/{MANIFEST}")
    with suppress(FileNotFoundError):
        if (path / MANIFEST).read_bytes() == manifest:
            return
    try:
        files = list(json.loads(manifest)["files"])
    except (ValueError, KeyError, TypeError) as error:
        raise storage.StorageError(f"{url}/{prefix}/{MANIFEST} is damaged") from error
    with temporary_folder(path) as temporary:
        _download(url, objects, {f"{prefix}/{name}": temporary / name for name in [*files, MANIFEST]})


def _download(url: str, objects: _Objects, files: Mapping[str, Path]) -> None:
    if missing := [name for name in files if name not in objects]:
        raise storage.StorageError(f"there is no {url}/{missing[0]}: this checkpoint is not complete")
    with ThreadPoolExecutor(storage.THREADS) as pool:
        list(pool.map(lambda name: storage.download(f"{url}/{name}", objects[name], files[name]), files))
