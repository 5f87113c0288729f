"""Siamese methods train the same with several processes, and after a resume."""

from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.faults.many import start, steps
from tests.faults.programs import Server
from tests.faults.runs import checkpoint, metrics
from tests.faults.test_together import assert_same_learning, cut_back

STEPS = 8
# 14 samples are shares of 7 and 7 on two processes, 5, 5 and 4 on three.
RECIPE = """
plugins: [tests.faults.parts]
task: {TASK, backbone: {name: grouped}, mean: [0.3], std: [0.38], evaluators: []}
data:
  train:
    source: {name: some_digits, n: 65, split: train}
    transforms:
      - name: views
        views: [{count: 2, transforms: [{name: RandomAffine, degrees: 10, translate: [0.1, 0.1]}]}]
  batch_size: 14
  drop_last: true
optimizer: {name: sgd, lr: 0.02}
train: {length: 8it, log_samples: true, num_threads: 1, sync_batch_norm: true}
checkpoint: {every: 4it, keep: 9}
seed: 3
"""
TASKS = {
    "byol": "name: byol, hidden: 16, projection: 8, momentum: 0.9",
    "simsiam": "name: simsiam, projection: 16, hidden: 8",
    "barlow_twins": "name: barlow_twins, hidden: 16, projection: 8",
    "joint barlow_twins": "name: barlow_twins, hidden: 16, projection: 8, normalize: joint",
    "vicreg": "name: vicreg, hidden: 16, projection: 8",
    "rotation": "name: rotation",
}
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("simsiam", "joint barlow_twins", "vicreg", "rotation")]
for_each_task = pytest.mark.parametrize("task", ["byol", "barlow_twins", *SLOW])


class Siamese:
    """Trains a task, and returns the run folder."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.server, self.folder = server, folder

    def __call__(self, task: str, name: str, processes: int, *overrides: str) -> Path:
        recipe = self.folder / "siamese.yaml"
        recipe.write_text(RECIPE.replace("TASK", TASKS[task]))
        self.run(processes, str(recipe), "--out", str(self.folder), "--name", name, *overrides)
        return self.folder / "siamese" / name

    def run(self, processes: int, *arguments: str) -> None:
        for program in start(self.server, processes, *arguments):
            program.expect(0)


@pytest.fixture
def siamese(server: Server, tmp_path: Path) -> Siamese:
    return Siamese(server, tmp_path)


@for_each_task
@pytest.mark.parametrize("processes", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_the_loss_is_that_of_the_global_batch(siamese: Siamese, task: str, processes: int) -> None:
    one_process, several_processes = siamese(task, "one", 1), siamese(task, "many", processes)
    assert_same_learning(several_processes, one_process, 1e-4)
    for name in ("train/loss", "grad_norm"):
        assert steps(several_processes)[0][name] == pytest.approx(steps(one_process)[0][name], rel=1e-5), name


@pytest.mark.slow
@pytest.mark.parametrize("task", ["barlow_twins", "vicreg"])
def test_losses_without_all_gather_would_differ(siamese: Siamese, task: str) -> None:
    """A missing all-gather would be noticed."""
    full_batch, half_batch = siamese(task, "whole", 1), siamese(task, "half", 1, "data.batch_size=7")
    assert steps(full_batch)[0]["train/loss"] != pytest.approx(steps(half_batch)[0]["train/loss"], rel=0.05)


@pytest.mark.slow
def test_a_sharded_teacher_is_updated(siamese: Siamese) -> None:
    one_process = siamese("byol", "one", 1)
    sharded = siamese("byol", "many", 2, "train.parallel={name: fsdp, min_num_params: 100}")
    assert_same_learning(sharded, one_process, 1e-4)


@for_each_task
def test_resuming_is_exact(siamese: Siamese, task: str) -> None:
    folder = siamese(task, "run", 1)
    model = checkpoint(folder, STEPS) / "model.safetensors"
    before, lines = model.read_bytes(), metrics(folder)
    assert (task == "byol") == any(name.startswith("teacher.") for name in load_file(model))
    cut_back(folder, 4)
    siamese.run(1, str(folder), "--resume")
    assert metrics(folder) == lines
    assert model.read_bytes() == before
