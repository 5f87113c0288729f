"""A PaddleVideo config becomes one of ours, and what has no home in it is told."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from opabinia.cli import app
from opabinia.config import ConfigError, catalog, check, compose
from opabinia.migration.paddlevideo import convert

# The values of configs/recognition/slowfast/slowfast_multigrid.yaml, and a key of nobody's.
MULTIGRID = """
MODEL:
  framework: "Recognizer3D"
  backbone: {name: "ResNetSlowFast", depth: 50, alpha: 4, beta: 8, width_per_group: 64, fusion_kernel_sz: 7}
  head: {name: "SlowFastHead", num_classes: 400, num_frames: 32, crop_size: 224, dropout_rate: 0.5}
DATASET:
  batch_size: 8  # of a card
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


def written(folder: Path, text: str) -> Path:
    file = folder / "slowfast.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def test_the_batch_of_a_card_becomes_that_of_all_and_is_told(tmp_path: Path) -> None:
    recipe = convert(written(tmp_path, MULTIGRID), 8)
    assert recipe.config["data"]["batch_size"] == 64
    assert recipe.notes[0] == "data.batch_size: 8 samples a card on 8 cards are 64 over all processes"
    left = {one.path: (one.value, one.why) for one in recipe.left()}
    assert left["EMA"] == (0.999, "nothing here answers to it")
    assert left["MODEL.head.num_classes"] == (400, "follows from the data or the network")


def test_every_value_has_its_place(tmp_path: Path) -> None:
    config = convert(written(tmp_path, MULTIGRID), 4).config
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
    assert config["data"]["val"][1]["source"]["clips"] == 10 and config["data"]["workers"] == 4
    optimizer = {"name": "sgd", "lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 1e-4}
    assert config["optimizer"] == optimizer
    # 0.01 of 0.8, the rate of the first shape, whose batches are eight times as large.
    assert config["schedule"] == {"name": "constant", "warmup": "34ep", "warmup_factor": pytest.approx(0.0125)}
    assert config["shapes"]["milestones"] == [94, 154, 196] and config["shapes"]["long_cycle"][0] == [0.25, 0.7071]
    assert config["hooks"]["precise_norm"] == {"name": "precise_norm", "every": "10ep", "batches": 200}
    assert (config["train"]["length"], config["evaluate"]["every"]) == ("239ep", "10ep")


def test_without_multigrid_the_rate_drops_by_steps_or_follows_a_cosine(tmp_path: Path) -> None:
    plain = MULTIGRID.replace("LONG_CYCLE: True", "LONG_CYCLE: False").replace(
        "SHORT_CYCLE: True", "SHORT_CYCLE: False"
    )
    config = convert(written(tmp_path, plain), 8).config
    assert "shapes" not in config
    assert config["schedule"] == {
        "name": "multi_step", "milestones": ["94ep", "154ep", "196ep"], "gamma": 0.1,
        "warmup": "34ep", "warmup_factor": pytest.approx(0.1),
    }  # fmt: skip
    cosine = plain.replace("steps: [0, 94, 154, 196]", "").replace("step_base_lr", "cosine_base_lr")
    config = convert(written(tmp_path, cosine), 8).config
    assert config["schedule"]["name"] == "cosine" and config["optimizer"]["lr"] == 0.1


def test_what_comes_out_of_the_command_is_a_config(tmp_path: Path) -> None:
    file = written(tmp_path, MULTIGRID)
    done = CliRunner().invoke(app, ["config", "import", "paddlevideo", str(file), "--cards", "2"])
    assert done.exit_code == 0 and "8 samples a card on 2 cards are 16" in done.stderr
    tree = compose(written(tmp_path / "..", done.stdout))
    resolved = check(tree, catalog())
    assert resolved.config["data"]["batch_size"] == 16 and resolved.config["shapes"]["name"] == "multigrid"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("ResNetSlowFast", "TimeSformer"), "MODEL.backbone.name: 'TimeSformer' is not known here"),
        (("batch_size: 8 ", "batch_size: eight "), "DATASET.batch_size: a number is needed, and there is 'eight'"),
        (("epochs: 239\nEMA", "EMA"), "epochs: a number is needed, and there is null"),
        (("lrs: [1, 0.1", "lrs: [1, 0.5"), "OPTIMIZER.learning_rate.lrs: .* are no powers of gamma"),
        (("MODEL:", "MODEL: ["), "slowfast.yaml"),
    ],
    ids=["a model", "a word", "nothing", "rates", "no YAML"],
)
def test_what_cannot_be_taken_over_is_refused(change: tuple[str, str], told: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=told):
        convert(written(tmp_path, MULTIGRID.replace(*change)), 8)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    done: Any = CliRunner().invoke(app, ["config", "import", "paddlevideo", str(tmp_path / "no.yaml")])
    assert done.exit_code == 2 and "there is no such file" in done.stderr
