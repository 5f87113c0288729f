"""Reading of safetensors files: whole ones, and tensors that are sharded over several files."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import torch
from annotated_types import Ge
from safetensors import SafetensorError, safe_open
from torch import Tensor
from typing_extensions import TypedDict

from opabinia.runtime.json_files import InvalidFile, parse_json

INFO = "DCP_SHARDING_INFO"
"""Metadata key of a file written by ``torch.distributed.checkpoint``: the offset of the file's shard of each tensor."""


class _Shard(TypedDict):
    saved_offsets: list[Annotated[int, Ge(0)]]


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise InvalidFile(f"{path}: cannot be read: {error}") from error


def load_safetensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file to the CPU; names in its metadata ``aliases``, which checkpoints write for tied tensors,
    share memory.

    Raises:
        InvalidFile: it cannot be read, or an alias names no tensor.
    """
    with _opened(path) as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        metadata = file.metadata() or {}
    aliases = parse_json(metadata.get("aliases", "{}"), dict[str, str], f"{path}: aliases")
    for name, other in aliases.items():
        if other not in tensors:
            raise InvalidFile(f"{path}: aliases: {name!r} is tied to {other!r}, which is not in the file")
    return {**tensors, **{name: tensors[other] for name, other in aliases.items()}}


class ShardedTensors(Mapping[str, Tensor]):
    """Whole tensors by name, each read and assembled on access.

    Args:
        paths: safetensors files of ``torch.distributed.checkpoint`` (``HuggingFaceStorageWriter``) or of Opabinia.

    Raises:
        InvalidFile: a file cannot be read, or has no valid offsets; on access, the shards of a tensor do not fill it.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._parts: dict[str, list[tuple[Path, list[int]]]] = {}
        for path in paths:
            with _opened(path) as file:
                info = (file.metadata() or {}).get(INFO, "null")
            for name, shard in parse_json(info, dict[str, _Shard], f"{path}: {INFO}").items():
                self._parts.setdefault(name, []).append((path, shard["saved_offsets"]))

    def __getitem__(self, name: str) -> Tensor:
        parts: list[tuple[list[int], Tensor]] = []
        for path, offset in self._parts[name]:
            with _opened(path) as file:
                parts.append((offset, file.get_tensor(name)))
        if len(parts) == 1:
            return parts[0][1]
        ends = [[begin + size for begin, size in zip(offset, part.shape, strict=False)] for offset, part in parts]
        shape = [max(column) for column in zip(*ends, strict=False)]
        fits = all(len(offset) == part.ndim == len(shape) for offset, part in parts)
        if not fits or math.prod(shape) != sum(part.numel() for _, part in parts):
            raise InvalidFile(f"{self._parts[name][0][0].parent}: the shards of {name} do not fill a tensor")
        whole = torch.empty(shape, dtype=parts[0][1].dtype)
        for (offset, part), end in zip(parts, ends, strict=True):
            whole[tuple(map(slice, offset, end))] = part
        return whole

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)
