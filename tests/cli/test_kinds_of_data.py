"""Training on multi-label data, concatenated sources, samplers and multi-crop evaluation."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from opabinia.config import ConfigError
from opabinia.contracts import DatasetInfo
from opabinia.data import Stream
from opabinia.data.sources import Digits
from opabinia.training import launch
from opabinia.training.samples import read_dataset_info
from tests.cli.conftest import CommandResult

SMALL = ["train.length=4it", "data.num_workers=0", "train.device=cpu", "train.num_threads=1", "loggers=[]", "seed=1"]


@pytest.fixture
def colors(tmp_path: Path) -> Path:
    """Images with a red half, a blue half, both or none, and a table of their labels."""
    rows = ["path,label"]
    for number in range(16):
        red, blue = number & 1, number & 2
        pixels = np.full((24, 24, 3), 40, np.uint8)
        pixels[:, :12, 0] += 200 * bool(red)
        pixels[:, 12:, 2] += 200 * bool(blue)
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
        rows.append(f"{number}.png,{'|'.join(name for name, present in (('red', red), ('blue', blue)) if present)}")
    (tmp_path / "list.csv").write_text("\n".join(rows))
    (tmp_path / "colors.yaml").write_text(f"""
task: {{name: classification, backbone: {{name: timm, model: test_resnet}}}}
data:
  train:
    source: &list {{name: table, file: {tmp_path}/list.csv, multi_label: true}}
    transforms: [&big {{name: Resize, size: 32}}]
  val: {{source: *list, transforms: [*big]}}
  mix: [cutmix]
  batch_size: 8
optimizer: {{name: adamw, lr: 0.01}}
train: {{length: 30ep}}
""")
    return tmp_path


def test_multi_label_classification(colors: Path, opabinia: Callable[..., CommandResult]) -> None:
    recipe = colors / "colors.yaml"
    folder, scores = launch.train(str(recipe), [*SMALL[1:], "data.mix=[]"], out=colors / "runs")
    assert list(scores) == ["val/mAP", "val/micro_f1", "val/macro_f1"] and scores["val/mAP"] > 0.95
    details = json.loads((folder / "eval/val/details.json").read_text())
    assert [row["class"] for row in details["per_class"]] == ["blue", "red"]
    result = opabinia("predict", folder, colors / "3.png", "--out", colors / "predictions")
    assert result.status == 0
    prediction = json.loads((colors / "predictions/predictions.jsonl").read_text().splitlines()[0])
    assert all(label["probability"] > 0.5 for label in prediction["top"]), "the image has both labels"


def test_mixing_multi_label_images(colors: Path) -> None:
    launch.train(str(colors / "colors.yaml"), SMALL, out=colors / "runs")


def test_weights_of_concatenated_sources_with_several_crops(tmp_path: Path) -> None:
    source = "{name: concat, sources: [{name: digits, split: train}, {name: digits, split: val}]}"
    overrides = [
        *(*SMALL, f"data.train.source={source}", "data.sampler={name: mixed_sources, weights: [1, 3], length: 256}"),
        "data.val.transforms=[{name: resize_and_crops, size: 28, crop: 0.875, crops: 5}]",
    ]
    folder, scores = launch.train("classification/digits", [*overrides, "train.log_samples=true"], out=tmp_path)
    assert "val/top1" in scores
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    ids = [sample_id for line in lines for sample_id in line.get("sample_ids", [])]
    assert len(ids) == 256 and sum(sample_id.startswith("0/") for sample_id in ids) == 64


class WrongLabel(Digits):
    def __init__(self, label: int) -> None:
        super().__init__()
        labels = np.array(self.info.labels)
        labels[7] = label
        self.info = replace(self.info, labels=labels)


@pytest.mark.parametrize("label", [-1, 10])
def test_labels_out_of_range_are_reported_before_the_first_step(label: int) -> None:
    with pytest.raises(
        ConfigError, match=rf"WrongLabel: sample 7 has the label {label}, expected 0 to 9 for 10 classes"
    ):
        read_dataset_info(Stream(source=WrongLabel(label)))
    assert read_dataset_info(Stream(source=Digits())) == DatasetInfo(1437, channels=1, classes=tuple("0123456789"))
