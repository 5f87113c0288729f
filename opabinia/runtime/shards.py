"""Sharded tensors, read from several files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

INFO = "DCP_SHARDING_INFO"
"""Metadata key of a file written by ``torch.distributed.checkpoint``: the offset of the file's shard of each tensor."""


class ShardedTensors(Mapping[str, Tensor]):
    """Whole tensors by name, each read and assembled on access.

    Args:
        paths: safetensors files of ``torch.distributed.checkpoint`` (``HuggingFaceStorageWriter``) or of Opabinia.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._parts: dict[str, list[tuple[Path, list[int]]]] = {}
        for path in paths:
            with safe_open(path, framework="pt") as file:
                info = json.loads((file.metadata() or {})[INFO])
            for name, shard in info.items():
                self._parts.setdefault(name, []).append((path, shard["saved_offsets"]))

    def __getitem__(self, name: str) -> Tensor:
        parts: list[tuple[list[int], Tensor]] = []
        for path, offset in self._parts[name]:
            with safe_open(path, framework="pt") as file:
                parts.append((offset, file.get_tensor(name)))
        if len(parts) == 1:
            return parts[0][1]
        ends = [[begin + size for begin, size in zip(offset, part.shape, strict=True)] for offset, part in parts]
        whole = torch.empty([max(column) for column in zip(*ends, strict=True)], dtype=parts[0][1].dtype)
        for (offset, part), end in zip(parts, ends, strict=True):
            whole[tuple(map(slice, offset, end))] = part
        return whole

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)
