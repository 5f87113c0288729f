"""A hundred SIGTERMs at random times of a run: exit status 143 each time, and valid checkpoints."""

import random
import signal
import time
from pathlib import Path

import pytest

from opabinia.engine.checkpointing.manager import load_latest_checkpoint
from tests.faults.programs import SLOW, Program, Server, is_alive
from tests.faults.runs import STEPS, Outcome, assert_same

TIMES = 100


def start(server: Server, recipe: Path, out: Path, processes: int, rendezvous: Path) -> list[Program]:
    arguments = ["train", str(recipe), "train.num_threads=1", "--out", str(out), "--resume"]
    ranks = [{"RANK": str(rank), "WORLD_SIZE": str(processes)} for rank in range(processes)]
    arguments += [f"train.distributed.init=file://{rendezvous}"] if processes > 1 else []
    return [server.start(*arguments, environment={**rank, SLOW: "0.005"}) for rank in ranks]


def duration(server: Server, recipe: Path, out: Path, processes: int) -> float:
    """Return the seconds of a whole run."""
    began = time.monotonic()
    for program in start(server, recipe, out, processes, out / "rendezvous"):
        program.expect(0)
    return time.monotonic() - began


def shell_status(program: Program) -> int | None:
    """Return the exit status in a shell: 143, too, if a signal ends the program before Python handles it."""
    status = program.wait()
    return 128 - status if status is not None and status < 0 else status


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_a_hundred_signals(
    server: Server, recipe: Path, uninterrupted: Outcome, two_process_outcome: Outcome, tmp_path: Path, processes: int
) -> None:
    """All processes get the signal, as from srun. After a run has finished, a new one starts in another folder."""
    number = random.SystemRandom().randrange(10**6)
    print(f"seed {number}")
    generator = random.Random(number)
    expected = uninterrupted if processes == 1 else two_process_outcome
    (tmp_path / "first").mkdir()
    seconds = duration(server, recipe, tmp_path / "first", processes)
    assert_same(Outcome.of(tmp_path / "first" / "faults" / "default"), expected)
    stopped, runs, saved = 0, 0, set()
    while stopped < TIMES:
        out = tmp_path / f"run-{runs}"
        out.mkdir(exist_ok=True)
        programs = start(server, recipe, out, processes, tmp_path / f"rendezvous-{stopped}-{runs}")
        time.sleep(generator.uniform(0, seconds / 3))
        for program in programs:
            if is_alive(program.pid):
                program.signal(signal.SIGTERM)
        statuses = [shell_status(program) for program in programs]
        folder = out / "faults" / "default"
        if (folder / "results.json").exists():  # it had finished, or was about to
            assert set(statuses) <= {0, 143}
            assert_same(Outcome.of(folder), expected)
            runs += 1
            continue
        assert statuses == [143] * processes, [program.err for program in programs]
        assert not any("Traceback" in program.err for program in programs)
        stopped += 1
        if (folder / "checkpoints").exists():
            newest = load_latest_checkpoint(folder / "checkpoints")
            if newest is not None:
                assert 0 < newest[1].step <= STEPS
                saved.add((runs, newest[1].step))
    print(f"{stopped} stopped, {runs} runs finished, {len(saved)} different checkpoints resumed")
    assert len(saved) > TIMES / 10
