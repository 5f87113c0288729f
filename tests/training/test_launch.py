"""Launching runs: folders, resuming, and changes that a resumed run accepts."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from opabinia.config import ConfigError
from opabinia.contracts import Clock, DatasetInfo, Hook, Phase, Run
from opabinia.engine.checkpointing.checkpoint import read_checkpoint
from opabinia.runtime.elastic_agent import IS_ELASTIC
from opabinia.tasks.classification import Classification
from opabinia.training import launch
from opabinia.training.world_size_scaling import limit_micro_batch

SMALL = ("train.device=cpu", "data.num_workers=0", "data.batch_size=16", "loggers=[]", "train.num_threads=1")


def train(out: Path, *overrides: str, **options: Any) -> tuple[Path, dict[str, float]]:
    return launch.train("classification/digits", [*SMALL, *overrides], out=out, **options)


def resume(folder: Path, *overrides: str, **options: Any) -> tuple[Path, dict[str, float]]:
    return launch.train("classification/digits", overrides, out=folder.parents[2], resume="last", **options)


def problem(action: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        action()
    (only,) = caught.value.problems
    return str(only)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs")
    return train(out, "train.length=4it", "checkpoint={every: 2it}", "optimizer.lr=0.002")[0]


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    """A copy of a finished run."""
    return Path(shutil.copytree(finished, tmp_path / finished.relative_to(finished.parents[2])))


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in ("train.log", ".lock")
    }


def test_a_resume_keeps_earlier_overrides(folder: Path) -> None:
    assert resume(folder, "train.length=6it")[0] == folder
    config = launch.resolve(folder).config
    assert (config["optimizer"]["lr"], config["train"]["length"], config["loggers"]) == (0.002, "6it", [])
    resume(folder, "train.length=8it")
    assert json.loads((folder / "results.json").read_text())
    assert "train.length: 6it -> 8it" in (folder / "train.log").read_text()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["train.length=3it"], "train.length: the checkpoint is at step 4, and the run would end at step 3"),
        (["train.length=9it", "data.shuffle=false"], "data.shuffle: a resumed run cannot change this"),
        (["train.length=9it", "data.batch_size=32"], "data.batch_size: a resumed run cannot change this"),
        (["train.length=9it", "seed=5"], "seed: a resumed run cannot change this"),
        (["train.length=9it", "data.train.source.split=val"], "data.train.source: a resumed run cannot change this"),
        (
            ["train.length=9it", "hooks={save: {name: time_limit, max_time: 1h}}"],
            "hooks: 'save' is the key of a built-in",
        ),
        (["train.length=9it", "task.backbone.model=test_vit"], "task"),
    ],
)
def test_a_refused_resume_changes_nothing(folder: Path, overrides: list[str], message: str) -> None:
    initial = contents(folder)
    assert message in problem(lambda: resume(folder, *overrides))
    assert contents(folder) == initial


def test_batches_of_an_epoch_may_not_change(tmp_path: Path) -> None:
    folder, _ = train(tmp_path, "train.length=24it", "data.batch_size=64")  # 23 steps an epoch
    text = problem(lambda: resume(folder, "train.length=30it", "data.drop_last=true"))
    assert "data: step 24 would be at another position in the data" in text


def test_the_best_score_must_exist_even_without_validation(tmp_path: Path) -> None:
    text = problem(lambda: train(tmp_path, "data.val=null", "checkpoint.best=val/top1"))
    assert "checkpoint.best: no evaluation computes the score 'val/top1'; scores: none" in text
    assert not (tmp_path / "classification/digits/default/config.yaml").exists()


def test_a_run_that_was_refused_does_not_block_its_folder(tmp_path: Path) -> None:
    problem(lambda: train(tmp_path, "optimizer.lr=-1"))
    train(tmp_path, "train.length=1it")
    assert "holds a run" in problem(lambda: train(tmp_path, "train.length=1it"))


def test_checkpoints_without_a_config_are_not_overwritten(folder: Path) -> None:
    (folder / "config.yaml").unlink()
    (folder / "metrics.jsonl").unlink()
    assert "holds a run" in problem(lambda: train(folder.parents[2]))


@pytest.mark.parametrize("name", ["", "..", "a/b", "a b"])
def test_names_of_runs(tmp_path: Path, name: str) -> None:
    assert "is not valid for a run" in problem(lambda: train(tmp_path, name=name))
    assert not list(tmp_path.iterdir())


def test_a_new_run_with_the_config_of_another_is_in_the_same_folder(folder: Path) -> None:
    new_run, _ = launch.train(str(folder), ["train.length=1it"], name="other")
    assert new_run == folder.parent / "other"


def test_resuming_an_older_checkpoint_logs_deletions_and_keeps_best_valid(folder: Path) -> None:
    older = folder / "checkpoints" / "step-00000002"
    launch.train(str(folder), ["train.length=6it"], resume=str(older))
    log = (folder / "train.log").read_text()
    assert "resuming at step 2: the next save deletes step-00000004" in log
    best = (folder / "checkpoints" / "best").read_text().strip()
    assert (folder / "checkpoints" / best).is_dir()


@pytest.mark.parametrize("checkpoint", ["best", "last", "step-00000004"])
def test_evaluation_needs_no_training_data(folder: Path, checkpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from opabinia.data.sources import digits

    expected = json.loads((folder / "results.json").read_text())
    monkeypatch.setattr(digits.Digits, "__init__", _only_validation(digits.Digits.__init__))
    assert launch.evaluate(folder, checkpoint=checkpoint) == expected


def _only_validation(init: Any) -> Any:
    def init_validation(self: Any, *, split: str = "train") -> None:
        assert split == "val"
        init(self, split=split)

    return init_validation


def test_every_module_keeps_its_mode_through_an_evaluation(tmp_path: Path) -> None:
    class Freeze(Hook):
        """Puts one module into evaluation mode, like a frozen norm."""

        def start(self, run: Run) -> None:
            self.module = next(
                module for module in run.task.modules() if isinstance(module, torch.nn.BatchNorm2d)
            ).eval()

        def after_phase(self, run: Run, phase: Phase) -> None:
            assert not self.module.training and run.task.training

    resolved = launch.resolve("classification/digits", [*SMALL, "train.length=2it", "evaluate.every=1it"])
    (tmp_path / "checkpoints").mkdir()
    parts = {**launch.build_parts(resolved).keywords, "hooks": {"freeze": Freeze()}}
    launch.TrainingRun(**parts)(launch.Session(tmp_path))


def test_an_optimizer_with_another_kind_of_state_starts_without_state(folder: Path) -> None:
    resume(folder, "train.length=6it", "optimizer.amsgrad=true")
    assert (
        "the optimizer was AdamW and is AdamW with amsgrad now: it starts without state"
        in (folder / "train.log").read_text()
    )


def test_a_checkpoint_has_its_position(folder: Path) -> None:
    state = read_checkpoint(folder / "checkpoints" / "step-00000004").state
    assert (state["step"], state["epoch"], state["position"], state["samples"]) == (4, 0, 64, 64)
    assert read_checkpoint(folder / "checkpoints" / "step-00000004").state["facts"] == DatasetInfo(
        samples=1437, channels=1, classes=tuple("0123456789")
    )
    assert Clock(step=4).step == state["step"]


def test_errors_of_all_constructors_are_reported(tmp_path: Path) -> None:
    overrides = ["train.source={name: image_folder, root: no/where}", "val.source={name: image_folder, root: nor/here}"]
    resolved = launch.resolve("classification/digits", [f"data.{override}" for override in overrides])
    with pytest.raises(ConfigError) as caught:
        launch.build_parts(resolved)
    assert [problem.path for problem in caught.value.problems] == ["data.train.source", "data.val.source"]
    assert all(problem.where.startswith("command line") for problem in caught.value.problems)


def test_an_elastic_launch_continues_its_run_and_logs_the_world_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {IS_ELASTIC: "1", "TORCHELASTIC_RUN_ID": "x"}.items():
        monkeypatch.setenv(name, value)
    folder, _ = train(tmp_path, "train.length=1it")
    train(tmp_path, "train.length=2it")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    starts = [(line["step"], line["world_size"], line["micro_batch_size"]) for line in lines if "world_size" in line]
    assert starts == [(0, 1, 16), (1, 1, 16)]
    assert read_checkpoint(folder / "checkpoints/step-00000002").state["micro_batch_size"] == 16
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "another")
    assert "which is never overwritten" in problem(lambda: train(tmp_path, "train.length=3it"))


def test_an_older_checkpoint_of_an_extended_run_is_not_finished(finished: Path) -> None:
    config, snapshot = launch.resolve(finished).config, launch.load_latest_checkpoint(finished / "checkpoints")
    assert snapshot and launch._final_scores(finished, snapshot[1], config, config)
    older = replace(snapshot[1], step=1, state={**snapshot[1].state, "total_steps": 1})
    assert launch._final_scores(finished, older, config, config) is None


def test_with_fewer_processes_each_needs_no_more_memory(monkeypatch: pytest.MonkeyPatch, finished: Path) -> None:
    settings = launch.build_parts(launch.resolve(finished)).keywords["train"]
    task = Classification.__new__(Classification)
    limits = []
    for state in (None, {"world_size": 4}, {"world_size": 4, "micro_batch_size": 6}, {"world_size": 1}):
        monkeypatch.setenv(IS_ELASTIC, "1")
        limited, samples = limit_micro_batch(settings, task, 30, state)
        limits.append((limited.micro_batch_size, samples))
        monkeypatch.delenv(IS_ELASTIC)
        assert limit_micro_batch(settings, task, 30, state) == (settings, 30)
    assert limits == [(None, 30), (8, 8), (6, 6), (None, 30)]
    monkeypatch.setenv(IS_ELASTIC, "1")
    assert limit_micro_batch(replace(settings, micro_batch_size=5), task, 30, {"world_size": 4})[1] == 5
    task.requires_full_batch = True
    assert limit_micro_batch(settings, task, 30, {"world_size": 4}) == (settings, 30)
