"""Run folders: never overwritten, one writer, finished or resumed, and config changes on resuming."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.faults.programs import PAUSE, Server
from tests.faults.runs import Outcome, assert_same, checkpoint, contents, metrics


@pytest.fixture(scope="module")
def finished(warm_server: Server, recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run of ten steps."""
    out = tmp_path_factory.mktemp("finished")
    warm_server.run("train", str(recipe), "train.length=10it", "--out", str(out))
    return out / "faults" / "default"


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    """A copy of this run folder."""
    return Path(shutil.copytree(finished, tmp_path / "faults" / "default"))


def changed_files(before: dict[str, bytes], folder: Path) -> set[str]:
    """Return the names of new, deleted and changed files."""
    after = contents(folder)
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


def config(folder: Path) -> Any:
    return yaml.safe_load((folder / "config.yaml").read_text())


# --- a folder that holds a run ----------------------------------------------------------------------------------------


def test_a_run_is_never_overwritten(server: Server, recipe: Path, folder: Path) -> None:
    before = contents(folder)
    program = server.run("train", str(recipe), "seed=9", "--out", str(folder.parents[1]), status=2)
    assert f"{folder} holds a run, which is never overwritten" in program.err
    assert "--resume" in program.err and "--name" in program.err
    assert changed_files(before, folder) == set()
    other = server.run("train", str(recipe), "train.length=1it", "--out", str(folder.parents[1]), "--name", "other")
    assert other.status == 0
    assert changed_files(before, folder) == set()


def test_a_second_program_in_one_folder_is_refused(
    server: Server, recipe: Path, uninterrupted: Outcome, tmp_path: Path
) -> None:
    first = server.start("train", str(recipe), "--out", str(tmp_path), environment={PAUSE: "after_backward 8"})
    first.until_paused()
    folder = tmp_path / "faults" / "default"
    pointers = [folder / "checkpoints" / name for name in ("last", "best")]
    # A thread writes the checkpoint.
    first.until(lambda: all(file.is_file() and file.read_text() == "step-00000008\n" for file in pointers))
    before = contents(folder)
    second = server.run("train", str(recipe), "--out", str(tmp_path), "--resume", status=2)
    assert f"{folder}: another process is writing this run" in second.err
    assert "Traceback" not in second.err
    third = server.run("train", str(recipe), "--out", str(tmp_path), status=2)
    assert "holds a run" in third.err
    assert changed_files(before, folder) == set()
    first.unpause()
    first.expect(0)
    assert_same(Outcome.of(folder), uninterrupted)


def test_one_of_several_programs_gets_a_new_folder(
    server: Server, recipe: Path, uninterrupted: Outcome, tmp_path: Path
) -> None:
    """The first program trains, and the others are refused."""
    programs = [server.start("train", str(recipe), "--out", str(tmp_path)) for _ in range(3)]
    assert sorted(program.wait() or 0 for program in programs) == [0, 2, 2]
    assert_same(Outcome.of(tmp_path / "faults" / "default"), uninterrupted)


def test_a_program_that_waited_for_the_lock_overwrites_nothing(
    server: Server, recipe: Path, uninterrupted: Outcome, tmp_path: Path
) -> None:
    """It saw an empty folder, but another program trained in it before it got the lock."""
    late = server.start(
        *("train", str(recipe), "--out", str(tmp_path)),
        environment={PAUSE: "before the lock"},
        first=["tests.faults.injections:late_for_the_lock"],
    )
    late.until_paused()
    server.run("train", str(recipe), "--out", str(tmp_path))
    late.unpause()
    late.expect(2)
    assert "holds a run, which is never overwritten" in late.err
    assert_same(Outcome.of(tmp_path / "faults" / "default"), uninterrupted)


# --- resume -----------------------------------------------------------------------------------------------------------


def test_resume_without_a_checkpoint_starts_from_the_beginning(
    server: Server, recipe: Path, uninterrupted: Outcome, tmp_path: Path
) -> None:
    folder = tmp_path / "faults" / "default"
    folder.mkdir(parents=True)  # a run that ended before its first checkpoint
    program = server.run("train", str(recipe), "--out", str(tmp_path), "--resume")
    assert f"no checkpoint in {folder / 'checkpoints'}: starting from the beginning" in program.err
    assert_same(Outcome.of(folder), uninterrupted)


def test_a_finished_run_is_not_changed(server: Server, recipe: Path, folder: Path) -> None:
    before = contents(folder)
    for arguments in ([str(folder)], [str(recipe), "train.length=10it", "--out", str(folder.parents[1])]):
        program = server.run("train", *arguments, "--resume")
        assert f"{folder} is finished: nothing to do" in program.err
        assert "val/top1" in program.out, "its scores are shown"
        assert program.trace == []
    assert changed_files(before, folder) == {"train.log"}


def test_a_finished_run_continues_with_a_longer_length(
    server: Server, recipe: Path, uninterrupted: Outcome, folder: Path
) -> None:
    program = server.run("train", str(folder), "train.length=2ep", "--resume")
    assert "changed since the run began: train.length: 10it -> 2ep" in program.err
    assert program.trace[0] == "start 10"
    assert json.loads((folder / "results.json").read_text()).keys() >= {"val/top1", "val/top5"}
    assert config(folder)["train"]["length"] == "2ep"
    lines = metrics(folder)
    assert [line["step"] for line in lines if "val/top1" in line] == [8, 10, 15, 23, 30]
    assert sorted({line["step"] for line in lines}) == sorted({line["step"] for line in uninterrupted.metrics} | {10})


def test_a_length_before_the_checkpoint_is_refused(server: Server, folder: Path) -> None:
    before = contents(folder)
    program = server.run("train", str(folder), "train.length=5it", "--resume", status=2)
    assert "train.length: the checkpoint is at step 10, and the run would end at step 5" in program.err
    assert "Traceback" not in program.err
    assert changed_files(before, folder) <= {"train.log"}


def test_a_run_killed_before_its_results_finishes_with_them(
    server: Server, recipe: Path, uninterrupted: Outcome, folder: Path
) -> None:
    expected = json.loads((folder / "results.json").read_text())
    (folder / "results.json").unlink()
    before = metrics(folder)
    program = server.run("train", str(folder), "--resume")
    assert "nothing to do" not in program.err
    assert json.loads((folder / "results.json").read_text()) == expected
    assert metrics(folder) == before


# --- a changed config -------------------------------------------------------------------------------------------------


def test_a_changed_learning_rate_is_logged_and_used(server: Server, folder: Path) -> None:
    program = server.run("train", str(folder), "train.length=12it", "optimizer.lr=0.5", "schedule=constant", "--resume")
    assert "changed since the run began: optimizer.lr: 0.01 -> 0.5" in program.err
    assert "changed since the run began: schedule.name: cosine -> constant" in program.err
    assert metrics(folder)[-2]["lr"] == 0.5
    assert config(folder)["optimizer"]["lr"] == 0.5


@pytest.mark.parametrize(
    ("override", "path", "message"),
    [
        ("data.batch_size=4", "data.batch_size", "the checkpoint has 8, the config gives 4"),
        *(
            pytest.param(*refused, marks=pytest.mark.slow)
            for refused in (
                ("seed=4", "seed", "the checkpoint has 3, the config gives 4"),
                ("data.train.source.n=110", "data.train.source", "a resumed run cannot change this"),
                ("task.backbone.width=9", "task", "size mismatch"),
                ("optimizer.lr=-1", "optimizer", "Invalid learning rate"),
                ("optimizer.lrr=1", "optimizer.lrr", "lr"),
            )
        ),
    ],
)
def test_a_refused_change_leaves_the_run_unchanged(
    server: Server, folder: Path, override: str, path: str, message: str
) -> None:
    before = contents(folder)
    program = server.run("train", str(folder), "train.length=20it", override, "--resume", status=2)
    assert path in program.err and message in program.err
    assert "Traceback" not in program.err
    assert {name for name in changed_files(before, folder) if not name.startswith("tensorboard/")} <= {"train.log"}
    server.run("train", str(folder), "train.length=12it", "--resume")


def test_a_refused_config_does_not_occupy_a_new_folder(server: Server, recipe: Path, tmp_path: Path) -> None:
    """The corrected command trains."""
    program = server.run(
        "train", str(recipe), "task.backbone.width=8", "optimizer.lr=-1", "--out", str(tmp_path), status=2
    )
    assert "Invalid learning rate" in program.err
    server.run("train", str(recipe), "--out", str(tmp_path))


def test_another_optimizer_starts_without_state(server: Server, folder: Path) -> None:
    program = server.run(
        "train", str(folder), "train.length=20it", "optimizer={name: sgd, lr: 0.1, momentum: 0.9}", "--resume"
    )
    assert "the optimizer was AdamW and is SGD with momentum now: it starts without state" in program.err
    second = server.run("train", str(folder), "train.length=25it", "optimizer={name: adamw, lr: 0.01}", "--resume")
    assert "the optimizer was SGD with momentum and is AdamW now" in second.err


# --- drawn seeds ------------------------------------------------------------------------------------------------------


def test_a_drawn_seed_is_logged_saved_and_kept(server: Server, recipe: Path, tmp_path: Path) -> None:
    seeds = []
    for name in ("a", "b"):
        program = server.run(
            "train", str(recipe), "seed=null", "train.length=6it", "--out", str(tmp_path), "--name", name
        )
        folder = tmp_path / "faults" / name
        seed = config(folder)["seed"]
        seeds.append(seed)
        assert isinstance(seed, int)
        assert f"seed {seed}" in program.err
        assert json.loads((checkpoint(folder, 6) / "state.json").read_text())["seed"] == seed
    assert seeds[0] != seeds[1]

    arguments = ["train", str(recipe), f"seed={seeds[0]}", "train.length=12it", "--out", str(tmp_path), "--name", "c"]
    server.run(*arguments, "evaluate.every=0ep")
    # The recipe still says null: the resumed run keeps the seed that was drawn.
    server.run(
        *("train", str(recipe), "seed=null", "train.length=12it", "--out", str(tmp_path), "--name", "a", "--resume")
    )
    assert config(tmp_path / "faults" / "a")["seed"] == seeds[0]
    ids = [line["step"] for line in metrics(tmp_path / "faults" / "a") if "train/loss" in line]
    assert ids == [3, 6, 9, 12]


def test_a_drawn_seed_survives_a_kill_before_the_first_save(server: Server, recipe: Path, tmp_path: Path) -> None:
    program = server.start(
        "train", str(recipe), "seed=null", "--out", str(tmp_path), environment={PAUSE: "after_backward 4"}
    )
    program.until_paused()
    program.kill()
    folder = tmp_path / "faults" / "default"
    seed = config(folder)["seed"]
    server.run("train", str(recipe), "seed=null", "train.length=4it", "--out", str(tmp_path), "--resume")
    assert config(folder)["seed"] == seed
