"""The tutorial docs/tutorials/unlabeled_to_detector.md in miniature."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from opabinia.models.weights.files import read_weights
from scripts.small_data import coco_folders
from tests.cli.conftest import CommandResult

TINY = [
    "task.backbone.model=test_resnet",
    "train.length=2it",
    "evaluate.every=2it",
    "schedule.warmup=0it",
    "loggers=[]",
]
TINY += ["train.device=cpu", "train.num_threads=1", "data.num_workers=0"]


@pytest.mark.slow
def test_three_commands_train_a_detector_from_unlabeled_images(
    opabinia: Callable[..., CommandResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The detector loads the whole backbone and reports missing weights; every tenth image has labels."""
    monkeypatch.chdir(tmp_path)
    coco_folders(tmp_path / "cells")
    crops = ["vars.short=48", "vars.crop=32", "vars.batch=8", "optimizer.lr=0.0"]
    result = opabinia("train", "selfsup/crops", "vars.root=cells/train", *crops, *TINY)
    assert result.status == 0, result.err
    few = ["data.sampler={name: subset, fraction: 0.1, stratified: false}", "data.batch_size=2", "optimizer.lr=0.0"]
    sizes = ["vars.short=[64]", "vars.test=64", "init.weights=runs/selfsup/crops/default"]
    result = opabinia("train", "detection/coco_format", "vars.root=cells", *few, *sizes, *TINY)
    assert result.status == 0, result.err
    run = tmp_path / "runs/detection/coco_format/default"
    pretrained, loaded = (read_weights(folder) for folder in (tmp_path / "runs/selfsup/crops/default", run))
    names = [name for name in loaded if name.startswith("backbone.") and name.endswith("weight")]
    assert names and all(torch.equal(loaded[name], pretrained[name]) for name in names)
    report = (run / "train.log").read_text().partition("init: ")[2]
    assert "missing in the file" in report and "detector." in report.splitlines()[1]
    result = opabinia("predict", run, "--split", "val")
    assert result.status == 0 and "ground truth" in result.out, result.err
