"""Killed again and again at random moments, and each time gone on with by another number of workers."""

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
    server: Server, recipe: Path, undisturbed: Outcome, tmp_path: Path
) -> None:
    """In a step, in a save, in an evaluation: wherever it was. Then the weights are bit-identical to those of the run
    that nothing disturbed, and metrics.jsonl has no gap and nothing twice."""
    draw = random.Random(0)
    killed: Counter[str] = Counter()
    for number in range(12):
        if killed.total() >= KILLS and killed["step"] and killed["save"] and killed["evaluation"]:
            break
        while (where := killed_somewhere(server, recipe, tmp_path, f"run-{number}", draw)) is not None:
            killed[where] += 1
        assert_same(Outcome.of(tmp_path / "faults" / f"run-{number}"), undisturbed)
    assert killed.total() >= KILLS and killed["step"] and killed["save"] and killed["evaluation"], killed


def killed_somewhere(server: Server, recipe: Path, out: Path, name: str, draw: random.Random) -> str | None:
    """Start a run or go on with it, and kill it at a random moment; None when it comes to its end before."""
    folder = out / "faults" / name
    again = ("--resume",) if (folder / "config.yaml").exists() else ()
    # Saving all the time, or hardly any kill would find it at that.
    overrides = (f"data.num_workers={draw.choice(WORKERS)}", "checkpoint.every=1it")
    program = server.start(
        "train", str(recipe), "--out", str(out), "--name", name, *overrides, *again, environment={SLOW: "0.004"}
    )
    program.until(lambda: program.trace or not program.running())
    time.sleep(draw.uniform(0.0, 1.5))
    if not program.running():
        program.expect(0)
        return None
    last = program.trace[-1]
    everybody = programs_of_group(program.pid)
    program.kill()
    assert all_gone(everybody, 10)
    if any(path.suffix == ".tmp" for path in (folder / "checkpoints").glob(".step-*")):
        return "save"
    return "evaluation" if last.startswith("before_phase evaluate") else "step"
