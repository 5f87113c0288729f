"""Memory that a checkpoint's tensors are copied into, so that training may go on changing the originals."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from mmap import mmap

import torch
from torch import Tensor


def memory_of(tensor: Tensor) -> Hashable:
    """What tensors have in common that are tied: the same memory, seen the same way. Empty ones have none."""
    if not tensor.numel():
        return object()
    return tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


class Buffers:
    """Copies of tensors on the host, in the same memory every time: touching new memory takes longer than copying."""

    def __init__(self) -> None:
        self._buffers: dict[Hashable, Tensor] = {}

    def copied(self, files: Mapping[str, Mapping[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
        """Contiguous copies by file and name, which the next call overwrites. Tied tensors stay tied."""
        before, self._buffers = self._buffers, {}
        copies: dict[str, dict[str, Tensor]] = {}
        devices: set[torch.device] = set()
        for file, tensors in files.items():
            copies[file] = {}
            tied: dict[Hashable, Tensor] = {}
            for name, tensor in tensors.items():
                memory = memory_of(tensor)
                if memory not in tied:
                    key = (file, name, tensor.shape, tensor.dtype, tensor.is_cuda)
                    buffer = before[key] if key in before else _buffer_for(tensor)
                    tied[memory] = self._buffers[key] = buffer.copy_(tensor.detach(), non_blocking=tensor.is_cuda)
                    if tensor.is_cuda:
                        devices.add(tensor.device)
                copies[file][name] = tied[memory]
        for device in devices:
            torch.cuda.synchronize(device)
        return copies


def _buffer_for(tensor: Tensor) -> Tensor:
    if tensor.is_cuda:  # from pinned memory a copy returns before it is done: all of them are waited for at once
        return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    if not tensor.numel():
        return torch.empty(tensor.shape, dtype=tensor.dtype)
    # Shared with forked workers: otherwise the first save after a fork copies every page once more.
    return torch.frombuffer(mmap(-1, tensor.nbytes), dtype=tensor.dtype).view(tensor.shape)
