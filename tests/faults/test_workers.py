"""Loader workers end with their run, and their errors are reported."""

import os
import signal

import pytest

from tests.faults.programs import BROKEN, CRASH, all_gone, programs_of_group
from tests.faults.runs import Run


def test_workers_end_within_seconds_after_a_kill(run: Run) -> None:
    program = run.start("data.num_workers=2", pause="after_backward 9")  # both loaders have workers
    workers = program.children()
    assert len(workers) == 4
    program.kill()
    assert all_gone(workers, 12)


def test_workers_end_within_seconds_after_a_kill_while_they_start(run: Run) -> None:
    program = run.train(
        "data.num_workers=2", first=["tests.faults.injections:killed_while_workers_start"], status=-signal.SIGKILL
    )
    assert all_gone(programs_of_group(program.pid), 12)


@pytest.mark.parametrize(
    "moment",
    [
        "after_backward 9",
        *(
            pytest.param(moment, marks=pytest.mark.slow)
            for moment in ("after_phase evaluate 8", "after_phase train 15")
        ),
    ],
)
def test_workers_end_immediately_after_a_crash(run: Run, moment: str) -> None:
    program = run.start("data.num_workers=2", environment={CRASH: moment}, pause="after_backward 7")
    workers = program.children()
    assert len(workers) == 2
    program.unpause()
    program.expect(1)
    assert all_gone(workers, 0.5)
    assert not programs_of_group(program.pid)
    assert program.trace[-1] == f"finish crashed at {moment}"
    log = (run.folder / "train.log").read_text()
    assert "Traceback" in log and all("RuntimeError: crashed at" in text for text in (log, program.err))


@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_a_sample_that_cannot_be_read_is_named(run: Run, workers: int) -> None:
    program = run.train(f"data.num_workers={workers}", environment={BROKEN: "61"}, status=2)
    assert "error: sample 61, SomeDigits: OSError: the disk is on fire" in program.err
    assert "Traceback" not in program.err
    assert "parts.py" in (run.folder / "train.log").read_text(), "the log has the traceback"


def test_a_run_starts_after_a_broken_sample_was_repaired(run: Run) -> None:
    """Sample 0 is read before the first step, so the failed run leaves nothing that blocks the next."""
    assert "sample 0, SomeDigits" in run.train(environment={BROKEN: "0"}, status=2).err
    run.train("train.length=1it")


def test_a_worker_that_is_killed_is_a_crash(run: Run) -> None:
    program = run.start("data.num_workers=2", pause="after_backward 2")
    workers = program.children()
    os.kill(workers[0], signal.SIGKILL)
    program.unpause()
    program.expect(1)
    assert f"DataLoader worker (pid {workers[0]}) is killed by signal: Killed" in program.err
    assert all_gone(workers, 0.5)
