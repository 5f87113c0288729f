"""Batches from worker processes to the main process in shared memory that is reused.

torch's DataLoader makes new shared memory for every tensor. Its pages are allocated and cleared one by one, which costs
as much as resizing the images, and for each tensor both processes open a connection to pass a file descriptor. Here
each worker has a few slots in one file in memory; a slot is free again once the main process has dropped the batch.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import pickle
from io import BytesIO
from itertools import count
from typing import Any
from weakref import WeakValueDictionary, finalize

import torch
from torch import Tensor
from torch.utils.data import get_worker_info

_SLOT_SIZE = 2**36
"""Distance of the slots in the file, bytes; only what was written takes memory."""

_memories: WeakValueDictionary[int, BatchMemory] = WeakValueDictionary()
_keys = count()


class BatchMemory:
    """Slots for batches. It is made before the workers are forked.

    Args:
        slots: for each worker.
        num_workers: that use it.
    """

    def __init__(self, slots: int, num_workers: int) -> None:
        self._slots, self._key = slots, next(_keys)
        self._descriptor = os.memfd_create("opabinia batches")
        finalize(self, os.close, self._descriptor)
        os.ftruncate(self._descriptor, slots * num_workers * _SLOT_SIZE)
        self._used = mmap.mmap(-1, slots * num_workers)  # a byte for each slot
        self._mapped: dict[int, mmap.mmap] = {}
        _memories[self._key] = self

    def pack(self, value: Any) -> Any:
        """Return what a worker sends in place of ``value`` (any object with tensors), or ``value`` itself if all slots
        of the worker are used: torch then copies its tensors into new memory."""
        worker = get_worker_info()
        slots = range(worker.id * self._slots, (worker.id + 1) * self._slots) if worker else ()
        slot = next((slot for slot in slots if not self._used[slot]), None)
        if slot is None:
            return value
        pickler = _Pickler()
        pickler.dump(value)
        memory = self._map(slot, pickler.size)
        for tensor, position in pickler.tensors:
            _tensor_at(memory, *position).copy_(tensor)
        self._used[slot] = 1
        return _Packed(self._key, slot, pickler.size, pickler.buffer.getvalue())

    def unpack(self, slot: int, size: int, content: bytes) -> Any:
        """Return the packed value. Its tensors are in the slot, which is used until all of them are dropped."""
        memory = (ctypes.c_ubyte * max(size, 1)).from_buffer(self._map(slot, size))
        finalize(memory, self._free, slot, os.getpid()).atexit = False
        return _Unpickler(content, memory).load()

    def _free(self, slot: int, pid: int) -> None:
        if pid == os.getpid():  # not in a process that was forked while the batch was used
            self._used[slot] = 0

    def _map(self, slot: int, size: int) -> mmap.mmap:
        if slot not in self._mapped or len(self._mapped[slot]) < size:
            self._mapped[slot] = mmap.mmap(self._descriptor, max(size, 1), offset=slot * _SLOT_SIZE)
        return self._mapped[slot]


class _Packed:
    def __init__(self, *arguments: Any) -> None:
        self._arguments = arguments

    def __reduce__(self) -> tuple[Any, ...]:
        # The slot is freed also if the main process receives the batch and drops it unseen.
        return _unpack, self._arguments


def _unpack(key: int, *arguments: Any) -> Any:
    return _memories[key].unpack(*arguments)


_Position = tuple[int, tuple[int, ...], torch.dtype]
"""Offset in bytes, shape, type."""


def _tensor_at(memory: Any, offset: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.frombuffer(memory, dtype=dtype, count=math.prod(shape), offset=offset).view(shape)


class _Pickler(pickle.Pickler):
    """Pickles a value without its tensors, for which it keeps positions in a slot of ``size`` bytes. Tensors of other
    layouts are pickled with their values."""

    def __init__(self) -> None:
        self.buffer, self.size = BytesIO(), 0
        self.tensors: list[tuple[Tensor, _Position]] = []
        super().__init__(self.buffer, pickle.HIGHEST_PROTOCOL)

    def persistent_id(self, value: Any) -> _Position | None:
        if type(value) is not Tensor or not value.numel() or not value.is_contiguous():
            return None
        position = self.size, tuple(value.shape), value.dtype
        self.tensors.append((value, position))
        self.size += -(-value.nbytes // 64) * 64
        return position


class _Unpickler(pickle.Unpickler):
    def __init__(self, content: bytes, memory: Any) -> None:
        super().__init__(BytesIO(content))
        self._memory = memory

    def persistent_load(self, position: _Position) -> Tensor:
        return _tensor_at(self._memory, *position)
