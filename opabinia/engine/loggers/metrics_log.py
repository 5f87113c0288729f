"""Scalars in, lines out: ``metrics.jsonl`` and the writers.

Numbers of a step stay on the device until a line is due; then all of them cross in one copy. A line holds the
mean over the steps since the line before, so every value measured is in exactly one line.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from opabinia.contracts import Clock, Logger
from opabinia.engine.loop.nonfinite import GRADIENTS, NonFinite
from opabinia.runtime.files import disk_errors
from opabinia.runtime.log import log
from opabinia.runtime.processes import gather


def told_in_json(values: Mapping[str, Any]) -> dict[str, float | str]:
    """Numbers by name; JSON has no words for infinities (a gradient's norm, say) and NaN, so they become text."""
    return {name: value if math.isfinite(value) else str(float(value)) for name, value in values.items()}


def read_from_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """Undo :func:`told_in_json`."""
    return {name: float(value) if isinstance(value, str) else value for name, value in values.items()}


@dataclass(slots=True)
class _Entry:
    """What was measured in one step."""

    step: int
    values: dict[str, Any]
    ids: Sequence[Any] = ()


_SHARES = ("samples", "time/data", "time/step", "time/read")
"""Times and samples are shares of a sum: of them the mean alone tells the pace."""
_SKIPPED = "train/skipped"
"""1 for an update that was left out because its numbers are not finite."""
_OF_EVERY_STEP = ("lr", _SKIPPED, *_SHARES)


class MetricsLogger:
    """The numbers of a run.

    Args:
        path: the file; None to write none (another process does).
        writers: get every line as it is written.
        by: "mean" or "median", what a line holds of the values of its steps.

    Attributes:
        newest: the line written last.
    """

    def __init__(self, path: Path | None, writers: Sequence[Logger] = (), by: str = "mean") -> None:
        self._middle: Callable[[Sequence[float]], float] = median if by == "median" else _mean
        self.path, self.writers = path, list(writers)
        self._pending: list[_Entry] = []
        self._settled = 0
        self._end: int | None = None
        self._file = None
        self.newest: dict[str, Any] | None = None
        if path is not None:
            with disk_errors(path):
                self._file = path.open("ab")

    def add(self, step: int, values: Mapping[str, Tensor | float], ids: Sequence[Any] = ()) -> None:
        """Note values of one step under their full names; no waiting for the device.

        Args:
            step: optimizer steps done.
            values: of this process; a line has their mean over processes, of times the longest.
            ids: of its samples, for an error that names them.
        """
        values = {name: value.detach() if isinstance(value, Tensor) else value for name, value in values.items()}
        if len(self._pending) > self._settled and self._pending[-1].step == step:
            self._pending[-1].values.update(values)
        else:
            self._pending.append(_Entry(step, values, ids))

    def settle(self) -> None:
        """Bring pending values to the host, in one copy for each device, and those of all processes together.

        Raises:
            NonFinite: a loss, or the norm of gradients that are used, is infinite or not a number.
        """
        fresh = self._pending[self._settled :]
        self._bring_to_host(fresh)
        own = [entry.values for entry in fresh]
        everybody = gather(own)
        if len(everybody) > 1:
            for entry, processes in zip(fresh, zip(*everybody, strict=True), strict=True):
                entry.values = _together(processes)
        for entry, values in zip(fresh, own, strict=True):
            if _wrong(entry.values):
                raise NonFinite.of(entry.step, _wrong(values), entry.ids)
        self._settled = len(self._pending)

    def _bring_to_host(self, entries: Sequence[_Entry]) -> None:
        by_device: dict[torch.device, list[Tensor]] = {}
        tensors = [value for entry in entries for value in entry.values.values() if isinstance(value, Tensor)]
        if not tensors:
            return
        for tensor in tensors:
            by_device.setdefault(tensor.device, []).append(tensor.detach().float())
        began = time.perf_counter()
        numbers = {device: iter(torch.stack(of_device).tolist()) for device, of_device in by_device.items()}
        # Here the host waits for the steps to be really done; that time is theirs.
        waited = (time.perf_counter() - began) / max(1, len(entries))
        for entry in entries:
            for name, value in entry.values.items():
                if isinstance(value, Tensor):
                    entry.values[name] = next(numbers[value.device])
            if "time/step" in entry.values:
                entry.values["time/step"] += waited

    def flush(self, clock: Clock, extra: Mapping[str, Any] | None = None) -> None:
        """Write the pending steps as one line: means (or medians), but the newest value of ``lr``."""
        if not self._pending:
            return
        self.settle()
        columns: defaultdict[str, list[float]] = defaultdict(list)
        for entry in self._pending:
            skipped = entry.values.get(_SKIPPED)
            for name, value in entry.values.items():
                # What a step said whose update was left out is no part of a mean.
                if not skipped or name in _OF_EVERY_STEP:
                    columns[name].append(float(value))
        means = {name: (_mean if name in _SHARES else self._middle)(column) for name, column in columns.items()}
        if "lr" in columns:
            means["lr"] = columns["lr"][-1]
        samples = means.pop("samples", 0.0)
        if seconds := means.get("time/step"):
            means["samples_per_s"] = samples / seconds
        self._pending.clear()
        self._settled = 0
        if skipped := round(sum(columns.get(_SKIPPED, ()))):
            log.warning("%d of the updates before step %d were left out", skipped, clock.step + 1)
        self.write(clock, {**means, **(extra or {})})

    def write(self, clock: Clock, values: Mapping[str, Any]) -> None:
        """Write one line at once.

        Raises:
            DiskError: the file cannot be written.
        """
        self._cut_back()
        line = {"step": clock.step, "epoch": round(clock.epochs_done, 6), "samples": clock.samples, **values}
        line = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in line.items()}
        if self._file is not None and self.path is not None:
            with disk_errors(self.path):
                self._file.write((json.dumps(line, allow_nan=False) + "\n").encode())
                self._file.flush()
        self.newest = line
        for writer in self.writers:
            writer.write(line)

    def state_dict(self) -> dict[str, Any]:
        """Where the file ends, safely on the disk, and the pending values."""
        self.settle()
        self._cut_back()
        offset = 0
        if self._file is not None and self.path is not None:
            with disk_errors(self.path):
                os.fsync(self._file.fileno())
            offset = self._file.tell()
        pending = [[entry.step, told_in_json(entry.values)] for entry in self._pending]
        return {"offset": offset, "pending": pending}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up the values that were pending; with the next line the file is cut back to where it ended then."""
        self._end = int(state["offset"])
        self._pending = [_Entry(step, read_from_json(values)) for step, values in state["pending"]]
        self._settled = len(self._pending)

    def _cut_back(self) -> None:
        """Forget lines behind the checkpoint that was resumed. Not before the run goes on: it may still be refused."""
        end, self._end = self._end, None
        if end is None or self._file is None or self.path is None:
            return
        with disk_errors(self.path):
            # Cutting a file that is shorter, or was lost, would fill it with zeros.
            if self._file.seek(0, os.SEEK_END) < end:
                log.warning("%s is shorter than when the checkpoint was saved: lines are missing", self.path)
            else:
                self._file.truncate(end)
                self._file.seek(0, os.SEEK_END)

    def close(self) -> None:
        """Close the file and the writers. Closing again does nothing."""
        writers, self.writers = self.writers, []
        for writer in writers:
            writer.close()
        file, self._file = self._file, None
        if file is not None:
            # Lines are flushed as they are written: what is left is one that could not be, and that was told.
            with suppress(OSError):
                file.close()


def _wrong(values: Mapping[str, float]) -> dict[str, float]:
    """What must be finite and is not; fp16's gradients may overflow, and an update may have been left out for it."""
    if values.get(_SKIPPED) or math.isfinite(sum(values.values())):  # in a sum nothing that is not finite gets lost
        return {}
    wrong = {name: value for name, value in values.items() if "loss" in name and not math.isfinite(value)}
    if "train/loss_scale" not in values and not math.isfinite(values.get(GRADIENTS, 0.0)):
        wrong[GRADIENTS] = values[GRADIENTS]
    return wrong


def _together(processes: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The values of one step on all processes: the longest times, means of all else; what one lacks it has 0 of."""
    first = processes[0]
    if all(other == first for other in processes):
        return dict(first)
    names = dict.fromkeys(name for process in processes for name in process)
    columns = {name: [process.get(name, 0.0) for process in processes] for name in names}
    return {name: _of_all(name, column) for name, column in columns.items()}


def _of_all(name: str, column: Sequence[float]) -> float:
    if name.startswith("time/"):
        return max(column)
    # A mean of equal numbers may have another last bit.
    return column[0] if all(value == column[0] for value in column) else _mean(column)


def _mean(values: Sequence[float]) -> float:
    try:
        return math.fsum(values) / len(values)
    except (OverflowError, ValueError):  # infinities of both signs have no sum
        return sum(values) / len(values)
