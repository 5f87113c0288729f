"""Contrastive methods learn the same on many processes: keys, negatives and memories are those of the whole batch."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.faults.many import start, steps
from tests.faults.programs import Server
from tests.faults.runs import checkpoint
from tests.faults.test_together import assert_same_learning

# 14 images are shares of 5, 5 and 4 on three processes. Batch norms, where a method has some, see all of them.
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
"""Batch norms over few values magnify what float sums differ by, from step to step."""
every = pytest.mark.parametrize("task", TASKS)


class Trained:
    """Trains a task of the recipe, and returns the run's folder."""

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
def test_the_same_learning_on_any_number(trained: Trained, task: str, processes: int) -> None:
    one, many = trained(task, "one", 1), trained(task, "many", processes)
    assert_same_learning(many, one, NOISE.get(task, 1e-4))
    for name in ("train/loss", "train/std", "grad_norm"):
        assert steps(many)[0][name] == pytest.approx(steps(one)[0][name], rel=1e-5), name
    ours, theirs = model(many), model(one)
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=1e-3, atol=NOISE.get(task, 1e-4), msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
@every
def test_a_resume_has_everything_as_it_was(trained: Trained, task: str, processes: int) -> None:
    whole = trained(task, "whole", processes)
    trained(task, "parts", processes, "train.length=4it")
    parts = trained(task, "parts", processes, "--resume", "train.length=8it")
    assert steps(parts)[4:] == steps(whole)[4:]
    ours, theirs = model(parts), model(whole)
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name


def test_images_are_dealt_where_batch_norms_see_one_process(trained: Trained) -> None:
    """The images of a step end as keys of their own, whoever made them: the queue is near that of one process."""
    overrides = ("task.backbone.norm=batch", "train.sync_batch_norm=false", "train.length=4it")
    queues = [model(trained("moco", f"on{number}", number, *overrides), 4)["queue.features"] for number in (1, 2)]
    likeness = queues[0] @ queues[1].T
    assert (likeness.argmax(1) == torch.arange(40)).float().mean() > 0.8
