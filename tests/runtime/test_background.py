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


def is_thread_running() -> bool:
    return any(thread.name == "test" for thread in threading.enumerate())


def fail(error: BaseException) -> None:
    raise error


def test_jobs_run_in_order_while_the_caller_continues() -> None:
    go, results, jobs = threading.Event(), list[object](), Background("test")
    jobs.submit(go.wait)
    for number in range(100):
        jobs.submit(partial(results.append, number))
    assert results == []
    go.set()
    jobs.wait()
    assert results == list(range(100))


def test_the_thread_exists_only_while_there_are_jobs() -> None:
    jobs = Background("test")
    jobs.wait()
    assert not is_thread_running()
    for _ in range(3):
        go = threading.Event()
        jobs.submit(go.wait)
        assert is_thread_running()
        go.set()
        jobs.wait()
        assert not background._active


def test_the_first_error_is_raised_once_and_later_jobs_run() -> None:
    jobs, results = Background("test"), list[int]()
    for job in (partial(fail, OSError(1)), partial(fail, OSError(2)), partial(results.append, 3)):
        jobs.submit(job)
    with pytest.raises(OSError, match="1"):
        jobs.wait()
    assert results == [3]
    jobs.wait()
    jobs.check()


def test_check_raises_without_waiting_for_later_jobs() -> None:
    failed, go, jobs = threading.Event(), threading.Event(), Background("test")
    jobs.submit(partial(fail, OSError("full")))
    jobs.submit(lambda: (failed.set(), go.wait()))
    failed.wait()
    with pytest.raises(OSError, match="full"):
        jobs.check()
    go.set()
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
    jobs, results = Background("test"), list[int]()
    jobs.submit(partial(results.append, 1))

    def child() -> None:
        jobs.submit(partial(results.append, 2))
        jobs.wait()
        assert results == [1, 2]

    assert exits_with_0(child)
    jobs.wait()
    assert results == [1]


def test_a_job_may_fork_itself() -> None:
    jobs, results = Background("test"), list[bool]()
    jobs.submit(lambda: results.append(exits_with_0(lambda: None)))
    jobs.wait()
    assert results == [True]


def test_the_background_thread_blocks_stop_signals() -> None:
    jobs, masks = Background("test"), list[set[int]]()
    jobs.submit(lambda: masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, ())))
    jobs.wait()
    assert {signal.SIGINT, signal.SIGTERM, signal.SIGUSR1} <= masks[0]


PROGRAM = """
import threading
from opabinia.runtime.background import Background
jobs = Background("test")
jobs.submit(threading.Event().wait)
{}
"""


def test_an_exiting_program_does_not_wait_for_jobs() -> None:
    result = subprocess.run([sys.executable, "-c", PROGRAM.format("raise SystemExit(143)")], timeout=60)
    assert result.returncode == 143


def test_a_signal_ends_the_wait() -> None:
    program = PROGRAM.format(
        "import os, signal\n"
        "threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "try:\n    jobs.wait()\n"
        "except KeyboardInterrupt:\n    raise SystemExit(130) from None"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 130
