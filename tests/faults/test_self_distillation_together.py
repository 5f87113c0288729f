"""DINO, iBOT and MAE train the same with several processes, and after a resume."""

from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.faults.many import start, steps
from tests.faults.programs import Server
from tests.faults.runs import checkpoint, metrics
from tests.faults.test_together import assert_same_learning, cut_back

STEPS = 8
VIT = "{name: timm, model: vit_tiny_patch16_224, options: {img_size: 8, patch_size: 2, embed_dim: 24, depth: 1, \
num_heads: 3, dynamic_img_size: true}}"
LARGE = "{name: RandomAffine, degrees: 10, translate: [0.1, 0.1]}"
MASKS = "{name: block_patch_mask, patch_size: 2, min_num_patches: 2}"
SMALL = "{transforms: [{name: RandomCrop, size: 6}]}"
CROPS = f"[{{name: views, views: [{{count: 2, transforms: [{LARGE}]}}, {SMALL}]}}]"
MASKED = CROPS.replace(LARGE, f"{LARGE}, {MASKS}")
HEAD = "hidden: 16, bottleneck: 8, outputs: 12, freeze_last_layer: 2it, momentum: 0.9"
# 14 samples are shares of 7 and 7 on two processes, 5, 5 and 4 on three. With a higher learning rate embeddings get
# so similar that distances between them are float noise.
RECIPE = """
plugins: [tests.faults.parts]
task: {TASK, mean: [0.3], std: [0.38], evaluators: []}
data:
  train:
    source: {name: some_digits, n: 65, split: train}
    transforms: TRANSFORMS
  batch_size: 14
  drop_last: true
optimizer: {name: sgd, lr: 0.0005}
train: {length: 8it, log_samples: true, num_threads: 1, sync_batch_norm: true}
checkpoint: {every: 4it, keep: 9}
seed: 3
"""
TASKS = {
    "dino": (f"name: dino, {HEAD}, teacher_warmup: 4it, backbone: {{name: grouped}}", CROPS),
    "ibot": (f"name: ibot, {HEAD}, teacher_warmup: 4it, masking_start: 1it, backbone: {VIT}", MASKED),
    "dinov2": (
        f"name: ibot, {HEAD}, separate_heads: true, patch_outputs: 10, koleo_weight: 0.1, centering: sinkhorn, "
        f"backbone: {VIT}",
        MASKED,
    ),
    "mae": (
        f"name: mae, decoder_width: 16, decoder_depth: 1, decoder_heads: 2, backbone: {VIT}",
        "[{name: random_patch_mask, patch_size: 2}]",
    ),
}
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("dino", "ibot", "mae")]
for_each_task = pytest.mark.parametrize("task", ["dinov2", *SLOW])


class Methods:
    """Trains a task, and returns the run folder."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.server, self.folder = server, folder

    def __call__(self, task: str, name: str, processes: int, *overrides: str) -> Path:
        recipe = self.folder / "method.yaml"
        keys, transforms = TASKS[task]
        recipe.write_text(RECIPE.replace("TASK", keys).replace("TRANSFORMS", transforms))
        self.run(processes, str(recipe), "--out", str(self.folder), "--name", name, *overrides)
        return self.folder / "method" / name

    def run(self, processes: int, *arguments: str) -> None:
        for program in start(self.server, processes, *arguments):
            program.expect(0)


@pytest.fixture
def methods(server: Server, tmp_path: Path) -> Methods:
    return Methods(server, tmp_path)


@for_each_task
@pytest.mark.parametrize("processes", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_the_loss_is_that_of_the_global_batch(methods: Methods, task: str, processes: int) -> None:
    one_process, several_processes = methods(task, "one", 1), methods(task, "many", processes)
    assert_same_learning(several_processes, one_process, 1e-4)
    for name in ("train/loss", "grad_norm"):
        assert steps(several_processes)[0][name] == pytest.approx(steps(one_process)[0][name], rel=1e-5), name
    actual, expected = (
        load_file(checkpoint(run, STEPS) / "model.safetensors") for run in (several_processes, one_process)
    )
    for name in (name for name in expected if name.endswith("centre.value")):
        assert actual[name].numpy() == pytest.approx(expected[name].numpy(), abs=1e-6), name
        assert expected[name].any()


@pytest.mark.slow
@pytest.mark.parametrize("task", ["dinov2", "mae"])
def test_sharded_training_is_the_same(methods: Methods, task: str) -> None:
    one_process, sharded = (
        methods(task, "one", 1),
        methods(task, "many", 2, "train.parallel={name: fsdp, min_num_params: 100}"),
    )
    assert_same_learning(sharded, one_process, 1e-4)


@for_each_task
def test_resuming_is_exact(methods: Methods, task: str) -> None:
    folder = methods(task, "run", 1)
    model = checkpoint(folder, STEPS) / "model.safetensors"
    before, lines = model.read_bytes(), metrics(folder)
    assert (task == "mae") != any(name.startswith("teacher.") for name in load_file(model))
    cut_back(folder, 4)
    methods.run(1, str(folder), "--resume")
    assert metrics(folder) == lines
    assert model.read_bytes() == before
