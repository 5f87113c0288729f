"""Checkpoints of models whose parameters are sharded over processes (FSDP): each process writes its shard.

::

    checkpoints/step-00000500/model/shard-00001.safetensors ...      one file per process; likewise optimizer/, ema/
                              state.json

The files have the format of ``torch.distributed.checkpoint`` (``HuggingFaceStorageWriter`` with ``save_distributed``),
and its reader reads them. Its writer is not used because it needs collective operations, which a background thread
cannot do. Instead the processes meet through the file system: each writes a report of its files, and rank 0 waits for
all reports.
"""

from __future__ import annotations

import errno
import json
import os
import re
import time
import uuid
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from opabinia.engine.checkpointing.buffers import memory_key
from opabinia.runtime.processes import all_gather, from_rank_zero, is_rank_zero
from opabinia.runtime.shards import INFO

Files = Mapping[str, Mapping[str, Tensor]]
"""Tensors by file name and tensor name."""

Offsets = Mapping[str, Mapping[str, Sequence[int]]]
"""Start of a process's shard in the full tensor, by file name and tensor name."""


def ranks_elsewhere(folder: Path) -> list[int]:
    """Return the ranks for which ``folder`` is another one than for rank 0, on a disk of their own machine."""

    def leave_mark() -> Path:
        mark = folder / f".{uuid.uuid4().hex}.{os.getpid()}.tmp"
        mark.touch()
        return mark

    mark = from_rank_zero(leave_mark)
    found = all_gather((folder / mark.name).exists())
    if is_rank_zero():
        mark.unlink()
    return [rank for rank, is_found in enumerate(found) if not is_found]


def is_sharded(files: Files) -> bool:
    """Return whether a process holds only a shard of some tensors."""
    return any(isinstance(tensor, DTensor) for tensors in files.values() for tensor in tensors.values())


def local_shards(files: Files, rank_zero: bool) -> tuple[dict[str, dict[str, Tensor]], dict[str, dict[str, list[int]]]]:
    """Return the shards that this process holds and their offsets; tensors that all hold belong to rank 0's shard."""
    shards: dict[str, dict[str, Tensor]] = {}
    offsets: dict[str, dict[str, list[int]]] = {}
    for file, tensors in files.items():
        shards[file], offsets[file] = {}, {}
        for name, tensor in tensors.items():
            if isinstance(tensor, DTensor):
                shape, offset = compute_local_shape_and_global_offset(
                    tensor.shape, tensor.device_mesh, tensor.placements
                )
                if 0 not in shape:
                    shards[file][name], offsets[file][name] = tensor.to_local(), list(offset)
            elif rank_zero:
                shards[file][name], offsets[file][name] = tensor, [0] * tensor.ndim
    return shards, offsets


def shard_name(rank: int) -> str:
    """Return the file name of a process's shard, without suffix."""
    return f"shard-{rank + 1:05d}"


def write_shard(folder: Path, rank: int, shards: Files, offsets: Offsets) -> list[Path]:
    """Write the shard of one process into the folder of a checkpoint; return the files."""
    files = []
    for file, tensors in shards.items():
        path = folder / file / f"{shard_name(rank)}.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        info = {name: {"saved_offsets": list(offset)} for name, offset in offsets[file].items()}
        seen: set[Hashable] = set()
        separate = {}
        for name, tensor in tensors.items():  # tied tensors are written under each of their names
            separate[name] = tensor.clone() if memory_key(tensor) in seen else tensor.contiguous()
            seen.add(memory_key(tensor))
        write_tensors(path, separate, {INFO: json.dumps(info)})
        files.append(path)
    return files


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file. An error of the disk becomes an OSError: safetensors has its code in the text only."""
    try:
        save_file(dict(tensors), path, dict(metadata))
    except SafetensorError as error:
        code = re.search(r"os error (\d+)", str(error))
        raise OSError(int(code[1]) if code else errno.EIO, str(error)) from error


def write_report(folder: Path, rank: int, report: Mapping[str, Any]) -> None:
    """Report to rank 0 that the shard is written: size and checksum by file, or ``error``."""
    path = folder / f"{shard_name(rank)}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(report), encoding="utf-8")
    temporary.replace(path)


def collect_reports(folder: Path, world: int, gives_up: Callable[[], bool]) -> dict[str, Any]:
    """Wait for the reports of all processes, delete them, and return their file records.

    Raises:
        OSError: a process could not write its shard, or had not reported when ``gives_up`` returned true.
    """
    files: dict[str, Any] = {}
    for rank in range(world):
        path = folder / f"{shard_name(rank)}.json"
        while not path.exists():
            if gives_up():
                raise OSError(f"process {rank} has not written its shard")
            time.sleep(0.01)
        report = json.loads(path.read_text(encoding="utf-8"))
        if "error" in report:
            raise OSError(report["error"])
        files |= report
        path.unlink()
    return files


def distribute_like(full: Tensor, like: Tensor) -> Tensor:
    """Shard a full tensor like another tensor of its shape."""
    if not isinstance(like, DTensor):
        return full
    shard: Tensor = distribute_tensor(full.to(like.device), like.device_mesh, like.placements, src_data_rank=None)
    return shard
