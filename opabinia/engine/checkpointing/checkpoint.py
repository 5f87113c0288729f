"""Checkpoints: tensors in safetensors, everything else in JSON, checked by sums, whole or not there.

::

    checkpoints/step-00000500/model.safetensors
                              optimizer.safetensors      optimizer state by parameter name: ``head.weight.exp_avg``
                              state.json                 step, seed, hook state ... and the checksums of all three
    checkpoints/last, checkpoints/best                   one line: the name of a checkpoint
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from opabinia.engine.checkpointing import sharded
from opabinia.engine.checkpointing.buffers import Buffers, memory_of
from opabinia.runtime.background import Background
from opabinia.runtime.files import disk_errors, rename_into_place, temporary_folder, write_atomic
from opabinia.runtime.log import log
from opabinia.runtime.processes import from_rank_zero, rank, world_size
from opabinia.runtime.shards import Shards

FORMAT = 1
_NAME = re.compile(r"step-(\d{8,})")


class BadCheckpoint(ValueError):
    """A checkpoint is incomplete or damaged. The text names the file and what is wrong with it."""


class WeightsMismatch(ValueError):
    """A checkpoint's tensors are not those of the model. The text is torch's: it names them."""


@dataclass(frozen=True)
class Snapshot:
    """All that a run needs to go on: tensors by file name and then by tensor name, and plain values."""

    step: int
    tensors: Mapping[str, Mapping[str, Tensor]]
    state: Mapping[str, Any]


# --- tensors --------------------------------------------------------------------------------------------------------


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors contiguous and once each; tied ones are named in the file's metadata and tied again on loading."""
    kept: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    seen: dict[Hashable, str] = {}
    for name, tensor in tensors.items():
        memory = memory_of(tensor)
        if memory in seen:
            aliases[name] = seen[memory]
        else:
            seen[memory] = name
            kept[name] = tensor.detach().cpu().contiguous()
    # A view of another tensor's memory (a slice) is refused by safetensors: give it memory of its own.
    storages: set[int] = set()
    for name, tensor in kept.items():
        storage = tensor.untyped_storage().data_ptr()
        if storage in storages or tensor.untyped_storage().nbytes() != tensor.nbytes:
            kept[name] = tensor.clone()
        storages.add(storage)
    sharded.write_tensors(path, kept, {"aliases": json.dumps(aliases)})


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Read a file of :func:`save_tensors`, to the CPU."""
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        aliases = json.loads((file.metadata() or {}).get("aliases", "{}"))
    return {**tensors, **{name: tensors[other] for name, other in aliases.items()}}


# --- optimizer state by parameter name ------------------------------------------------------------------------------


def optimizer_state(task: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors (``<parameter>.<key>``) and plain values of an optimizer's state.

    The options of its groups are not among them: they are config, and a resumed run obeys its config.
    """
    names = {id(parameter): name for name, parameter in task.named_parameters()}
    found = {
        f"{names[id(parameter)]}.{key}": value
        for parameter, values in optimizer.state.items()
        for key, value in values.items()
    }
    for group in optimizer.param_groups:
        counted = {f"{_IN_GROUP}{key}": group[key] for key in group.keys() - optimizer.defaults.keys() - _OPTIONS}
        for parameter in group["params"]:
            found |= {f"{names[id(parameter)]}.{key}": value for key, value in counted.items()}
    tensors = {name: value for name, value in found.items() if isinstance(value, Tensor)}
    plain = {name: value for name, value in found.items() if name not in tensors and value is not None}
    return tensors, plain


_IN_GROUP = "@"
"""Before the key of a state that lies in a group (the step counter of timm's Lamb): each of its parameters has it."""

_OPTIONS = frozenset({"params", "param_names", "lr_factor"})
"""Keys of a group that are neither options of the optimizer nor its state."""


def load_optimizer_state(
    task: nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], plain: Mapping[str, Any]
) -> None:
    """Undo :func:`optimizer_state`; parameters that are not named start without state."""
    parameters = dict(task.named_parameters())
    names = {id(parameter): name for name, parameter in parameters.items()}
    order = [names[id(parameter)] for group in optimizer.param_groups for parameter in group["params"]]
    by_parameter: dict[str, dict[str, Any]] = {}
    for full, value in {**tensors, **plain}.items():
        name, key = full.rsplit(".", 1)
        if name in parameters and not key.startswith(_IN_GROUP):
            by_parameter.setdefault(name, {})[key] = _laid_out_like(parameters[name], value)
    state = {number: by_parameter[name] for number, name in enumerate(order) if name in by_parameter}
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
    both = {**tensors, **plain}
    for group in optimizer.param_groups:
        first = f"{names[id(group['params'][0])]}.{_IN_GROUP}"
        group.update({name.removeprefix(first): value for name, value in both.items() if name.startswith(first)})


def _laid_out_like(parameter: Tensor, value: Any) -> Any:
    """A state in the memory layout of its parameter: fused kernels take that for granted, and read wrong numbers."""
    if not isinstance(value, Tensor) or value.shape != parameter.shape:
        return value
    value = sharded.fitted(value, parameter.detach())
    return torch.empty_like(parameter, dtype=value.dtype, device=value.device, requires_grad=False).copy_(value)


# --- one checkpoint -------------------------------------------------------------------------------------------------


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sealed(state: Mapping[str, Any]) -> bytes:
    """The one way a state is written, with its own checksum in it, so that any changed byte shows."""

    def text(checksum: str) -> bytes:
        return (json.dumps({**state, "checksum": checksum}, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()

    return text(hashlib.sha256(text("")).hexdigest())


def _as_json(state: Mapping[str, Any]) -> dict[str, Any]:
    """A copy as it will be read: keys that are numbers become texts, which are sorted in another order."""
    copy: dict[str, Any] = json.loads(json.dumps(dict(state), allow_nan=False))
    return copy


def write_checkpoint(path: Path, snapshot: Snapshot) -> None:
    """Write a checkpoint aside and rename it into place.

    Raises:
        DiskError: nothing was changed.
        ValueError: the state holds what JSON cannot say.
    """
    with disk_errors(path, "the checkpoints before it are whole"), temporary_folder(path) as aside:
        written = []
        for name, tensors in snapshot.tensors.items():
            written.append(aside / f"{name}.safetensors")
            save_tensors(written[-1], tensors)
        _seal(aside, snapshot.state, _sums(aside, written))


def _sums(folder: Path, written: Sequence[Path]) -> dict[str, Any]:
    return {str(file.relative_to(folder)): {"bytes": file.stat().st_size, "sha256": _sum(file)} for file in written}


def _seal(folder: Path, state: Mapping[str, Any], files: Mapping[str, Any]) -> None:
    """Write the state, which makes a checkpoint of the files in a folder."""
    (folder / "state.json").write_bytes(_sealed(_as_json({"format": FORMAT, **state, "files": dict(files)})))
    for name in files:  # safetensors lets nobody else read what it writes
        (folder / name).chmod((folder / "state.json").stat().st_mode)


def write_shard(
    aside: Path,
    path: Path,
    snapshot: Snapshot,
    offsets: sharded.Offsets,
    rank: int,
    world: int,
    patience: sharded.Patience,
) -> None:
    """Write this process's part of a checkpoint; the first process makes it whole and renames it into place.

    Args:
        aside: the folder that is to become ``path``, the same for all.
        path: the checkpoint.
        snapshot: with the parts of tensors that this process has.
        offsets: where they begin in the whole.
        rank: of this process.
        world: number of processes.

    Raises:
        DiskError: nothing was changed.
    """
    with disk_errors(path, "the checkpoints before it are whole"):
        try:
            written = sharded.write_part(aside, rank, snapshot.tensors, offsets)
            sharded.report(aside, rank, _sums(aside, written))
        except Exception as error:
            for file in aside.glob(f"*/{sharded.name_of(rank)}.safetensors"):
                file.unlink(missing_ok=True)  # which leaves room on a full disk to say so
            sharded.report(aside, rank, {"error": str(error)})
            raise
        if rank == 0:
            try:
                _seal(aside, snapshot.state, sharded.reports(aside, world, patience))
                rename_into_place(aside, path)
            except BaseException:
                shutil.rmtree(aside, ignore_errors=True)
                raise


def read_checkpoint(path: Path) -> Snapshot:
    """Read a checkpoint after checking every byte of it.

    Raises:
        BadCheckpoint: a file is missing, cut short or changed, or of another format.
    """
    state_file = path / "state.json"
    try:
        raw = state_file.read_bytes()
    except OSError as error:
        raise BadCheckpoint(f"{state_file}: {error.strerror}") from error
    try:
        state = json.loads(raw)
        whole = isinstance(state, dict) and _sealed({k: v for k, v in state.items() if k != "checksum"}) == raw
    except (ValueError, RecursionError):
        whole = False
    if not whole:
        raise BadCheckpoint(f"{state_file}: damaged (its checksum does not match)")
    if state["format"] != FORMAT:
        raise BadCheckpoint(f"{state_file}: format {state['format']}; this version reads format {FORMAT}")
    for name, told_of in state["files"].items():
        file = path / name
        try:
            size = file.stat().st_size
            if size != told_of["bytes"]:
                raise BadCheckpoint(f"{file}: {size} bytes instead of {told_of['bytes']} (cut short?)")
            if _sum(file) != told_of["sha256"]:
                raise BadCheckpoint(f"{file}: damaged (its checksum does not match)")
        except OSError as error:  # missing, or on a disk that fails
            raise BadCheckpoint(f"{file}: {error.strerror}") from error
    return Snapshot(state["step"], _tensors_in(path, state["files"]), state)


def _tensors_in(path: Path, names: Iterable[str]) -> dict[str, Mapping[str, Tensor]]:
    shards: dict[str, list[Path]] = {}
    tensors: dict[str, Mapping[str, Tensor]] = {}
    for name in names:
        folder, _, file = name.rpartition("/")
        if folder:
            shards.setdefault(folder, []).append(path / name)
        else:
            tensors[file.removesuffix(".safetensors")] = load_tensors(path / name)
    return {**tensors, **{name: Shards(files) for name, files in shards.items()}}


# --- the checkpoints of a run ---------------------------------------------------------------------------------------


def listed(folder: Path) -> list[Path]:
    """The checkpoints in a ``checkpoints`` folder, oldest first, whole or not."""
    found = [path for path in folder.glob("step-*") if _NAME.fullmatch(path.name)]
    return sorted(found, key=_step)


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def pointed(folder: Path, pointer: str) -> Path | None:
    """The checkpoint that ``last`` or ``best`` names, if there is one."""
    file = folder / pointer
    name = file.read_text(encoding="utf-8", errors="replace").strip() if file.is_file() else ""
    return folder / name if _NAME.fullmatch(name) and (folder / name).is_dir() else None


def newest_whole(folder: Path) -> tuple[Path, Snapshot] | None:
    """The checkpoint that ``last`` names; if it is damaged that is told in the log and the one before it is tried.

    Raises:
        BadCheckpoint: there are checkpoints, but none is whole.
    """
    last = pointed(folder, "last")
    paths = [path for path in listed(folder) if last is None or _step(path) <= _step(last)]
    for path in reversed(paths):
        try:
            return path, read_checkpoint(path)
        except BadCheckpoint as error:
            log.warning("refused: %s; trying the checkpoint before it", error)
    if paths:
        raise BadCheckpoint(f"{folder}: none of its {len(paths)} checkpoints is whole")
    return None


class CheckpointManager:
    """Saves the checkpoints of one run in the background, and keeps the newest few.

    What changes the folder is done by a thread, in the order in which it was asked for. Its errors are raised by
    whatever is called next of :meth:`save`, :meth:`check` and :meth:`wait`.

    Args:
        folder: the run's ``checkpoints`` folder.
        keep: how many of the newest to keep; the best one is kept beside them.
        capture: takes the snapshot to be saved.
        write: whether this process writes what all have in common; of sharded models every process writes its part.
    """

    def __init__(self, folder: Path, keep: int, capture: Callable[[], Snapshot], *, write: bool = True) -> None:
        self.folder, self.keep, self.capture, self.write = folder, keep, capture, write
        self.saved: int | None = None
        self._buffers = Buffers()
        self._background = Background("checkpoints")
        self._patience = sharded.Patience()

    def save(self) -> Path:
        """Save this moment, point ``last`` to it and delete what is no longer to be kept.

        Returns when the moment is copied; what changes afterwards is not saved. Waits for the save before.

        Raises:
            DiskError: of the save before. It changed nothing; the checkpoints before it are whole.
            ValueError: the state holds what JSON cannot say.
        """
        self.wait()
        snapshot = self.capture()
        path = self._path(snapshot.step)
        if sharded.is_sharded(snapshot.tensors):
            self._save_part(path, snapshot)
        elif self.write:
            copy = Snapshot(snapshot.step, self._buffers.copied(snapshot.tensors), _as_json(snapshot.state))
            self._background.do(partial(self._write, path, copy.step, partial(write_checkpoint, path, copy)))
        self.saved = snapshot.step
        return path

    def _save_part(self, path: Path, snapshot: Snapshot) -> None:
        aside = path.with_name(f".{path.name}.{from_rank_zero(os.getpid)}.tmp")
        parts, offsets = sharded.own_parts(snapshot.tensors, self.write)
        copy = Snapshot(snapshot.step, self._buffers.copied(parts), _as_json(snapshot.state))
        self._patience = sharded.Patience()
        part = partial(write_shard, aside, path, copy, offsets, rank(), world_size(), self._patience)
        self._background.do(partial(self._write, path, copy.step, part) if self.write else part)

    def mark_best(self, step: int) -> None:
        """Point ``best`` to the checkpoint of this moment, which is saved first if it is not yet."""
        if self.saved != step:
            self.save()
        self.point_to_best(step)
        if self.write:
            self._background.do(partial(self._delete_old, step))

    def has(self, step: int) -> bool:
        """Whether there is a checkpoint of ``step``, once all that was asked for is done."""
        self.wait()
        return self._path(step).is_dir()

    def forget_best(self) -> None:
        """Let ``best`` point nowhere."""
        if self.write:
            self._background.do(partial((self.folder / "best").unlink, missing_ok=True))

    def point_to_best(self, step: int) -> None:
        """Point ``best`` to the checkpoint of ``step``, if it is there."""
        if self.write:
            self._background.do(partial(self._point_to_best, step))

    def check(self) -> None:
        """Raise the error of a save that has failed meanwhile; costs nothing otherwise."""
        self._background.check()

    def hurry(self, seconds: float) -> None:
        """Wait no longer than this for parts that other processes write: they may be gone."""
        self._patience.shorten(seconds)

    def wait(self) -> None:
        """Wait until all that was asked for of this process is done; on the first one the files are there then."""
        self._background.wait()

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}"

    # In the background:

    def _write(self, path: Path, step: int, write: Callable[[], None]) -> None:
        write()
        write_atomic(self.folder / "last", path.name + "\n")
        self._delete_old(step)

    def _point_to_best(self, step: int) -> None:
        path = self._path(step)
        if path.is_dir() and pointed(self.folder, "best") != path:
            write_atomic(self.folder / "best", path.name + "\n")

    def _delete_old(self, step: int) -> None:
        """Delete all but the newest; and what lies ahead of ``step``, left by a run that was taken back."""
        paths = listed(self.folder)
        past = [path for path in paths if _step(path) <= step]
        kept = {*past[-self.keep :], pointed(self.folder, "best")}
        for path in paths:
            if path not in kept or _step(path) > step:
                shutil.rmtree(path, ignore_errors=True)
