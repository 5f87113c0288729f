"""Damaged checkpoints are named and an earlier one is used; the results are the same."""

import json
import random
import shutil
from pathlib import Path

import pytest

from tests.faults.programs import Server
from tests.faults.runs import Outcome, Run, assert_same, checkpoint, contents


def flip(file: Path) -> None:
    raw = bytearray(file.read_bytes())
    raw[random.randrange(len(raw))] ^= 1 << random.randrange(8)
    file.write_bytes(raw)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: random.randrange(file.stat().st_size)])


@pytest.fixture(scope="module")
def stopped_at_17(warm_server: Server, recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run stopped at step 17, with the checkpoints 10, 15 and 17 (8 is no longer the best)."""
    run = Run(warm_server, recipe, tmp_path_factory.mktemp("stopped"))
    run.start("checkpoint.keep=3", pause="after_backward 16").stop()
    assert [path.name[-2:] for path in sorted((run.folder / "checkpoints").glob("step-*"))] == ["10", "15", "17"]
    return run.folder


@pytest.fixture
def stopped(run: Run, stopped_at_17: Path) -> Run:
    """A copy of this run."""
    shutil.copytree(stopped_at_17, run.folder)
    return run


def test_the_checkpoint_before_damaged_ones_is_used(stopped: Run, uninterrupted: Outcome) -> None:
    newest, before = (checkpoint(stopped.folder, step) for step in (17, 15))
    flip(newest / "model.safetensors")
    cut(before / "optimizer.safetensors")
    program = stopped.resume_exactly(uninterrupted)
    assert f"invalid checkpoint: {newest / 'model.safetensors'}: damaged" in program.err
    assert f"invalid checkpoint: {before / 'optimizer.safetensors'}: " in program.err
    assert f"resuming {stopped.folder} from step 10" in program.err


def test_all_checkpoints_are_damaged(stopped: Run) -> None:
    files = [checkpoint(stopped.folder, step) / "state.json" for step in (10, 15, 17)]
    for file in files:
        flip(file)
    before = contents(stopped.folder)
    program = stopped.train("--resume", status=2)
    assert f"{stopped.folder / 'checkpoints'}: none of its 3 checkpoints is valid" in program.err
    assert all(f"invalid checkpoint: {file}: damaged" in program.err for file in files)
    assert "Traceback" not in program.err
    after = contents(stopped.folder)
    assert {name for name in after if after[name] != before.get(name)} == {"train.log"}


def test_a_finished_run_with_a_damaged_last_checkpoint_is_resumed(stopped: Run, uninterrupted: Outcome) -> None:
    """It has results, but not their weights, which are trained again."""
    stopped.train("--resume")
    flip(checkpoint(stopped.folder, 30) / "model.safetensors")
    program = stopped.resume_exactly(uninterrupted)
    assert "nothing to do" not in program.err
    assert f"resuming {stopped.folder} from step 25" in program.err


def test_an_invalid_saved_config_is_replaced(stopped: Run, uninterrupted: Outcome) -> None:
    (stopped.folder / "config.yaml").write_text("task: [")
    program = stopped.resume_exactly(uninterrupted)
    assert f"the config saved in {stopped.folder} can no longer be read" in program.err


# --- a checkpoint by name ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("finished", [pytest.param(False, marks=pytest.mark.slow), True])
def test_resuming_from_an_older_checkpoint(stopped: Run, uninterrupted: Outcome, finished: bool) -> None:
    if finished:
        stopped.train("checkpoint.keep=9", "--resume")
    program = stopped.server.run("train", str(stopped.folder), "--resume", str(checkpoint(stopped.folder, 10)))
    assert f"resuming {stopped.folder} from step 10" in program.err
    assert program.trace[0] == "start 10"
    assert_same(Outcome.of(stopped.folder), uninterrupted)


def test_a_run_killed_after_resuming_from_an_older_checkpoint(stopped: Run, uninterrupted: Outcome) -> None:
    """Later lines are dropped as soon as the older checkpoint is resumed: the metrics log is truncated there."""
    stopped.start("--resume", str(checkpoint(stopped.folder, 10)), pause="after_backward 12").kill()
    assert f"resuming {stopped.folder} from step 10" in stopped.resume_exactly(uninterrupted).err


def test_a_checkpoint_that_cannot_be_resumed_or_evaluated_is_refused(stopped: Run, tmp_path: Path) -> None:
    other = shutil.copytree(checkpoint(stopped.folder, 10), tmp_path / "elsewhere" / "step-00000010")
    damaged = [checkpoint(stopped.folder, step) / "model.safetensors" for step in (10, 17)]
    for file in damaged:
        flip(file)
    folder, pointer = str(stopped.folder), (stopped.folder / "checkpoints" / "last").read_bytes()
    for arguments, message in (
        (("train", folder, "--resume", str(damaged[0].parent)), f"{damaged[0]}: damaged"),
        (("train", folder, "--resume", str(other)), f"{other} is not a checkpoint in {folder}/checkpoints"),
        (("eval", folder, "--checkpoint", "last"), f"{damaged[1]}: damaged"),
    ):
        program = stopped.server.run(*arguments, status=2)
        assert message in program.err and "Traceback" not in program.err
    assert (stopped.folder / "checkpoints" / "last").read_bytes() == pointer


def test_evaluating_the_best_checkpoint_gives_its_scores(stopped: Run, uninterrupted: Outcome) -> None:
    stopped.server.run("eval", str(stopped.folder), "--checkpoint", "best")
    saved = json.loads((stopped.folder / "eval" / "val" / "scores.json").read_text())
    (line,) = [line for line in uninterrupted.metrics if line["step"] == 15 and "val/top1" in line]
    scores = {name: value for name, value in line.items() if name.startswith("val/")}
    assert saved["checkpoint"] == "step-00000015" and {"val/top1", "val/nll"} <= scores.keys()
    assert {name: value for name, value in saved.items() if name.startswith("val/")} == scores
