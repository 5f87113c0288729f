"""Launching runs: folders, resuming, and changes that a resumed run accepts."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from opabinia.config import ConfigError
from opabinia.contracts import Clock, DatasetInfo
from opabinia.data.sampling.batches import ConstantPlan
from opabinia.engine.checkpointing.checkpoint import Snapshot, read_checkpoint
from opabinia.runtime.durations import Duration
from opabinia.runtime.elastic_agent import IS_ELASTIC
from opabinia.tasks.classification import Classification
from opabinia.training import launch
from opabinia.training.resume_checks import check_same_run
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
    state = read_checkpoint(folder / "checkpoints" / "step-00000006").state
    assert (state["step"], state["epoch"], state["position"], state["samples"]) == (6, 0, 96, 96)
    assert state["facts"] == DatasetInfo(samples=1437, channels=1, classes=tuple("0123456789"))
    resume(folder, "train.length=8it", "optimizer.amsgrad=true")
    assert json.loads((folder / "results.json").read_text())
    log = (folder / "train.log").read_text()
    assert "train.length: 6it -> 8it" in log
    assert "the optimizer was AdamW and is AdamW with amsgrad now: it starts without state" in log
    new_run, _ = launch.train(str(folder), ["train.length=1it"], name="other")
    assert new_run == folder.parent / "other"


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
        (
            ["train.length=9it", "task.backbone.model=test_vit"],
            "task: the checkpoint's weights do not fit since task.backbone.model: test_resnet -> test_vit; "
            "backbone.model.cls_token is not in the checkpoint, ",
        ),
    ],
)
def test_a_refused_resume_changes_nothing(folder: Path, overrides: list[str], message: str) -> None:
    initial = contents(folder)
    assert message in problem(lambda: resume(folder, *overrides))
    assert contents(folder) == initial


def test_batches_of_an_epoch_may_not_change() -> None:
    state = dict.fromkeys(
        ("seed", "global_batch_size", "data", "shuffle", "order", "world_size", "threads", "versions")
    )
    plans = [ConstantPlan(1437, 64, Duration(30, "it"), drop_last) for drop_last in (False, True)]
    clock = Clock.at(plans[0], 24)  # 23 steps an epoch
    snapshot = Snapshot(24, {}, {**state, "epoch": clock.epoch, "samples": clock.samples})
    check_same_run(snapshot, state, plans[0])
    text = problem(lambda: check_same_run(snapshot, state, plans[1]))
    assert "data: step 24 would be at another position in the data" in text


def test_a_run_that_was_refused_does_not_block_its_folder(tmp_path: Path) -> None:
    text = problem(lambda: train(tmp_path, "data.val=null", "checkpoint.best=val/top1"))
    assert "checkpoint.best: no evaluation computes the score 'val/top1'; scores: none" in text
    folder, _ = train(tmp_path, "train.length=1it")
    assert "holds a run" in problem(lambda: train(tmp_path, "train.length=1it"))
    for name in ("config.yaml", "metrics.jsonl"):
        (folder / name).unlink()
    assert "holds a run" in problem(lambda: train(tmp_path)), "checkpoints without a config are not overwritten"


def test_resuming_an_older_checkpoint_logs_deletions_and_keeps_best_valid(folder: Path) -> None:
    older = folder / "checkpoints" / "step-00000002"
    launch.train(str(folder), ["train.length=6it"], resume=str(older))
    log = (folder / "train.log").read_text()
    assert "resuming at step 2: the next save deletes step-00000004" in log
    best = (folder / "checkpoints" / "best").read_text().strip()
    assert (folder / "checkpoints" / best).is_dir()


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
