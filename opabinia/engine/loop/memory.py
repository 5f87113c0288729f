"""How much memory this process holds."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch

_MB = 2**20


@cache
def _page() -> int:
    return os.sysconf("SC_PAGE_SIZE")


def memory_in_use(device: torch.device) -> dict[str, float]:
    """``memory/host_mb``: resident memory of this process, where the system tells; ``memory/device_mb``: the most that
    tensors took on a GPU so far. In units of 2**20 bytes."""
    found = {}
    with suppress(OSError):  # not Linux
        found["memory/host_mb"] = int(Path("/proc/self/statm").read_bytes().split()[1]) * _page() / _MB
    if device.type == "cuda":
        found["memory/device_mb"] = torch.cuda.max_memory_allocated(device) / _MB
    elif device.type == "mps":
        found["memory/device_mb"] = torch.mps.driver_allocated_memory() / _MB
    return found
