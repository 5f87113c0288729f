"""Metric learning with several processes: losses over pairs use the global batch, and retrieval scores are the same."""

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


class TrainReid:
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
def reid(server: Server, tmp_path: Path) -> TrainReid:
    return TrainReid(server, tmp_path)


def val_metrics(folder: Path) -> list[dict[str, float]]:
    return [
        {name: value for name, value in line.items() if name.startswith("val/")}
        for line in metrics(folder)
        if "val/mAP" in line
    ]


def test_pairs_are_those_of_the_global_batch(reid: TrainReid) -> None:
    expected_run = reid("one", 1)
    for processes in (2, 3):
        run = reid(f"on{processes}", processes)
        assert_same_learning(run, expected_run, 1e-4)
        for name in ("train/loss", "grad_norm"):
            assert steps(run)[0][name] == pytest.approx(steps(expected_run)[0][name], rel=1e-6), name
        for actual, expected in zip(steps(run), steps(expected_run), strict=True):
            for name in ("triplet", "supervised_contrastive", "circle", "memory"):
                assert actual[f"train/{name}_loss"] == pytest.approx(expected[f"train/{name}_loss"], rel=1e-4), name
        for actual, expected in zip(val_metrics(run), val_metrics(expected_run), strict=True):
            assert actual == pytest.approx(expected, abs=1e-6)


@pytest.mark.slow
def test_losses_without_all_gather_would_differ(reid: TrainReid) -> None:
    """The recipe has pairs of samples of different processes, so a missing all-gather would be noticed."""
    full_batch = steps(reid("whole", 1))[0]
    half_batch = steps(reid("half", 1, "data.batch_size=8"))[0]
    assert full_batch["train/triplet_loss"] != pytest.approx(half_batch["train/triplet_loss"], rel=1e-3)


@pytest.mark.slow
def test_resuming_restores_the_queue(reid: TrainReid) -> None:
    uninterrupted = reid("whole", 2)
    reid("parts", 2, "train.length=8it")
    resumed = reid("parts", 2, "--resume", "train.length=12it")
    actual, expected = (load_file(checkpoint(folder, 12) / "model.safetensors") for folder in (resumed, uninterrupted))
    assert actual.keys() == expected.keys() and "memory.queue.features" in actual
    for name, tensor in actual.items():
        assert torch.equal(tensor, expected[name]), name


@pytest.mark.slow
def test_sharded_training_is_the_same(reid: TrainReid) -> None:
    one_process = reid("one", 1, "task.cross_batch_memory=null")
    sharded = reid("many", 2, "task.cross_batch_memory=null", "train.parallel={name: fsdp, min_num_params: 100}")
    assert_same_learning(sharded, one_process, 1e-4)
