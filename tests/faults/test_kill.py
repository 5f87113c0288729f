"""SIGKILL at any time: the resumed run has the results of an uninterrupted one."""

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.launches import Launch
from tests.faults.programs import SLOW, TURN, Ended, Program, Server, is_alive
from tests.faults.runs import EVALUATIONS, SAVES, Outcome, Run, assert_same, metrics

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


def spread(kinds: list[Moment], last: int, first: int = 1) -> list[Moment]:
    """Return the moments spread over the run: each after a random step, from ``first`` to ``last``."""

    def after_step(step: int, kind: Moment) -> Moment:
        def moment(program: Program, folder: Path) -> None:
            program.until(lambda: reached(program) >= step)
            kind(program, folder)

        return moment

    steps = sorted(random.choices(range(first, last + 1), k=len(kinds)))
    return [after_step(step, kind) for step, kind in zip(steps, kinds, strict=True)]


@pytest.fixture
def seed() -> int:
    """A different seed each time; pytest shows it when a test fails."""
    number = random.SystemRandom().randrange(10**6)
    print(f"seed {number}")
    random.seed(number)
    return number


def killed_and_resumed(
    server: Server, recipe: Path, out: Path, moments: list[Moment], workers: list[int]
) -> tuple[Path, list[str]]:
    """Start a run, kill it at each of the moments and resume, each time with another number of workers, to the end.

    Returns the run folder and, for each kill, the last line of the trace. A run may end before its kill.
    """
    run = Run(server, recipe, out)
    killed_at: list[str] = []
    for number, (moment, count) in enumerate(zip(moments, workers, strict=False)):
        resume = ["--resume", "auto"] * bool(number)  # it may have been killed before it had a folder
        program = run.start(f"data.num_workers={count}", *resume, environment={SLOW: "0.002"})
        try:
            program.until(lambda program=program: program.trace)
            moment(program, run.folder)
        except Ended:
            break
        program.kill()
        killed_at.append(program.trace[-1])
    run.train(f"data.num_workers={workers[len(moments)]}", "--resume", "auto")
    print(killed_at)
    return run.folder, killed_at


@pytest.mark.slow
@pytest.mark.parametrize("kind", [in_a_step, in_a_save, in_an_evaluation])
def test_one_kill_at_each_kind_of_moment(
    server: Server, recipe: Path, uninterrupted: Outcome, tmp_path: Path, seed: int, kind: Moment
) -> None:
    """After the first save, so that there is a checkpoint to resume from."""
    moments = spread([kind], SAVES[0] + 1, SAVES[0] + 1)
    folder, killed_at = killed_and_resumed(server, recipe, tmp_path, moments, [0, 2])
    assert len(killed_at) == 1
    assert_same(Outcome.of(folder), uninterrupted)


@pytest.mark.slow
@pytest.mark.parametrize("repetition", range(2))
def test_twenty_kills_in_one_run(
    server: Server, recipe: Path, uninterrupted: Outcome, tmp_path: Path, seed: int, repetition: int
) -> None:
    kinds = random.choices([in_a_step, in_a_save, in_an_evaluation, at_any_time], k=20)
    workers = random.choices(range(4), k=21)
    folder, killed_at = killed_and_resumed(server, recipe, tmp_path, spread(kinds, 29), workers)
    assert len(killed_at) > 5
    assert_same(Outcome.of(folder), uninterrupted)
    assert not [path for path in folder.rglob(".*") if path.name != ".lock"], "no temporary files are left"


def test_a_run_killed_before_the_first_save_restarts(run: Run, uninterrupted: Outcome) -> None:
    run.start(pause="after_step 4").kill()
    assert metrics(run.folder), "there are lines to be dropped"
    resumed = run.resume_exactly(uninterrupted)
    assert f"no checkpoint in {run.folder / 'checkpoints'}: starting from the beginning" in resumed.err


def test_resuming_right_after_a_kill_is_not_refused(run: Run, uninterrupted: Outcome) -> None:
    """Workers outlive a killed main process by seconds, but hold no lock that the next one needs."""
    program = run.start("data.num_workers=3")
    program.until_traced("after_step 6")
    workers = program.children()
    program.kill()
    assert any(map(is_alive, workers))
    run.resume_exactly(uninterrupted)


def test_killed_while_the_loop_is_ahead_of_a_save(run: Run, uninterrupted: Outcome) -> None:
    """The checkpoint of step 10 is half written while training continues: that of step 8, the best, is complete."""
    program = run.start(first=["tests.faults.injections:stuck_in_a_save"])
    program.until_traced("after_step 13")
    program.kill()
    checkpoints = run.folder / "checkpoints"
    assert [path.suffix for path in checkpoints.iterdir() if "step-00000010" in path.name] == [".tmp"]
    assert f"resuming {run.folder} from step 8" in run.resume_exactly(uninterrupted).err


@pytest.mark.slow
@pytest.mark.parametrize("quarter", range(4))
def test_killed_at_every_write_of_a_run(server: Server, recipe: Path, tmp_path: Path, quarter: int) -> None:
    """The process kills itself just before its n-th call that changes a file, for a quarter of all n."""
    overrides = ["loggers=[]", "train.length=10it", "checkpoint.keep=1"]
    whole = Run(server, recipe, tmp_path)
    whole.train(*overrides)
    for turn in range(quarter + 1, 1000, 4):
        run = Run(server, recipe, tmp_path, str(turn))
        program = run.start(*overrides, environment={TURN: str(turn)}, first=["tests.faults.injections:die_at_turn"])
        if program.wait() == 0:
            break
        program.expect(-signal.SIGKILL)
        run.train(*overrides, "--resume", "auto")
        assert_same(Outcome.of(run.folder), Outcome.of(whole.folder))
    assert turn > 40


@pytest.mark.slow
def test_the_command_itself_killed_and_resumed(recipe: Path, uninterrupted: Outcome, tmp_path: Path) -> None:
    """``python -m opabinia``, without the warm server."""
    command = ["opabinia", "train", str(recipe), "--out", str(tmp_path)]
    first = Launch(tmp_path, *command, "data.num_workers=2", environment={SLOW: "0.01"})
    first.until((first.run / "checkpoints" / "last").exists)
    first.process.kill()
    first.expect(-signal.SIGKILL)
    second = Launch(tmp_path, *command, "--resume")
    second.expect(0)
    assert "val/top1" in second.out
    assert_same(Outcome.of(first.run), uninterrupted)
    assert len([line for line in uninterrupted.metrics if "val/top1" in line]) == len(EVALUATIONS)
