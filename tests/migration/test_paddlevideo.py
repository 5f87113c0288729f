"""Conversion of PaddleVideo configs, and the keys that are not converted."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from opabinia.cli import app
from opabinia.config import ConfigError, catalog, check, compose
from opabinia.migration.paddlevideo import convert

# The values of configs/recognition/slowfast/slowfast_multigrid.yaml, and an unknown key.
MULTIGRID = """
MODEL:
  framework: "Recognizer3D"
  backbone: {name: "ResNetSlowFast", depth: 50, alpha: 4, beta: 8, width_per_group: 64, fusion_kernel_sz: 7}
  head: {name: "SlowFastHead", num_classes: 400, num_frames: 32, crop_size: 224, dropout_rate: 0.5}
DATASET:
  batch_size: 8  # per GPU
  num_workers: 4
  train: {format: "SFVideoDataset", file_path: "./data/k400/train.csv"}
  valid: {format: "SFVideoDataset", file_path: "./data/k400/val.csv"}
  test: {format: "SFVideoDataset", file_path: "./data/k400/val.csv", num_ensemble_views: 10, num_spatial_crops: 3}
PIPELINE:
  train:
    decode_sampler: {name: "DecodeSampler", num_frames: 32, sampling_rate: 2}
    transform:
      - JitterScale: {min_size: 256, max_size: 320}
      - MultiCrop: {target_size: 224}
      - RandomFlip:
      - Image2Array: {transpose: False}
      - Normalization: {mean: [0.45, 0.45, 0.45], std: [0.225, 0.225, 0.225], tensor_shape: [1, 1, 1, 3]}
      - PackOutput: {alpha: 4}
OPTIMIZER:
  name: 'Momentum'
  momentum: 0.9
  learning_rate:
    name: 'CustomWarmupPiecewiseDecay'
    warmup_epochs: 34
    warmup_start_lr: 0.01
    step_base_lr: 0.1
    lrs: [1, 0.1, 0.01, 0.001, 0.0001, 0.00001]
    gamma: 0.1
    steps: [0, 94, 154, 196]
    max_epoch: 239
  weight_decay: {name: 'L2', value: 1e-4}
  use_nesterov: True
MULTIGRID:
  LONG_CYCLE: True
  SHORT_CYCLE: True
  default_batch_size: 0
  epoch_factor: 1.5
  bn_base_size: 8
  long_cycle_factors: [{value: [0.25, 0.7071]}, {value: [0.5, 0.7071]}, {value: [0.5, 1]}, {value: [1, 1]}]
  short_cycle_factors: [0.5, 0.7071]
PRECISEBN: {preciseBN_interval: 10, num_iters_preciseBN: 200}
val_interval: 10
epochs: 239
EMA: 0.999
"""


def write_config(folder: Path, text: str) -> Path:
    file = folder / "slowfast.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def test_the_batch_size_per_gpu_becomes_the_total(tmp_path: Path) -> None:
    recipe = convert(write_config(tmp_path, MULTIGRID), 8)
    assert recipe.config["data"]["batch_size"] == 64
    assert recipe.notes[0] == "data.batch_size: 8 samples per GPU on 8 GPUs are 64 in total"
    skipped = {key.path: (key.value, key.why) for key in recipe.unconverted()}
    assert skipped["EMA"] == (0.999, "no equivalent")
    assert skipped["MODEL.head.num_classes"] == (400, "follows from the data or the model")


def test_values_are_converted(tmp_path: Path) -> None:
    config = convert(write_config(tmp_path, MULTIGRID), 4).config
    assert config["task"] == {
        "name": "video",
        "backbone": {"name": "slowfast", "depth": 50, "alpha": 4, "beta": 8, "fusion_kernel": 7},
        "dropout": 0.5, "mean": [0.45] * 3, "std": [0.225] * 3,
    }  # fmt: skip
    assert config["data"]["train"]["transforms"] == [
        {"name": "clip", "frames": 32, "stride": 2},
        {"name": "scale_jitter", "size": 224, "scale": [256, 320]},
        {"name": "clip_flip"},
    ]
    assert config["data"]["val"][1]["source"]["clips"] == 10 and config["data"]["num_workers"] == 4
    optimizer = {"name": "sgd", "lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 1e-4}
    assert config["optimizer"] == optimizer
    # 0.01 of 0.8, the learning rate of the first shape, whose batches are eight times as large.
    assert config["schedule"] == {"name": "constant", "warmup": "34ep", "warmup_factor": pytest.approx(0.0125)}
    assert config["shapes"]["milestones"] == [94, 154, 196] and config["shapes"]["long_cycle"][0] == [0.25, 0.7071]
    assert config["hooks"]["precise_bn"] == {"name": "precise_bn", "every": "10ep", "batches": 200}
    assert (config["train"]["length"], config["evaluate"]["every"]) == ("239ep", "10ep")


def test_without_multigrid_the_learning_rate_has_steps_or_a_cosine(tmp_path: Path) -> None:
    plain = MULTIGRID.replace("LONG_CYCLE: True", "LONG_CYCLE: False").replace(
        "SHORT_CYCLE: True", "SHORT_CYCLE: False"
    )
    config = convert(write_config(tmp_path, plain), 8).config
    assert "shapes" not in config
    assert config["schedule"] == {
        "name": "multi_step", "milestones": ["94ep", "154ep", "196ep"], "gamma": 0.1,
        "warmup": "34ep", "warmup_factor": pytest.approx(0.1),
    }  # fmt: skip
    cosine = plain.replace("steps: [0, 94, 154, 196]", "").replace("step_base_lr", "cosine_base_lr")
    config = convert(write_config(tmp_path, cosine), 8).config
    assert config["schedule"]["name"] == "cosine" and config["optimizer"]["lr"] == 0.1


def test_the_command_prints_a_valid_config(tmp_path: Path) -> None:
    file = write_config(tmp_path, MULTIGRID)
    done = CliRunner().invoke(app, ["config", "import", "paddlevideo", str(file), "--gpus", "2"])
    assert done.exit_code == 0 and "8 samples per GPU on 2 GPUs are 16" in done.stderr
    tree = compose(write_config(tmp_path / "..", done.stdout))
    resolved = check(tree, catalog())
    assert not resolved.warnings
    assert resolved.config["data"]["batch_size"] == 16 and resolved.config["shapes"]["name"] == "multigrid"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("ResNetSlowFast", "TimeSformer"), "MODEL.backbone.name: 'TimeSformer' is not supported"),
        (("batch_size: 8 ", "batch_size: eight "), "DATASET.batch_size: expected a number, got 'eight'"),
        (("epochs: 239\nEMA", "EMA"), "epochs: expected a number, got null"),
        (("lrs: [1, 0.1", "lrs: [1, 0.5"), "OPTIMIZER.learning_rate.lrs: .* are not powers of gamma"),
        (("MODEL:", "MODEL: ["), "slowfast.yaml"),
    ],
    ids=["a model", "a word", "nothing", "rates", "no YAML"],
)
def test_unsupported_values_are_rejected(change: tuple[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        convert(write_config(tmp_path, MULTIGRID.replace(*change)), 8)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    done: Any = CliRunner().invoke(app, ["config", "import", "paddlevideo", str(tmp_path / "no.yaml")])
    assert done.exit_code == 2 and "there is no such file" in done.stderr
