"""Run folders: never overwritten, one writer, finished or resumed, and config changes on resuming."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.faults.programs import Server
from tests.faults.runs import Outcome, Run, assert_same, checkpoint, contents, metrics


@pytest.fixture(scope="module")
def finished_run(warm_server: Server, recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run of ten steps."""
    run = Run(warm_server, recipe, tmp_path_factory.mktemp("finished"))
    run.train("train.length=10it")
    return run.folder


@pytest.fixture
def finished(run: Run, finished_run: Path) -> Run:
    """A copy of this run."""
    shutil.copytree(finished_run, run.folder)
    return run


def changed_files(before: dict[str, bytes], folder: Path) -> set[str]:
    """Return the names of new, deleted and changed files."""
    after = contents(folder)
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


def config(run: Run) -> Any:
    return yaml.safe_load((run.folder / "config.yaml").read_text())


# --- a folder that holds a run ----------------------------------------------------------------------------------------


def test_a_run_is_never_overwritten(finished: Run) -> None:
    before = contents(finished.folder)
    program = finished.train("seed=9", status=2)
    assert f"{finished.folder} holds a run, which is never overwritten" in program.err
    assert "--resume" in program.err and "--name" in program.err
    Run(finished.server, finished.recipe, finished.out, "other").train("train.length=1it")
    assert changed_files(before, finished.folder) == set()


def test_a_second_program_in_one_folder_is_refused(run: Run, uninterrupted: Outcome) -> None:
    first = run.start(pause="after_backward 8")
    pointers = [run.folder / "checkpoints" / name for name in ("last", "best")]
    # A thread writes the checkpoint.
    first.until(lambda: all(file.is_file() and file.read_text() == "step-00000008\n" for file in pointers))
    before = contents(run.folder)
    second = run.train("--resume", status=2)
    assert f"{run.folder}: another process is writing this run" in second.err
    assert "Traceback" not in second.err
    assert "holds a run" in run.train(status=2).err
    assert changed_files(before, run.folder) == set()
    first.unpause()
    first.expect(0)
    assert_same(Outcome.of(run.folder), uninterrupted)


def test_one_of_several_programs_gets_a_new_folder(run: Run, uninterrupted: Outcome) -> None:
    """The first program trains, and the others are refused."""
    programs = [run.start() for _ in range(3)]
    assert sorted(program.wait() or 0 for program in programs) == [0, 2, 2]
    assert_same(Outcome.of(run.folder), uninterrupted)


def test_a_program_that_waited_for_the_lock_overwrites_nothing(run: Run, uninterrupted: Outcome) -> None:
    """It saw an empty folder, but another program trained in it before it got the lock."""
    late = run.start(pause="before the lock", first=["tests.faults.injections:late_for_the_lock"])
    run.train()
    late.unpause()
    late.expect(2)
    assert "holds a run, which is never overwritten" in late.err
    assert_same(Outcome.of(run.folder), uninterrupted)


# --- resume -----------------------------------------------------------------------------------------------------------


def test_a_finished_run_is_not_changed(finished: Run) -> None:
    before = contents(finished.folder)
    for words in ([str(finished.folder)], [*finished.words, "train.length=10it"]):
        program = finished.server.run("train", *words, "--resume")
        assert f"{finished.folder} is finished: nothing to do" in program.err
        assert "val/top1" in program.out, "its scores are shown"
        assert program.trace == []
    assert changed_files(before, finished.folder) == {"train.log"}


def test_a_finished_run_continues_with_a_longer_length(finished: Run, uninterrupted: Outcome) -> None:
    program = finished.server.run("train", str(finished.folder), "train.length=2ep", "--resume")
    assert "changed since the run began: train.length: 10it -> 2ep" in program.err
    assert program.trace[0] == "start 10"
    assert json.loads((finished.folder / "results.json").read_text()).keys() >= {"val/top1", "val/top5"}
    assert config(finished)["train"]["length"] == "2ep"
    lines = metrics(finished.folder)
    assert [line["step"] for line in lines if "val/top1" in line] == [8, 10, 15, 23, 30]
    assert sorted({line["step"] for line in lines}) == sorted({line["step"] for line in uninterrupted.metrics} | {10})


def test_a_run_killed_before_its_results_finishes_with_them(finished: Run) -> None:
    results, before = finished.folder / "results.json", metrics(finished.folder)
    expected = json.loads(results.read_text())
    results.unlink()
    assert "nothing to do" not in finished.server.run("train", str(finished.folder), "--resume").err
    assert json.loads(results.read_text()) == expected
    assert metrics(finished.folder) == before


# --- a changed config -------------------------------------------------------------------------------------------------


def test_a_changed_learning_rate_is_logged_and_used(finished: Run) -> None:
    overrides = ("train.length=12it", "optimizer.lr=0.5", "schedule=constant")
    program = finished.server.run("train", str(finished.folder), *overrides, "--resume")
    assert "changed since the run began: optimizer.lr: 0.01 -> 0.5" in program.err
    assert "changed since the run began: schedule.name: cosine -> constant" in program.err
    assert metrics(finished.folder)[-2]["lr"] == 0.5
    assert config(finished)["optimizer"]["lr"] == 0.5


REFUSED = {
    "batch": ("data.batch_size=4", "data.batch_size", "the checkpoint has 8, the config gives 4"),
    "length": ("train.length=5it", "train.length", "the checkpoint is at step 10, and the run would end at step 5"),
    "seed": ("seed=4", "seed", "the checkpoint has 3, the config gives 4"),
    "data": ("data.train.source.n=110", "data.train.source", "a resumed run cannot change this"),
    "model": ("task.backbone.width=9", "task", "size mismatch"),
    "value": ("optimizer.lr=-1", "optimizer", "Invalid learning rate"),
    "name": ("optimizer.lrr=1", "optimizer.lrr", "lr"),
}


@pytest.mark.parametrize(
    "case", [pytest.param(name, marks=() if name in ("batch", "length") else pytest.mark.slow) for name in REFUSED]
)
def test_a_refused_change_leaves_the_run_unchanged(finished: Run, case: str) -> None:
    override, path, message = REFUSED[case]
    before = contents(finished.folder)
    program = finished.server.run("train", str(finished.folder), "train.length=20it", override, "--resume", status=2)
    assert path in program.err and message in program.err
    assert "Traceback" not in program.err
    changed = changed_files(before, finished.folder)
    assert {name for name in changed if not name.startswith("tensorboard/")} <= {"train.log"}
    finished.server.run("train", str(finished.folder), "train.length=12it", "--resume")


def test_a_refused_config_does_not_occupy_a_new_folder(run: Run) -> None:
    """The corrected command trains."""
    assert "Invalid learning rate" in run.train("task.backbone.width=8", "optimizer.lr=-1", status=2).err
    run.train("train.length=1it")


def test_another_optimizer_starts_without_state(finished: Run) -> None:
    for length, optimizer, message in (
        (12, "{name: sgd, lr: 0.1, momentum: 0.9}", "the optimizer was AdamW and is SGD with momentum now: it starts "),
        (14, "{name: adamw, lr: 0.01}", "the optimizer was SGD with momentum and is AdamW now"),
    ):
        overrides = (f"train.length={length}it", f"optimizer={optimizer}", "--resume")
        assert message in finished.server.run("train", str(finished.folder), *overrides).err


# --- drawn seeds ------------------------------------------------------------------------------------------------------


def test_a_drawn_seed_is_logged_saved_and_kept(run: Run) -> None:
    """Also if the run is killed before its first save."""
    first, other = run, Run(run.server, run.recipe, run.out, "other")
    program = first.start("seed=null", "train.length=6it", pause="after_backward 4")
    program.kill()
    seed = config(first)["seed"]
    assert isinstance(seed, int) and f"seed {seed}" in program.err
    # The recipe still says null: the resumed run keeps the seed that was drawn.
    first.train("seed=null", "train.length=6it", "--resume")
    assert config(first)["seed"] == seed
    assert json.loads((checkpoint(first.folder, 6) / "state.json").read_text())["seed"] == seed
    other.train("seed=null", "train.length=1it")
    assert config(other)["seed"] != seed
