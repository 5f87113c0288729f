"""One checkpoint: tensors in safetensors files, everything else in JSON, verified by checksums, complete or absent.

::

    checkpoints/step-00000500/model.safetensors
                              optimizer.safetensors      optimizer state by parameter name: ``head.weight.exp_avg``
                              state.json                 step, seed, hook state ... and the checksums of all files

A checkpoint is written to a temporary folder beside its place, flushed and renamed, so that a process killed at any
moment leaves the older checkpoints complete. ``state.json`` is written last and contains its own checksum: a folder
without a valid one is no checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired

from annotated_types import Interval, Len
from pydantic import StringConstraints
from torch import Tensor
from typing_extensions import TypedDict

from opabinia.contracts import Channels, DatasetInfo
from opabinia.engine.checkpointing import sharded
from opabinia.engine.checkpointing.buffers import memory_key
from opabinia.runtime.files import disk_errors, replace_folder, temporary_folder
from opabinia.runtime.json_files import InvalidFile, check_fields, parse_json
from opabinia.runtime.shards import ShardedTensors, load_safetensors

FORMAT = 1
_CONSEQUENCE = "earlier checkpoints are complete"


class BadCheckpoint(InvalidFile):
    """A checkpoint is incomplete or damaged. The message names the file, the field and the problem."""


class WeightsMismatch(ValueError):
    """The tensors of a checkpoint are not those of the model. The message names some of them."""


@dataclass(frozen=True)
class Snapshot:
    """The state of a run.

    Attributes:
        step: optimizer steps done.
        tensors: by file name (``model``, ``optimizer`` ...) and tensor name.
        state: JSON values.
    """

    step: int
    tensors: Mapping[str, Mapping[str, Tensor]]
    state: Mapping[str, Any]


def describe_mismatch(model: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> str:
    """Name up to three tensors of a model and of a checkpoint that differ, and count all."""
    shapes = {name: (list(saved[name].shape), list(model[name].shape)) for name in model if name in saved}
    differences = [
        f"size mismatch for {name} ({before} in the checkpoint, {now} in the model)"
        for name, (before, now) in shapes.items()
        if before != now
    ]
    differences += [f"{name} is not in the checkpoint" for name in model if name not in saved]
    differences += [f"{name} is not in the model" for name in saved if name not in model]
    more = f", ... ({len(differences)} in all)" if len(differences) > 3 else ""
    return ", ".join(differences[:3]) + more


# --- the schema of state.json -----------------------------------------------------------------------------------------

Counter = Annotated[int, Interval(ge=0, lt=2**63)]

_RelativeFile = Annotated[str, StringConstraints(pattern=r"^([^/.][^/]*/)?[^/.][^/]*\.safetensors$")]


class _FileRecord(TypedDict):
    bytes: Counter
    sha256: str


class _Journal(TypedDict):
    offset: Counter
    pending: list[tuple[Counter, dict[str, float]]]


class BestState(TypedDict, total=False):
    """The state of the hook ``save_best``."""

    best: float
    step: int
    fresh: float
    metric: str
    better: Literal["max", "min"]


class _State(TypedDict):
    """Fields that are read; those of the first version may be missing where a default is right."""

    files: dict[_RelativeFile, _FileRecord]
    step: Counter
    samples: Counter
    epoch: Counter
    total_steps: Counter
    scores: dict[str, float]
    journal: _Journal
    due: Annotated[list[str], Len(2, 2)] | None
    hooks: dict[str, dict[str, Any]]
    optimizer: dict[Annotated[str, StringConstraints(pattern=r"\.")], Any]
    optimizer_kind: str
    train_step: dict[str, Any]
    left_out: NotRequired[list[Counter]]
    planned_steps: NotRequired[Counter]


class RunState(_State):
    """With the description of a run that was built from a config; ``names`` maps those of a model's tensors to other
    names in an exported file."""

    seed: Annotated[int, Interval(ge=-(2**63), lt=2**63)]
    global_batch_size: Annotated[int, Interval(ge=1, lt=2**63)]
    facts: DatasetInfo
    source_channels: NotRequired[Channels]
    names: NotRequired[dict[str, str]]
    world_size: Counter
    micro_batch_size: NotRequired[Counter]
    threads: Counter
    versions: dict[str, str]


# --- tensors ----------------------------------------------------------------------------------------------------------


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors contiguously and once each; tied ones are listed in the metadata and tied again on loading."""
    unique: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    seen: dict[Hashable, str] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        original = seen.setdefault(memory_key(tensor), name)
        if original != name:
            aliases[name] = original
            continue
        unique[name] = tensor.detach().cpu().contiguous()
        # safetensors refuses a view of another tensor's memory (a slice): give it memory of its own.
        storage = unique[name].untyped_storage()
        if storage.data_ptr() in storages or storage.nbytes() != unique[name].nbytes:
            unique[name] = unique[name].clone()
        storages.add(storage.data_ptr())
    sharded.write_tensors(path, unique, {"aliases": json.dumps(aliases)})


# --- writing ----------------------------------------------------------------------------------------------------------


def write_checkpoint(path: Path, snapshot: Snapshot) -> None:
    """Write a checkpoint atomically.

    Raises:
        DiskError: nothing was changed.
        ValueError: the state is not JSON serializable.
    """
    with disk_errors(path, _CONSEQUENCE), temporary_folder(path) as folder:
        files = []
        for name, tensors in snapshot.tensors.items():
            files.append(folder / f"{name}.safetensors")
            save_tensors(files[-1], tensors)
        _write_state(folder, snapshot.state, _file_records(folder, files))


def write_sharded_checkpoint(
    folder: Path,
    path: Path,
    snapshot: Snapshot,
    offsets: sharded.Offsets,
    rank: int,
    world: int,
    gives_up: Callable[[], bool],
) -> None:
    """Write this process's shard of a checkpoint; rank 0 waits for all shards, completes it and renames it.

    Args:
        folder: the temporary folder, the same for all processes.
        path: the checkpoint.
        snapshot: with the shards of this process.
        offsets: offsets of these shards in the full tensors.
        rank: rank of this process.
        world: number of processes.
        gives_up: returns whether to stop waiting for the shards of the other processes.

    Raises:
        DiskError: nothing was changed.
    """
    with disk_errors(path, _CONSEQUENCE):
        try:
            files = sharded.write_shard(folder, rank, snapshot.tensors, offsets)
            sharded.write_report(folder, rank, _file_records(folder, files))
        except Exception as error:
            for file in folder.glob(f"*/{sharded.shard_name(rank)}.safetensors"):
                file.unlink(missing_ok=True)  # a full disk needs room for the report
            sharded.write_report(folder, rank, {"error": str(error)})
            raise
        if rank == 0:
            try:
                _write_state(folder, snapshot.state, sharded.collect_reports(folder, world, gives_up))
                replace_folder(folder, path)
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise


def to_json_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of the state as it will be read: keys that are numbers become strings, which sort differently."""
    copy: dict[str, Any] = json.loads(json.dumps(dict(state), allow_nan=False))
    return copy


def _file_records(folder: Path, files: Sequence[Path]) -> dict[str, Any]:
    return {str(file.relative_to(folder)): {"bytes": file.stat().st_size, "sha256": _sha256(file)} for file in files}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_state(folder: Path, state: Mapping[str, Any], files: Mapping[str, Any]) -> None:
    """Write ``state.json``, which turns the files in a folder into a checkpoint."""
    path = folder / "state.json"
    path.write_bytes(_encode_state(to_json_state({"format": FORMAT, **state, "files": dict(files)})))
    for name in files:  # safetensors creates files that only the owner can read
        (folder / name).chmod(path.stat().st_mode)


def _encode_state(state: Mapping[str, Any]) -> bytes:
    """Encode a state in its only valid form, with its own checksum in it, so that any changed byte is detected."""

    def encode(checksum: str) -> bytes:
        return (json.dumps({**state, "checksum": checksum}, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()

    return encode(hashlib.sha256(encode("")).hexdigest())


# --- reading ----------------------------------------------------------------------------------------------------------


def read_checkpoint(path: Path) -> Snapshot:
    """Read a checkpoint after verifying every byte of it.

    Raises:
        BadCheckpoint: a file is missing, truncated or changed, or has another format.
    """
    state, file = read_state(path), path
    try:
        for name, record in state["files"].items():
            file = path / name
            size = file.stat().st_size
            if size != record["bytes"]:
                raise BadCheckpoint(f"{file}: {size} bytes instead of {record['bytes']} (truncated?)")
            if _sha256(file) != record["sha256"]:
                raise BadCheckpoint(f"{file}: damaged (its checksum does not match)")
        return Snapshot(state["step"], _load_files(path, state["files"]), state)
    except OSError as error:  # missing, or on a failing disk
        raise BadCheckpoint(f"{file}: {error.strerror}") from error
    except InvalidFile as error:
        raise BadCheckpoint(str(error)) from error


def read_state(checkpoint: Path) -> dict[str, Any]:
    """Read and check ``state.json`` of a checkpoint; its tensors are not verified.

    Raises:
        BadCheckpoint: the file is missing, damaged, has another format, or a field does not fit its schema.
    """
    path = checkpoint / "state.json"
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise BadCheckpoint(f"{path}: {error.strerror}") from error
    try:
        state = parse_json(raw, dict[str, Any], str(path))
        is_whole = _encode_state({key: value for key, value in state.items() if key != "checksum"}) == raw
    except (ValueError, RecursionError):
        is_whole = False
    if not is_whole:
        raise BadCheckpoint(f"{path}: damaged (its checksum does not match)")
    if state.get("format") != FORMAT:
        raise BadCheckpoint(f"{path}: format {state.get('format')!r}; this version reads format {FORMAT}")
    is_of_config = not RunState.__annotations__.keys().isdisjoint(state.keys() - _State.__annotations__.keys())
    try:
        return dict(check_fields(state, RunState if is_of_config else _State, str(path)))
    except InvalidFile as error:
        raise BadCheckpoint(str(error)) from error


def _load_files(path: Path, names: Iterable[str]) -> dict[str, Mapping[str, Tensor]]:
    shards: dict[str, list[Path]] = {}
    tensors: dict[str, Mapping[str, Tensor]] = {}
    for name in names:
        folder, _, file = name.rpartition("/")
        if folder:  # a sharded tensor file is a folder
            shards.setdefault(folder, []).append(path / name)
        else:
            tensors[file.removesuffix(".safetensors")] = load_safetensors(path / name)
    return {**tensors, **{name: ShardedTensors(files) for name, files in shards.items()}}
