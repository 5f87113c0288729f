"""Host memory for the tensors of a checkpoint, so that training can change the originals while they are written."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from mmap import mmap

import torch
from torch import Tensor


def memory_key(tensor: Tensor) -> Hashable:
    """Return a key that is equal for tied tensors: the same memory with the same view. Empty tensors are never tied."""
    if not tensor.numel():
        return object()
    return tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


class HostBuffers:
    """Copies tensors to the host, into the same memory every time: touching new memory is slower than copying.

    The memory is not pinned. Weights, averages and the optimizer's state would stay locked for the whole run, in sizes
    that torch rounds up to powers of two, to save a fraction of a second at each checkpoint.
    """

    def __init__(self) -> None:
        self._buffers: dict[Hashable, Tensor] = {}

    def copy(self, files: Mapping[str, Mapping[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
        """Return contiguous copies by file and name; the next call overwrites them. Tied tensors stay tied."""
        previous, self._buffers = self._buffers, {}
        copies: dict[str, dict[str, Tensor]] = {}
        for file, tensors in files.items():
            copies[file] = {}
            tied: dict[Hashable, Tensor] = {}
            for name, tensor in tensors.items():
                memory = memory_key(tensor)
                if memory not in tied:
                    key = (file, name, tensor.shape, tensor.dtype)
                    buffer = previous[key] if key in previous else _allocate(tensor)
                    tied[memory] = self._buffers[key] = buffer.copy_(tensor.detach())
                copies[file][name] = tied[memory]
        return copies


def _allocate(tensor: Tensor) -> Tensor:
    if not tensor.numel():
        return torch.empty(tensor.shape, dtype=tensor.dtype)
    # Shared with forked workers: otherwise the first save after a fork would copy every page once more.
    return torch.frombuffer(mmap(-1, tensor.nbytes), dtype=tensor.dtype).view(tensor.shape)
