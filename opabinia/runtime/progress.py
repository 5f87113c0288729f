"""Progress bars on the terminal, one for each phase that runs, the same in all commands; in other logs plain lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.progress_bar import ProgressBar
from rich.table import Column
from rich.text import Text

from opabinia.runtime.durations import format_seconds
from opabinia.runtime.processes import is_rank_zero
from opabinia.runtime.quiet import is_quiet

T = TypeVar("T")

_INTERVAL = 0.25
"""Seconds between two frames. No thread draws: forked loader workers would inherit its locks."""
_LINE_INTERVAL = 20.0
"""Seconds without a line after which a log that is no terminal gets one."""


def shows_progress_bars() -> bool:
    """Return whether bars are shown: on a terminal that can move its cursor, on rank 0, and not in quiet mode."""
    console = Console(stderr=True)
    is_screen = console.is_terminal and not console.is_dumb_terminal and sys.stderr.isatty()
    return is_screen and not is_quiet() and is_rank_zero()


class PhaseBar:
    """The bar of one phase, from :func:`progress_bar`."""

    def __init__(self, display: _Display, row: TaskID) -> None:
        self._display, self._row = display, row

    def update(
        self, completed: float, *, speed: str = "", seconds_left: float | None = None, metrics: Sequence[str] = ()
    ) -> None:
        """Set the position. A few times per second at most, the terminal is written to; any other log every 20 s.

        Args:
            completed: number of units done.
            speed: such as ``812 samples/s``; empty: that of the phase so far.
            seconds_left: None: estimated from the phase so far.
            metrics: texts such as ``loss 1.25``, the most important first; those that do not fit are not shown.
        """
        self._display.update(self._row, completed=completed, speed=speed, seconds_left=seconds_left, metrics=metrics)
        self._display.draw_if_due()

    @property
    def is_due(self) -> bool:
        """Whether the next update writes to the terminal or log."""
        return self._display.is_due

    def next_line_in(self, seconds: float = _LINE_INTERVAL) -> None:
        """Set when a log that is no terminal gets the next line: later, where another one has just said the same."""
        self._display.line_due = time.monotonic() + seconds

    def advance(self, count: float = 1) -> None:
        """Add to the position."""
        self._display.update(self._row, advance=count)
        self._display.draw_if_due()

    def track(self, items: Iterable[T]) -> Iterator[T]:
        """Yield the items; the bar moves when the next one is requested."""
        for item in items:
            yield item
            self.advance()


@contextmanager
def progress_bar(phase: str, total: int | None, *, completed: int = 0, unit: str = "samples") -> Iterator[PhaseBar]:
    """Show a bar from here to the end of the block. A bar inside another one is removed at its end, others stay.

    Printed lines appear above the bars; a rich console of its own would write into them. Where
    :func:`shows_progress_bars` is false, rank 0 prints a plain line of the innermost phase after 20 seconds without
    one; in quiet mode nothing.

    Args:
        phase: its name, such as ``train``.
        total: number of units; None if it is unknown.
        completed: number of units that were done before.
        unit: name of the units, for the speed.

    Example::

        with progress_bar("predict", len(files), unit="images") as bar:
            for file in bar.track(files):
                ...
    """
    global _display
    outer = _display
    display = _display = outer or _Display()
    row = display.add_task(
        phase, total=total, completed=completed, first=completed, unit=unit, speed="", seconds_left=None, metrics=()
    )
    try:
        if outer is None:
            display.start()
        yield PhaseBar(display, row)
    finally:
        _display = outer
        if outer is None:
            display.stop()
        else:
            display.remove_task(row)
            display.refresh()


class _Console(Console):
    """Never hides the cursor: a process that is killed could not restore it."""

    def show_cursor(self, show: bool = True) -> bool:
        return False


class _Display(Progress):
    """The bars of all phases that run."""

    def __init__(self) -> None:
        console = _Console(stderr=True)
        columns = (
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
            _Bar(console),
            _Values(table_column=Column(ratio=1, no_wrap=True)),
        )
        # Output of others to a file or a pipe is not redirected to the terminal.
        super().__init__(
            *columns,
            console=console,
            auto_refresh=False,
            expand=True,
            redirect_stdout=sys.stdout.isatty(),
            disable=not shows_progress_bars(),
        )
        self._prints_lines = self.disable and not is_quiet() and is_rank_zero()
        self._drawn = time.monotonic()
        self.line_due = self._drawn + _LINE_INTERVAL

    @property
    def is_due(self) -> bool:
        """Whether the previous frame or line is old enough."""
        if self.disable:
            return self._prints_lines and time.monotonic() >= self.line_due
        return time.monotonic() - self._drawn >= _INTERVAL

    def draw_if_due(self) -> None:
        """Draw a frame, or print a line, unless the previous one is recent."""
        if not self.is_due:
            return
        if self._prints_lines:
            task = self.tasks[-1]
            print("  ".join([task.description, *_texts(task)]), file=sys.stderr, flush=True)
            self.line_due = time.monotonic() + _LINE_INTERVAL
        else:
            self.refresh()
            self._drawn = time.monotonic()


_display: _Display | None = None
"""The bars of the outermost phase that runs, and of those inside it."""


class _Bar(BarColumn):
    """A bar that is shorter on a narrow terminal, and absent on a very narrow one: the numbers matter more."""

    def __init__(self, console: Console) -> None:
        super().__init__(table_column=Column(no_wrap=True))
        self._console = console

    def render(self, task: Task) -> ProgressBar | Text:  # type: ignore[override]
        """Return the bar in the present width, also after the terminal was resized."""
        if self._console.width < 60:
            return Text()
        self.bar_width = 16 if self._console.width >= 120 else 8
        return super().render(task)


class _Values(ProgressColumn):
    """Position, percent, time left, speed, and metrics."""

    def render(self, task: Task) -> _Fitting:
        """Return the texts of a phase."""
        return _Fitting(_texts(task))


def _texts(task: Task) -> list[str]:
    """Return the texts of a phase, the most important first."""
    values, elapsed = task.fields, task.finished_time or task.elapsed or 0.0
    done = task.completed - values["first"]
    texts = [f"{task.completed:.0f}"]
    if task.total is not None:
        texts = [f"{task.completed:.0f}/{task.total:.0f}", f"{int(task.percentage)}%"]
    left = values["seconds_left"]
    if left is None and task.total is not None and done > 0:
        left = elapsed / done * (task.total - task.completed)
    if task.finished:
        texts.append(f"in {format_seconds(elapsed)}")
    else:
        texts.append("ETA ?" if left is None else f"ETA {format_seconds(left)}")
    if values["speed"]:
        texts.append(values["speed"])
    elif done > 0 and elapsed > 0:
        texts.append(format_speed(done / elapsed, values["unit"]))
    return [*texts, *values["metrics"]]


def format_speed(speed: float, unit: str) -> str:
    """Return units per second, or seconds per unit: ``1,437 samples/s``, ``2.5 it/s``, ``4 s/image``."""
    if 0 < speed < 1:
        return f"{1 / speed:.3g} s/{unit.removesuffix('s')}"
    return f"{speed:,.0f} {unit}/s" if speed >= 100 else f"{speed:.3g} {unit}/s"


@dataclass(frozen=True)
class _Fitting:
    """Texts in a line, in their order; one that does not fit is skipped."""

    texts: Sequence[str]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        line = ""
        for text in self.texts:
            longer = f"{line}  {text}" if line else text
            line = longer if cell_len(longer) <= options.max_width else line
        yield Text(line, no_wrap=True)
