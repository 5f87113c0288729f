"""The checkpoints of a run: saved in the background, the newest and the best are kept.

::

    checkpoints/step-00000500/     see ``checkpoint.py``
    checkpoints/last, best         one line each: the name of a checkpoint
    checkpoints/branch             see ``upload.py``
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from opabinia.engine.checkpointing import sharded
from opabinia.engine.checkpointing.buffers import HostBuffers
from opabinia.engine.checkpointing.checkpoint import (
    BadCheckpoint,
    Snapshot,
    read_checkpoint,
    to_json_state,
    write_checkpoint,
    write_sharded_checkpoint,
)
from opabinia.runtime.background import Background
from opabinia.runtime.files import write_atomic
from opabinia.runtime.log import log
from opabinia.runtime.processes import from_rank_zero, is_rank_zero, rank, world_size

_SHARD_TIMEOUT = 1800.0
"""Seconds that rank 0 waits for the shards of the other processes."""

_NAME = re.compile(r"step-(\d{8,18})", re.ASCII)


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints in a ``checkpoints`` folder, oldest first, valid or not."""
    return sorted((path for path in folder.glob("step-*") if _NAME.fullmatch(path.name)), key=step_of)


def step_of(path: Path) -> int:
    """Return the step of a checkpoint folder."""
    return int(path.name.removeprefix("step-"))


def read_pointer(folder: Path, pointer: str) -> Path | None:
    """Return the checkpoint that the file ``last`` or ``best`` names, if it exists."""
    file = folder / pointer
    name = file.read_text(encoding="utf-8", errors="replace").strip() if file.is_file() else ""
    return folder / name if _NAME.fullmatch(name) and (folder / name).is_dir() else None


def load_latest_checkpoint(folder: Path) -> tuple[Path, Snapshot] | None:
    """Read the checkpoint that ``last`` names. If it is damaged, log that and try the one before it.

    Raises:
        BadCheckpoint: there are checkpoints, but none is valid.
    """
    last = read_pointer(folder, "last")
    paths = [path for path in list_checkpoints(folder) if last is None or step_of(path) <= step_of(last)]
    for path in reversed(paths):
        try:
            return path, read_checkpoint(path)
        except BadCheckpoint as error:
            log.warning("invalid checkpoint: %s; trying the one before it", error)
    if paths:
        raise BadCheckpoint(f"{folder}: none of its {len(paths)} checkpoints is valid")
    return None


class CheckpointManager:
    """Saves the checkpoints of one run.

    :meth:`save` copies the tensors to host memory, which is the only time that training waits for; a background thread
    does everything that changes the folder, in the order of the calls. Its errors are raised by the next call of
    :meth:`save`, :meth:`check` or :meth:`wait`.

    Args:
        folder: the run's ``checkpoints`` folder.
        keep: number of newest checkpoints to keep, beside the best one.
        capture: returns the snapshot to save.

    Attributes:
        last_saved_step: step of the newest checkpoint of this run; None before the first.
    """

    def __init__(self, folder: Path, keep: int, capture: Callable[[], Snapshot]) -> None:
        self.folder, self.keep, self.capture = folder, keep, capture
        self._writes = is_rank_zero()  # rank 0 writes what is shared; every rank writes its shard of a sharded model
        self.last_saved_step: int | None = None
        self._buffers = HostBuffers()
        self._background = Background("checkpoints")
        self._wait_until = 0.0  # for the shards of other processes

    def save(self) -> Path:
        """Save a checkpoint, point ``last`` to it and delete old ones. All processes must call it.

        Returns when the state is copied; later changes are not saved. Waits for the previous save to complete, because
        both use the same buffers.

        Raises:
            DiskError: of the previous save. It changed nothing; earlier checkpoints are complete.
            ValueError: the state is not JSON serializable.
        """
        self.wait()
        snapshot = self.capture()
        path = self._path(snapshot.step)
        if sharded.is_sharded(snapshot.tensors):
            self._save_shard(path, snapshot)
        elif self._writes:
            copy = Snapshot(snapshot.step, self._buffers.copy(snapshot.tensors), to_json_state(snapshot.state))
            self._background.submit(partial(self._write, path, copy.step, partial(write_checkpoint, path, copy)))
        self.last_saved_step = snapshot.step
        return path

    def _save_shard(self, path: Path, snapshot: Snapshot) -> None:
        folder = path.with_name(f".{path.name}.{from_rank_zero(os.getpid)}.tmp")
        tensors, offsets = sharded.local_shards(snapshot.tensors, self._writes)
        copy = Snapshot(snapshot.step, self._buffers.copy(tensors), to_json_state(snapshot.state))
        self._wait_until = time.monotonic() + _SHARD_TIMEOUT
        write = partial(write_sharded_checkpoint, folder, path, copy, offsets, rank(), world_size(), self._gives_up)
        self._background.submit(partial(self._write, path, copy.step, write) if self._writes else write)

    def mark_best(self, step: int) -> None:
        """Point ``best`` to the checkpoint of the present step, which is saved first if needed."""
        if self.last_saved_step != step:
            self.save()
        self.point_to_best(step)
        if self._writes:
            self._background.submit(partial(self._delete_old, step))

    def has(self, step: int) -> bool:
        """Return whether there is a checkpoint of ``step``, after all pending work is done."""
        self.wait()
        return self._path(step).is_dir()

    def best_step(self) -> int | None:
        """Return the step of the checkpoint that ``best`` names, after all pending work is done; None without one."""
        self.wait()
        path = read_pointer(self.folder, "best")
        return step_of(path) if path else None

    def forget_best(self) -> None:
        """Delete the pointer ``best``."""
        if self._writes:
            self._background.submit(partial((self.folder / "best").unlink, missing_ok=True))

    def point_to_best(self, step: int) -> None:
        """Point ``best`` to the checkpoint of ``step``, if it exists."""
        if self._writes:
            self._background.submit(partial(self._point_to_best, step))

    def check(self) -> None:
        """Raise the error of a save that has failed in the background; costs nothing otherwise."""
        self._background.check()

    def limit_wait(self, seconds: float) -> None:
        """Wait at most this long for the shards of other processes from now on: they may be dead."""
        self._wait_until = min(self._wait_until, time.monotonic() + seconds)

    def wait(self) -> None:
        """Wait until all pending work of this process is done; on rank 0 the files are complete then."""
        self._background.wait()

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}"

    # --- in the background thread -------------------------------------------------------------------------------------

    def _gives_up(self) -> bool:
        return time.monotonic() > self._wait_until

    def _write(self, path: Path, step: int, write: Callable[[], None]) -> None:
        write()
        write_atomic(self.folder / "last", path.name + "\n")
        self._delete_old(step)

    def _point_to_best(self, step: int) -> None:
        path = self._path(step)
        if path.is_dir() and read_pointer(self.folder, "best") != path:
            write_atomic(self.folder / "best", path.name + "\n")

    def _delete_old(self, step: int) -> None:
        """Delete all but the newest and the best, and those after ``step``: a run that was rolled back left them."""
        paths = list_checkpoints(self.folder)
        past = [path for path in paths if step_of(path) <= step]
        kept = {*past[-self.keep :], read_pointer(self.folder, "best")}
        for path in paths:
            if path not in kept or step_of(path) > step:
                shutil.rmtree(path, ignore_errors=True)
