"""Being asked to stop: SIGTERM and Ctrl-C are noted once and obeyed at the next step."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType


class Stopped(Exception):
    """The run was asked to stop before its end, has saved and can be resumed.

    The text is the reason; ``exit_status`` is what the command leaves with: 143 after SIGTERM, 130 after Ctrl-C,
    else 0.
    """

    def __init__(self, reason: str, exit_status: int = 0) -> None:
        super().__init__(reason)
        self.exit_status = exit_status


class StopSignal:
    """What has arrived so far: ``signum`` is None until the first signal."""

    signum: int | None = None

    @property
    def reason(self) -> str | None:
        """The signal's name, once it has arrived."""
        return None if self.signum is None else signal.Signals(self.signum).name

    @property
    def exit_status(self) -> int:
        """128 and the signal's number (143 for SIGTERM, 130 for Ctrl-C); 0 without a signal."""
        return 0 if self.signum is None else 128 + self.signum

    def note(self, signum: int, frame: FrameType | None) -> None:
        """Remember the first signal; a second one of any kind stops at once."""
        if self.signum is not None:
            raise SystemExit(128 + signum)
        self.signum = signum
        # Not print: a handler may have interrupted one.
        with suppress(OSError):
            os.write(2, f"\n{self.reason}: saving after this step; once more stops at once\n".encode())


@contextmanager
def stop_signals() -> Iterator[StopSignal]:
    """Note SIGTERM and SIGINT inside the block instead of dying of them (outside the main thread: do nothing)."""
    stop = StopSignal()
    numbers = (signal.SIGTERM, signal.SIGINT) if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.signal(number, stop.note) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
