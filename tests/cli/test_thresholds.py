"""Thresholds of classes, from ``opabinia eval`` to the prediction: binary classification of the embedded digits."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from opabinia.data.sources import Digits
from opabinia.inference.load import RunModel
from opabinia.inference.serving.limits import Limits
from opabinia.inference.serving.server import _load
from opabinia.training.launch import train

Run = Callable[..., Any]

CHANGES = [
    *("train.length=6it", "train.device=cpu", "train.num_threads=1", "data.num_workers=0", "data.batch_size=16"),
    "data.train.source={_delete_: true, name: image_folder, root: ROOT, channels: 1}",
    "data.val.source={_delete_: true, name: image_folder, root: ROOT, channels: 1}",
    "loggers=[]",
]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root, source = tmp_path_factory.mktemp("digits"), Digits(split="val")
    for index in range(60):
        sample = source[index]
        if sample["label"] < 2:
            folder = root / ("zero", "one")[sample["label"]]
            folder.mkdir(exist_ok=True)
            Image.fromarray(sample["image"][0].numpy()).save(folder / f"{index}.png")
    return root


@pytest.fixture(scope="module")
def run(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    changes = [change.replace("ROOT", str(images)) for change in CHANGES]
    folder, _ = train("classification/digits", changes, out=tmp_path_factory.mktemp("runs"))
    return folder


def test_predictions_are_at_the_thresholds_that_an_evaluation_has_chosen(
    images: Path, run: Path, tmp_path: Path, opabinia: Run
) -> None:
    copy = tmp_path / "digits" / "default"
    shutil.copytree(run, copy)
    assert "threshold" not in opabinia("predict", copy, images, "--out", tmp_path / "before").out
    result = opabinia("eval", copy, "--evaluator", "class_thresholds")
    assert result.status == 0 and "val/f1_at_thresholds" in result.out, result.err
    (file,) = (copy / "eval" / "val").glob("**/class_thresholds.json")
    assert json.loads(file.read_text(encoding="utf-8")).keys() == {"one", "zero"}

    file.write_text(json.dumps({"one": 2.0, "zero": 0.0}), encoding="utf-8")  # zero, whatever the probabilities
    result = opabinia("predict", copy, images, "--out", tmp_path / "after")
    assert result.status == 0, result.err
    assert f"above the threshold of their class ({file})" in result.out
    lines = [json.loads(line) for line in (tmp_path / "after" / "predictions.jsonl").read_text().splitlines()]
    assert lines and all(line["classes"] == ["zero"] for line in lines)
    last = opabinia("predict", copy, images, "--checkpoint", "last", "--out", tmp_path / "last")
    assert "threshold" not in last.out, "they are those of the best checkpoint"
    given = opabinia("predict", copy, images, "--score", "0.3", "--out", tmp_path / "given")
    assert "threshold" not in given.out
    assert "classes" not in (tmp_path / "given" / "predictions.jsonl").read_text()

    _, about = _load(RunModel(copy, [], "best", None, "cpu"), (), Limits(), None, None, None)
    assert about["thresholds"] == {"one": 2.0, "zero": 0.0}
    _, about = _load(RunModel(copy, [], "best", None, "cpu"), (), Limits(), None, None, 0.3)
    assert about["thresholds"] == {"one": 0.3, "zero": 0.3}


def test_a_damaged_file_of_thresholds_is_one_error(images: Path, run: Path, tmp_path: Path, opabinia: Run) -> None:
    copy = tmp_path / "digits" / "default"
    shutil.copytree(run, copy)
    file = copy / "eval" / "val" / "class_thresholds.json"
    file.write_text('{"one": "many"}', encoding="utf-8")
    result = opabinia("predict", copy, images, "--checkpoint", "last", "--out", tmp_path / "out")
    assert result.status == 2 and str(file) in result.err and "Traceback" not in result.err
