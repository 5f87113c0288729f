"""The progress line: the logger for the terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, Task, TextColumn
from rich.progress_bar import ProgressBar
from rich.table import Column

from opabinia.config import register
from opabinia.contracts import Clock
from opabinia.runtime.durations import format_seconds
from opabinia.runtime.quiet import is_quiet

_HIDDEN = ("step", "epoch", "samples", "sample_ids", "lr", "samples_per_s")
"""Values that are not shown among the losses and scores."""
_DATA_WAIT_SHARE = 0.1
"""Waiting for data is shown if it takes more than this share of a step."""


def _format(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _scores(line: Mapping[str, Any]) -> str:
    return "  ".join(
        f"{name.removeprefix('train/')} {_format(value)}"
        for name, value in line.items()
        if name not in _HIDDEN and not name.startswith(("time/", "memory/"))
    )


def _throughput(line: Mapping[str, Any]) -> str:
    """Learning rate, samples per second, waiting for data, and memory of the GPU or the host."""
    if "time/step" not in line:
        return ""
    step, data = line["time/step"], line["time/data"]
    waiting = ""
    if data > _DATA_WAIT_SHARE * step:
        waiting = f"  waits for data {data / step:.0%}"
        if "time/read" in line:
            waiting += f" (reading a batch takes {line['time/read']:.2g} s, training {step - data:.2g} s)"
    memory = line.get("memory/device_mb", line.get("memory/host_mb"))
    used = f"  {memory / 1024:.1f} GB" if memory else ""
    return f"lr {_format(line['lr'])}  {line.get('samples_per_s', 0):.0f}/s{waiting}{used}"


class _Bar(BarColumn):
    """A progress bar that shrinks on a narrow terminal, also after resizing: the numbers matter more."""

    def __init__(self, console: Console) -> None:
        super().__init__(table_column=Column(no_wrap=True))
        self._console = console

    def render(self, task: Task) -> ProgressBar:
        """Return the bar in the present width."""
        self.bar_width = 16 if self._console.width >= 60 else 4
        return super().render(task)


@register.logger(name="terminal")
class Terminal:
    """Progress on stderr: a bar on a terminal, plain lines in a pipe or on a dumb terminal; nothing in quiet mode."""

    def __init__(self, folder: Path, clock: Clock, /) -> None:
        self._total, self._first_step, self._started = clock.total_steps, clock.step, time.monotonic()
        self._quiet = is_quiet()
        self._bar: Progress | None = None
        console = Console(stderr=True)
        if console.is_terminal and not console.is_dumb_terminal and sys.stderr.isatty() and not self._quiet:
            columns = (
                _Bar(console),
                TextColumn("epoch {task.fields[epoch]:.1f}", table_column=Column(no_wrap=True)),
                TextColumn("{task.completed:.0f}/{task.total:.0f}", table_column=Column(no_wrap=True)),
                TextColumn("{task.fields[text]}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")),
            )
            # Output of others to a file or a pipe is not redirected to the terminal.
            self._bar = Progress(*columns, console=console, expand=True, redirect_stdout=sys.stdout.isatty())
            self._row = self._bar.add_task("train", total=self._total, completed=clock.step, epoch=0.0, text="")

    def _eta(self, step: int) -> str:
        done = step - self._first_step
        if done <= 0:
            return "ETA ?"
        return f"ETA {format_seconds((time.monotonic() - self._started) / done * (self._total - step))}"

    def write(self, line: Mapping[str, Any]) -> None:
        """Show a line: training moves the bar, scores are printed above it."""
        if self._quiet:
            return
        step, is_training = line["step"], "time/step" in line
        if self._bar is None:
            position = f"epoch {line['epoch']:.2f}  step {step}/{self._total}"
            texts = (position, _scores(line), _throughput(line), self._eta(step) if is_training else "")
            print("  ".join(filter(None, texts)), file=sys.stderr, flush=True)
            return
        # Started here and not before: a run that is refused would leave a terminal without cursor.
        self._bar.start()
        if is_training:
            text = f"{_scores(line)}  {_throughput(line)}  {self._eta(step)}"
            self._bar.update(self._row, completed=step, epoch=line["epoch"], text=text)
        else:
            self._bar.console.print(f"epoch {line['epoch']:.2f}  step {step}  {_scores(line)}", highlight=False)

    def close(self) -> None:
        """Restore the terminal."""
        if self._bar is not None:
            self._bar.stop()
