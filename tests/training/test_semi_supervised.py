"""Semi-supervised runs: exact resume, micro-batches, and configs that are refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from opabinia.config import ConfigError
from opabinia.runtime.shards import load_safetensors
from opabinia.training import launch

RECIPE = """
plugins: [tests.faults.parts]
task:
  name: classification
  backbone: {name: grouped}
  mean: [0.3]
  std: [0.38]
semi_supervised:
  unlabeled: {source: {name: some_digits, n: 31}}
  strong: [{name: random_erase, mean: [0.3]}]
  pseudo_labels: {name: classes, threshold: 0.1, flexible: true}
  batch_share: 0.6
  warmup: 2it
  decay: 0.7
data: {train: {source: {name: some_digits, n: 12}}, batch_size: 10, num_workers: 0}
optimizer: {name: adamw, lr: 0.01}
train: {length: 9it, num_threads: 1, log_every: 1, log_samples: true}
evaluate: {every: 0ep}
checkpoint: {every: 4it, keep: 9}
loggers: []
seed: 3
"""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recipes") / "tiny.yaml"
    path.write_text(RECIPE)
    return path


@pytest.fixture(scope="module")
def finished(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return launch.train(recipe, [], out=tmp_path_factory.mktemp("runs"))[0]


def lines(run: Path) -> list[dict[str, Any]]:
    values = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in values if "train/loss" in line]


def saved(run: Path, step: int = 9) -> dict[str, dict[str, Tensor]]:
    folder = run / "checkpoints" / f"step-{step:08d}"
    return {path.stem: load_safetensors(path) for path in folder.glob("*.safetensors")}


def test_batches_have_both_kinds_of_images_and_only_the_task_is_saved(finished: Path) -> None:
    logged = lines(finished)
    assert ["train/pseudo_loss" in line for line in logged] == [False] * 2 + [True] * 7
    assert all(0 <= line["train/pseudo/precision"] <= 1 for line in logged[2:]), "the source has the ground truth"
    ids = [line["sample_ids"] for line in logged]
    assert all(len(step) == 10 for step in ids), "4 labeled and 6 unlabeled images"
    assert len({sample for step in ids[:3] for sample in step[:4]}) == 12, "an epoch of the labeled images"
    assert len({sample for step in ids[:5] for sample in step[4:]}) == 30, "31 images are five batches of 6"
    files = saved(finished)
    (teacher,) = (
        tensors for name, tensors in files.items() if name != "model" and tensors.keys() == files["model"].keys()
    )
    assert any(not torch.equal(value, files["model"][name]) for name, value in teacher.items())
    assert any(set(tensors) == {"latest"} for tensors in files.values()), "labels that FlexMatch counts"


def test_a_resumed_run_is_identical(recipe: Path, finished: Path, tmp_path: Path) -> None:
    folder, _ = launch.train(recipe, ["train.length=9it"], out=tmp_path)
    launch.train(recipe, [], out=tmp_path, resume=str(folder / "checkpoints" / "step-00000004"))
    for name, tensors in saved(finished).items():
        actual = saved(folder)[name]
        assert tensors.keys() == actual.keys() and all(
            torch.equal(value, actual[key]) for key, value in tensors.items()
        )
    keys = ("train/loss", "train/pseudo_loss", "sample_ids")
    assert [[line.get(key) for key in keys] for line in lines(folder)] == [
        [line.get(key) for key in keys] for line in lines(finished)
    ]


def test_micro_batches_have_the_same_losses(recipe: Path, finished: Path, tmp_path: Path) -> None:
    folder, _ = launch.train(recipe, ["train.micro_batch_size=4"], out=tmp_path)
    for key in ("train/loss", "train/pseudo_loss", "train/pseudo/kept"):
        expected = [line[key] for line in lines(finished)[2:4]]
        assert [line[key] for line in lines(folder)[2:4]] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("distill={ema_teacher: {decay: 0.9}}", "semi_supervised: a run is distilled or semi-supervised, not both"),
        ("data.augment_on=device", "data.augment_on: images of a semi-supervised run are augmented by the workers"),
        ("data.batch_size=auto", "data.batch_size: auto cannot divide a batch among labeled and unlabeled"),
        ("semi_supervised.batch_share=1.0", "semi_supervised.batch_share: expected a number > 0 and < 1"),
        ("semi_supervised.pseudo_labels=pixels", "semi_supervised.pseudo_labels: pixels are labels of semantic"),
        ("data.train.source.n=3", "data.train: 3 samples cannot fill its part of a batch, 4"),
        ("semi_supervised.unlabeled.source.n=5", "semi_supervised.unlabeled: 5 samples cannot fill its part"),
        ("semi_supervised.unlabeled.transforms=[RGB]", "semi_supervised.unlabeled: its images have 3 channels"),
        ("semi_supervised.strong=[{name: random_erase, mean: [0.1, 0.2]}]", "strong.0: mean: .* 2 values"),
        ("shapes={name: multi_scale, sizes: [8, 16]}", "shapes: a run with several streams"),
    ],
)
def test_refused(recipe: Path, tmp_path: Path, change: str, message: str) -> None:
    with pytest.raises((ConfigError, ValueError), match=message):
        launch.train(recipe, [change], out=tmp_path)
    assert not list(tmp_path.rglob("config.yaml")), "nothing was begun"
