"""Which process this is, and how processes exchange plain values. Without a process group: one process."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")


_alone = False


def _joined() -> bool:
    return not _alone and dist.is_available() and dist.is_initialized()


@contextmanager
def single_process() -> Iterator[None]:
    """To the end of the block this process takes itself for the only one, and waits for no other: what is tried in it
    may fail here and work elsewhere."""
    global _alone
    before, _alone = _alone, True
    try:
        yield
    finally:
        _alone = before


def rank() -> int:
    """Number of this process among all, from 0."""
    return dist.get_rank() if _joined() else 0


def world_size() -> int:
    """Number of processes."""
    return dist.get_world_size() if _joined() else 1


def local_rank() -> int:
    """Number of this process on its machine (``LOCAL_RANK``), the index of its device, before it has joined too."""
    # A process that is alone may have a LOCAL_RANK left over from something else.
    many = _joined() or int(os.environ.get("WORLD_SIZE", "1")) > 1
    return int(os.environ.get("LOCAL_RANK", "0")) if many else 0


def is_rank_zero() -> bool:
    """Whether this process writes to the terminal and the run folder."""
    return rank() == 0


def gather(value: Any) -> list[Any]:
    """``value`` of every process, in the order of ranks, on every process."""
    if not _joined():
        return [value]
    values: list[Any] = [None] * world_size()
    dist.all_gather_object(values, value)
    return values


def from_rank_zero(decide: Callable[[], T]) -> T:
    """What ``decide`` gives on the first process, on every process; an exception of it is raised on every process.

    For what must be decided once: whose files are read, what is drawn.
    """
    if not _joined():
        return decide()
    told: list[Any] = [None, None]
    if is_rank_zero():
        try:
            told[0] = decide()
        except Exception as error:
            told[1] = _fit_to_send(error)
    dist.broadcast_object_list(told)
    value: T
    value, wrong = told
    if wrong is not None:
        raise wrong
    return value


def _fit_to_send(error: Exception) -> Exception:
    """``error``, or its text where it would not survive the journey."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        text = RuntimeError(f"{type(error).__name__}: {error}")
        text.__cause__ = error
        return text
    return error


def any_rank(*flags: bool) -> tuple[bool, ...]:
    """For each question whether any process says yes; the same answers on every process."""
    if not _joined():
        return flags
    asked = torch.tensor(flags, dtype=torch.uint8, device=meeting_place())
    dist.all_reduce(asked, dist.ReduceOp.MAX)
    return tuple(map(bool, asked.tolist()))


def agreed(wish: T | None) -> T | None:
    """The wish of the first process that has one, on every process; None when none has."""
    (somebody,) = any_rank(wish is not None)
    return next(one for one in gather(wish) if one is not None) if somebody else None


def all_reduce_mean(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Means over processes of tensors that lie in the same place on each, in one exchange."""
    if not _joined() or not tensors:
        return list(tensors)
    flat = torch.cat([tensor.detach().double().flatten() for tensor in tensors])
    dist.all_reduce(flat)
    flat /= world_size()
    parts = torch.split(flat, [tensor.numel() for tensor in tensors])
    return [part.view(like.shape).to(like.dtype) for part, like in zip(parts, tensors, strict=True)]


def broadcast_from_rank_zero(tensors: Sequence[Tensor]) -> None:
    """Give every process the values that the first has."""
    if _joined():
        for tensor in tensors:
            dist.broadcast(tensor.detach(), 0)


def neighbor_group(count: int) -> dist.ProcessGroup | None:
    """A group of ``count`` processes whose ranks follow each other, this one among them; the last group has those that
    are left. To be called by all processes at the same time. None: this process would be alone in it.

    Example: 3 of 8 are 0 to 2, 3 to 5, and 6 and 7.
    """
    if count < 2 or world_size() < 2:
        return None
    blocks = [range(first, min(first + count, world_size())) for first in range(0, world_size(), count)]
    groups: list[Any] = [dist.new_group(list(block)) for block in blocks]
    own = rank() // count
    return groups[own] if len(blocks[own]) > 1 else None


def meeting_place() -> torch.device:
    """Where small tensors are exchanged: on the host, if there is a backend for it."""
    if "cpu" in dist.get_backend_config():
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())
