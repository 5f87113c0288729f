"""Tells early in a run what its steps wait for, data, host or device, and what would change that."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from opabinia.contracts import Batch, Hook, Phase, Run
from opabinia.runtime.log import log
from opabinia.runtime.resources import cores

SPARE = 1.25
"""Times as many workers as would just keep up: some batches take longer to read."""
MUCH = 0.1
"""The share of a step from which on waiting for data is worth a word."""
BUSY = 0.3
"""The share of steps that a GPU is behind with from which on it is what is waited for: after every line it catches up
and the host begins to run ahead anew."""
_STEPS, _SECONDS, _LONG = 20, 3.0, 300.0
"""What there must be to go by, and after how long it is told in the middle of an epoch."""


@dataclass(frozen=True)
class Pace:
    """Where the time of a step goes, in seconds; on many processes that of the slowest.

    Attributes:
        step: the whole of it.
        data: that it waited for its batch.
        read: that reading a batch takes in the process that reads it.
        workers: that read; 0: the process itself.
        cores: for this process and its workers.
        behind: the share of steps that a GPU had not begun when the host had given it all of their work; None on the
            CPU.
    """

    step: float
    data: float
    read: float
    workers: int
    cores: int
    behind: float | None = None

    @property
    def computing(self) -> float:
        """Seconds of a step without waiting for data."""
        return max(self.step - self.data, 1e-9)

    @property
    def waits_for(self) -> str:
        """``data``, ``host`` or ``device``; on the CPU, where both are one, ``device``."""
        if self.data > MUCH * self.step:
            return "data"
        return "host" if self.behind is not None and self.behind < BUSY else "device"


def workers_needed(read: float, step: float) -> int:
    """How many workers keep up where reading a batch takes ``read`` seconds and learning from it ``step``; 0 where
    reading hardly counts."""
    return 0 if read <= 0.02 * step else math.ceil(SPARE * read / step)


def describe_bottleneck(pace: Pace, cheaper: Sequence[str] = (), faster: Sequence[str] = ()) -> str:
    """What a run waits for, and what would change that, as a line for people.

    Args:
        pace: where the time goes.
        cheaper: settings that would make reading a batch cheaper.
        faster: settings that would make a step faster on the device.

    Example: ``describe_bottleneck(Pace(0.4, 0.3, 0.4, 1, 8))`` says that 5 workers would keep up.
    """
    return {"data": _of_data, "host": _of_host, "device": _of_device}[pace.waits_for](pace, cheaper, faster)


def _of_data(pace: Pace, cheaper: Sequence[str], faster: Sequence[str]) -> str:
    readers = f"{pace.workers} worker{'s' * (pace.workers > 1)}" if pace.workers else "the process that trains"
    text = (
        f"waited for data {pace.data / pace.step:.0%} of the time (reading a batch takes {pace.read:.2g} s in "
        f"{readers}, learning from it {pace.computing:.2g} s): "
    )
    needed = max(1, workers_needed(pace.read, pace.computing))
    has = f"each process has {pace.cores} core{'s' * (pace.cores > 1)}"
    others = f"; so might {_either(cheaper)}" if cheaper else ""
    if needed > pace.workers and needed <= pace.cores:
        return f"{text}data.workers: {needed} would keep up ({has}){others}"
    if pace.workers < pace.cores:
        return f"{text}data.workers: {pace.cores} would help ({has}, {needed} would keep up){others}"
    less = _either(cheaper) if cheaper else "smaller files or a faster disk"
    return f"{text}{has}, all of them busy: make reading cheaper ({less})"


def _of_host(pace: Pace, cheaper: Sequence[str], faster: Sequence[str]) -> str:
    text = f"the device waits for the host, which needs {pace.computing:.2g} s to start a step's work: "
    return f"{text}a larger data.batch_size costs hardly more time" + (
        "; train.compile: true starts less" if "train.compile: true" in faster else ""
    )


def _of_device(pace: Pace, cheaper: Sequence[str], faster: Sequence[str]) -> str:
    text = f"steps take {pace.computing / pace.step:.0%} of the time, and reading a batch ({pace.read:.2g} s) keeps up"
    return f"{text}: {_either(faster)} may make steps shorter" if faster and pace.behind is not None else text


def _either(settings: Sequence[str]) -> str:
    return settings[0] if len(settings) == 1 else ", ".join(settings[:-1]) + f" or {settings[-1]}"


class Bottleneck(Hook):
    """Tells once, at the end of an epoch, or after some minutes of a long one, what steps wait for; never in a run that
    is over before there is enough to go by. The numbers are those of the journal's lines; the first line is left out:
    in it workers start and modules are compiled.

    Args:
        workers: that read for this process.
        cheaper, faster: see :func:`describe_bottleneck`.
    """

    def __init__(self, workers: int, cheaper: Sequence[str] = (), faster: Sequence[str] = ()) -> None:
        self._workers, self._cheaper, self._faster = workers, cheaper, faster
        self._told, self._steps = False, 0
        self._line: Mapping[str, Any] | None = None
        self._before: int | None = None
        self._sums = dict.fromkeys(("time/step", "time/data", "time/read"), 0.0)
        self._queue: _Queue | None = None

    def start(self, run: Run) -> None:
        """Begin to count."""
        device = next(run.task.parameters()).device
        self._queue = _Queue() if device.type == "cuda" else None

    def before_step(self, run: Run, batch: Batch) -> None:
        """Mark the beginning of the step on the device."""
        if self._queue is not None and not self._told:
            self._queue.begin()

    def after_step(self, run: Run) -> None:
        """Take in the newest line."""
        if self._told:
            return
        if self._queue is not None:
            self._queue.end()
        self._take(run)
        if self._sums["time/step"] > _LONG:
            self._tell()

    def after_phase(self, run: Run, phase: Phase) -> None:
        """An epoch is over."""
        if not self._told and self._steps >= _STEPS and self._sums["time/step"] >= _SECONDS:
            self._tell()

    def _take(self, run: Run) -> None:
        line = run.metrics_log.newest
        if line is self._line or line is None or "time/step" not in line:
            return
        self._line, before, self._before = line, self._before, line["step"]
        if before is not None:
            self._steps += line["step"] - before
            for name in self._sums:
                self._sums[name] += line[name] * (line["step"] - before)

    def _tell(self) -> None:
        self._told = True
        step, data, read = (seconds / self._steps for seconds in self._sums.values())
        behind = self._queue.behind if self._queue is not None else None
        log.info(
            "%s",
            describe_bottleneck(Pace(step, data, read, self._workers, cores(), behind), self._cheaper, self._faster),
        )


class _Queue:
    """How often a GPU is behind: whether it has begun a step when the host has given it all of it. Nobody waits."""

    def __init__(self) -> None:
        self._mark: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._steps = self._late = 0

    def begin(self) -> None:
        self._mark.record()

    def end(self) -> None:
        self._steps += 1
        self._late += not self._mark.query()

    @property
    def behind(self) -> float:
        """The share of steps that it had not begun."""
        return self._late / max(1, self._steps)
