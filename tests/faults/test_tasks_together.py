"""Every method trains the same on any number of processes, sharded, and after a resume: losses of the global batch,
momentum teachers, queues, centers, cluster assignments and pairs of samples of different processes."""

from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from safetensors.torch import load_file

from scripts import small_data
from tests.faults.programs import Server
from tests.faults.runs import (
    Trainings,
    assert_same_learning,
    checkpoint,
    copy_cut_back,
    expect,
    metrics,
    scores,
    start,
    steps,
    weights,
)

STEPS, SAVED = 8, 5
# 14 samples are shares of 7 and 7 on two processes, 5, 5 and 4 on three.
RECIPE = """
plugins: [tests.faults.parts]
task: {TASK, mean: [0.3], std: [0.38]}
data:
  train:
    source: {name: indexed, source: {name: some_digits, n: SAMPLES}}
    transforms: [TRANSFORMS]
  batch_size: 14
optimizer: {name: sgd, lr: LEARNING_RATE}
train: {length: 8it, log_samples: true, num_threads: 1, sync_batch_norm: true}
checkpoint: {every: 5it, keep: 9}
seed: 3
"""
REID = """
plugins: [tests.faults.parts]
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
  train: {source: {name: market1501, root: ROOT}, transforms: [{name: RandomHorizontalFlip}]}
  val: {source: {name: market1501, root: ROOT, split: test}}
  sampler: {name: identities, instances: 2}
  batch_size: 14
optimizer: {name: sgd, lr: 0.05}
train: {length: 8it, log_samples: true, num_threads: 1}
evaluate: {every: 4it, batch_size: 5}
checkpoint: {every: 5it, keep: 9}
seed: 3
"""
PSEUDO_IDENTITIES = (
    REID.replace("batch_size: 14", "batch_size: 16")
    + """
semi_supervised:
  unlabeled: {source: {name: market1501, root: ROOT}}
  pseudo_labels: {name: identities, every: 2it, radius: 0.7, min_samples: 2, k1: 4, k2: 2}
  warmup: 1it
  decay: 0.8
"""
)
REIDENTIFICATION = {"reid": REID, "pseudo_identities": PSEUDO_IDENTITIES}
LARGE = "{name: RandomAffine, degrees: 10, translate: [0.1, 0.1]}"
SMALL = "{count: 2, transforms: [{name: RandomCrop, size: 6}]}"
MASKS = "{name: block_patch_mask, patch_size: 2, min_num_patches: 2}"
VIEWS = f"{{name: views, views: [{{count: 2, transforms: [{LARGE}]}}]}}"
CROPS = f"{{name: views, views: [{{count: 2, transforms: [{LARGE}]}}, {SMALL}]}}"
MASKED = f"{{name: views, views: [{{count: 2, transforms: [{LARGE}, {MASKS}]}}, {SMALL}]}}"
GROUPED = "backbone: {name: grouped}"
VIT = "backbone: {name: timm, model: vit_tiny_patch16_224, options: {img_size: 8, patch_size: 2, embed_dim: 24, \
depth: 1, num_heads: 3, dynamic_img_size: true}}"
HEAD = "hidden: 16, bottleneck: 8, outputs: 12, freeze_last_layer: 2it, momentum: 0.9"


class Case(NamedTuple):
    """A method.

    Attributes:
        task: its config.
        transforms: that make its views.
        learning_rate: where a higher one makes embeddings so similar that distances are float noise, it is low.
        samples: 40 are epochs of three steps, of which the last batch is smaller.
        noise: absolute tolerance; batch norm over few values amplifies float noise from step to step.
    """

    task: str
    transforms: str = VIEWS
    learning_rate: float = 0.02
    samples: int = 56
    noise: float = 1e-4


QUEUE = "queue: {length: 30, start: 1ep}"  # not a multiple of a batch
CASES = {
    "byol": Case(f"name: byol, hidden: 16, projection: 8, momentum: 0.9, {GROUPED}"),
    "simsiam": Case(f"name: simsiam, projection: 16, hidden: 8, {GROUPED}"),
    "barlow_twins": Case(f"name: barlow_twins, hidden: 16, projection: 8, {GROUPED}"),
    "joint barlow_twins": Case(f"name: barlow_twins, hidden: 16, projection: 8, normalize: joint, {GROUPED}"),
    "vicreg": Case(f"name: vicreg, hidden: 16, projection: 8, {GROUPED}"),
    "rotation": Case(f"name: rotation, {GROUPED}"),
    "moco": Case(f"name: moco, queue: 40, momentum: 0.9, projection: 6, {GROUPED}", learning_rate=0.01),
    "moco_v3": Case(
        f"name: moco_v3, hidden: 16, momentum: 0.9, momentum_schedule: constant, projection: 6, {GROUPED}",
        learning_rate=0.01,
        noise=2e-3,
    ),
    "npid": Case(f"name: npid, negatives: 9, temperature: 0.2, projection: 6, {GROUPED}", learning_rate=0.01),
    "simclr": Case(f"name: simclr, projection: 6, {GROUPED}", learning_rate=0.01),
    "swav": Case(
        f"name: swav, projection: 6, prototypes: [8, 5], freeze: 2it, {QUEUE}, {GROUPED}", CROPS, 0.1, samples=40
    ),
    "deepcluster": Case(
        f"name: deepcluster, projection: 6, prototypes: [8, 5, 8], assign: 2, {GROUPED}", CROPS, 0.1, samples=40
    ),
    "dino": Case(f"name: dino, {HEAD}, teacher_warmup: 4it, {GROUPED}", CROPS, 0.0005),
    "ibot": Case(f"name: ibot, {HEAD}, teacher_warmup: 4it, masking_start: 1it, {VIT}", MASKED, 0.0005),
    "dinov2": Case(
        f"name: ibot, {HEAD}, separate_heads: true, patch_outputs: 10, koleo_weight: 0.1, centering: sinkhorn, {VIT}",
        MASKED,
        0.0005,
    ),
    "mae": Case(
        f"name: mae, decoder_width: 16, decoder_depth: 1, decoder_heads: 2, {VIT}",
        "{name: random_patch_mask, patch_size: 2}",
        0.0005,
    ),
}
QUICK = ("barlow_twins", "moco", "swav", "deepcluster", "dinov2", "reid", "pseudo_identities")
# A queue, assignments, centers, a memory, assignments and a memory.
QUICK_RESUMES = ("moco", "deepcluster", "dinov2", "reid", "pseudo_identities")


def each_method(quick: Collection[str]) -> pytest.MarkDecorator:
    names = (*CASES, *REIDENTIFICATION)
    values = [pytest.param(name, marks=() if name in quick else pytest.mark.slow) for name in names]
    return pytest.mark.parametrize("method", values)


OF_ALL_SAMPLES = ("moco", "moco_v3", "npid", "simclr", "swav", "deepcluster")
"""Methods that log the standard deviation of all samples; others log that of a process."""
SHARDED = "train.parallel={name: fsdp, min_num_params: 100}"


class Train:
    """Trains a method on a number of processes; returns the run folder."""

    def __init__(self, trainings: Trainings, folder: Path) -> None:
        self._trainings, self._folder = trainings, folder

    def __call__(self, method: str, processes: int, *overrides: str) -> Path:
        return self._trainings(self._recipe(method), processes, *overrides)

    def _recipe(self, method: str) -> str:
        if method in REIDENTIFICATION:
            if not self._folder.exists():
                small_data.market1501(self._folder)
            return REIDENTIFICATION[method].replace("ROOT", str(self._folder))
        case = CASES[method]
        text = RECIPE.replace("TASK", case.task).replace("TRANSFORMS", case.transforms)
        return text.replace("LEARNING_RATE", str(case.learning_rate)).replace("SAMPLES", str(case.samples))


@pytest.fixture(scope="module")
def train(trainings: Trainings, tmp_path_factory: pytest.TempPathFactory) -> Train:
    return Train(trainings, tmp_path_factory.mktemp("reid") / "data")


def noise(method: str) -> float:
    return CASES[method].noise if method in CASES else 1e-4


@each_method(QUICK)
@pytest.mark.parametrize("processes", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_training_does_not_depend_on_the_number_of_processes(train: Train, method: str, processes: int) -> None:
    one_process, several_processes = train(method, 1), train(method, processes)
    assert_same_learning(several_processes, one_process, noise(method))
    first, expected_first = steps(several_processes)[0], steps(one_process)[0]
    for name in ("train/loss", "grad_norm", *(("train/std",) if method in OF_ALL_SAMPLES else ())):
        assert first[name] == pytest.approx(expected_first[name], rel=1e-5), name
    actual, expected = weights(several_processes, STEPS), weights(one_process, STEPS)
    assert actual.keys() == expected.keys()
    for name, tensor in actual.items():
        limits = {"rtol": 0.0, "atol": 1e-6} if name.endswith("centre.value") else {"rtol": 1e-3, "atol": noise(method)}
        torch.testing.assert_close(tensor, expected[name], **limits, msg=name)
    for line, expected_line in zip(scores(several_processes), scores(one_process), strict=True):
        assert line == pytest.approx(expected_line, abs=1e-6)


@each_method(QUICK_RESUMES)
@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_resuming_within_an_epoch_is_exact(
    server: Server, train: Train, tmp_path: Path, method: str, processes: int
) -> None:
    uninterrupted = train(method, processes)
    resumed = copy_cut_back(uninterrupted, tmp_path / "run" / "default", SAVED)
    expect(start(server, processes, str(resumed), "--resume"))
    assert metrics(resumed) == metrics(uninterrupted)
    actual, expected = weights(resumed, STEPS), weights(uninterrupted, STEPS)
    assert actual.keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in actual.items())


def test_pseudo_identities_do_not_depend_on_the_number_of_processes(train: Train) -> None:
    one_process, two_processes = (train("pseudo_identities", number) for number in (1, 2))
    (expected,), (actual,) = (
        [
            tensors["labels"]
            for path in checkpoint(run, STEPS).glob("task.*.safetensors")
            if "labels" in (tensors := load_file(path))
        ]
        for run in (one_process, two_processes)
    )
    assert torch.equal(actual, expected) and len(expected.unique()) > 2
    kept, expected_kept = (
        [line.get("train/pseudo/kept") for line in steps(run)] for run in (two_processes, one_process)
    )
    assert kept[:2] == [None, 0] and max(kept[2:]) > 0, "the first step is a warm-up"
    assert kept[1:] == pytest.approx(expected_kept[1:])


@pytest.mark.slow
@pytest.mark.parametrize("method", ["byol", "swav", "deepcluster", "dinov2", "mae", *REIDENTIFICATION])
def test_sharded_training_is_the_same(train: Train, method: str) -> None:
    overrides = ["task.cross_batch_memory=null"] if method in REIDENTIFICATION else []
    assert_same_learning(train(method, 2, *overrides, SHARDED), train(method, 1, *overrides), 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["barlow_twins", "vicreg", "reid"])
def test_losses_without_all_gather_would_differ(train: Train, method: str) -> None:
    """So a missing all-gather would be noticed."""
    half_batch = train(method, 1, f"data.batch_size={8 if method == 'reid' else 7}")
    name = "train/triplet_loss" if method == "reid" else "train/loss"
    assert steps(train(method, 1))[0][name] != pytest.approx(steps(half_batch)[0][name], rel=1e-3)


def test_images_are_shuffled_between_processes_without_synchronized_batch_norm(train: Train) -> None:
    """The keys of a step are in the order of its images, so the queue is similar to that of one process."""
    overrides = ("task.backbone.norm=batch", "train.sync_batch_norm=false", "train.length=4it")
    one_process, two_processes = (weights(train("moco", number, *overrides), 4)["queue.features"] for number in (1, 2))
    similarity = one_process @ two_processes.T
    assert (similarity.argmax(1) == torch.arange(40)).float().mean() > 0.8
