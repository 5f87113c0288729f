"""Memory use of this process."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch

_MB = 2**20


@cache
def _page_size() -> int:
    return os.sysconf("SC_PAGE_SIZE")


def memory_in_use(device: torch.device) -> dict[str, float]:
    """Return memory use in MB (2**20 bytes).

    ``memory/host_mb``: resident memory of this process (Linux only). ``memory/device_mb``: on CUDA the peak memory of
    tensors so far, on MPS the memory that the driver has allocated.
    """
    values = {}
    with suppress(OSError):  # not Linux
        values["memory/host_mb"] = int(Path("/proc/self/statm").read_bytes().split()[1]) * _page_size() / _MB
    if device.type == "cuda":
        values["memory/device_mb"] = torch.cuda.max_memory_allocated(device) / _MB
    elif device.type == "mps":
        values["memory/device_mb"] = torch.mps.driver_allocated_memory() / _MB
    return values
