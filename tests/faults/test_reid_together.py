"""Losses over pairs are those of the whole batch on any number of processes; so is what is found in a gallery."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from scripts import small_data
from tests.faults.many import start, steps
from tests.faults.programs import Server
from tests.faults.runs import checkpoint, metrics
from tests.faults.test_together import assert_same_learning

# 14 samples are shares of 5, 5 and 4 on three processes, 7 identities in each batch.
RECIPE = """
plugins: [tests.faults.parts]
vars: {root: ROOT}
task:
  name: reid
  backbone: {name: grouped}
  neck: layer
  head: {name: cosface, scale: 8, margin: 0.1}
  metric_losses: [{name: triplet}, {name: supervised_contrastive, scale: 0.5}, {name: circle, gamma: 16, scale: 0.1}]
  cross_batch_memory: {size: 24, gamma: 8, scale: 0.1}
  mean: [0.5]
  std: [0.25]
data:
  train: {source: {name: market1501, root: "${vars.root}"}, transforms: [{name: RandomHorizontalFlip}]}
  val: {source: {name: market1501, root: "${vars.root}", split: test}}
  sampler: {name: identities, instances: 2}
  batch_size: 14
optimizer: {name: sgd, lr: 0.05}
train: {length: 12it, log_samples: true, num_threads: 1}
evaluate: {every: 4it, batch_size: 5}
checkpoint: {every: 4it}
seed: 3
"""


class Reid:
    """Trains the recipe."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.server, self.folder = server, folder
        small_data.market1501(folder / "data")
        (folder / "reid.yaml").write_text(RECIPE.replace("ROOT", str(folder / "data")))

    def __call__(self, name: str, processes: int, *overrides: str, status: int = 0) -> Path:
        arguments = (str(self.folder / "reid.yaml"), "--out", str(self.folder), "--name", name, *overrides)
        for program in start(self.server, processes, *arguments):
            program.expect(status)
        return self.folder / "reid" / name


@pytest.fixture
def reid(server: Server, tmp_path: Path) -> Reid:
    return Reid(server, tmp_path)


def found_in(folder: Path) -> list[dict[str, float]]:
    return [
        {name: value for name, value in line.items() if name.startswith("val/")}
        for line in metrics(folder)
        if "val/mAP" in line
    ]


def test_pairs_are_those_of_the_whole_batch(reid: Reid) -> None:
    one = reid("one", 1)
    for processes in (2, 3):
        many = reid(f"on{processes}", processes)
        assert_same_learning(many, one, 1e-4)
        for name in ("train/loss", "grad_norm"):
            assert steps(many)[0][name] == pytest.approx(steps(one)[0][name], rel=1e-6), name
        for mine, theirs in zip(steps(many), steps(one), strict=True):
            for name in ("triplet", "supervised_contrastive", "circle", "memory"):
                assert mine[f"train/{name}_loss"] == pytest.approx(theirs[f"train/{name}_loss"], rel=1e-4), name
        for mine, theirs in zip(found_in(many), found_in(one), strict=True):
            assert mine == pytest.approx(theirs, abs=1e-6)


@pytest.mark.slow
def test_alone_the_losses_would_be_others(reid: Reid) -> None:
    """What is not gathered shows: the recipe has pairs on both sides of the processes' borders."""
    whole = steps(reid("whole", 1))[0]
    half = steps(reid("half", 1, "data.batch_size=8"))[0]
    assert whole["train/triplet_loss"] != pytest.approx(half["train/triplet_loss"], rel=1e-3)


@pytest.mark.slow
def test_a_resume_has_the_queue_as_it_was(reid: Reid) -> None:
    whole = reid("whole", 2)
    reid("parts", 2, "train.length=8it")
    parts = reid("parts", 2, "--resume", "train.length=12it")
    ours, theirs = (load_file(checkpoint(folder, 12) / "model.safetensors") for folder in (parts, whole))
    assert ours.keys() == theirs.keys() and "memory.queue.features" in ours
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name


@pytest.mark.slow
def test_sharded_it_learns_the_same(reid: Reid) -> None:
    one = reid("one", 1, "task.cross_batch_memory=null")
    many = reid("many", 2, "task.cross_batch_memory=null", "train.parallel={name: fsdp, min_num_params: 100}")
    assert_same_learning(many, one, 1e-4)
