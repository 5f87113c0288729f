"""Methods that learn from views: on many processes as on one, and as if nothing had been after a stop."""

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
every = pytest.mark.parametrize("task", ["byol", "barlow_twins", *SLOW])


class Siamese:
    """Trains one of the tasks."""

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


@every
@pytest.mark.parametrize("processes", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_the_loss_is_that_of_the_whole_batch(siamese: Siamese, task: str, processes: int) -> None:
    one, many = siamese(task, "one", 1), siamese(task, "many", processes)
    assert_same_learning(many, one, 1e-4)
    for name in ("train/loss", "grad_norm"):
        assert steps(many)[0][name] == pytest.approx(steps(one)[0][name], rel=1e-5), name


@pytest.mark.slow
@pytest.mark.parametrize("task", ["barlow_twins", "vicreg"])
def test_of_fewer_images_the_loss_would_be_another(siamese: Siamese, task: str) -> None:
    """What is not gathered would show."""
    whole, half = siamese(task, "whole", 1), siamese(task, "half", 1, "data.batch_size=7")
    assert steps(whole)[0]["train/loss"] != pytest.approx(steps(half)[0]["train/loss"], rel=0.05)


@pytest.mark.slow
def test_a_sharded_teacher_follows_too(siamese: Siamese) -> None:
    one = siamese("byol", "one", 1)
    many = siamese("byol", "many", 2, "train.parallel={name: fsdp, min_num_params: 100}")
    assert_same_learning(many, one, 1e-4)


@every
def test_a_resume_goes_on_exactly(siamese: Siamese, task: str) -> None:
    folder = siamese(task, "run", 1)
    model = checkpoint(folder, STEPS) / "model.safetensors"
    before, said = model.read_bytes(), metrics(folder)
    assert (task == "byol") == any(name.startswith("teacher.") for name in load_file(model))
    cut_back(folder, 4)
    siamese.run(1, str(folder), "--resume")
    assert metrics(folder) == said
    assert model.read_bytes() == before
