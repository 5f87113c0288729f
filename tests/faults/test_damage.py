"""Damaged checkpoints are named and an earlier one is used; the results are the same."""

import json
import random
import shutil
import signal
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from tests.faults.programs import PAUSE, Server
from tests.faults.runs import Outcome, assert_same, checkpoint, contents

FILES = ("model.safetensors", "optimizer.safetensors", "state.json")


def flip(file: Path) -> None:
    raw = bytearray(file.read_bytes())
    raw[random.randrange(len(raw))] ^= 1 << random.randrange(8)
    file.write_bytes(raw)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: random.randrange(file.stat().st_size)])


def empty(file: Path) -> None:
    file.write_bytes(b"")


@pytest.fixture(scope="module")
def stopped_at_17(warm_server: Server, recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run stopped at step 17, with the checkpoints 10, 15 and 17 (8 is no longer the best)."""
    out = tmp_path_factory.mktemp("stopped")
    program = warm_server.start(
        *("train", str(recipe), "checkpoint.keep=3", "--out", str(out)), environment={PAUSE: "after_backward 16"}
    )
    program.until_paused()
    program.signal(signal.SIGTERM)
    program.unpause()
    program.expect(143)
    folder = out / "faults" / "default"
    assert [path.name[-2:] for path in sorted((folder / "checkpoints").glob("step-*"))] == ["10", "15", "17"]
    return folder


@pytest.fixture
def folder(stopped_at_17: Path, tmp_path: Path) -> Path:
    """A copy of this run folder."""
    return Path(shutil.copytree(stopped_at_17, tmp_path / "faults" / "default"))


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        pytest.param(name, damage, marks=() if damage == flip else pytest.mark.slow)
        for name, damage in product(FILES, (flip, cut, empty, Path.unlink))
    ],
)
def test_the_checkpoint_before_a_damaged_one_is_used(
    server: Server, uninterrupted: Outcome, folder: Path, name: str, damage: Callable[[Path], None]
) -> None:
    damage(checkpoint(folder, 17) / name)
    program = server.run("train", str(folder), "--resume")
    assert f"invalid checkpoint: {checkpoint(folder, 17) / name}: " in program.err
    assert f"resuming {folder} from step 15" in program.err
    assert_same(Outcome.of(folder), uninterrupted)


def test_two_damaged_checkpoints(server: Server, uninterrupted: Outcome, folder: Path) -> None:
    flip(checkpoint(folder, 17) / "model.safetensors")
    cut(checkpoint(folder, 15) / "optimizer.safetensors")
    program = server.run("train", str(folder), "--resume")
    assert f"invalid checkpoint: {checkpoint(folder, 17) / 'model.safetensors'}: damaged" in program.err
    assert f"invalid checkpoint: {checkpoint(folder, 15) / 'optimizer.safetensors'}: " in program.err
    assert f"resuming {folder} from step 10" in program.err
    assert_same(Outcome.of(folder), uninterrupted)


def test_all_checkpoints_are_damaged(server: Server, folder: Path) -> None:
    for step in (10, 15, 17):
        flip(checkpoint(folder, step) / "state.json")
    before = contents(folder)
    program = server.run("train", str(folder), "--resume", status=2)
    assert f"{folder / 'checkpoints'}: none of its 3 checkpoints is valid" in program.err
    assert all(
        f"invalid checkpoint: {checkpoint(folder, step) / 'state.json'}: damaged" in program.err
        for step in (10, 15, 17)
    )
    assert "Traceback" not in program.err
    after = contents(folder)
    assert {name for name in after if after[name] != before.get(name)} == {"train.log"}


def test_a_damaged_pointer_is_ignored(server: Server, uninterrupted: Outcome, folder: Path) -> None:
    (folder / "checkpoints" / "last").write_bytes(b"\xff\x00step")
    server.run("train", str(folder), "--resume")
    assert_same(Outcome.of(folder), uninterrupted)


def test_a_finished_run_with_a_damaged_last_checkpoint_is_resumed(
    server: Server, uninterrupted: Outcome, folder: Path
) -> None:
    """It has results, but not their weights, which are trained again."""
    server.run("train", str(folder), "--resume")
    flip(checkpoint(folder, 30) / "model.safetensors")
    program = server.run("train", str(folder), "--resume")
    assert "nothing to do" not in program.err
    assert f"resuming {folder} from step 25" in program.err
    assert_same(Outcome.of(folder), uninterrupted)


def test_a_deleted_metrics_log_is_reported(server: Server, uninterrupted: Outcome, folder: Path) -> None:
    (folder / "metrics.jsonl").unlink()
    program = server.run("train", str(folder), "--resume")
    assert "metrics.jsonl is shorter than when the checkpoint was saved: lines are missing" in program.err
    outcome = Outcome.of(folder)
    assert outcome.model == uninterrupted.model
    assert outcome.metrics == [line for line in uninterrupted.metrics if line["step"] > 17]


def test_an_invalid_saved_config_is_replaced(
    server: Server, recipe: Path, uninterrupted: Outcome, folder: Path
) -> None:
    (folder / "config.yaml").write_text("task: [")
    program = server.run("train", str(recipe), "--out", str(folder.parents[1]), "--resume")
    assert f"the config saved in {folder} can no longer be read" in program.err
    assert_same(Outcome.of(folder), uninterrupted)


# --- an older checkpoint by name --------------------------------------------------------------------------------------


@pytest.mark.parametrize("finished", [False, True])
def test_resuming_from_an_older_checkpoint(
    server: Server, recipe: Path, uninterrupted: Outcome, folder: Path, finished: bool
) -> None:
    if finished:
        server.run("train", str(folder), "checkpoint.keep=9", "--resume")
    program = server.run("train", str(folder), "--resume", str(checkpoint(folder, 10)))
    assert f"resuming {folder} from step 10" in program.err
    assert program.trace[0] == "start 10"
    assert_same(Outcome.of(folder), uninterrupted)


def test_a_run_killed_after_resuming_from_an_older_checkpoint(
    server: Server, uninterrupted: Outcome, folder: Path
) -> None:
    """Later lines are dropped as soon as the older checkpoint is resumed: the metrics log is truncated there."""
    program = server.start(
        "train", str(folder), "--resume", str(checkpoint(folder, 10)), environment={PAUSE: "after_backward 12"}
    )
    program.until_paused()
    program.kill()
    resumed = server.run("train", str(folder), "--resume")
    assert f"resuming {folder} from step 10" in resumed.err
    assert_same(Outcome.of(folder), uninterrupted)


def test_a_damaged_checkpoint_given_by_path_is_refused(server: Server, folder: Path) -> None:
    flip(checkpoint(folder, 10) / "model.safetensors")
    before = contents(folder)
    program = server.run("train", str(folder), "--resume", str(checkpoint(folder, 10)), status=2)
    assert f"{checkpoint(folder, 10) / 'model.safetensors'}: damaged" in program.err
    assert "Traceback" not in program.err
    assert (folder / "checkpoints" / "last").read_bytes() == before["checkpoints/last"]


def test_a_checkpoint_of_another_run_is_refused(server: Server, folder: Path, tmp_path: Path) -> None:
    other = shutil.copytree(checkpoint(folder, 10), tmp_path / "elsewhere" / "step-00000010")
    program = server.run("train", str(folder), "--resume", str(other), status=2)
    assert f"{other} is not a checkpoint in {folder / 'checkpoints'}" in program.err


def test_evaluating_a_damaged_checkpoint_is_refused(server: Server, folder: Path) -> None:
    flip(checkpoint(folder, 17) / "model.safetensors")
    program = server.run("eval", str(folder), "--checkpoint", "last", status=2)
    assert f"{checkpoint(folder, 17) / 'model.safetensors'}: damaged" in program.err
    assert "Traceback" not in program.err


def test_evaluating_the_best_checkpoint_gives_its_scores(server: Server, uninterrupted: Outcome, folder: Path) -> None:
    server.run("eval", str(folder), "--checkpoint", "best")
    saved = json.loads((folder / "eval" / "val" / "scores.json").read_text())
    (line,) = [line for line in uninterrupted.metrics if line["step"] == 15 and "val/top1" in line]
    scores = {name: value for name, value in line.items() if name.startswith("val/")}
    assert saved["checkpoint"] == "step-00000015" and {"val/top1", "val/nll"} <= scores.keys()
    assert {name: value for name, value in saved.items() if name.startswith("val/")} == scores
