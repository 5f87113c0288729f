"""Repeated kills at random times; each time the run resumes with another number of workers."""

import random
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.faults.programs import SLOW, Server, all_gone, programs_of_group
from tests.faults.runs import Outcome, assert_same

KILLS = 20
WORKERS = (0, 1, 2, 3)


@pytest.mark.slow
def test_kills_at_random_moments_leave_no_trace(
    server: Server, recipe: Path, uninterrupted: Outcome, tmp_path: Path
) -> None:
    """In a step, a save or an evaluation. Then the weights are bitwise identical to those of the uninterrupted run, and
    metrics.jsonl has every line once."""
    generator = random.Random(0)
    killed: Counter[str] = Counter()
    for number in range(12):
        if killed.total() >= KILLS and killed["step"] and killed["save"] and killed["evaluation"]:
            break
        while (where := kill_at_random(server, recipe, tmp_path, f"run-{number}", generator)) is not None:
            killed[where] += 1
        assert_same(Outcome.of(tmp_path / "faults" / f"run-{number}"), uninterrupted)
    assert killed.total() >= KILLS and killed["step"] and killed["save"] and killed["evaluation"], killed


def kill_at_random(server: Server, recipe: Path, out: Path, name: str, generator: random.Random) -> str | None:
    """Start or resume a run and kill it at a random time; return what it was doing, or None if it has finished."""
    folder = out / "faults" / name
    resume = ("--resume",) if (folder / "config.yaml").exists() else ()
    # Save after every step, so that some kills happen during a save.
    overrides = (f"data.num_workers={generator.choice(WORKERS)}", "checkpoint.every=1it")
    program = server.start(
        "train", str(recipe), "--out", str(out), "--name", name, *overrides, *resume, environment={SLOW: "0.004"}
    )
    program.until(lambda: program.trace or not program.running())
    time.sleep(generator.uniform(0.0, 1.5))
    if not program.running():
        program.expect(0)
        return None
    last = program.trace[-1]
    pids = programs_of_group(program.pid)
    program.kill()
    assert all_gone(pids, 10)
    if any(path.suffix == ".tmp" for path in (folder / "checkpoints").glob(".step-*")):
        return "save"
    return "evaluation" if last.startswith("before_phase evaluate") else "step"
