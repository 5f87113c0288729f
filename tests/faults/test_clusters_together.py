"""Cluster assignments with several processes are those of the global batch, or of all images, and are restored when a
run is resumed within an epoch."""

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
    """Train a task on a number of processes; return the run folder."""
    recipe = folder / "clusters.yaml"
    recipe.write_text(RECIPE.replace("TASK", TASKS[task]))
    for program in start(server, processes, str(recipe), "--out", str(folder), "--name", name, *overrides):
        program.expect(0)
    return folder / "clusters" / name


@pytest.fixture(scope="module")
def one_process_run(warm_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the run folder of one process, for each task."""

    @cache
    def one_process_run(task: str) -> Path:
        return train(warm_server, tmp_path_factory.mktemp(task), task, "alone", 1)

    return one_process_run


def model(run: Path) -> dict[str, Tensor]:
    return load_file(checkpoint(run, 8) / "model.safetensors")


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("processes", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_training_does_not_depend_on_the_number_of_processes(
    server: Server, tmp_path: Path, one_process_run: Callable[[str], Path], task: str, processes: int
) -> None:
    several_processes, one_process = train(server, tmp_path, task, "many", processes), one_process_run(task)
    assert_same_learning(several_processes, one_process, 1e-4)
    for line, expected_line in zip(steps(several_processes), steps(one_process), strict=True):
        for name in ("train/entropy", "train/std"):
            assert line[name] == pytest.approx(expected_line[name], abs=1e-4)
    actual, expected = model(several_processes), model(one_process)
    for name, tensor in actual.items():
        torch.testing.assert_close(tensor, expected[name], atol=1e-3, rtol=1e-3, msg=name)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_run_resumes_within_an_epoch(
    server: Server, tmp_path: Path, one_process_run: Callable[[str], Path], task: str, processes: int
) -> None:
    uninterrupted = one_process_run(task) if processes == 1 else train(server, tmp_path, task, "whole", processes)
    train(server, tmp_path, task, "parts", processes, "train.length=4it")
    actual = model(train(server, tmp_path, task, "parts", processes, "--resume", "train.length=8it"))
    expected = model(uninterrupted)
    assert actual.keys() == expected.keys()
    for name, tensor in actual.items():
        assert torch.equal(tensor, expected[name]), name


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_sharded_training_is_the_same(
    server: Server, tmp_path: Path, one_process_run: Callable[[str], Path], task: str
) -> None:
    sharded = train(server, tmp_path, task, "many", 2, "train.parallel={name: fsdp, min_num_params: 100}")
    assert_same_learning(sharded, one_process_run(task), 1e-4)
