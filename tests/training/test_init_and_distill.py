"""Initial weights from other runs, and distillation, by config."""

import json
from pathlib import Path

import pytest
import torch

import opabinia
from opabinia.config import ConfigError
from opabinia.runtime.shards import load_safetensors
from opabinia.training import launch

SMALL = ["train.length=4it", "schedule.warmup=1it", "data.batch_size=16", "data.num_workers=0", "loggers=[]"]
SMALL += ["train.log_every=1", "evaluate.every=0ep"]


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return launch.train("classification/digits", [*SMALL, "train.length=40it"], out=tmp_path_factory.mktemp("runs"))[0]


def losses(folder: Path) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "train/loss" in line]


def weights(folder: Path, step: int = 4) -> dict[str, torch.Tensor]:
    return load_safetensors(folder / "checkpoints" / f"step-{step:08d}" / "model.safetensors")


def test_a_run_starts_from_the_weights_of_another(teacher: Path, tmp_path: Path) -> None:
    runs = {}
    for name, prefix in (("random", None), ("all", ""), ("backbone", "backbone")):
        init = [] if prefix is None else [f"init.weights={teacher}", f"init.target_prefix='{prefix}'"]
        changes = [*SMALL, "train.length=1it", "optimizer.lr=0.0", *init]
        runs[name] = launch.train("classification/digits", changes, out=tmp_path, name=name)[0]
    assert losses(runs["all"])[0]["train/loss"] < losses(runs["random"])[0]["train/loss"] - 0.3
    assert "tensors loaded" in (runs["all"] / "train.log").read_text()
    expected, initialized, initial = weights(teacher, 40), weights(runs["backbone"], 1), weights(runs["random"], 1)
    name = "backbone.model.conv1.0.weight"
    assert torch.equal(initialized[name], expected[name]) and not torch.equal(initialized[name], initial[name])
    heads = [key for key in initialized if key.startswith("head.")]
    assert heads and all(torch.equal(initialized[key], initial[key]) for key in heads)


def test_a_run_with_another_class_starts_from_the_rows_of_the_known_ones(teacher: Path, tmp_path: Path) -> None:
    classes = ["new", *"9876543210"]
    source = f"{{name: concat, sources: [{{name: digits}}], classes: {json.dumps(classes)}}}"
    data = [f"data.train.source={source}", f"data.val.source={source}", "optimizer.lr=0.0", "train.length=1it"]
    changes = [*SMALL, *data, f"init.weights={teacher}", f"distill.run={teacher}"]
    folder = launch.train("classification/digits", changes, out=tmp_path)[0]
    report = (folder / "train.log").read_text()
    assert "head: 10 of 11 classes by name from the 10 of the run; new: new" in report
    expected, initialized = weights(teacher, 40), weights(folder, 1)
    heads = [key for key in expected if key.startswith("head.")]
    assert heads and all(torch.equal(initialized[key][1:].flip(0), expected[key]) for key in heads)
    assert (
        losses(folder)[0]["train/distill_logits_loss"] < 0.5
    )  # but for the statistics of batch norms, the same network


def test_a_run_is_distilled(teacher: Path, tmp_path: Path) -> None:
    changes = [*SMALL, f"distill.run={teacher}", "distill.features_weight=1.0", "ema.decay=0.5"]
    folder, scores = launch.train("classification/digits", changes, out=tmp_path)
    line = losses(folder)[0]
    assert {"train/distill_logits_loss", "train/distill_features_loss"} <= line.keys()
    assert not any("teacher" in name for name in weights(folder))
    assert launch.evaluate(folder, checkpoint="last", weights="both") == scores
    assert opabinia.load(folder).classes == tuple("0123456789")


def test_a_run_and_the_students_ema_are_teachers(teacher: Path, tmp_path: Path) -> None:
    """A resumed run is identical: the average is restored from the checkpoint."""
    distill = f"distill={{teachers: [{{run: {teacher}}}, {{run: {teacher}}}], ema_teacher: {{decay: 0.5}}}}"
    changes = [*SMALL, distill, "checkpoint.every=2it", "checkpoint.keep=9"]
    folder, scores = launch.train("classification/digits", changes, out=tmp_path)
    expected, average = (
        weights(folder),
        load_safetensors(folder / "checkpoints" / "step-00000004" / "task.0.safetensors"),
    )
    assert expected.keys() == average.keys() == weights(teacher, 40).keys()
    assert any(not torch.equal(value, expected[name]) for name, value in average.items())
    lines = [line["train/loss"] for line in losses(folder)]
    _, resumed_scores = launch.train(
        "classification/digits", changes, out=tmp_path, resume=str(folder / "checkpoints" / "step-00000002")
    )
    assert resumed_scores == scores
    assert [line["train/loss"] for line in losses(folder)] == lines
    assert all(torch.equal(value, expected[name]) for name, value in weights(folder).items())
    resumed = load_safetensors(folder / "checkpoints" / "step-00000004" / "task.0.safetensors")
    assert all(torch.equal(value, average[name]) for name, value in resumed.items())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("distill={run: RUN, backbone: {name: timm, model: test_resnet}}", "distill: give either a run or a backbone"),
        ("distill={teachers: [{}]}", "distill: give either a run or a backbone"),
        ("distill={}", "distill: there is no teacher; give a run"),
        ("init.weights=RUN/no.pth", "init: .*there is no such file or folder"),
        ("init={weights: x, target_prefix: backbon}", "init: target_prefix: the task has no 'backbon'"),
    ],
)
def test_invalid_teachers_and_weights_are_refused(teacher: Path, tmp_path: Path, change: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        launch.train("classification/digits", [*SMALL, change.replace("RUN", str(teacher))], out=tmp_path)
