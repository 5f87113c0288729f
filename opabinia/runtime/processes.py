"""Which process this is, and how processes exchange plain values. Without a process group: one process."""

from __future__ import annotations

import os
from typing import Any

import torch.distributed as dist


def _joined() -> bool:
    return dist.is_available() and dist.is_initialized()


def rank() -> int:
    """Number of this process among all, from 0."""
    return dist.get_rank() if _joined() else 0


def world_size() -> int:
    """Number of processes."""
    return dist.get_world_size() if _joined() else 1


def local_rank() -> int:
    """Number of this process on its machine (``LOCAL_RANK``), the index of its device."""
    return int(os.environ.get("LOCAL_RANK", "0")) if _joined() else 0


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
