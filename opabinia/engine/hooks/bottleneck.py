"""The hook that logs what limits the throughput, data, host or device, and which settings would help."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from opabinia.contracts import Batch, Hook, Phase, Run
from opabinia.runtime.log import log
from opabinia.runtime.resources import cores
from opabinia.runtime.text import plural

WORKER_MARGIN = 1.25
"""Workers to use, as a multiple of those that just keep up: some batches take longer to read."""
DATA_BOUND = 0.1
"""If waiting for data takes more than this share of a step, data is the bottleneck."""
DEVICE_BOUND = 0.3
"""If the host runs ahead of the GPU in at least this share of steps, the GPU is the bottleneck. It is not 1, because
the GPU catches up whenever the metrics log writes a line."""
_MIN_STEPS, _MIN_SECONDS, _LONG_EPOCH_SECONDS = 20, 3.0, 300.0
"""Measurements needed for a report; after the last one it is logged in the middle of an epoch."""


@dataclass(frozen=True)
class StepTimes:
    """Mean time of a step in seconds; with several processes that of the slowest.

    Attributes:
        step: in all.
        data: waiting for the batch.
        read: reading a batch, in the process that reads it.
        workers: number of data loading workers; 0: the training process reads.
        cores: CPU cores for this process and its workers.
        queued_share: share of steps that a GPU had not started when the host had launched them; None on the CPU.
    """

    step: float
    data: float
    read: float
    workers: int
    cores: int
    queued_share: float | None = None

    @property
    def computing(self) -> float:
        """Seconds of a step without waiting for data."""
        return max(self.step - self.data, 1e-9)

    @property
    def waits_for(self) -> str:
        """The bottleneck: ``data``, ``host`` or ``device`` (on the CPU, where both are one)."""
        if self.data > DATA_BOUND * self.step:
            return "data"
        return "host" if self.queued_share is not None and self.queued_share < DEVICE_BOUND else "device"


def workers_needed(read: float, step: float) -> int:
    """Return the number of workers that keep up, if reading a batch takes ``read`` seconds and training on it ``step``;
    0 if reading hardly counts."""
    return 0 if read <= 0.02 * step else math.ceil(WORKER_MARGIN * read / step)


def describe_bottleneck(times: StepTimes, cheaper_reading: Sequence[str] = (), faster_steps: Sequence[str] = ()) -> str:
    """Describe the bottleneck, and what would help, for the log.

    Args:
        times: times of a step.
        cheaper_reading: settings that would make reading a batch cheaper.
        faster_steps: settings that would make a step faster on the device.

    Example: ``describe_bottleneck(StepTimes(0.4, 0.3, 0.4, 1, 8))`` says that 5 workers would keep up.
    """
    if times.waits_for == "data":
        return _data_bound(times, cheaper_reading)
    if times.waits_for == "host":
        launches = "; train.compile: true launches fewer kernels" if "train.compile: true" in faster_steps else ""
        return (
            f"the device waits for the host, which needs {times.computing:.2g} s to launch a step: "
            f"a larger data.batch_size takes hardly more time{launches}"
        )
    text = (
        f"steps take {times.computing / times.step:.0%} of the time, and reading a batch ({times.read:.2g} s) keeps up"
    )
    on_gpu = times.queued_share is not None
    return f"{text}: {_join_or(faster_steps)} may make steps faster" if faster_steps and on_gpu else text


def _data_bound(times: StepTimes, cheaper_reading: Sequence[str]) -> str:
    readers = plural(times.workers, "worker") if times.workers else "the training process"
    text = (
        f"waited for data {times.data / times.step:.0%} of the time (reading a batch takes {times.read:.2g} s in "
        f"{readers}, training on it {times.computing:.2g} s): "
    )
    needed = max(1, workers_needed(times.read, times.computing))
    has = f"each process has {plural(times.cores, 'core')}"
    others = f"; so might {_join_or(cheaper_reading)}" if cheaper_reading else ""
    if needed > times.workers and needed <= times.cores:
        return f"{text}data.num_workers: {needed} would keep up ({has}){others}"
    if times.workers < times.cores:
        return f"{text}data.num_workers: {times.cores} would help ({has}, {needed} would keep up){others}"
    advice = _join_or(cheaper_reading) if cheaper_reading else "smaller files or a faster disk"
    return f"{text}{has}, all of them busy: make reading cheaper ({advice})"


def _join_or(settings: Sequence[str]) -> str:
    return settings[0] if len(settings) == 1 else ", ".join(settings[:-1]) + f" or {settings[-1]}"


class Bottleneck(Hook):
    """Logs the bottleneck once, at the end of an epoch or after some minutes of a long one; never in a run that is over
    before there are enough measurements. They are those of the metrics log without its first line, in which workers
    start and modules are compiled.

    Args:
        workers: data loading workers of this process.
        cheaper_reading, faster_steps: see :func:`describe_bottleneck`.
    """

    def __init__(self, workers: int, cheaper_reading: Sequence[str] = (), faster_steps: Sequence[str] = ()) -> None:
        self._workers, self._cheaper_reading, self._faster_steps = workers, cheaper_reading, faster_steps
        self._logged, self._steps = False, 0
        self._line: Mapping[str, Any] | None = None
        self._seconds = dict.fromkeys(("time/step", "time/data", "time/read"), 0.0)
        self._step_start: Any = None
        self._launched = self._queued = 0

    def start(self, run: Run) -> None:
        """Prepare for the device."""
        if next(run.task.parameters()).device.type == "cuda":
            self._step_start = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def before_step(self, run: Run, batch: Batch) -> None:
        """Mark the start of the step on the GPU."""
        if self._step_start is not None and not self._logged:
            self._step_start.record()

    def after_step(self, run: Run) -> None:
        """Add the newest line. Count the steps that a GPU has not started when the host has launched all of their work;
        nothing waits for it."""
        if self._logged:
            return
        if self._step_start is not None:
            self._launched += 1
            self._queued += not self._step_start.query()
        line = run.metrics_log.newest
        if line is not None and line is not self._line and "time/step" in line:
            previous, self._line = self._line, line
            if previous is not None:
                steps = line["step"] - previous["step"]
                self._steps += steps
                for name in self._seconds:
                    self._seconds[name] += line[name] * steps
        if self._seconds["time/step"] > _LONG_EPOCH_SECONDS:
            self._log()

    def after_phase(self, run: Run, phase: Phase) -> None:
        """Log, if there are enough measurements."""
        if not self._logged and self._steps >= _MIN_STEPS and self._seconds["time/step"] >= _MIN_SECONDS:
            self._log()

    def _log(self) -> None:
        self._logged = True
        step, data, read = (seconds / self._steps for seconds in self._seconds.values())
        queued_share = self._queued / max(1, self._launched) if self._step_start is not None else None
        times = StepTimes(step, data, read, self._workers, cores(), queued_share)
        log.info("%s", describe_bottleneck(times, self._cheaper_reading, self._faster_steps))
