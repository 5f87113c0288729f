"""Rank and world size, and exchange of plain values between ranks. Without a process group there is one rank."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")


_ignore_others = False

collective_timeout: timedelta | None = None
"""Time that a collective of a new group waits for other ranks; None: torch's default."""

_autograd_groups: tuple[Any, Any] = None, None
"""The default group, and the group that :func:`autograd_group` has made for it."""

_patient_groups: tuple[Any, Any] = None, None
"""The default group, and the group that :func:`_patient_group` has made for it."""


def _has_group() -> bool:
    return not _ignore_others and dist.is_available() and dist.is_initialized()


@contextmanager
def single_process() -> Iterator[None]:
    """Act as a single process inside the block and wait for no other rank, for attempts that may fail on some ranks
    only."""
    global _ignore_others
    before, _ignore_others = _ignore_others, True
    try:
        yield
    finally:
        _ignore_others = before


def rank() -> int:
    """Return the rank of this process, from 0."""
    return dist.get_rank() if _has_group() else 0


def world_size() -> int:
    """Return the number of ranks."""
    return dist.get_world_size() if _has_group() else 1


def local_rank() -> int:
    """Return the rank of this process on its machine (``LOCAL_RANK``), the index of its GPU; also before it has joined
    the process group."""
    # A single process may have a LOCAL_RANK that belongs to something else.
    is_parallel = _has_group() or int(os.environ.get("WORLD_SIZE", "1")) > 1
    return int(os.environ.get("LOCAL_RANK", "0")) if is_parallel else 0


def is_rank_zero() -> bool:
    """Return whether this process has rank 0: it writes to the terminal and the run folder."""
    return rank() == 0


def all_gather(value: Any) -> list[Any]:
    """All-gather: return ``value`` of every rank, in the order of ranks, on every rank."""
    if not _has_group():
        return [value]
    values: list[Any] = [None] * world_size()
    dist.all_gather_object(values, value)
    return values


def from_rank_zero(decide: Callable[[], T], *, patient: bool = False) -> T:
    """Call ``decide`` on rank 0 and return its result, or raise its exception, on every rank.

    For decisions that must be the same everywhere: which files exist, random draws, scores. The exception is marked
    ``on_all_ranks``, so that only rank 0 reports it.

    Args:
        decide: computes the result.
        patient: it may take longer than other ranks usually wait (``train.distributed.timeout``). An error or the end
            of rank 0 still ends their wait.
    """
    if not _has_group():
        return decide()
    result: list[Any] = [None, None]
    if is_rank_zero():
        try:
            result[0] = decide()
        except Exception as error:
            result[1] = picklable(error)
    dist.broadcast_object_list(result, group=_patient_group() if patient else None)
    value: T
    value, raised = result
    if raised is not None:
        with suppress(AttributeError):
            raised.on_all_ranks = True
        raise raised
    return value


def picklable(error: Exception) -> Exception:
    """Return ``error``, or a RuntimeError with its text if it cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        text = RuntimeError(f"{type(error).__name__}: {error}")
        text.__cause__ = error
        return text
    return error


def _patient_group() -> Any:
    """Return the group of all ranks whose collectives wait for a week; it is made at the first call."""
    global _patient_groups
    if _patient_groups[0] is not dist.group.WORLD:
        backend = "gloo" if collective_device().type == "cpu" else None
        _patient_groups = dist.group.WORLD, dist.new_group(backend=backend, timeout=timedelta(weeks=1))
    return _patient_groups[1]


def any_rank(*flags: bool) -> tuple[bool, ...]:
    """Return for each flag whether it is set on any rank; the same on every rank."""
    if not _has_group():
        return flags
    combined = torch.tensor(flags, dtype=torch.uint8, device=collective_device())
    dist.all_reduce(combined, dist.ReduceOp.MAX)
    return tuple(map(bool, combined.tolist()))


def all_reduce_mean(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the mean over ranks of each tensor (floating point), with one all-reduce and a few kernels."""
    if not _has_group() or not tensors:
        return list(tensors)
    flat = torch.cat([tensor.detach().flatten() for tensor in tensors]).double()
    dist.all_reduce(flat)
    flat /= world_size()
    sizes = [tensor.numel() for tensor in tensors]
    parts = {dtype: torch.split(flat.to(dtype), sizes) for dtype in {tensor.dtype for tensor in tensors}}
    return [parts[tensor.dtype][number].view(tensor.shape) for number, tensor in enumerate(tensors)]


def broadcast_from_rank_zero(tensors: Sequence[Tensor]) -> None:
    """Copy the values of rank 0 to every rank, in place."""
    if _has_group():
        for tensor in tensors:
            dist.broadcast(tensor.detach(), 0)


def neighbor_group(count: int) -> dist.ProcessGroup | None:
    """Return the group of ``count`` consecutive ranks to which this one belongs; None if it would be alone in it. The
    last group may be smaller. All ranks must call this at the same time.

    Example: 3 of 8 are 0 to 2, 3 to 5, and 6 and 7.
    """
    if count < 2 or world_size() < 2:
        return None
    blocks = [range(first, min(first + count, world_size())) for first in range(0, world_size(), count)]
    groups: list[Any] = [dist.new_group(list(block), timeout=collective_timeout) for block in blocks]
    block = rank() // count
    return groups[block] if len(blocks[block]) > 1 else None


def autograd_group() -> Any:
    """Return the group of all ranks for collectives that have a gradient; all ranks must call this at the same time.

    The backward pass runs their own collectives while DDP all-reduces its buckets in the default group. In one group
    ranks that finish gradients in different orders (unused parameters, tasks that a rank has no samples of) would pair
    one with the other. The group is made at the first call: runs without such collectives need none.
    """
    global _autograd_groups
    if _autograd_groups[0] is not dist.group.WORLD:
        _autograd_groups = dist.group.WORLD, dist.new_group(timeout=collective_timeout)
    return _autograd_groups[1]


def collective_device() -> torch.device:
    """Return the device for collectives of small tensors: the CPU, if there is a backend for it."""
    if "cpu" in dist.get_backend_config():
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())
