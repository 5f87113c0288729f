"""Assignments and clusters are those of the whole batch, or of all images, on any number of processes, and a run that
is resumed within an epoch goes on with them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.faults.many import start, steps
from tests.faults.programs import Server
from tests.faults.runs import checkpoint
from tests.faults.test_together import assert_same_learning

# 40 samples in batches of 14: three steps an epoch, the last batch is smaller. The queue is not a multiple of them.
RECIPE = """
plugins: [tests.faults.parts]
task: TASK
data:
  train:
    source: {name: indexed, source: {name: some_digits, n: 40}}
    transforms:
      - name: views
        views:
          - {count: 2, transforms: [{name: RandomAffine, degrees: 20, translate: [0.2, 0.2]}]}
          - {count: 2, transforms: [{name: RandomCrop, size: 6}]}
  val: {source: {name: some_digits, n: 24, split: val}}
  batch_size: 14
optimizer: {name: sgd, lr: 0.1}
train: {length: 8it, log_samples: true, num_threads: 1, sync_batch_norm: true}
evaluate: {every: 4it, batch_size: 8}
checkpoint: {every: 4it, keep: 9}
seed: 3
"""
COMMON = "backbone: grouped, projection: 6, mean: [0.3], std: [0.38]"
TASKS = {
    "swav": f"{{name: swav, {COMMON}, prototypes: [8, 5], freeze: 2it, queue: {{length: 30, start: 1ep}}}}",
    "deepcluster": f"{{name: deepcluster, {COMMON}, prototypes: [8, 5, 8], assign: 2}}",
}


def train(server: Server, folder: Path, task: str, name: str, processes: int, *overrides: str) -> Path:
    """Train a task on some processes and return the run's folder."""
    recipe = folder / "clusters.yaml"
    recipe.write_text(RECIPE.replace("TASK", TASKS[task]))
    for program in start(server, processes, str(recipe), "--out", str(folder), "--name", name, *overrides):
        program.expect(0)
    return folder / "clusters" / name


@pytest.fixture(scope="module")
def alone(warm_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """What one process leaves behind, of each task."""

    @cache
    def alone(task: str) -> Path:
        return train(warm_server, tmp_path_factory.mktemp(task), task, "alone", 1)

    return alone


def model(run: Path) -> dict[str, Tensor]:
    return load_file(checkpoint(run, 8) / "model.safetensors")


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("processes", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_the_same_learning_on_any_number(
    server: Server, tmp_path: Path, alone: Callable[[str], Path], task: str, processes: int
) -> None:
    many, one = train(server, tmp_path, task, "many", processes), alone(task)
    assert_same_learning(many, one, 1e-4)
    for mine, theirs in zip(steps(many), steps(one), strict=True):
        for name in ("train/entropy", "train/std"):
            assert mine[name] == pytest.approx(theirs[name], abs=1e-4)
    ours, theirs = model(many), model(one)
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], atol=1e-3, rtol=1e-3, msg=name)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_run_goes_on_within_an_epoch(
    server: Server, tmp_path: Path, alone: Callable[[str], Path], task: str, processes: int
) -> None:
    whole = alone(task) if processes == 1 else train(server, tmp_path, task, "whole", processes)
    train(server, tmp_path, task, "parts", processes, "train.length=4it")
    ours = model(train(server, tmp_path, task, "parts", processes, "--resume", "train.length=8it"))
    theirs = model(whole)
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_sharded_it_learns_the_same(server: Server, tmp_path: Path, alone: Callable[[str], Path], task: str) -> None:
    many = train(server, tmp_path, task, "many", 2, "train.parallel={name: fsdp, min_num_params: 100}")
    assert_same_learning(many, alone(task), 1e-4)
