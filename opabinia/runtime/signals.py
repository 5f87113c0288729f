"""Stop signals: SIGTERM, SIGUSR1 and Ctrl-C end a run after the current step."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TypeVar

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
"""The signals that ask a run to stop. SLURM can send SIGUSR1 some time before a job's time limit."""

SAME_REQUEST_SECONDS = 2.0
"""Seconds after the first signal in which others count as the same request: SLURM and an agent both send one."""


def exit_status_of(signum: int) -> int:
    """Return the exit status after a signal: 130 after Ctrl-C, otherwise 143, as after SIGTERM."""
    return 128 + (signal.SIGINT if signum == signal.SIGINT else signal.SIGTERM)


def exit_status_of_reason(reason: str) -> int:
    """Return the exit status for the reason of a stop, which may be a signal's name; 0 for any other."""
    signum = next((number for number in STOP_SIGNALS if number.name == reason), None)
    return 0 if signum is None else exit_status_of(signum)


class Stopped(Exception):
    """The run was stopped before its end, has saved and can be resumed.

    The text is the reason. ``exit_status`` is 143 after SIGTERM and SIGUSR1, 130 after Ctrl-C, otherwise 0.
    """

    def __init__(self, reason: str, exit_status: int = 0) -> None:
        super().__init__(reason)
        self.exit_status = exit_status


class StopSignal:
    """Remembers the first stop signal: ``signum`` is None until it arrives.

    Args:
        action: the response to the signal, for the message.
    """

    signum: int | None = None
    _since = 0.0

    def __init__(self, action: str = "saving after this step") -> None:
        self.action = action

    @property
    def reason(self) -> str | None:
        """The name of the signal; None before it arrives."""
        return None if self.signum is None else signal.Signals(self.signum).name

    @property
    def exit_status(self) -> int:
        """See :func:`exit_status_of`; 0 without a signal."""
        return 0 if self.signum is None else exit_status_of(self.signum)

    def handle(self, signum: int, frame: FrameType | None) -> None:
        """Handle a signal: remember the first one; one that arrives more than two seconds later stops at once."""
        if self.signum is None:
            self.signum, self._since = signum, time.monotonic()
            self.on_first()
        elif time.monotonic() - self._since > SAME_REQUEST_SECONDS:
            self.on_later(signum)

    def on_first(self) -> None:
        """Print what happens now."""
        if os.environ.get("RANK", "0") == "0":
            # Not print: a handler may have interrupted one.
            with suppress(OSError):
                os.write(2, f"\n{self.reason}: {self.action}; a second signal stops at once\n".encode())

    def on_later(self, signum: int) -> None:
        """Stop at once."""
        raise SystemExit(exit_status_of(signum))


S = TypeVar("S", bound=StopSignal)


@contextmanager
def stop_signals(stop: S) -> Iterator[S]:
    """Let ``stop`` handle stop signals inside the block (outside the main thread: do nothing). An outer block learns of
    them at the end of this one."""
    numbers = STOP_SIGNALS if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.signal(number, stop.handle) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        outer = None if stop.signum is None else getattr(before.get(signal.Signals(stop.signum)), "__self__", None)
        if isinstance(outer, StopSignal) and outer.signum is None:
            outer.signum = stop.signum


def exit_on_signals() -> None:
    """Let SIGTERM and SIGUSR1 end this process with status 143, until a run that must save handles them."""
    for number in (signal.SIGTERM, signal.SIGUSR1):
        # Not SystemExit: raised in the middle of an import, C code would turn it into other errors.
        signal.signal(number, lambda signum, frame: os._exit(exit_status_of(signum)))
