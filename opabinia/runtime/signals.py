"""Being asked to stop: SIGTERM, SIGUSR1 and Ctrl-C are noted once and obeyed at the next step."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TypeVar

STOPPING = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
"""The signals that ask a run to stop: SLURM sends SIGUSR1 some time before the end, if it is told to."""

TOGETHER = 2.0
"""Seconds after the first signal in which others count as the same request: SLURM and an agent both send one."""


def status_of(signum: int) -> int:
    """What a command leaves with after this signal: 130 after Ctrl-C, else 143, as if it had been SIGTERM."""
    return 128 + (signal.SIGINT if signum == signal.SIGINT else signal.SIGTERM)


def status_of_reason(reason: str) -> int:
    """The same for the reason of a stop, which may be a signal's name; 0 for any other."""
    found = next((number for number in STOPPING if number.name == reason), None)
    return 0 if found is None else status_of(found)


class Stopped(Exception):
    """The run was asked to stop before its end, has saved and can be resumed.

    The text is the reason; ``exit_status`` is what the command leaves with: 143 after SIGTERM and SIGUSR1, 130 after
    Ctrl-C, else 0.
    """

    def __init__(self, reason: str, exit_status: int = 0) -> None:
        super().__init__(reason)
        self.exit_status = exit_status


class StopSignal:
    """What has arrived so far: ``signum`` is None until the first signal."""

    signum: int | None = None
    _since = 0.0

    @property
    def reason(self) -> str | None:
        """The signal's name, once it has arrived."""
        return None if self.signum is None else signal.Signals(self.signum).name

    @property
    def exit_status(self) -> int:
        """See :func:`status_of`; 0 without a signal."""
        return 0 if self.signum is None else status_of(self.signum)

    def note(self, signum: int, frame: FrameType | None) -> None:
        """Remember the first signal; one of any kind more than two seconds later stops at once."""
        if self.signum is None:
            self.signum, self._since = signum, time.monotonic()
            self.first()
        elif time.monotonic() - self._since > TOGETHER:
            self.again(signum)

    def first(self) -> None:
        """Say what happens now."""
        if os.environ.get("RANK", "0") == "0":
            # Not print: a handler may have interrupted one.
            with suppress(OSError):
                os.write(2, f"\n{self.reason}: saving after this step; once more stops at once\n".encode())

    def again(self, signum: int) -> None:
        """Stop at once."""
        raise SystemExit(status_of(signum))


S = TypeVar("S", bound=StopSignal)


@contextmanager
def stop_signals(stop: S) -> Iterator[S]:
    """Let ``stop`` note signals inside the block instead of dying of them (outside the main thread: do nothing)."""
    numbers = STOPPING if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.signal(number, stop.note) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_at_once() -> None:
    """Let SIGTERM and SIGUSR1 end this process with status 143, until a run has something to save and notes them."""
    for number in (signal.SIGTERM, signal.SIGUSR1):
        # Not SystemExit: raised in the middle of an import, C code would turn it into other errors.
        signal.signal(number, lambda signum, frame: os._exit(status_of(signum)))
