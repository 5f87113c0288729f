"""Hooks configured in a recipe: exit status and messages; tests/engine tests what they do."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import CommandResult

Opabinia = Callable[..., CommandResult]
SMALL = ["train.length=6it", "evaluate.every=3it", "checkpoint.every=3it", "data.num_workers=0", "data.batch_size=16"]
SMALL += ["loggers=[]", "seed=1"]


def test_parameter_groups_and_the_batch_size_scale_the_learning_rate(opabinia: Opabinia, tmp_path: Path) -> None:
    rules = "param_groups={rules: [{pattern: ^head, lr_factor: 10}, {kind: norm, weight_decay: 0}]}"
    batch = [
        "data.batch_size=64",
        "train.lr_batch_size=256",
        "train.length=1it",
        "data.val=null",
        "checkpoint.best=null",
    ]
    words = [*SMALL, rules, *batch, "optimizer.lr=0.001", "schedule=constant"]
    assert opabinia("train", "classification/digits", *words, "--out", tmp_path).status == 0
    folder = tmp_path / "classification/digits/default"
    log = (folder / "train.log").read_text()
    assert "lr 0.00025, weight decay 0.05" in log and "lr 0.00025, weight decay 0\n" in log
    assert "lr 0.0025, weight decay" in log
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert next(line["lr"] for line in lines if "lr" in line) == pytest.approx(0.001 * 64 / 256)


def test_unexpected_scores_exit_with_status_1(opabinia: Opabinia, tmp_path: Path) -> None:
    hooks = "hooks={expected_scores: {scores: {val/top1: [0.99, 0.001], val/AP: [1, 1]}}}"
    words = ["train", "classification/digits", *SMALL, hooks, "--out", tmp_path]
    result = opabinia(*words)
    assert result.status == 1
    assert "val/top1 is 0." in result.err and "val/AP is missing" in result.err and "Traceback" not in result.err
    assert json.loads((tmp_path / "classification/digits/default/results.json").read_text())["val/top1"] < 0.9
    again = opabinia(*words, "--resume")
    assert again.status == 1, "nothing is trained, but the scores are still not as expected"
    assert "is finished: nothing to do" in again.err and "val/AP is missing" in again.err


@pytest.mark.parametrize(
    ("hook", "message"),
    [
        ("stem: {name: freeze, pattern: nobody}", "hooks.stem: no parameter's name contains 'nobody'"),
        (
            "early_stop: {metric: val/top2}",
            "hooks.early_stop: no evaluation computes the score 'val/top2'; scores: val/",
        ),
        ("early_stop: {metric: test/top1}", "no evaluation computes the score 'test/top1'; scores: val/top1"),
        ("precise: {name: precise_bn, every: 3it, data: test}", "there is no dataset 'test'; datasets: train, val"),
        ("int8: {name: quantization_aware, exclude: [neck.*]}", "hooks.int8: exclude: no layer is named 'neck.*'"),
    ],
    ids=["freeze", "score", "set", "dataset", "layer"],
)
def test_errors_before_the_first_step(opabinia: Opabinia, tmp_path: Path, hook: str, message: str) -> None:
    words = [*SMALL, "loggers=[terminal]", f"hooks={{{hook}}}"]
    result = opabinia("train", "classification/digits", *words, "--out", tmp_path)
    assert result.status == 2 and message in result.err and "Traceback" not in result.err
    metrics = tmp_path / "classification/digits/default/metrics.jsonl"
    assert not metrics.exists() or not metrics.read_text()
