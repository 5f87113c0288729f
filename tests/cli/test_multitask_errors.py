"""Invalid multi-task configs: one error that names the key, exit status 2, before the first step."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.conftest import CommandResult

RECIPE = """
task:
  name: multitask
  backbone: {name: timm, model: test_vit, options: {img_size: 16}}
  tasks:
    a:
      task: classification
      batch_share: 0.5
      data:
        train: {source: digits, transforms: [{name: Resize, size: 16}]}
        val: {source: {name: digits, split: val}, transforms: [{name: Resize, size: 16}]}
    b:
      task: classification
      data:
        train: {source: digits, transforms: [{name: Resize, size: 16}]}
        val: {source: {name: digits, split: val}, transforms: [{name: Resize, size: 16}]}
    c: {task: classification, stream: a}
data: {batch_size: 16}
optimizer: sgd
train: {length: 1it, num_threads: 1}
loggers: []
"""
CASES: dict[str, tuple[Any, str]] = {
    "tasks.a.batch_share": (
        1.0,
        "tasks.yaml:11: task.tasks.a.batch_share: the given shares sum to 1",
    ),
    "tasks.b.batch_share": (0.0, "task.tasks.b.batch_share: expected a number above 0"),
    "checkpoint.best": ("bb/val/top1", "checkpoint.best: no evaluation computes the score 'bb/val/top1'; did you mean"),
    "tasks.c.stream": ("aa", ": task.tasks.c.stream: there is no task of this name (found 'aa'); did you mean 'a'?"),
    "tasks.b.data.train.source": ({"name": "digits", "splt": 1}, ": task.tasks.b.data.train.source.splt: unknown key"),
    "tasks.b.data.val.source": (
        {"name": "class_folders", "root": "/none"},
        ": task.tasks.b.data.val.source.root: ",
    ),
    "tasks.a.compare": ("runs/none", "task.tasks.a.compare: there is no runs/none"),
    "tasks.a.data.val": ([{"source": "digits"}] * 2, "two datasets have the prefix 'a/val'"),
    "balance": ("gradnrom", "task.balance.name: there is no balance of this name (found 'gradnrom'); did you mean"),
    "data.train.source": ("digits", "data.train: each task of the run has its own: task.tasks.NAME.data.train"),
}
WITH_DATA: dict[str, tuple[Any, str]] = {
    "tasks.c.task": ({"name": "detection", "detector": "fcos"}, ": task.tasks.c.task: detection learns from bound"),
    "tasks.b.data.train.transforms": (
        [],
        "task.tasks.b: the backbone does not take images of 8 x 8: the model takes images of multiples of 16 x 16",
    ),
    "tasks.b.data.val.transforms": ([], "data.val (b/val): a batch of shape (2, 1, 8, 8) does not go through"),
    "tasks.b.data.train.transforms.1": (
        "RGB",
        "task.tasks.b.data.train: its images have 3 channels, those of a 1; they share",
    ),
    "checkpoint.best": ("b/val/top2", "checkpoint.best: no evaluation computes the score 'b/val/top2'; did you mean"),
}


@pytest.mark.parametrize("cases", [CASES, pytest.param(WITH_DATA, marks=pytest.mark.slow)], ids=["config", "data"])
def test_invalid_configs_have_a_single_error(
    opabinia: Callable[..., CommandResult], tmp_path: Path, cases: dict[str, tuple[Any, str]]
) -> None:
    recipe = tmp_path / "tasks.yaml"
    for number, (path, (value, text)) in enumerate(cases.items()):
        config = yaml.safe_load(RECIPE)
        *keys, last = path.split(".")
        section = config if path.startswith(("checkpoint", "data")) else config["task"]
        for key in keys:
            section = section.setdefault(key, {})
        if isinstance(section, list):
            section.append(value)
        else:
            section[last] = value
        recipe.write_text(yaml.safe_dump(config, sort_keys=False))
        if path in ("tasks.a.batch_share", "checkpoint.best", "tasks.c.stream"):
            checked = opabinia("config", "check", recipe)
            assert cases is WITH_DATA or (checked.status, text in checked.err) == (2, True), path
        result = opabinia("train", recipe, "--out", tmp_path / "runs", "--name", str(number))
        assert result.status == 2, f"{path}: {result.err}"
        assert text in result.err.splitlines()[-1] and "Traceback" not in result.err, result.err
        metrics = tmp_path / "runs" / "tasks" / str(number) / "metrics.jsonl"
        assert not metrics.exists() or not metrics.read_text()
