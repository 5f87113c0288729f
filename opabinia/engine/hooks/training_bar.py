"""The hook that shows the progress of a run while it trains."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from opabinia.contracts import Hook, Run
from opabinia.engine.hooks.eta import Eta
from opabinia.engine.loggers.terminal import bar_metrics
from opabinia.runtime.progress import format_speed, progress_bar, shows_progress_bars


class TrainingBar(Hook):
    """Shows the steps of a run on the terminal, and the values of its newest line of the metrics log. A log that is no
    terminal gets a line after the first step, and after 20 seconds without a line: with the values of the newest step
    that are on the host anyway. Nothing is read from the device.

    Args:
        eta: estimates the time left.
    """

    def __init__(self, eta: Eta) -> None:
        self._eta, self._shown = eta, ExitStack()
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
