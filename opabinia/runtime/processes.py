"""Which process this is, and how processes exchange plain values. Without a process group: one process."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

T = TypeVar("T")


def _joined() -> bool:
    return dist.is_available() and dist.is_initialized()


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


def is_first() -> bool:
    """Whether this process writes to the terminal and the run folder."""
    return rank() == 0


def gather(value: Any) -> list[Any]:
    """``value`` of every process, in the order of ranks, on every process."""
    if not _joined():
        return [value]
    values: list[Any] = [None] * world_size()
    dist.all_gather_object(values, value)
    return values


def first_says(decide: Callable[[], T]) -> T:
    """What ``decide`` gives on the first process, on every process; an exception of it is raised on every process.

    For what must be decided once: whose files are read, what is drawn.
    """
    if not _joined():
        return decide()
    told: list[Any] = [None, None]
    if is_first():
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
