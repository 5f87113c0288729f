"""SIGKILL at any moment: the run that is resumed ends as if nothing had happened."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.programs import ROOT, SLOW, TRACE, TURN, Program, Server, is_alive
from tests.faults.runs import EVALUATIONS, SAVES, Outcome, assert_same, metrics

Moment = Callable[[Program, Path], None]
"""Waits for a moment in the life of a program that trains in this folder."""

# --- moments ----------------------------------------------------------------------------------------------------------


def reached(program: Program) -> int:
    """Steps done so far, by the trace."""
    steps = [line.split()[-1] for line in program.trace if line.startswith(("start", "after_step"))]
    return int(steps[-1]) if steps else 0


def in_a_step(program: Program, folder: Path) -> None:
    program.until(lambda: "after_backward" in program.trace[-1])


def in_a_save(program: Program, folder: Path) -> None:
    """The folder beside the checkpoints exists only for the few milliseconds of a save."""
    checkpoints = folder / "checkpoints"
    program.until(lambda: any(path.name.endswith(".tmp") for path in checkpoints.iterdir()))


def in_an_evaluation(program: Program, folder: Path) -> None:
    program.until(lambda: program.trace[-1].startswith("before_phase evaluate"))
    time.sleep(random.uniform(0, 0.1))  # it takes 0.2 s at the least


def at_any_time(program: Program, folder: Path) -> None:
    time.sleep(random.uniform(0, 0.1))


def some_steps_later(moment: Moment) -> Moment:
    """Let the program do a few steps first, so that five kills spread over the run."""

    def wait(program: Program, folder: Path) -> None:
        program.until(lambda: program.trace)
        goal = reached(program) + random.randint(1, 2)
        program.until(lambda: reached(program) >= goal)
        moment(program, folder)

    return wait


@pytest.fixture
def seed() -> int:
    """Another one each time; pytest shows it when a test fails."""
    number = random.SystemRandom().randrange(10**6)
    print(f"seed {number}")
    random.seed(number)
    return number


# --- five kills -------------------------------------------------------------------------------------------------------


def killed_and_resumed(
    server: Server, recipe: Path, out: Path, moments: list[Moment], workers: list[int]
) -> tuple[Path, list[str]]:
    """Start, kill at each of the moments and resume, each time with another number of workers, to the end.

    Returns the run folder and, for each kill, the last line of the trace. A run that ends before its kill is fine.
    """
    folder = out / "faults" / "default"
    seen: list[str] = []
    for number, (moment, count) in enumerate(zip(moments, workers, strict=False)):
        arguments = ["train", str(recipe), f"data.workers={count}", "--out", str(out)]
        program = server.start(*arguments, *["--resume"] * bool(number), environment={SLOW: "0.002"})
        try:
            program.until(lambda program=program: program.trace)
            moment(program, folder)
        except Ended:
            break
        program.kill()
        seen.append(program.trace[-1])
    server.run("train", str(recipe), f"data.workers={workers[len(moments)]}", "--out", str(out), "--resume")
    return folder, seen


def test_five_kills_at_random_moments(
    server: Server, recipe: Path, undisturbed: Outcome, tmp_path: Path, seed: int
) -> None:
    places = [in_a_step, in_a_save, in_an_evaluation, in_a_save, at_any_time]
    random.shuffle(places)
    moments = [some_steps_later(place) for place in places]
    folder, seen = killed_and_resumed(server, recipe, tmp_path, moments, [2, 0, 3, 1, 0, 2])
    print(seen)
    assert len(seen) == 5
    assert_same(Outcome.of(folder), undisturbed)
    assert not [path for path in folder.rglob(".*") if path.name != ".lock"], "nothing half done is left behind"


@pytest.mark.parametrize("moment", [in_a_step, in_a_save, in_an_evaluation])
def test_one_kill_at_each_kind_of_moment(
    server: Server, recipe: Path, undisturbed: Outcome, tmp_path: Path, seed: int, moment: Moment
) -> None:
    """Behind the first save, so that there is something to go on from."""

    def behind_the_first_save(program: Program, folder: Path) -> None:
        program.until(lambda: reached(program) > SAVES[0])
        moment(program, folder)

    folder, (last,) = killed_and_resumed(server, recipe, tmp_path, [behind_the_first_save], [0, 2])
    print(last)
    assert_same(Outcome.of(folder), undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("turn", range(4))
def test_twenty_kills_in_one_run(
    server: Server, recipe: Path, undisturbed: Outcome, tmp_path: Path, seed: int, turn: int
) -> None:
    moments = [
        random.choice([some_steps_later(in_a_step), in_a_save, in_an_evaluation, at_any_time]) for _ in range(20)
    ]
    workers = [random.randrange(4) for _ in range(21)]
    folder, seen = killed_and_resumed(server, recipe, tmp_path, moments, workers)
    print(seen)
    assert_same(Outcome.of(folder), undisturbed)


def test_a_kill_before_the_first_save_begins_anew(
    server: Server, recipe: Path, undisturbed: Outcome, tmp_path: Path
) -> None:
    program = server.start("train", str(recipe), "--out", str(tmp_path))
    program.until_traced("after_step 4")
    program.kill()
    folder = tmp_path / "faults" / "default"
    assert metrics(folder), "there is a line to be forgotten"
    again = server.run("train", str(recipe), "--out", str(tmp_path), "--resume")
    assert f"no checkpoint in {folder / 'checkpoints'}: starting anew" in again.err
    assert_same(Outcome.of(folder), undisturbed)


def test_resuming_right_after_a_kill_is_not_refused(
    server: Server, recipe: Path, undisturbed: Outcome, tmp_path: Path
) -> None:
    """Workers outlive a killed main process by seconds; they hold nothing that the next one needs."""
    program = server.start("train", str(recipe), "--out", str(tmp_path), "data.workers=3")
    program.until_traced("after_step 6")
    workers = program.children()
    program.kill()
    assert any(map(is_alive, workers))
    server.run("train", str(recipe), "--out", str(tmp_path), "--resume")
    assert_same(Outcome.of(tmp_path / "faults" / "default"), undisturbed)


# --- every write ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_killed_at_every_write_of_a_run(
    server: Server, recipe: Path, undisturbed: Outcome, tmp_path: Path, part: int
) -> None:
    """A process that kills itself just before its n-th call that changes a file, for a quarter of all n."""
    turn, ended, found = part + 1, False, 0
    while not ended:
        out = tmp_path / str(turn)
        first = server.start(
            *("train", str(recipe), "--out", str(out), "writers=[]", "train.length=10it", "checkpoint.keep=1"),
            environment={TURN: str(turn)},
            first=["tests.faults.injections:die_at_turn"],
        )
        ended = first.wait() == 0
        assert first.status in (0, -signal.SIGKILL), first.err
        if not ended:
            found += 1
            server.run(
                *("train", str(recipe), "--out", str(out), "writers=[]", "train.length=10it", "checkpoint.keep=1"),
                "--resume",
            )
        folder = out / "faults" / "default"
        if turn == part + 1:
            expected = Outcome.of(folder)
        assert_same(Outcome.of(folder), expected)
        turn += 4
    assert found > 10


# --- the command as a user gives it -----------------------------------------------------------------------------------


def test_the_command_itself_killed_and_resumed(recipe: Path, undisturbed: Outcome, tmp_path: Path) -> None:
    """No warm server: ``python -m opabinia``, all of it."""
    command = [sys.executable, "-m", "opabinia", "train", str(recipe), "--out", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), TRACE: str(tmp_path / "trace"), SLOW: "0.01"}
    folder = tmp_path / "faults" / "default"
    with subprocess.Popen([*command, "data.workers=2"], env=environment, stderr=subprocess.PIPE) as first:
        end = time.monotonic() + 60
        while not (folder / "checkpoints" / "last").exists():
            assert first.poll() is None and time.monotonic() < end
            time.sleep(0.01)
        first.kill()
    assert first.returncode == -signal.SIGKILL
    second = subprocess.run([*command, "--resume"], env=environment, capture_output=True, text=True, timeout=100)
    assert second.returncode == 0, second.stderr
    assert "val/top1" in second.stdout
    assert_same(Outcome.of(folder), undisturbed)
    assert len([line for line in undisturbed.metrics if "val/top1" in line]) == len(EVALUATIONS)
