"""Tells early in a run how long it will take to its end, and how much memory it has taken."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

import torch

from opabinia.contracts import Clock, Hook, Phase, Run
from opabinia.runtime.durations import Duration, clock_time
from opabinia.runtime.log import log
from opabinia.runtime.resources import peak_memory

_STEPS, _SECONDS = 20, 3.0
"""What there must be to go by."""
_PATIENCE = 60.0
"""Seconds of steps after which it is told without an evaluation, too."""


def seconds_left(clock: Clock, step: float, evaluations: Mapping[str, float], periods: Mapping[str, Duration]) -> float:
    """Seconds to the end of a run.

    Args:
        clock: now.
        step: seconds that one takes.
        evaluations: seconds of one of each set, by name; those that were not measured are left out.
        periods: of the evaluations of each set.

    Example: 100 steps of 0.5 s with an evaluation of 2 s after every 30 are 58 s: the end is evaluated, too.
    """
    left = clock.total_steps - clock.step
    return left * step + sum(seconds * _to_come(clock, periods[name]) for name, seconds in evaluations.items())


def _to_come(clock: Clock, period: Duration) -> int:
    """Evaluations until the end, that at the end included."""
    if clock.step >= clock.total_steps:
        return 0
    length = clock.steps(period) or clock.total_steps
    return math.ceil(clock.total_steps / length) - clock.step // length


class Eta(Hook):
    """Tells it once: when an evaluation is over, or after a minute of steps; never in a run that is over before there
    is enough to go by. The first step, in which workers start and modules are compiled, does not count.

    Args:
        device: of the run.
        periods: of the evaluations of each set, by name.
        now: seconds of a clock that only goes forward.
    """

    def __init__(
        self, device: torch.device, periods: Mapping[str, Duration], now: Callable[[], float] = time.monotonic
    ) -> None:
        self._device, self._periods, self._now = device, periods, now
        self._told = False
        self._first: tuple[float, int] | None = None
        self._began = 0.0
        self._evaluations: dict[str, float] = {}
        self._evaluating = 0.0

    def before_phase(self, run: Run, phase: Phase) -> None:
        """Look at the clock."""
        self._began = self._now()

    def after_step(self, run: Run) -> None:
        """Tell it, where nothing else is to be waited for."""
        if self._first is None:
            self._first = self._now(), run.clock.step
        elif not self._told and self._training > _PATIENCE and not run.clock.phase_ended:
            self._tell(run.clock)

    def after_phase(self, run: Run, phase: Phase) -> None:
        """Note what an evaluation took; an epoch is over with those that belong to it."""
        if phase.kind == "evaluate":
            seconds = self._now() - self._began
            self._evaluations[phase.name] = seconds
            self._evaluating += seconds if self._first is not None else 0.0
        elif self._evaluations or self._training > _PATIENCE or not self._periods:
            self._tell(run.clock)

    @property
    def _training(self) -> float:
        """Seconds since the first step that no evaluation took."""
        return 0.0 if self._first is None else self._now() - self._first[0] - self._evaluating

    def _tell(self, clock: Clock) -> None:
        steps = clock.step - self._first[1] if self._first is not None else 0
        if self._told or steps < _STEPS or self._training < _SECONDS or clock.step >= clock.total_steps:
            return
        self._told = True
        left = seconds_left(clock, self._training / steps, self._evaluations, self._periods)
        log.info("about %s to the end%s; at most %s so far", clock_time(left), self._counted(), told_peak(self._device))

    def _counted(self) -> str:
        if not self._periods:
            return ""
        if not self._evaluations:
            return ", evaluations not counted (there was none yet)"
        return f", evaluations included ({sum(self._evaluations.values()):.2g} s for all sets)"


def told_peak(device: torch.device) -> str:
    """The memory that this process has taken at most, such as ``1.3 GB (host), 10.2 GB (device)``."""
    host = f"{peak_memory() / 2**30:.3g} GB (host)"
    if device.type != "cuda":
        return host
    return f"{host}, {torch.cuda.max_memory_allocated(device) / 2**30:.3g} GB (device)"
