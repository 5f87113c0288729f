"""Background work in a thread, safe with forks.

A forked process has the memory of this one, but only the thread that forked: a lock that another thread held at that
moment (of the log, of a library) stays locked in it forever. So a fork, such as that of the loader's workers, waits
until all background work is done. Workers that are not forked (``spawn``, ``forkserver``) would not need this, but then
everything that reads samples would have to be picklable; workers start so rarely that the wait costs nothing.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Callable

_active: set[threading.Thread] = set()
_changes = threading.Condition()  # guards that set, jobs and errors; held while this process forks


def _before_fork() -> None:
    _changes.acquire()
    _changes.wait_for(lambda: _active <= {threading.current_thread()})


os.register_at_fork(before=_before_fork, after_in_parent=_changes.release, after_in_child=_changes.release)


class Background:
    """Runs jobs one after the other in a thread that exists only while there are jobs.

    The program does not wait for the thread when it ends: call :meth:`wait` for jobs that must be done.

    Args:
        name: name of the thread, for debuggers.

    Example::

        background = Background("checkpoints")
        background.submit(write)
        ...
        background.wait()
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: deque[Callable[[], object]] = deque()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def submit(self, job: Callable[[], object]) -> None:
        """Run a job after those before it; return at once."""
        with _changes:
            self._jobs.append(job)
            if self._thread is None:
                # A daemon: a second signal, which stops at once, must not wait for a disk.
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                _active.add(self._thread)
                self._thread.start()

    def check(self) -> None:
        """Raise the first error of a job that has not been raised yet; do not wait."""
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
        # Signals belong to the main thread; where it blocks them they must not arrive here.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while True:
            with _changes:
                if not self._jobs:
                    _active.remove(threading.current_thread())
                    self._thread = None
                    _changes.notify_all()
                    return
                job = self._jobs.popleft()
            try:
                job()
            except BaseException as error:  # any error is raised by check()
                with _changes:
                    self._error = self._error or error
