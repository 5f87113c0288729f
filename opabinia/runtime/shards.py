"""Tensors of which several files hold a part each."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

INFO = "DCP_SHARDING_INFO"
"""In the metadata of a file, as ``torch.distributed.checkpoint`` writes it: by tensor name where its part begins."""


class Shards(Mapping[str, Tensor]):
    """Whole tensors by name, each read when it is asked for.

    Args:
        paths: safetensors files of ``torch.distributed.checkpoint`` (``HuggingFaceStorageWriter``), or of ours.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._parts: dict[str, list[tuple[Path, list[int]]]] = {}
        for path in paths:
            with safe_open(path, framework="pt") as file:
                info = json.loads((file.metadata() or {})[INFO])
            for name, said in info.items():
                self._parts.setdefault(name, []).append((path, said["saved_offsets"]))

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
