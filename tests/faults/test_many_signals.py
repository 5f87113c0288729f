"""A hundred SIGTERMs at random moments of a run's life: a hundred exits with 143, a hundred checkpoints that do."""

import random
import signal
import time
from pathlib import Path

import pytest

from opabinia.engine.checkpointing.manager import load_latest_checkpoint
from tests.faults.programs import SLOW, Program, Server, is_alive
from tests.faults.runs import STEPS, Outcome, assert_same

TIMES = 100


def start(server: Server, recipe: Path, out: Path, processes: int, meeting: Path) -> list[Program]:
    arguments = ["train", str(recipe), "train.num_threads=1", "--out", str(out), "--resume"]
    ranks = [{"RANK": str(rank), "WORLD_SIZE": str(processes)} for rank in range(processes)]
    arguments += [f"train.distributed.init=file://{meeting}"] if processes > 1 else []
    return [server.start(*arguments, environment={**rank, SLOW: "0.005"}) for rank in ranks]


def life(server: Server, recipe: Path, out: Path, processes: int) -> float:
    """Seconds from start to end."""
    began = time.monotonic()
    for program in start(server, recipe, out, processes, out / "meeting"):
        program.expect(0)
    return time.monotonic() - began


def as_in_a_shell(program: Program) -> int | None:
    """Before Python has begun, the signal itself ends a program: to a shell that is 143 as well."""
    status = program.wait()
    return 128 - status if status is not None and status < 0 else status


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_a_hundred_signals(
    server: Server, recipe: Path, undisturbed: Outcome, pair: Outcome, tmp_path: Path, processes: int
) -> None:
    """All processes get the signal, as from srun or an agent. A run that is over begins anew in another folder."""
    number = random.SystemRandom().randrange(10**6)
    print(f"seed {number}")
    draw = random.Random(number)
    expected = undisturbed if processes == 1 else pair
    (tmp_path / "first").mkdir()
    seconds = life(server, recipe, tmp_path / "first", processes)
    assert_same(Outcome.of(tmp_path / "first" / "faults" / "default"), expected)
    stopped, runs, saved = 0, 0, set()
    while stopped < TIMES:
        out = tmp_path / f"run-{runs}"
        out.mkdir(exist_ok=True)
        programs = start(server, recipe, out, processes, tmp_path / f"meeting-{stopped}-{runs}")
        time.sleep(draw.uniform(0, seconds / 3))
        for program in programs:
            if is_alive(program.pid):
                program.signal(signal.SIGTERM)
        statuses = [as_in_a_shell(program) for program in programs]
        folder = out / "faults" / "default"
        if (folder / "results.json").exists():  # it was over, or at its last words
            assert set(statuses) <= {0, 143}
            assert_same(Outcome.of(folder), expected)
            runs += 1
            continue
        assert statuses == [143] * processes, [program.err for program in programs]
        assert not any("Traceback" in program.err for program in programs)
        stopped += 1
        if (folder / "checkpoints").exists():
            found = load_latest_checkpoint(folder / "checkpoints")
            if found is not None:
                assert 0 < found[1].step <= STEPS
                saved.add((runs, found[1].step))
    print(f"{stopped} stopped, {runs} runs came to their end between, {len(saved)} different checkpoints gone on from")
    assert len(saved) > TIMES / 10
