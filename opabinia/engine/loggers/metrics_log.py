"""The metrics log of a run: scalars of steps and evaluations become lines of ``metrics.jsonl`` and go to the loggers.

Scalars of a step stay on the device until a line is due; then all of them are copied to the host at once, the only time
that logging waits for the device. A line holds the mean over the steps since the previous line, so every measured value
is in exactly one line.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from opabinia.contracts import Clock, Logger
from opabinia.engine.loop.nonfinite import GRAD_NORM, NonFiniteError
from opabinia.runtime.files import disk_errors
from opabinia.runtime.log import log
from opabinia.runtime.processes import all_gather


def to_json_numbers(values: Mapping[str, Any]) -> dict[str, float | str]:
    """Return the numbers with infinities and NaN, which JSON cannot represent, as strings."""
    return {name: value if math.isfinite(value) else str(float(value)) for name, value in values.items()}


def from_json_numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    """Invert :func:`to_json_numbers`."""
    return {name: float(value) if isinstance(value, str) else value for name, value in values.items()}


@dataclass(slots=True)
class _Entry:
    """The scalars of one step."""

    step: int
    values: dict[str, Any]
    ids: Sequence[Any] = ()


_SKIPPED = "train/skipped"
"""1 for an update that was skipped because its losses or gradients were not finite."""
_OF_SKIPPED_STEPS = ("lr", _SKIPPED, "samples", "time/data", "time/step", "time/read")
"""The scalars that count for skipped steps, too."""


class MetricsLogger:
    """The metrics log of a training run (see :class:`opabinia.contracts.MetricsLog`).

    Args:
        path: the file; None writes none (rank 0 does).
        loggers: receive every line as it is written.

    Attributes:
        newest: the last line written.
    """

    def __init__(self, path: Path | None, loggers: Sequence[Logger] = ()) -> None:
        self.path, self.loggers = path, list(loggers)
        self._pending: list[_Entry] = []
        self._collected = 0  # entries of _pending that hold floats, the same on all processes
        self._end: int | None = None
        self._file = None
        self.newest: dict[str, Any] | None = None
        if path is not None:
            with disk_errors(path):
                self._file = path.open("ab")

    def add(self, step: int, values: Mapping[str, Tensor | float], ids: Sequence[Any] = ()) -> None:
        """Add values of one step, without waiting for the device.

        Args:
            step: optimizer steps done.
            values: values of this process, by full name; a line has their mean over processes, of times the maximum.
            ids: ids of the samples of the step, for an error that names them.
        """
        values = {name: value.detach() if isinstance(value, Tensor) else value for name, value in values.items()}
        if len(self._pending) > self._collected and self._pending[-1].step == step:
            self._pending[-1].values.update(values)
        else:
            self._pending.append(_Entry(step, values, ids))

    def host_values(self) -> dict[str, float]:
        """Return the pending values of the newest step that are in memory of the host, of this process."""
        values = self._pending[-1].values if self._pending else {}
        on_host = (item for item in values.items() if not isinstance(item[1], Tensor) or item[1].device.type == "cpu")
        return {name: float(value) for name, value in on_host}

    def collect(self) -> None:
        """Copy pending values to the host, once per device, and combine those of all processes. All must call it.

        Raises:
            NonFiniteError: a loss, or the norm of gradients that are used, is infinite or NaN.
        """
        entries = self._pending[self._collected :]
        self._copy_to_host(entries)
        rank_values = [entry.values for entry in entries]
        ranks = all_gather(rank_values)
        if len(ranks) > 1:
            for entry, values_by_rank in zip(entries, zip(*ranks, strict=True), strict=True):
                entry.values = _combine_ranks(values_by_rank)
        for entry, values in zip(entries, rank_values, strict=True):
            if _non_finite(entry.values):
                raise NonFiniteError.from_all_ranks(entry.step, _non_finite(values), entry.ids)
        self._collected = len(self._pending)

    def _copy_to_host(self, entries: Sequence[_Entry]) -> None:
        by_device: dict[torch.device, list[Tensor]] = {}
        for entry in entries:
            for value in entry.values.values():
                if type(value) is not float and isinstance(value, Tensor):  # the first is faster, and mostly enough
                    by_device.setdefault(value.device, []).append(value.detach().float())
        if not by_device:
            return
        started = time.perf_counter()
        numbers = {device: iter(torch.stack(scalars).tolist()) for device, scalars in by_device.items()}
        # Here the host waits for the GPU to complete the steps: add that time to them.
        waited = (time.perf_counter() - started) / max(1, len(entries))
        for entry in entries:
            for name, value in entry.values.items():
                if isinstance(value, Tensor):
                    entry.values[name] = next(numbers[value.device])
            if "time/step" in entry.values:
                entry.values["time/step"] += waited

    def flush(self, clock: Clock, extra: Mapping[str, Any] | None = None) -> None:
        """Write the pending steps as one line: means, but the newest value of ``lr``."""
        if not self._pending:
            return
        self.collect()
        columns: defaultdict[str, list[float]] = defaultdict(list)
        for entry in self._pending:
            skipped = entry.values.get(_SKIPPED)
            for name, value in entry.values.items():
                if not skipped or name in _OF_SKIPPED_STEPS:
                    columns[name].append(float(value))
        line = {name: _mean(column) for name, column in columns.items()}
        if "lr" in columns:
            line["lr"] = columns["lr"][-1]
        samples = line.pop("samples", 0.0)
        if seconds := line.get("time/step"):
            line["samples_per_s"] = samples / seconds
        self._pending.clear()
        self._collected = 0
        if skipped := round(sum(columns.get(_SKIPPED, ()))):
            log.warning("%d of the updates before step %d were skipped", skipped, clock.step + 1)
        self.write(clock, {**line, **(extra or {})})

    def write(self, clock: Clock, values: Mapping[str, Any]) -> None:
        """Write one line now.

        Raises:
            DiskError: the file cannot be written.
        """
        self._truncate()
        line = {"step": clock.step, "epoch": round(clock.epochs_done, 6), "samples": clock.samples, **values}
        line = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in line.items()}
        if self._file is not None and self.path is not None:
            with disk_errors(self.path):
                self._file.write((json.dumps(line, allow_nan=False) + "\n").encode())
                self._file.flush()
        self.newest = line
        for logger in self.loggers:
            logger.write(line)

    def state_dict(self) -> dict[str, Any]:
        """Return the length of the file, flushed to the disk, and the pending values. All processes must call it."""
        self.collect()
        self._truncate()
        offset = 0
        if self._file is not None and self.path is not None:
            with disk_errors(self.path):
                os.fsync(self._file.fileno())
            offset = self._file.tell()
        pending = [[entry.step, to_json_numbers(entry.values)] for entry in self._pending]
        return {"offset": offset, "pending": pending}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the pending values; the next line truncates the file to its saved length."""
        self._end = int(state["offset"])
        self._pending = [_Entry(step, from_json_numbers(values)) for step, values in state["pending"]]
        self._collected = len(self._pending)

    def _truncate(self) -> None:
        """Drop lines written after the checkpoint was saved. Not at once: the resumed run may still be refused."""
        end, self._end = self._end, None
        if end is None or self._file is None or self.path is None:
            return
        with disk_errors(self.path):
            # Truncating a file that is shorter, or was lost, would fill it with zeros.
            if self._file.seek(0, os.SEEK_END) < end:
                log.warning("%s is shorter than when the checkpoint was saved: lines are missing", self.path)
            else:
                self._file.truncate(end)
                self._file.seek(0, os.SEEK_END)

    def close(self) -> None:
        """Close the file and the loggers. Closing again does nothing."""
        loggers, self.loggers = self.loggers, []
        for logger in loggers:
            logger.close()
        file, self._file = self._file, None
        if file is not None:
            # Lines are flushed as they are written: an unwritten one has raised its error before.
            with suppress(OSError):
                file.close()


def _non_finite(values: Mapping[str, float]) -> dict[str, float]:
    """Return the values that must be finite and are not. Gradients may overflow in fp16, skipped steps are excluded."""
    if values.get(_SKIPPED) or math.isfinite(sum(values.values())):  # the sum is finite only if every term is
        return {}
    wrong = {name: value for name, value in values.items() if "loss" in name and not math.isfinite(value)}
    if "train/loss_scale" not in values and not math.isfinite(values.get(GRAD_NORM, 0.0)):
        wrong[GRAD_NORM] = values[GRAD_NORM]
    return wrong


def _combine_ranks(ranks: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Combine the values of one step: the maximum of times, means of all else; a missing value counts as 0."""
    first = ranks[0]
    if all(other == first for other in ranks):
        return dict(first)
    combined = {}
    for name in dict.fromkeys(name for values in ranks for name in values):
        column = [values.get(name, 0.0) for values in ranks]
        if name.startswith("time/"):
            combined[name] = max(column)
        else:
            # The mean of equal numbers may differ in its last bit.
            combined[name] = column[0] if all(value == column[0] for value in column) else _mean(column)
    return combined


def _mean(values: Sequence[float]) -> float:
    try:
        return math.fsum(values) / len(values)
    except (OverflowError, ValueError):  # infinities of both signs have no sum
        return sum(values) / len(values)
