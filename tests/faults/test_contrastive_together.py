"""Contrastive methods with several processes: keys, negatives and memories are those of the global batch."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.faults.many import start, steps
from tests.faults.programs import Server
from tests.faults.runs import checkpoint
from tests.faults.test_together import assert_same_learning

# 14 images are shares of 5, 5 and 4 on three processes. Batch norm, where a method has it, uses all of them.
RECIPE = """
plugins: [tests.faults.parts]
task: TASK
data:
  train:
    source: {name: indexed, source: {name: some_digits, n: 56}}
    transforms:
      - name: views
        views: [{count: 2, transforms: [{name: RandomAffine, degrees: 10, translate: [0.1, 0.1]}]}]
  batch_size: 14
optimizer: {name: sgd, lr: 0.01}
train: {length: 8it, log_samples: true, num_threads: 1, sync_batch_norm: true}
checkpoint: {every: 4it}
seed: 3
"""
SHARED = "backbone: {name: grouped}, projection: 6, mean: [0.3], std: [0.38]"
TASKS = {
    "moco": f"{{name: moco, queue: 40, momentum: 0.9, {SHARED}}}",
    "moco_v3": f"{{name: moco_v3, hidden: 16, momentum: 0.9, momentum_schedule: constant, {SHARED}}}",
    "npid": f"{{name: npid, negatives: 9, temperature: 0.2, {SHARED}}}",
    "simclr": f"{{name: simclr, {SHARED}}}",
}
NOISE = {"moco_v3": 2e-3}
"""Batch norm over few values amplifies float noise from step to step."""
for_each_task = pytest.mark.parametrize("task", TASKS)


class Trained:
    """Trains a task of the recipe, and returns the run folder."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.server, self.folder = server, folder

    def __call__(self, task: str, name: str, processes: int, *overrides: str) -> Path:
        recipe = self.folder / f"{task}.yaml"
        recipe.write_text(RECIPE.replace("TASK", TASKS[task]))
        for program in start(
            self.server, processes, str(recipe), "--out", str(self.folder), "--name", name, *overrides
        ):
            program.expect(0)
        return self.folder / task / name


@pytest.fixture
def trained(server: Server, tmp_path: Path) -> Trained:
    return Trained(server, tmp_path)


def model(folder: Path, step: int = 8) -> dict[str, torch.Tensor]:
    return load_file(checkpoint(folder, step) / "model.safetensors")


@pytest.mark.parametrize(
    "task", ["moco", *(pytest.param(task, marks=pytest.mark.slow) for task in ("moco_v3", "npid", "simclr"))]
)
@pytest.mark.parametrize("processes", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_training_does_not_depend_on_the_number_of_processes(trained: Trained, task: str, processes: int) -> None:
    one_process, several_processes = trained(task, "one", 1), trained(task, "many", processes)
    assert_same_learning(several_processes, one_process, NOISE.get(task, 1e-4))
    for name in ("train/loss", "train/std", "grad_norm"):
        assert steps(several_processes)[0][name] == pytest.approx(steps(one_process)[0][name], rel=1e-5), name
    actual, expected = model(several_processes), model(one_process)
    assert actual.keys() == expected.keys()
    for name, tensor in actual.items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-3, atol=NOISE.get(task, 1e-4), msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
@for_each_task
def test_resuming_is_exact(trained: Trained, task: str, processes: int) -> None:
    uninterrupted = trained(task, "whole", processes)
    trained(task, "parts", processes, "train.length=4it")
    resumed = trained(task, "parts", processes, "--resume", "train.length=8it")
    assert steps(resumed)[4:] == steps(uninterrupted)[4:]
    actual, expected = model(resumed), model(uninterrupted)
    assert actual.keys() == expected.keys()
    for name, tensor in actual.items():
        assert torch.equal(tensor, expected[name]), name


def test_images_are_shuffled_between_processes_without_synchronized_batch_norm(trained: Trained) -> None:
    """The keys of a step are in the order of its images, so the queue is similar to that of one process."""
    overrides = ("task.backbone.norm=batch", "train.sync_batch_norm=false", "train.length=4it")
    queues = [model(trained("moco", f"on{number}", number, *overrides), 4)["queue.features"] for number in (1, 2)]
    similarity = queues[0] @ queues[1].T
    assert (similarity.argmax(1) == torch.arange(40)).float().mean() > 0.8
