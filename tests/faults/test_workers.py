"""Loader workers end with their run, and their errors are reported."""

import os
import signal
from pathlib import Path

import pytest

from tests.faults.programs import BROKEN, CRASH, PAUSE, Server, all_gone, is_alive, programs_of_group


def test_workers_end_within_seconds_after_a_kill(server: Server, recipe: Path, tmp_path: Path) -> None:
    moment = "after_backward 9"  # the training and validation loaders have workers
    program = server.start(
        "train", str(recipe), "--out", str(tmp_path), "data.num_workers=2", environment={PAUSE: moment}
    )
    program.until_paused()
    workers = program.children()
    assert len(workers) == 4 and all(map(is_alive, workers))
    program.kill()
    assert all_gone(workers, 12)


def test_workers_end_within_seconds_after_a_kill_while_they_start(server: Server, recipe: Path, tmp_path: Path) -> None:
    program = server.start(
        *("train", str(recipe), "--out", str(tmp_path), "data.num_workers=2"),
        first=["tests.faults.injections:killed_while_workers_start"],
    )
    program.expect(-signal.SIGKILL)
    assert all_gone(programs_of_group(program.pid), 12)


@pytest.mark.parametrize("moment", ["after_backward 9", "after_phase evaluate 8", "after_phase train 15"])
def test_workers_end_immediately_after_a_crash(server: Server, recipe: Path, tmp_path: Path, moment: str) -> None:
    program = server.start(
        *("train", str(recipe), "--out", str(tmp_path), "data.num_workers=2"),
        environment={PAUSE: "after_backward 7", CRASH: moment},
    )
    program.until_paused()
    workers = program.children()
    assert len(workers) == 2
    program.unpause()
    program.expect(1)
    assert all_gone(workers, 0.5)
    assert not programs_of_group(program.pid)
    assert "RuntimeError: crashed at" in program.err
    assert program.trace[-1] == f"finish crashed at {moment}"
    log = (tmp_path / "faults" / "default" / "train.log").read_text()
    assert "RuntimeError: crashed at" in log and "Traceback" in log


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sample_that_cannot_be_read_is_named(server: Server, recipe: Path, tmp_path: Path, workers: int) -> None:
    program = server.run(
        *("train", str(recipe), "--out", str(tmp_path), f"data.num_workers={workers}"),
        environment={BROKEN: "61"},
        status=2,
    )
    assert "error: sample 61, SomeDigits: OSError: the disk is on fire" in program.err
    assert "Traceback" not in program.err
    log = (tmp_path / "faults" / "default" / "train.log").read_text()
    assert "parts.py" in log, "the log has the traceback"


def test_a_run_starts_after_a_broken_sample_was_repaired(server: Server, recipe: Path, tmp_path: Path) -> None:
    """Sample 0 is read before the first step, so the failed run leaves nothing that blocks the next."""
    program = server.run("train", str(recipe), "--out", str(tmp_path), environment={BROKEN: "0"}, status=2)
    assert "sample 0, SomeDigits" in program.err
    server.run("train", str(recipe), "--out", str(tmp_path))


def test_a_worker_that_is_killed_is_a_crash(server: Server, recipe: Path, tmp_path: Path) -> None:
    moment = "after_backward 2"
    program = server.start(
        "train", str(recipe), "--out", str(tmp_path), "data.num_workers=2", environment={PAUSE: moment}
    )
    program.until_paused()
    workers = program.children()
    os.kill(workers[0], signal.SIGKILL)
    program.unpause()
    program.expect(1)
    assert f"DataLoader worker (pid {workers[0]}) is killed by signal: Killed" in program.err
    assert all_gone(workers, 0.5)
