"""SIGKILL at any time: the resumed run has the results of an uninterrupted one."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.programs import PAUSE, ROOT, SLOW, TRACE, TURN, Ended, Program, Server, is_alive
from tests.faults.runs import EVALUATIONS, SAVES, Outcome, assert_same, metrics

Moment = Callable[[Program, Path], None]
"""Waits for a moment of a program that trains in this folder."""

# --- moments ----------------------------------------------------------------------------------------------------------


def reached(program: Program) -> int:
    """Return the number of finished steps in the trace."""
    steps = [line.split()[-1] for line in program.trace if line.startswith(("start", "after_step"))]
    return int(steps[-1]) if steps else 0


def in_a_step(program: Program, folder: Path) -> None:
    program.until(lambda: "after_backward" in program.trace[-1])


def in_a_save(program: Program, folder: Path) -> None:
    """Wait for the temporary folder, which exists only for the few milliseconds of a save."""
    checkpoints = folder / "checkpoints"
    program.until(lambda: any(path.name.endswith(".tmp") for path in checkpoints.iterdir()))


def in_an_evaluation(program: Program, folder: Path) -> None:
    program.until(lambda: program.trace[-1].startswith("before_phase evaluate"))
    time.sleep(random.uniform(0, 0.1))  # it takes at least 0.2 s


def at_any_time(program: Program, folder: Path) -> None:
    time.sleep(random.uniform(0, 0.1))


def spread(kinds: list[Moment], last: int) -> list[Moment]:
    """Return the moments spread over the run: each after a random step, at most ``last``."""

    def after_step(step: int, kind: Moment) -> Moment:
        def moment(program: Program, folder: Path) -> None:
            program.until(lambda: reached(program) >= step)
            kind(program, folder)

        return moment

    steps = sorted(random.choices(range(1, last + 1), k=len(kinds)))
    return [after_step(step, kind) for step, kind in zip(steps, kinds, strict=True)]


@pytest.fixture
def seed() -> int:
    """A different seed each time; pytest shows it when a test fails."""
    number = random.SystemRandom().randrange(10**6)
    print(f"seed {number}")
    random.seed(number)
    return number


# --- five kills -------------------------------------------------------------------------------------------------------


def killed_and_resumed(
    server: Server, recipe: Path, out: Path, moments: list[Moment], workers: list[int]
) -> tuple[Path, list[str]]:
    """Start a run, kill it at each of the moments and resume, each time with another number of workers, to the end.

    Returns the run folder and, for each kill, the last line of the trace. A run may end before its kill.
    """
    folder = out / "faults" / "default"
    killed_at: list[str] = []
    for number, (moment, count) in enumerate(zip(moments, workers, strict=False)):
        arguments = ["train", str(recipe), f"data.num_workers={count}", "--out", str(out)]
        program = server.start(*arguments, *["--resume"] * bool(number), environment={SLOW: "0.002"})
        try:
            program.until(lambda program=program: program.trace)
            moment(program, folder)
        except Ended:
            break
        program.kill()
        killed_at.append(program.trace[-1])
    server.run("train", str(recipe), f"data.num_workers={workers[len(moments)]}", "--out", str(out), "--resume")
    return folder, killed_at


@pytest.mark.slow
def test_five_kills_at_random_moments(
    server: Server, recipe: Path, uninterrupted: Outcome, tmp_path: Path, seed: int
) -> None:
    kinds = [in_a_step, in_a_save, in_an_evaluation, in_a_save, at_any_time]
    random.shuffle(kinds)
    folder, killed_at = killed_and_resumed(server, recipe, tmp_path, spread(kinds, 21), [2, 0, 3, 1, 0, 2])
    print(killed_at)
    assert len(killed_at) == 5
    assert_same(Outcome.of(folder), uninterrupted)
    assert not [path for path in folder.rglob(".*") if path.name != ".lock"], "no temporary files are left"


@pytest.mark.slow
@pytest.mark.parametrize("kind", [in_a_step, in_a_save, in_an_evaluation])
def test_one_kill_at_each_kind_of_moment(
    server: Server, recipe: Path, uninterrupted: Outcome, tmp_path: Path, seed: int, kind: Moment
) -> None:
    """After the first save, so that there is a checkpoint to resume from."""

    def after_the_first_save(program: Program, folder: Path) -> None:
        program.until(lambda: reached(program) > SAVES[0])
        kind(program, folder)

    folder, killed_at = killed_and_resumed(server, recipe, tmp_path, [after_the_first_save], [0, 2])
    print(killed_at)
    assert len(killed_at) == 1
    assert_same(Outcome.of(folder), uninterrupted)


@pytest.mark.slow
@pytest.mark.parametrize("turn", range(4))
def test_twenty_kills_in_one_run(
    server: Server, recipe: Path, uninterrupted: Outcome, tmp_path: Path, seed: int, turn: int
) -> None:
    kinds = random.choices([in_a_step, in_a_save, in_an_evaluation, at_any_time], k=20)
    workers = random.choices(range(4), k=21)
    folder, killed_at = killed_and_resumed(server, recipe, tmp_path, spread(kinds, 29), workers)
    print(killed_at)
    assert len(killed_at) > 5
    assert_same(Outcome.of(folder), uninterrupted)


def test_a_run_killed_before_the_first_save_restarts(
    server: Server, recipe: Path, uninterrupted: Outcome, tmp_path: Path
) -> None:
    program = server.start("train", str(recipe), "--out", str(tmp_path), environment={PAUSE: "after_step 4"})
    program.until_paused()
    program.kill()
    folder = tmp_path / "faults" / "default"
    assert metrics(folder), "there are lines to be dropped"
    resumed = server.run("train", str(recipe), "--out", str(tmp_path), "--resume")
    assert f"no checkpoint in {folder / 'checkpoints'}: starting from the beginning" in resumed.err
    assert_same(Outcome.of(folder), uninterrupted)


def test_resuming_right_after_a_kill_is_not_refused(
    server: Server, recipe: Path, uninterrupted: Outcome, tmp_path: Path
) -> None:
    """Workers outlive a killed main process by seconds, but hold no lock that the next one needs."""
    program = server.start("train", str(recipe), "--out", str(tmp_path), "data.num_workers=3")
    program.until_traced("after_step 6")
    workers = program.children()
    program.kill()
    assert any(map(is_alive, workers))
    server.run("train", str(recipe), "--out", str(tmp_path), "--resume")
    assert_same(Outcome.of(tmp_path / "faults" / "default"), uninterrupted)


def test_killed_while_the_loop_is_ahead_of_a_save(
    server: Server, recipe: Path, uninterrupted: Outcome, tmp_path: Path
) -> None:
    """The checkpoint of step 10 is half written while training continues: that of step 8, the best, is complete."""
    program = server.start(
        *("train", str(recipe), "--out", str(tmp_path)), first=["tests.faults.injections:stuck_in_a_save"]
    )
    program.until_traced("after_step 13")
    program.kill()
    checkpoints = tmp_path / "faults" / "default" / "checkpoints"
    assert [path.suffix for path in checkpoints.iterdir() if "step-00000010" in path.name] == [".tmp"]
    resumed = server.run("train", str(recipe), "--out", str(tmp_path), "--resume")
    assert f"resuming {checkpoints.parent} from step 8" in resumed.err
    assert_same(Outcome.of(checkpoints.parent), uninterrupted)


# --- kills at every write ---------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_killed_at_every_write_of_a_run(server: Server, recipe: Path, tmp_path: Path, part: int) -> None:
    """The process kills itself just before its n-th call that changes a file, for a quarter of all n."""
    arguments = ["train", str(recipe), "loggers=[]", "train.length=10it", "checkpoint.keep=1"]
    server.run(*arguments, "--out", str(tmp_path))
    expected = Outcome.of(tmp_path / "faults" / "default")
    for turn in range(part + 1, 1000, 4):
        out = tmp_path / str(turn)
        program = server.start(
            *arguments, "--out", str(out), environment={TURN: str(turn)}, first=["tests.faults.injections:die_at_turn"]
        )
        if program.wait() == 0:
            break
        program.expect(-signal.SIGKILL)
        server.run(*arguments, "--out", str(out), "--resume")
        assert_same(Outcome.of(out / "faults" / "default"), expected)
    assert turn > 40


# --- the command line -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_itself_killed_and_resumed(recipe: Path, uninterrupted: Outcome, tmp_path: Path) -> None:
    """``python -m opabinia``, without the warm server."""
    command = [sys.executable, "-m", "opabinia", "train", str(recipe), "--out", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), TRACE: str(tmp_path / "trace"), SLOW: "0.01"}
    folder = tmp_path / "faults" / "default"
    with subprocess.Popen([*command, "data.num_workers=2"], env=environment, stderr=subprocess.PIPE) as first:
        end = time.monotonic() + 60
        while not (folder / "checkpoints" / "last").exists():
            assert first.poll() is None and time.monotonic() < end
            time.sleep(0.01)
        first.kill()
    assert first.returncode == -signal.SIGKILL
    second = subprocess.run([*command, "--resume"], env=environment, capture_output=True, text=True, timeout=100)
    assert second.returncode == 0, second.stderr
    assert "val/top1" in second.stdout
    assert_same(Outcome.of(folder), uninterrupted)
    assert len([line for line in uninterrupted.metrics if "val/top1" in line]) == len(EVALUATIONS)
