"""The progress of a run while it trains: the bar, and the estimate of the time left (ETA).

:mod:`opabinia.runtime.progress` draws bars of all commands; the terminal's logger has the texts of losses and scores.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import torch

from opabinia.contracts import Clock, Hook, Phase, Run
from opabinia.engine.loggers.terminal import bar_metrics
from opabinia.runtime.durations import Duration, format_seconds
from opabinia.runtime.log import log
from opabinia.runtime.progress import format_speed, progress_bar, shows_progress_bars
from opabinia.runtime.resources import peak_memory

_MIN_STEPS, _MIN_SECONDS = 20, 3.0
"""Measurements needed for an estimate."""
_MAX_WAIT = 60.0
"""Seconds of steps after which the estimate no longer waits for an evaluation."""


def seconds_left(clock: Clock, step: float, evaluations: Mapping[str, float], periods: Mapping[str, Duration]) -> float:
    """Estimate the seconds to the end of a run.

    Args:
        clock: now.
        step: seconds of a step.
        evaluations: seconds of an evaluation by validation set; sets that were not measured are not counted.
        periods: periods of the evaluations of each set.

    Example: 100 steps of 0.5 s with an evaluation of 2 s after every 30 take 58 s: there is one at the end, too.
    """
    left = clock.total_steps - clock.step
    return left * step + sum(seconds * _evaluations_left(clock, periods[name]) for name, seconds in evaluations.items())


def _evaluations_left(clock: Clock, period: Duration) -> int:
    """Count the evaluations until the end, including that at the end."""
    if clock.step >= clock.total_steps:
        return 0
    length = clock.steps(period) or clock.total_steps
    return math.ceil(clock.total_steps / length) - clock.step // length


class Eta(Hook):
    """Logs the estimate once: after the first evaluation, or after a minute of steps; never in a run that is over
    before there are enough measurements. The first step, in which workers start and modules are compiled, is not
    counted.

    Args:
        device: device of the run.
        periods: periods of the evaluations, by validation set.
    """

    def __init__(self, device: torch.device, periods: Mapping[str, Duration]) -> None:
        self._device, self._periods = device, periods
        self._logged = False
        self._first: tuple[float, int] | None = None  # time and number of the first step
        self._phase_started = 0.0
        self._evaluations: dict[str, float] = {}
        self._evaluating = 0.0

    def before_phase(self, run: Run, phase: Phase) -> None:
        """Record the time."""
        self._phase_started = time.monotonic()

    def after_step(self, run: Run) -> None:
        """Log the estimate after a minute, if no evaluation comes first."""
        if self._first is None:
            self._first = time.monotonic(), run.clock.step
        elif not self._logged and self._training_time > _MAX_WAIT and not run.clock.phase_ended:
            self._log(run.clock)

    def after_phase(self, run: Run, phase: Phase) -> None:
        """Record the time of an evaluation; log at the end of an epoch, after its evaluations."""
        if phase.kind == "evaluate":
            seconds = time.monotonic() - self._phase_started
            self._evaluations[phase.name] = seconds
            self._evaluating += seconds if self._first is not None else 0.0
        elif self._evaluations or self._training_time > _MAX_WAIT or not self._periods:
            self._log(run.clock)

    @property
    def _training_time(self) -> float:
        """Seconds since the first step, without evaluations."""
        return 0.0 if self._first is None else time.monotonic() - self._first[0] - self._evaluating

    def _measured_steps(self, clock: Clock) -> int:
        return clock.step - self._first[1] if self._first is not None else 0

    def seconds_left(self, clock: Clock) -> float | None:
        """Estimate the seconds to the end of the run; None before two steps."""
        steps = self._measured_steps(clock)
        if not steps:
            return None
        return seconds_left(clock, self._training_time / steps, self._evaluations, self._periods)

    def _log(self, clock: Clock) -> None:
        too_early = self._measured_steps(clock) < _MIN_STEPS or self._training_time < _MIN_SECONDS
        left = self.seconds_left(clock)
        if self._logged or too_early or left is None or clock.step >= clock.total_steps:
            return
        self._logged = True
        included = ""
        if self._periods:
            included = ", without evaluations (there was none yet)"
            if self._evaluations:
                included = f", including evaluations ({sum(self._evaluations.values()):.2g} s for all sets)"
        memory = f"{peak_memory() / 2**30:.3g} GB (host)"
        if self._device.type == "cuda":
            memory += f", {torch.cuda.max_memory_allocated(self._device) / 2**30:.3g} GB (device)"
        log.info("ETA: about %s%s; peak memory %s", format_seconds(left), included, memory)


class TrainingBar(Hook):
    """Shows the steps of a run on the terminal, and the values of its newest line of the metrics log. A log that is no
    terminal gets a line after the first step, and after 20 seconds without a line: with the values of the newest step
    that are on the host anyway. Nothing is read from the device.

    Args:
        eta: estimates the time left.
    """

    def __init__(self, eta: Eta) -> None:
        self._eta, self._shown = eta, ExitStack()
        self._has_bar = False
        self._speed: str = ""
        self._line: dict[str, Any] = {}

    def start(self, run: Run) -> None:
        """Show the bar. Not before: a run that is refused does not touch the terminal."""
        clock = run.clock
        self._bar = self._shown.enter_context(progress_bar("train", clock.total_steps, completed=clock.step, unit="it"))
        self._has_bar = shows_progress_bars()
        self._bar.next_line_in(0)

    def after_step(self, run: Run) -> None:
        """Move the bar; show the values of a line that was just written."""
        line = run.metrics_log.newest
        if line is not None and line["step"] == run.clock.step and "time/step" in line:
            self._speed = format_speed(line.get("samples_per_s", 0.0), "samples")
            self._line = line
            self._bar.next_line_in()  # the logger of the terminal has printed it
        if self._bar.is_due:  # most steps cost nothing
            self._move(run)

    def finish(self, run: Run, how: str | BaseException) -> None:
        """Leave the bar at the last step, and restore the terminal."""
        if self._has_bar:
            self._move(run)
        self._shown.close()

    def _move(self, run: Run) -> None:
        clock, line = run.clock, self._line
        if not self._has_bar:
            line = {**line, "epoch": clock.epochs_done, **run.metrics_log.host_values()}
        left, metrics = self._eta.seconds_left(clock), bar_metrics(line) if "lr" in line else []
        self._bar.update(clock.step, speed=self._speed, seconds_left=left, metrics=metrics)
