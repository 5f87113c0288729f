"""The hook that shows a progress bar while a run trains."""

from __future__ import annotations

from contextlib import ExitStack

from opabinia.contracts import Clock, Hook, Run
from opabinia.engine.hooks.eta import Eta
from opabinia.engine.loggers.terminal import bar_metrics
from opabinia.runtime.progress import format_speed, progress_bar


class TrainingBar(Hook):
    """Shows the steps of a run on the terminal, and the values of its newest line of the metrics log. Nothing is read
    from the device.

    Args:
        eta: estimates the time left.
    """

    def __init__(self, eta: Eta) -> None:
        self._eta, self._shown = eta, ExitStack()
        self._speed: str = ""
        self._metrics: list[str] = []

    def start(self, run: Run) -> None:
        """Show the bar. Not before: a run that is refused does not touch the terminal."""
        clock = run.clock
        self._bar = self._shown.enter_context(progress_bar("train", clock.total_steps, completed=clock.step, unit="it"))

    def after_step(self, run: Run) -> None:
        """Move the bar; show the values of a line that was just written."""
        line = run.metrics_log.newest
        if line is not None and line["step"] == run.clock.step and "time/step" in line:
            self._speed = format_speed(line.get("samples_per_s", 0.0), "samples")
            self._metrics = bar_metrics(line)
        if self._bar.is_due:  # most steps cost nothing
            self._move(run.clock)

    def finish(self, run: Run, how: str | BaseException) -> None:
        """Leave the bar at the last step, and restore the terminal."""
        self._move(run.clock)
        self._shown.close()

    def _move(self, clock: Clock) -> None:
        left = self._eta.seconds_left(clock)
        self._bar.update(clock.step, speed=self._speed, seconds_left=left, metrics=self._metrics)
