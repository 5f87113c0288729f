"""Times of work on a device, measured without waiting for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import torch


class Mark(NamedTuple):
    """The start or end of some work: the time on the host, and an event on the GPU."""

    name: str
    time: float
    event: torch.cuda.Event | None

    def seconds_to(self, end: Mark) -> float:
        """Return the seconds to a later mark, on the GPU if there is one; the device has completed the work."""
        if self.event is not None and end.event is not None:
            return float(self.event.elapsed_time(end.event)) / 1000
        return end.time - self.time


def mark(device: torch.device, name: str = "") -> Mark:
    """Return a mark of now; on a GPU, of when it has completed the work that was launched so far."""
    event = None
    if device.type == "cuda":
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
    return Mark(name, time.perf_counter(), event)


def synchronize(device: torch.device) -> None:
    """Wait until a GPU has completed its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(call: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of a call until the device has completed its work."""
    synchronize(device)
    started = time.perf_counter()
    call()
    synchronize(device)
    return time.perf_counter() - started
