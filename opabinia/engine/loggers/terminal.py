"""Where the journal's lines go beside ``metrics.jsonl``: the terminal, TensorBoard."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, Task, TextColumn
from rich.progress_bar import ProgressBar
from rich.table import Column

from opabinia.config import register
from opabinia.contracts import Clock
from opabinia.runtime.durations import clock_time
from opabinia.runtime.files import disk_errors
from opabinia.runtime.log import log
from opabinia.runtime.quiet import is_quiet

_QUIET = ("step", "epoch", "samples", "sample_ids", "lr", "samples_per_s")


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _scores(line: Mapping[str, Any]) -> str:
    return "  ".join(
        f"{name.removeprefix('train/')} {_number(value)}"
        for name, value in line.items()
        if name not in _QUIET and not name.startswith(("time/", "memory/"))
    )


def _pace(line: Mapping[str, Any]) -> str:
    if "time/step" not in line:
        return ""
    memory = line.get("memory/device_mb", line.get("memory/host_mb"))
    held = f"  {memory / 1024:.1f} GB" if memory else ""
    return f"lr {_number(line['lr'])}  {line.get('samples_per_s', 0):.0f}/s{_waiting(line)}{held}"


def _waiting(line: Mapping[str, Any]) -> str:
    """How much of the time goes by without data, where that is much; and what one of the workers takes to read
    (decode, transform) a batch, beside what it takes to learn from it."""
    step, data = line["time/step"], line["time/data"]
    if data <= 0.1 * step:
        return ""
    text = f"  waits for data {data / step:.0%}"
    if "time/read" in line:
        text += f" (reads a batch in {line['time/read']:.2g} s, learns in {step - data:.2g} s)"
    return text


class _Bar(BarColumn):
    """As wide as there is room for on the terminal, which may be resized: the numbers matter more."""

    def __init__(self, console: Console) -> None:
        super().__init__(table_column=Column(no_wrap=True))
        self._console = console

    def render(self, task: Task) -> ProgressBar:
        """The bar of now."""
        self.bar_width = 16 if self._console.width >= 60 else 4
        return super().render(task)


@register.writer(name="terminal")
class Terminal:
    """Progress for people: a bar on a terminal, plain lines in a pipe and on a terminal that cannot move its cursor.
    Writes to stderr; nothing when the terminal is to be quiet."""

    def __init__(self, folder: Path, clock: Clock, /) -> None:
        self._total, self._first, self._began = clock.total_steps, clock.step, time.monotonic()
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
            # What others print to a file or a pipe stays there.
            self._bar = Progress(*columns, console=console, expand=True, redirect_stdout=sys.stdout.isatty())
            self._row = self._bar.add_task("train", total=self._total, completed=clock.step, epoch=0.0, text="")

    def _left(self, step: int) -> str:
        done = step - self._first
        return clock_time((time.monotonic() - self._began) / done * (self._total - step)) if done > 0 else "?"

    def write(self, line: Mapping[str, Any]) -> None:
        """Show a line: training moves the bar, scores stay above it."""
        if self._quiet:
            return
        step, training = line["step"], "time/step" in line
        if self._bar is None:
            place = f"epoch {line['epoch']:.2f}  step {step}/{self._total}"
            rest = [_scores(line), _pace(line)] + ([f"left {self._left(step)}"] if training else [])
            print("  ".join(text for text in (place, *rest) if text), file=sys.stderr, flush=True)
            return
        # Not before: a run that is refused would leave a terminal without cursor.
        self._bar.start()
        if training:
            text = f"{_scores(line)}  {_pace(line)}  left {self._left(step)}"
            self._bar.update(self._row, completed=step, epoch=line["epoch"], text=text)
        else:
            self._bar.console.print(f"epoch {line['epoch']:.2f}  step {step}  {_scores(line)}", highlight=False)

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._bar is not None:
            self._bar.stop()


@cache
def _tell_disk_errors_once() -> None:
    """TensorBoard's thread prints a traceback, and the next call raises the same error: that one is enough."""
    before = threading.excepthook

    def hook(ended: threading.ExceptHookArgs) -> None:
        if not (type(ended.thread).__module__.startswith("tensorboard.") and isinstance(ended.exc_value, OSError)):
            before(ended)

    threading.excepthook = hook


@register.writer(name="tensorboard")
class TensorBoard:
    """Every number of the journal by step, in the folder ``tensorboard``; a resumed run hides what it does again."""

    def __init__(self, folder: Path, clock: Clock, /) -> None:
        # Half a second of imports that an evaluation or a config check need not pay.
        from tensorboard.compat.proto.summary_pb2 import Summary
        from torch.utils.tensorboard.writer import SummaryWriter

        self._summary, self._value = Summary, Summary.Value
        _tell_disk_errors_once()
        self._folder = folder / "tensorboard"
        with disk_errors(self._folder):
            self._writer = SummaryWriter(str(self._folder), purge_step=clock.step + 1 if clock.step else None)
        self._events: Any = self._writer.file_writer

    def write(self, line: Mapping[str, Any]) -> None:
        """Add a line's numbers."""
        # One event with all of them: an add_scalar for each costs ten times as much.
        values = [
            self._value(tag=name, simple_value=value)
            for name, value in line.items()
            if name not in ("step", "samples", "sample_ids") and value is not None
        ]
        with disk_errors(self._folder):
            self._events.add_summary(self._summary(value=values), line["step"])

    def close(self) -> None:
        """Flush and close."""
        # An error here would hide the one that ended the run.
        try:
            self._writer.close()
        except OSError as error:
            log.warning("cannot write %s: %s", self._folder, error.strerror)
