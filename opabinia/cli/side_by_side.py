"""Several trainings at the same time, each in a process of its own, and a live table of their progress."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from opabinia.runtime.durations import Duration, format_seconds
from opabinia.runtime.elastic_agent import STOPPED_STATUSES
from opabinia.runtime.signals import StopSignal, stop_signals

POLL_SECONDS = 0.25
LINE_SECONDS = 10
"""Seconds between two lines of a run in a pipe, unless its state changes."""


class TrainingProcess:
    """A run that is trained, or resumed if its folder holds it, in a process of its own with one thread.

    Args:
        title: shown in the first column of the table.
        question: shown in the last one, as far as it fits.
        folder: the run folder.
        length: length of the training, for the percentage.
        metric: the score that is shown at the end.
        words: arguments of ``opabinia train``.

    Attributes:
        status: exit status of the process; None before its end; 0 for a run that was finished before.
        stderr: the text that the process has printed to stderr, after its end.
    """

    def __init__(
        self, title: str, question: str, folder: Path, length: Duration, metric: str, words: Sequence[str]
    ) -> None:
        self.title, self.question, self.folder = title, question, folder
        self._length, self._metric, self._words = length, metric, words
        self.status = 0 if (folder / "results.json").is_file() else None
        self.stderr = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._seconds, self._newest = 0.0, dict[str, Any]()

    @property
    def is_waiting(self) -> bool:
        """Whether the process is to be started."""
        return self._process is None and self.status is None

    @property
    def is_running(self) -> bool:
        """Whether the process was alive at the last :meth:`poll`."""
        return self._process is not None and self.status is None

    def start(self) -> None:
        """Start the process."""
        self._started = time.monotonic()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (closed when the process has ended)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "opabinia", "train", *self._words, "--resume", "auto", "--quiet", "--json"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._stderr,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def poll(self) -> None:
        """Read how far the run is, and whether the process has ended."""
        if self._process is None or self.status is not None:
            return
        self.status, self._seconds = self._process.poll(), time.monotonic() - self._started
        with suppress(OSError, ValueError, StopIteration):  # no line yet, or only a part of one
            lines = (self.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
            self._newest = next(line for line in map(json.loads, reversed(lines)) if "time/step" in line)
        if self.status is not None:
            with self._stderr:
                self._stderr.seek(0)
                self.stderr = self._stderr.read().decode(errors="replace").strip()

    def send(self, signum: int) -> None:
        """Send a signal to the process if it runs."""
        if self._process is not None:
            self._process.send_signal(signum)

    def kill(self) -> None:
        """End the process at once if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self.poll()

    @property
    def state(self) -> str:
        """State of the run as a word for the table."""
        if self.status is not None:
            failed = f"failed (exit status {self.status})"
            return "finished" if self.status == 0 else "stopped" if self.status in STOPPED_STATUSES else failed
        if self._process is None or not self._newest:
            return "waiting" if self._process is None else "starting"
        return "training" if self._done < 1 else "evaluating"

    @property
    def _done(self) -> float:
        """Fraction of the training that is done."""
        done: float = self._newest["epoch" if self._length.unit == "ep" else "step"]
        return min(1.0, done / self._length.value)

    @property
    def cells(self) -> list[str]:
        """Title, state, percent, loss or score, and elapsed time; what is unknown is empty."""
        value, seconds = "", format_seconds(self._seconds) if self._process is not None else ""
        if self.status == 0:
            scores = json.loads((self.folder / "results.json").read_text(encoding="utf-8"))
            value = f"{self._metric.removeprefix('val/')} {scores[self._metric]:.3f}"
        elif self._newest:
            value = f"loss {self._newest['train/loss']:.3f}"
        return [self.title, self.state, f"{self._done:.0%}" if self._newest else "", value, seconds]


def train_side_by_side(runs: Sequence[TrainingProcess], limit: int) -> int:
    """Train runs in their order, ``limit`` at the same time, and show their progress on stderr.

    One that fails does not stop the others. The first Ctrl-C, SIGTERM or SIGUSR1 is forwarded to all, so that they
    save; a later one kills them.

    Returns:
        0, or the exit status after a signal.
    """
    with stop_signals(StopSignal("saving")) as stop, _progress(runs) as show:
        forwarded = False
        try:
            while any(run.is_running or (run.is_waiting and stop.signum is None) for run in runs):
                if stop.signum is None:
                    free = limit - sum(run.is_running for run in runs)
                    for run in [run for run in runs if run.is_waiting][:free]:
                        run.start()
                elif not forwarded:
                    forwarded = True
                    for run in runs:
                        run.send(stop.signum)
                time.sleep(POLL_SECONDS)
                for run in runs:
                    run.poll()
                show()
        finally:
            for run in runs:
                run.kill()
    return stop.exit_status


@contextmanager
def _progress(runs: Sequence[TrainingProcess]) -> Iterator[Callable[[], None]]:
    """Yield a function that shows the states: a live table on a terminal, lines in a pipe."""
    console = Console(stderr=True)  # not opabinia.runtime.progress, which imports torch
    if not console.is_terminal or console.is_dumb_terminal:
        yield _line_printer(runs)
        return
    with Live(_table(runs), console=console, auto_refresh=False) as live:
        yield lambda: live.update(_table(runs), refresh=True)


def _table(runs: Sequence[TrainingProcess]) -> Group:
    """Return a line per run; a narrow terminal cuts the question."""
    rows = [run.cells for run in runs]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for run, cells in zip(runs, rows, strict=True):
        style = {"finished": "green", "waiting": "dim"}.get(run.state, "red" if run.status else "")
        padded = [cell.ljust(width) for cell, width in zip(cells, widths, strict=True)]
        lines.append(Text("  ".join([*padded, run.question]), style, no_wrap=True, overflow="ellipsis"))
    return Group(*lines)


def _line_printer(runs: Sequence[TrainingProcess]) -> Callable[[], None]:
    """Return a function that prints the line of a run whenever its state has changed, and from time to time."""
    printed: dict[str, tuple[str, float]] = {}

    def print_lines() -> None:
        now = time.monotonic()
        for run in runs:
            state, at = printed.get(run.title, ("waiting", now))
            if run.state != state or (run.is_running and now - at >= LINE_SECONDS):
                print("  ".join(filter(None, run.cells)), file=sys.stderr, flush=True)
                printed[run.title] = run.state, now

    return print_lines
