"""Checkpoints of models whose parameters are spread over processes: each process writes its part.

::

    checkpoints/step-00000500/model/shard-00001.safetensors ...      one file a process, and likewise optimizer/, ema/
                              state.json

The files are those of ``torch.distributed.checkpoint`` (``HuggingFaceStorageWriter`` with ``save_distributed``), whose
reader reads them; written by us, because its writer makes the processes meet and could not work in the background.
"""

from __future__ import annotations

import errno
import json
import re
import time
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from opabinia.engine.checkpointing.buffers import memory_of
from opabinia.runtime.shards import INFO

Files = Mapping[str, Mapping[str, Tensor]]
"""Tensors by file name and then by tensor name."""

Offsets = Mapping[str, Mapping[str, Sequence[int]]]
"""Where a process's part of a tensor begins in it, likewise."""

_PATIENCE = 1800.0
"""Seconds that the first process waits for the files of the others."""


class Patience:
    """Until when to wait for the others; less once something has gone wrong, for they may be gone."""

    def __init__(self) -> None:
        self._end = time.monotonic() + _PATIENCE

    def shorten(self, seconds: float) -> None:
        """Wait no longer than this from now on."""
        self._end = min(self._end, time.monotonic() + seconds)

    def is_over(self) -> bool:
        """Whether to give up."""
        return time.monotonic() > self._end


def is_sharded(files: Files) -> bool:
    """Whether a process holds a part of some tensors only."""
    return any(isinstance(tensor, DTensor) for tensors in files.values() for tensor in tensors.values())


def own_parts(files: Files, first: bool) -> tuple[dict[str, dict[str, Tensor]], dict[str, dict[str, list[int]]]]:
    """The parts of tensors that this process holds, and where they begin; what all hold is the ``first`` one's."""
    parts: dict[str, dict[str, Tensor]] = {}
    offsets: dict[str, dict[str, list[int]]] = {}
    for file, tensors in files.items():
        parts[file], offsets[file] = {}, {}
        for name, tensor in tensors.items():
            if isinstance(tensor, DTensor):
                own, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
                if 0 not in own:
                    parts[file][name], offsets[file][name] = tensor.to_local(), list(offset)
            elif first:
                parts[file][name], offsets[file][name] = tensor, [0] * tensor.ndim
    return parts, offsets


def name_of(rank: int) -> str:
    """What the files of a process are called."""
    return f"shard-{rank + 1:05d}"


def write_part(folder: Path, rank: int, parts: Files, offsets: Offsets) -> list[Path]:
    """Write the part of one process into a checkpoint's folder; return the files."""
    written = []
    for file, tensors in parts.items():
        path = folder / file / f"{name_of(rank)}.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        info = {name: {"saved_offsets": list(offset)} for name, offset in offsets[file].items()}
        taken: set[Hashable] = set()
        own = {}
        for name, tensor in tensors.items():  # tied ones are written as often as they have names
            own[name] = tensor.clone() if memory_of(tensor) in taken else tensor.contiguous()
            taken.add(memory_of(tensor))
        write_tensors(path, own, {INFO: json.dumps(info)})
        written.append(path)
    return written


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """What safetensors writes; as an OSError where the disk is full: safetensors tells that only in its text."""
    try:
        save_file(dict(tensors), path, dict(metadata))
    except SafetensorError as error:
        code = re.search(r"os error (\d+)", str(error))
        raise OSError(int(code[1]) if code else errno.EIO, str(error)) from error


def report(folder: Path, rank: int, files: Mapping[str, Any]) -> None:
    """Tell the first process that the part is written: by file its size and its sum, or ``error``."""
    path = folder / f"{name_of(rank)}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".tmp")
    aside.write_text(json.dumps(files), encoding="utf-8")
    aside.replace(path)


def reports(folder: Path, world: int, patience: Patience) -> dict[str, Any]:
    """What all processes report, once they all have; their notes are taken away.

    Raises:
        OSError: one could not write its part, or does not answer.
    """
    files: dict[str, Any] = {}
    for rank in range(world):
        path = folder / f"{name_of(rank)}.json"
        while not path.exists():
            if patience.is_over():
                raise OSError(f"process {rank} has not written its part")
            time.sleep(0.01)
        said = json.loads(path.read_text(encoding="utf-8"))
        if "error" in said:
            raise OSError(said["error"])
        files |= said
        path.unlink()
    return files


def fitted(whole: Tensor, like: Tensor) -> Tensor:
    """A tensor spread over processes as another one of its shape is."""
    if not isinstance(like, DTensor):
        return whole
    mesh, placements = like.device_mesh, like.placements
    spread: Tensor = distribute_tensor(whole.to(like.device), mesh, placements, src_data_rank=None)
    return spread


def load_state(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """``load_state_dict`` of whole tensors for models that are spread over processes, or not.

    Raises:
        RuntimeError: the model's tensors are others.
    """
    own = model.state_dict()
    if not is_sharded({"model": own}):
        model.load_state_dict(dict(tensors))
        return
    if wrong := sorted(own.keys() ^ tensors.keys()):
        raise RuntimeError(f"these are in one of both only: {', '.join(wrong)}")
    with torch.no_grad():
        for name, value in own.items():
            whole = tensors[name]
            if whole.shape != value.shape:
                raise RuntimeError(f"size mismatch for {name}: {tuple(whole.shape)} and {tuple(value.shape)}")
            value.copy_(fitted(whole, value))
