"""The hooks that write lines of the metrics log."""

from __future__ import annotations

import os
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch

from opabinia.contracts import Batch, Hook, Run
from opabinia.runtime.processes import all_gather

_MB = 2**20


class LogMetrics(Hook):
    """Writes a line every few steps and at the end of every epoch.

    Args:
        every: steps per line. On a GPU a non-finite loss is detected when its line is written, or before a save.
    """

    def __init__(self, every: int) -> None:
        self.every = every

    def after_step(self, run: Run) -> None:
        """Write a line when it is due."""
        if run.clock.step % self.every == 0 or run.clock.phase_ended:
            run.metrics_log.flush(run.clock, _memory_in_use(run))

    def finish(self, run: Run, how: str | BaseException) -> None:
        """Close the metrics log. Pending values are in the newest checkpoint, or belong to steps after it."""
        run.metrics_log.close()


class LogSamples(LogMetrics):
    """Writes a line for every step, with the ids of its samples in order (``sample_ids``), by stream."""

    def __init__(self) -> None:
        super().__init__(1)
        self._ids: list[list[Any]] = []
        self._counts: list[int] = []
        self._samples_before = 0

    def before_step(self, run: Run, batch: Batch) -> None:
        """Record the ids."""
        self._ids = [list(stream_batch["id"]) for stream_batch in batch.get("streams", {"": batch}).values()]
        self._counts = [global_batch.count for global_batch in batch.get("global_batches", {}).values()]
        self._samples_before = run.clock.samples

    def after_step(self, run: Run) -> None:
        """Write the line."""
        counts = self._counts or [run.clock.samples - self._samples_before]
        streams = zip(map(chain.from_iterable, zip(*all_gather(self._ids), strict=True)), counts, strict=False)
        # If a batch has fewer samples than there are processes, every process has all of them.
        ids = [sample_id for rank_ids, count in streams for sample_id in islice(rank_ids, count)]
        run.metrics_log.flush(run.clock, {**_memory_in_use(run), "sample_ids": ids})
        self._ids = []  # a skipped batch has no before_step


def _memory_in_use(run: Run) -> dict[str, float]:
    """Return memory use in MB (2**20 bytes).

    ``memory/host_mb``: resident memory of this process (Linux only). ``memory/device_mb``: on CUDA the peak memory of
    tensors so far, on MPS the memory that the driver has allocated.
    """
    device = next(run.task.parameters()).device
    values = {}
    with suppress(OSError):  # not Linux
        pages = int(Path("/proc/self/statm").read_bytes().split()[1])
        values["memory/host_mb"] = pages * os.sysconf("SC_PAGE_SIZE") / _MB
    if device.type == "cuda":
        values["memory/device_mb"] = torch.cuda.max_memory_allocated(device) / _MB
    elif device.type == "mps":
        values["memory/device_mb"] = torch.mps.driver_allocated_memory() / _MB
    return values
