"""Multi-task runs: balance of the losses, options and freezing of single tasks, and weights handed on between runs."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from opabinia.runtime.shards import load_safetensors
from opabinia.training import launch

RECIPE = """
plugins: [tests.faults.parts]
task:
  name: multitask
  backbone: {name: tiny}
  mean: [0.3]
  std: [0.38]
  tasks:
    digits:
      task: classification
      data: {train: {source: {name: some_digits, n: 24}}}
    parity:
      task: {name: classification, loss: {name: cross_entropy, label_smoothing: 0.5}}
      data: {train: {source: {name: some_digits, n: 12}}}
data: {batch_size: 9}
optimizer: {name: adamw, lr: 0.01, weight_decay: 0.1}
train: {length: 12it, num_threads: 1, log_every: 1}
evaluate: {every: 0ep}
checkpoint: {every: 5it, keep: 9}
loggers: []
seed: 3
"""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recipes") / "tiny.yaml"
    path.write_text(RECIPE)
    return path


def lines(run: Path) -> list[dict[str, Any]]:
    values = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in values if "train/loss" in line]


def weights(run: Path, step: int = 12) -> dict[str, Tensor]:
    return load_safetensors(run / "checkpoints" / f"step-{step:08d}" / "model.safetensors")


def same(found: dict[str, Tensor], expected: dict[str, Tensor], start: str = "") -> bool:
    names = [name for name in expected if name.startswith(start)]
    assert names
    return all(torch.equal(found[name], expected[name]) for name in names)


@pytest.mark.parametrize("balance", ["dwa", "gradnorm"])
@pytest.mark.parametrize("mixing", ["batch", "steps"])
def test_a_balanced_run_resumes_exactly(recipe: Path, tmp_path: Path, balance: str, mixing: str) -> None:
    """From the middle of an epoch (4 steps)."""
    changes = [f"task.balance={balance}", f"data.train.source.mixing={mixing}", "train.micro_batch_size=5"]
    run, _ = launch.train(recipe, changes, out=tmp_path)
    before, logged = weights(run), lines(run)
    shares = [(line["train/digits/weight"], line["train/parity/weight"]) for line in logged]
    assert len(set(shares)) > 1 and all(sum(pair) == pytest.approx(2, abs=1e-5) for pair in shares)
    launch.train(recipe, changes, out=tmp_path, resume=str(run / "checkpoints" / "step-00000005"))
    assert same(weights(run), before) and [line["train/loss"] for line in lines(run)] == [line["train/loss"] for line in logged]
