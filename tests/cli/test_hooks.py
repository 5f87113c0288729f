"""Hooks configured in a recipe, in runs on digits."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from opabinia.runtime.shards import load_safetensors
from opabinia.training import launch
from tests.cli.conftest import CommandResult

SMALL = ["train.length=6it", "evaluate.every=3it", "checkpoint.every=3it", "data.num_workers=0", "data.batch_size=16"]
SMALL += ["loggers=[]", "seed=1"]


def train(folder: Path, *overrides: str) -> tuple[Path, dict[str, float]]:
    return launch.train("classification/digits", [*SMALL, *overrides], out=folder)


def tensors(folder: Path, name: str = "model") -> dict[str, torch.Tensor]:
    return load_safetensors(folder / "checkpoints" / "step-00000006" / f"{name}.safetensors")


@pytest.mark.slow
def test_precise_bn_changes_only_the_statistics(tmp_path: Path) -> None:
    precise = "hooks={precise: {name: precise_bn, every: 3it, batches: 4}}"
    plain, _ = train(tmp_path / "plain")
    exact, scores = train(tmp_path / "exact", precise, "ema.decay=0.5")
    before, after = tensors(plain), tensors(exact)
    for name in before:
        assert torch.equal(before[name], after[name]) is not ("running" in name), name
    assert launch.evaluate(exact, checkpoint="last", weights="both") == scores
    average = tensors(exact, "ema")
    name = next(name for name in after if "running_mean" in name)
    assert not torch.equal(average[name], after[name]), "the average has its own statistics"


def test_a_missing_dataset_is_reported_before_the_first_step(tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"there is no dataset 'test'; datasets: train, val"):
        train(tmp_path, "hooks={precise: {name: precise_bn, every: 3it, data: test}}")
    assert not list(tmp_path.rglob("step-*")), "before the first step"


def test_a_linear_probe(tmp_path: Path) -> None:
    hooks = "hooks={probe: {name: freeze, pattern: ^backbone}}"
    folder, _ = train(tmp_path, hooks)
    first = load_safetensors(folder / "checkpoints" / "step-00000003" / "model.safetensors")
    last = tensors(folder)
    changed = {name.split(".")[0] for name in first if not torch.equal(first[name], last[name])}
    assert changed == {"head"}


def test_parameter_groups_and_the_batch_size_scale_the_learning_rate(tmp_path: Path) -> None:
    rules = "param_groups={rules: [{pattern: ^head, lr_factor: 10}, {kind: norm, weight_decay: 0}]}"
    batch = ["data.batch_size=64", "train.lr_batch_size=256"]
    folder, _ = train(tmp_path, rules, *batch, "optimizer.lr=0.001", "schedule=constant")
    log = (folder / "train.log").read_text()
    assert "lr 0.00025, weight decay 0.05" in log and "lr 0.00025, weight decay 0\n" in log
    assert "lr 0.0025, weight decay" in log
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert next(line["lr"] for line in lines if "lr" in line) == pytest.approx(0.001 * 64 / 256)


def test_unexpected_scores_exit_with_status_1(opabinia: Callable[..., CommandResult], tmp_path: Path) -> None:
    hooks = "hooks={expected_scores: {scores: {val/top1: [0.99, 0.001], val/AP: [1, 1]}}}"
    result = opabinia("train", "classification/digits", *SMALL, hooks, "--out", str(tmp_path))
    assert result.status == 1
    assert "val/top1 is 0." in result.err and "val/AP is missing" in result.err and "Traceback" not in result.err
    results = json.loads((tmp_path / "classification/digits/default/results.json").read_text())
    assert results["val/top1"] < 0.9
    again = opabinia("train", "classification/digits", *SMALL, hooks, "--out", str(tmp_path), "--resume")
    assert again.status == 1, "nothing is trained, but the scores are still not as expected"
    assert "is finished: nothing to do" in again.err and "val/AP is missing" in again.err


def test_a_freeze_pattern_without_a_match_is_reported(opabinia: Callable[..., CommandResult], tmp_path: Path) -> None:
    hooks = "hooks={stem: {name: freeze, pattern: nobody}}"
    result = opabinia("train", "classification/digits", *SMALL, hooks, "--out", str(tmp_path))
    assert result.status == 2
    assert "hooks.stem: no parameter's name contains 'nobody'" in result.err and "Traceback" not in result.err


@pytest.mark.parametrize("metric", ["val/top2", "test/top1"])
def test_early_stopping_on_an_unknown_score_is_reported(
    opabinia: Callable[..., CommandResult], tmp_path: Path, metric: str
) -> None:
    hooks = f"hooks={{early_stop: {{metric: {metric}}}}}"
    result = opabinia("train", "classification/digits", *SMALL, hooks, "--out", str(tmp_path))
    assert result.status == 2
    assert f"hooks.early_stop: no evaluation computes the score '{metric}'; scores: val/top1" in result.err
    assert not (tmp_path / "classification/digits/default/metrics.jsonl").read_text(), "before the first step"


def test_early_stopping_finishes_the_run(tmp_path: Path) -> None:
    hooks = "hooks={early_stop: {metric: val/top1, patience: 1, min_delta: 0.999}}"
    folder, scores = train(tmp_path, hooks, "train.length=100it")
    assert json.loads((folder / "results.json").read_text()) == scores
    assert (folder / "checkpoints" / "step-00000006").is_dir()
    assert not (folder / "checkpoints" / "step-00000009").exists()
