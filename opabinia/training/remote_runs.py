"""Runs in remote storage: uploaded while they are trained, fetched to be resumed or evaluated.

The upload itself is in :mod:`opabinia.engine.checkpointing.upload`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from opabinia.config import ConfigError, Problem, Resolved
from opabinia.config.paths import holds_run
from opabinia.engine.checkpointing.manager import list_checkpoints, read_pointer, step_of
from opabinia.engine.checkpointing.upload import BRANCH, MANIFEST, POINTERS, branch_of
from opabinia.runtime import storage
from opabinia.runtime.elastic_agent import is_elastic, is_of_this_launch, run_lock
from opabinia.runtime.files import disk_errors, temporary_folder, wait_for_lock, write_atomic
from opabinia.runtime.log import log

UPLOAD_SECONDS = 1500.0
"""Seconds that a machine waits until a checkpoint of another one is uploaded; less than the timeout of ranks."""

_Objects = Mapping[str, dict[str, Any]]
_SOURCE = ".source"  # the URL of a run, in the folder that it is fetched to
_POINTER = re.compile(r"(step-\d{8,18})(?: (\d+))?\s*", re.ASCII)
_COMPLETE = re.compile(rf"checkpoints/step-\d{{8,18}}/{re.escape(MANIFEST)}", re.ASCII)


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
        if not (is_elastic() or is_of_this_launch(folder)) or not holds_run(folder):
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
        url: URL of its copy.
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


def resume_from(checkpoints: Path, step: int) -> None:
    """Point ``last`` to the checkpoint that a run resumes from; another one than before begins a branch."""
    last = read_pointer(checkpoints, "last")
    if last is not None and step_of(last) != step:
        write_atomic(checkpoints / BRANCH, f"{branch_of(checkpoints) + 1}\n")
    write_atomic(checkpoints / "last", f"step-{step:08d}\n")


def fetch_newer(url: str, folder: Path, resolved: Resolved, chosen: str = "") -> None:
    """Fetch a run to its folder, if it is newer in storage: of a larger branch, or trained further in the same branch.

    Checkpoints of a smaller branch are deleted: somebody has resumed the run from another checkpoint since then.

    Args:
        url: URL of the run.
        folder: its local folder.
        resolved: its config.
        chosen: name of a checkpoint; it is kept, and fetched if it is not on the disk.

    Raises:
        ConfigError: storage refuses or does not answer.
        FolderInUse: another process writes to the folder.
    """
    with _errors(resolved, folder):
        _retry_if_changed(url, lambda objects: _fetch_newer(url, objects, folder, chosen))


def _fetch_newer(url: str, objects: _Objects, folder: Path, chosen: str) -> None:
    checkpoints, there = folder / "checkpoints", _pointed(url, objects, "last")
    is_missing = f"checkpoints/{chosen}/{MANIFEST}" in objects and not (checkpoints / chosen).is_dir()

    def is_newer() -> bool:
        last = read_pointer(checkpoints, "last")
        if there is None or last is None:
            return there is not None or ("config.yaml" in objects and not holds_run(folder))
        return (branch_of(checkpoints), step_of(last)) < (there.branch, step_of(Path(there.name)))

    if not is_missing and not is_newer():
        return
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with _lock(folder), run_lock(folder):
        if is_newer():  # not fetched by another rank meanwhile
            log.warning("fetching %s: %s", url, there.name if there else "it has no checkpoint")
            names = _fetch(url, objects, folder)
            if there is not None and there.branch > branch_of(checkpoints):
                _delete_others(checkpoints, {*names, chosen})
                write_atomic(checkpoints / BRANCH, f"{there.branch}\n")
        if is_missing:
            _fetch_checkpoint(url, objects, checkpoints / chosen)


def _delete_others(checkpoints: Path, names: Collection[str]) -> None:
    """Delete the checkpoints of another branch: this one must not fall back to them."""
    others = [path for path in list_checkpoints(checkpoints) if path.name not in names]
    for path in others:
        log.warning("deleting %s: the run was resumed elsewhere from another checkpoint", path)
        shutil.rmtree(path, ignore_errors=True)


def await_checkpoint(url: str, path: Path, manifest: bytes) -> None:
    """Fetch the checkpoint that rank 0 resumes from when its machine has uploaded it, unless it is on this disk.

    Args:
        url: URL of the run.
        path: path of the checkpoint here.
        manifest: content of its ``state.json`` on rank 0.

    Raises:
        ConfigError: storage refuses or does not answer, or the checkpoint is not uploaded in time.
    """
    end, there = time.monotonic() + UPLOAD_SECONDS, f"checkpoints/{path.name}/{MANIFEST}"

    def is_complete(objects: _Objects) -> bool:
        with suppress(storage.StorageError):  # it is being replaced
            return there in objects and _read(f"{url}/{there}") == manifest
        return False

    try:
        with _lock(path.parent.parent):
            while not _has_manifest(path, manifest):
                if is_complete(objects := _objects(url)):
                    _fetch_checkpoint(url, objects, path)
                elif time.monotonic() < end:
                    time.sleep(1)
                else:
                    raise storage.StorageError(
                        f"{url}/checkpoints/{path.name}, from which rank 0 resumes, was not there after "
                        f"{UPLOAD_SECONDS:.0f} s; see the train.log of rank 0 for its upload. Start all machines "
                        f"again when it is there, or put {path.parent.parent} on a disk that they share"
                    )
    except storage.StorageError as error:
        raise ConfigError(Problem("", "checkpoint.upload", str(error))) from error


def fetch_run(url: str) -> Path:
    """Fetch what has changed of a run, with the checkpoints ``last`` and ``best``; return its folder.

    Nothing is trained there, but commands write their results to it: a file that was written here later than in storage
    is kept.

    Raises:
        StorageError: there is no run, or it cannot be fetched.
    """
    folder = storage.local_run(url)
    if "config.yaml" not in _objects(url):  # before the lock makes a folder, perhaps in place of a file of a run
        raise storage.StorageError(f"{url} holds no run (no config.yaml in it)")

    def fetch(objects: _Objects) -> None:
        _fetch(url, objects, folder, [name for name in objects if _is_later(folder / name, objects[name])])
        for path in list_checkpoints(folder / "checkpoints"):
            if f"checkpoints/{path.name}/{MANIFEST}" not in objects:
                shutil.rmtree(path, ignore_errors=True)
        write_atomic(folder / _SOURCE, url)

    with _lock(folder):
        _retry_if_changed(url, fetch)
    return folder


def fetch_checkpoint(folder: Path, name: str) -> None:
    """Fetch another checkpoint to a folder of :func:`fetch_run`; do nothing for other folders and checkpoints.

    Raises:
        StorageError: it cannot be fetched.
    """
    if not (folder / _SOURCE).is_file():
        return
    url = (folder / _SOURCE).read_text(encoding="utf-8")

    def fetch(objects: _Objects) -> None:
        if f"checkpoints/{name}/{MANIFEST}" in objects:
            _fetch_checkpoint(url, objects, folder / "checkpoints" / name)

    with _lock(folder):
        _retry_if_changed(url, fetch)


def _retry_if_changed(url: str, fetch: Callable[[_Objects], None]) -> None:
    """Fetch objects again after an error if they have changed meanwhile: the run is being trained."""
    objects = _objects(url)
    while True:
        try:
            return fetch(objects)
        except storage.StorageError:
            before, objects = objects, _objects(url)
            if objects == before:
                raise


def _lock(folder: Path) -> AbstractContextManager[None]:
    """Let one process fetch a run to its folder, of several ranks."""
    return wait_for_lock(folder / ".fetch.lock")


def _is_later(file: Path, info: dict[str, Any]) -> bool:
    """Return whether a file was written after an object; one that was fetched has the time of its object."""
    with suppress(FileNotFoundError, NotADirectoryError):
        return file.stat().st_mtime_ns // 10**9 > storage.modified_ns(info) // 10**9
    return False


def _objects(url: str) -> _Objects:
    return storage.retry(url, lambda: storage.objects(url))


def _read(url: str) -> bytes:
    fs, path = storage.filesystem(url)
    content: bytes = storage.retry(url, lambda: fs.cat_file(path))
    return content


class _Pointer(NamedTuple):
    """A complete checkpoint, and the branch of the run."""

    name: str
    branch: int


def _pointed(url: str, objects: _Objects, pointer: str) -> _Pointer | None:
    """Return the complete checkpoint that ``last`` or ``best`` names. If that of ``last`` is not complete, because it
    replaces another one of the same step or was uploaded after the listing, return the newest complete one before it.
    """
    if f"checkpoints/{pointer}" not in objects:
        return None
    words = _POINTER.fullmatch(_read(f"{url}/checkpoints/{pointer}").decode(errors="replace"))
    if words is None:
        return None
    complete = [Path(name).parent for name in objects if _COMPLETE.fullmatch(name)]
    steps = {step_of(path): path.name for path in complete if path.name == words[1] or pointer == "last"}
    newest = max((step for step in steps if step <= step_of(Path(words[1]))), default=None)
    return None if newest is None else _Pointer(steps[newest], int(words[2] or 0))


def _fetch(url: str, objects: _Objects, folder: Path, kept: Collection[str] = ()) -> list[str]:
    """Fetch all files but those that are ``kept``, and the checkpoints ``last`` and ``best``; return their names."""
    files = [name for name in objects if not name.startswith((".", "checkpoints/")) and name not in kept]
    _download(url, objects, {name: folder / name for name in files})
    if "results.json" not in objects:
        (folder / "results.json").unlink(missing_ok=True)  # the run was made longer
    names = []
    for pointer in reversed(POINTERS):  # by ``last`` a later call knows that all is here
        if (pointed := _pointed(url, objects, pointer)) is not None:
            names.append(pointed.name)
            _fetch_checkpoint(url, objects, folder / "checkpoints" / pointed.name)
            write_atomic(folder / "checkpoints" / pointer, f"{pointed.name}\n")
    return names


def _fetch_checkpoint(url: str, objects: _Objects, path: Path) -> None:
    prefix = f"checkpoints/{path.name}"
    manifest = _read(f"{url}/{prefix}/{MANIFEST}")
    if _has_manifest(path, manifest):
        return
    try:
        files = list(json.loads(manifest)["files"])
    except (ValueError, KeyError, TypeError) as error:
        raise storage.StorageError(f"{url}/{prefix}/{MANIFEST} is damaged") from error
    with temporary_folder(path) as temporary:
        _download(url, objects, {f"{prefix}/{name}": temporary / name for name in [*files, MANIFEST]})


def _has_manifest(path: Path, manifest: bytes) -> bool:
    with suppress(FileNotFoundError, NotADirectoryError):
        return (path / MANIFEST).read_bytes() == manifest
    return False


def _download(url: str, objects: _Objects, files: Mapping[str, Path]) -> None:
    if missing := [name for name in files if name not in objects]:
        raise storage.StorageError(f"there is no {url}/{missing[0]}: this checkpoint is not complete")
    with ThreadPoolExecutor(storage.THREADS) as pool:
        list(pool.map(lambda name: storage.download(f"{url}/{name}", objects[name], files[name]), files))
