"""Background jobs: order, errors, forks, and immediate exits."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest

from opabinia.runtime import background
from opabinia.runtime.background import Background


def fail(error: BaseException) -> None:
    raise error


def test_jobs_run_in_order_in_a_thread_that_exists_only_while_there_are_jobs() -> None:
    results, jobs = list[object](), Background("test")
    jobs.wait()
    for _ in range(2):
        go = threading.Event()
        jobs.submit(go.wait)
        assert any(thread.name == "test" for thread in threading.enumerate())
        for number in range(100):
            jobs.submit(partial(results.append, number))
        assert len(results) in (0, 100)
        go.set()
        jobs.wait()
        assert not background._active
    assert results == [*range(100), *range(100)]


def test_the_first_error_is_raised_once_and_later_jobs_run() -> None:
    failed, go, jobs, results = threading.Event(), threading.Event(), Background("test"), list[int]()
    jobs.submit(partial(fail, OSError(1)))
    jobs.submit(lambda: (failed.set(), go.wait()))
    failed.wait()
    with pytest.raises(OSError, match="1"):
        jobs.check()  # without waiting for later jobs
    for job in (partial(fail, OSError(2)), partial(fail, OSError(3)), partial(results.append, 4)):
        jobs.submit(job)
    go.set()
    with pytest.raises(OSError, match="2"):
        jobs.wait()
    assert results == [4]
    jobs.wait()


def exits_with_0(program: Callable[[], object]) -> bool:
    """Run a function in a forked process; return whether it raises no error."""
    pid = os.fork()
    if pid == 0:
        try:
            program()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


at_fork: list[Callable[[], object]] = []
os.register_at_fork(before=lambda: at_fork.pop()() if at_fork else None)  # registered last, it is called first


def test_a_fork_waits_for_the_jobs() -> None:
    go, lock, results, jobs = threading.Event(), threading.Lock(), list[int](), Background("test")

    def job() -> None:
        with lock:
            go.wait()
            time.sleep(0.2)  # a fork that does not wait finds the lock held
            results.append(1)

    jobs.submit(job)
    at_fork.append(go.set)

    def child() -> None:
        assert results == [1]
        assert lock.acquire(blocking=False)

    assert exits_with_0(child)
    jobs.wait()


def test_a_forked_process_has_its_own_background() -> None:
    jobs, results, masks = Background("test"), list[int](), list[set[int]]()
    jobs.submit(partial(results.append, 1))

    def child() -> None:
        jobs.submit(partial(results.append, 2))
        jobs.wait()
        assert results == [1, 2]

    assert exits_with_0(child)
    jobs.wait()
    assert results == [1]
    jobs.submit(lambda: results.append(exits_with_0(lambda: None)))  # a job may fork itself
    jobs.submit(lambda: masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, ())))
    jobs.wait()
    assert results == [1, True] and {signal.SIGINT, signal.SIGTERM, signal.SIGUSR1} <= masks[0]


PROGRAM = """
import os, signal, threading
from opabinia.runtime.background import Background
jobs = Background("test")
jobs.submit(threading.Event().wait)
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    jobs.wait()
except KeyboardInterrupt:
    raise SystemExit(130) from None
"""


def test_a_signal_ends_the_wait_and_an_exiting_program_does_not_wait_for_jobs() -> None:
    assert subprocess.run([sys.executable, "-c", PROGRAM], timeout=60).returncode == 130
