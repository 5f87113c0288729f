"""Copy a run folder to remote storage while it is trained, in a process of its own: training never waits for it.

::

    python -m opabinia.engine.checkpointing.upload FOLDER URL KEEP PARENT

:mod:`opabinia.training.remote_runs` starts it. It is no thread, because each fork of loader workers would have to wait
for the requests of a thread (see ``runtime/background.py``). It stops when the process PARENT has ended, and uploads
what is left and stops when it reads a line from stdin.

A checkpoint is uploaded before the pointers ``last`` and ``best`` name it, and its ``state.json`` after its other
files: without one it is not complete. Until then ``state.json.part`` has the same content; by it a later process
recognizes the files of the same checkpoint, which are not sent again. In remote storage as many checkpoints are kept
as on the disk. fsspec's ``put`` is not used: it has no order and sends all files again. Imports no torch.
"""

from __future__ import annotations

import json
import logging
import os
import re
import select
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from opabinia.runtime import storage
from opabinia.runtime.signals import STOP_SIGNALS

log = logging.getLogger("opabinia")  # runtime/log.py imports torch

MANIFEST = "state.json"
POINTERS = ("last", "best")
BRANCH = "branch"
"""A file in ``checkpoints``: how often the run was resumed from another checkpoint than its last one. Of two copies of
a run, the one with the larger number continues; with the same number, the one that was trained further."""
PERIOD = 1.0
"""Seconds between two looks at the run folder."""
FILES_PERIOD = 60.0
"""Seconds after which changed files (metrics, logs) are sent also without a new checkpoint."""
PATIENCE = 600.0
"""Seconds for which storage may fail at the end of the run before the rest is given up."""
WARN_AFTER, WARN_EVERY = 30.0, 600.0
"""Seconds of failure before the first warning, and between two."""

_NAME = re.compile(r"step-\d{8,18}", re.ASCII)


class Upload:
    """The copy of a run folder in remote storage.

    Args:
        folder: the run folder.
        url: URL of the copy.
        keep: number of newest checkpoints to keep, in addition to those that ``last`` and ``best`` name.
    """

    def __init__(self, folder: Path, url: str, keep: int) -> None:
        self.folder, self.url, self.keep = folder, url.rstrip("/"), keep
        self._complete: dict[str, int] = {}  # time of state.json by checkpoint
        self._pointers: dict[str, list[str]] = {}
        self._sent: dict[str, tuple[int, int]] = {"results.json": (0, 0)}  # perhaps that of an earlier process

    def newest_incomplete(self) -> Path | None:
        """Return the newest checkpoint on the disk, up to ``last``, that is not complete in remote storage."""
        last = next(iter(self._pointer("last")), "")
        paths = (path for path in (self.folder / "checkpoints").glob("step-*") if _NAME.fullmatch(path.name))
        for path in sorted(paths, key=lambda path: _step(path.name), reverse=True):
            if last and _step(path.name) > _step(last):
                continue  # the run was resumed before it
            with suppress(FileNotFoundError):  # deleted
                if self._complete.get(path.name) != (path / MANIFEST).stat().st_mtime_ns:
                    return path
        return None

    def is_behind(self) -> bool:
        """Return whether a checkpoint, or a pointer to one, was not sent yet."""
        return self.newest_incomplete() is not None or bool(self._new_pointers())

    def send_all(self) -> None:
        """Send everything that is new, the newest checkpoint first.

        Raises:
            Exception: storage does not answer, or a file cannot be read; the next call continues.
        """
        while (checkpoint := self.newest_incomplete()) is not None:
            self._send_files()  # the metrics up to this checkpoint
            self._send_checkpoint(checkpoint)
            self._send_pointers()
            self._delete_old()
        self._send_files()
        self._send_pointers()
        if "results.json" in self._sent and not (self.folder / "results.json").exists():
            self._delete("results.json")  # the run is no longer finished
            del self._sent["results.json"]

    def _send_files(self) -> None:
        """Send all files but those of checkpoints and hidden ones."""
        for path in sorted(self.folder.rglob("*")):
            name = path.relative_to(self.folder)
            if name.parts[0] == "checkpoints" or any(word.startswith(".") for word in name.parts) or path.is_dir():
                continue
            with _unless_deleted(path):
                status = path.stat()
                if self._sent.get(str(name)) != (status.st_size, status.st_mtime_ns):
                    storage.upload(path, f"{self.url}/{name.as_posix()}")
                    self._sent[str(name)] = status.st_size, status.st_mtime_ns

    def _send_checkpoint(self, path: Path) -> None:
        url, started = f"{self.url}/checkpoints/{path.name}", time.monotonic()
        fs, root = storage.filesystem(url)
        with _unless_deleted(path), _held(path) as folder:
            time_ns, manifest = (folder / MANIFEST).stat().st_mtime_ns, (folder / MANIFEST).read_bytes()
            sizes = {name: info["size"] for name, info in storage.objects(url).items()}
            unfinished = f"{MANIFEST}.part"
            if MANIFEST not in sizes or fs.cat_file(f"{root}/{MANIFEST}") != manifest:
                if MANIFEST in sizes or unfinished not in sizes or fs.cat_file(f"{root}/{unfinished}") != manifest:
                    self._delete_checkpoint(path.name)  # files of the same size may be of another run
                    sizes = {}
                    storage.upload(folder / MANIFEST, f"{url}/{unfinished}")
                files = {name: record["bytes"] for name, record in json.loads(manifest)["files"].items()}
                for name in [name for name, size in files.items() if sizes.get(name) != size]:
                    storage.upload(folder / name, f"{url}/{name}")
                storage.upload(folder / MANIFEST, f"{url}/{MANIFEST}")
                seconds = time.monotonic() - started
                log.info("uploaded %s: %.1f MB, %.1f s", url, sum(files.values()) / 1e6, seconds)
            self._delete(f"checkpoints/{path.name}/{unfinished}")
            self._complete[path.name] = time_ns

    def _pointer(self, pointer: str) -> list[str]:
        """Return the words of the pointer in storage: the name of a checkpoint, and for ``last`` the branch unless it
        is 0; none without a pointer."""
        branch = branch_of(self.folder / "checkpoints")  # before ``last``: a resume writes it first
        with suppress(FileNotFoundError):
            names = (self.folder / "checkpoints" / pointer).read_text(encoding="utf-8").split()
            return [*names, str(branch)] if pointer == "last" and branch else names
        return []

    def _new_pointers(self) -> dict[str, list[str]]:
        pointers = {pointer: self._pointer(pointer) for pointer in POINTERS}
        return {
            pointer: words
            for pointer, words in pointers.items()
            if words != self._pointers.get(pointer) and (not words or words[0] in self._complete)
        }

    def _send_pointers(self) -> None:
        for pointer, words in self._new_pointers().items():
            if words:
                fs, path = storage.filesystem(f"{self.url}/checkpoints/{pointer}")
                fs.pipe_file(path, f"{' '.join(words)}\n".encode())  # checkpoint and branch change at once
            else:
                self._delete(f"checkpoints/{pointer}")
            self._pointers[pointer] = words

    def _delete_old(self) -> None:
        """Delete all checkpoints but the newest, those of the pointers, and those on the disk."""
        there = storage.objects(f"{self.url}/checkpoints")
        names = {name.partition("/")[0] for name in there if _NAME.fullmatch(name.partition("/")[0])}
        here = {path.name for path in (self.folder / "checkpoints").glob("step-*")}
        pointed = [words[0] for words in self._pointers.values() if words]
        last = next(iter(self._pointers.get("last", [])), "")
        past = [name for name in names if f"{name}/{MANIFEST}" in there and _step(name) <= _step(last)]
        for name in names.difference(sorted(past, key=_step)[-self.keep :], pointed, here):
            self._delete_checkpoint(name)

    def _delete_checkpoint(self, name: str) -> None:
        self._delete(f"checkpoints/{name}/{MANIFEST}")  # first: it is no longer complete
        fs, path = storage.filesystem(f"{self.url}/checkpoints/{name}")
        with suppress(FileNotFoundError):
            fs.rm(path, recursive=True)
        self._complete.pop(name, None)

    def _delete(self, name: str) -> None:
        fs, path = storage.filesystem(f"{self.url}/{name}")
        with suppress(FileNotFoundError):
            fs.rm_file(path)


def branch_of(checkpoints: Path) -> int:
    """Return how often a run was resumed from another checkpoint than its last one."""
    with suppress(FileNotFoundError, ValueError):
        return int((checkpoints / BRANCH).read_text(encoding="utf-8"))
    return 0


def _step(name: str) -> int:
    return int(name.removeprefix("step-") or -1)


@contextmanager
def _unless_deleted(path: Path) -> Iterator[None]:
    """Ignore that a file or folder of the run is deleted while it is read."""
    try:
        yield
    except OSError:
        if path.exists():
            raise


@contextmanager
def _held(checkpoint: Path) -> Iterator[Path]:
    """Yield a folder with links to the files of a checkpoint, which stay when the checkpoint is deleted."""
    folder = checkpoint.with_name(f".{checkpoint.name}.{os.getpid()}.tmp")
    try:
        shutil.copytree(checkpoint, folder, copy_function=_link)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without links
        shutil.copy2(source, target)


# --- the process ------------------------------------------------------------------------------------------------------


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(PERIOD)
    os._exit(1)


def _log_to(folder: Path) -> None:
    """Log like the run: to the end of its file, and warnings to the terminal."""
    handlers: list[logging.Handler] = [
        logging.FileHandler(folder / "train.log", encoding="utf-8"),
        logging.StreamHandler(),
    ]
    handlers[0].setFormatter(logging.Formatter("%(asctime)s %(levelname).1s %(message)s", "%m-%d %H:%M:%S"))
    handlers[1].setLevel(logging.WARNING)
    for handler in handlers:
        log.addHandler(handler)
    log.setLevel(logging.INFO)


def run(upload: Upload) -> bool:
    """Send what is new until a line arrives on stdin, then the rest; return whether all of it was sent."""
    finishing, sent, warned = False, -FILES_PERIOD, -WARN_EVERY
    failing_since: float | None = None
    while True:
        if finishing:
            time.sleep(PERIOD)
        else:
            finishing = bool(select.select([sys.stdin], [], [], PERIOD)[0])
        now = time.monotonic()
        try:
            if finishing or now - sent > FILES_PERIOD or upload.is_behind():
                upload.send_all()
                sent = time.monotonic()
                if failing_since is not None and warned > failing_since:
                    log.warning("%s: storage answers again; everything is uploaded", upload.url)
                failing_since = None
            if finishing:
                return True
        except Exception as error:
            failing_since = failing_since or now
            failed = time.monotonic() - failing_since
            if failed > WARN_AFTER and now - warned > WARN_EVERY:
                log.warning(
                    "%s: nothing was uploaded for %.0f s (%s: %s); still trying, the run folder is complete",
                    upload.url,
                    failed,
                    type(error).__name__,
                    error,
                )
                warned = now
            if finishing and failed > PATIENCE:
                return False


if __name__ == "__main__":
    for number in STOP_SIGNALS:  # the run decides when this process stops
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(int(sys.argv[4]),), daemon=True).start()
    _log_to(Path(sys.argv[1]))
    sys.exit(0 if run(Upload(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))) else 1)
