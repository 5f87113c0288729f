"""Work that a program does beside its main loop, in a thread that a fork never meets.

A forked process has the memory of this one, but only the thread that forked: a lock that another thread held at that
moment (of the log, of a library) stays locked in it for good. So a fork, such as that of a loader's workers, waits
until all work in the background is done. Workers that are not forked (``spawn``, ``forkserver``) would not need this,
but whatever reads samples would have to be picklable then; and workers start so seldom that the wait costs nothing.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Callable

_at_work: set[threading.Thread] = set()
_changes = threading.Condition()  # of that set, and of jobs and errors; held while this process forks


def _before_fork() -> None:
    _changes.acquire()
    _changes.wait_for(lambda: _at_work <= {threading.current_thread()})


os.register_at_fork(before=_before_fork, after_in_parent=_changes.release, after_in_child=_changes.release)


class Background:
    """Does jobs one after the other in a thread of its own, which is there only while there are any.

    Nobody waits for the thread when the program ends: what must be done is waited for before.

    Args:
        name: of the thread, for debuggers.

    Example::

        background = Background("checkpoints")
        background.do(write)
        ...
        background.wait()
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: deque[Callable[[], object]] = deque()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def do(self, job: Callable[[], object]) -> None:
        """Have a job done when those before it are; return at once."""
        with _changes:
            self._jobs.append(job)
            if self._thread is None:
                # A daemon: a second signal, which stops at once, must not wait for a disk.
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                _at_work.add(self._thread)
                self._thread.start()

    def check(self) -> None:
        """Raise the first error of a job that nobody has been told yet; waits for nothing."""
        if self._error is not None:
            with _changes:
                error, self._error = self._error, None
            raise error

    def wait(self) -> None:
        """Wait until all jobs are done, then :meth:`check`."""
        with _changes:
            _changes.wait_for(lambda: self._thread is None)
        self.check()

    def _work(self) -> None:
        # Signals are the main thread's: where it holds them back they must not get in here.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while job := self._next():
            try:
                job()
            except BaseException as error:  # whatever it is, who waits is to be told
                with _changes:
                    self._error = self._error or error

    def _next(self) -> Callable[[], object] | None:
        with _changes:
            if self._jobs:
                return self._jobs.popleft()
            _at_work.remove(threading.current_thread())
            self._thread = None
            _changes.notify_all()
            return None
