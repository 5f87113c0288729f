"""Multi-task runs: loss balancing, options and freezing of single tasks, and initial weights from other runs."""

import itertools
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import opabinia
from opabinia.contracts import Clock, DatasetInfo, GlobalBatch
from opabinia.data.streams.batches import join_batches
from opabinia.models.backbones.shared import shared
from opabinia.models.backbones.timm import timm
from opabinia.models.detectors import Fcos
from opabinia.models.losses.balance import UncertaintyWeights
from opabinia.models.necks import fpn
from opabinia.optim.groups import ParamGroups, Rule, layer_factors, parameter_groups
from opabinia.runtime.shards import load_safetensors
from opabinia.tasks.classification import Classification
from opabinia.tasks.detection import Detection
from opabinia.tasks.multitask import Multitask
from opabinia.tasks.multitask.settings import Subtask
from opabinia.training import launch

RECIPE = """
plugins: [tests.faults.parts]
task:
  name: multitask
  backbone: {name: tiny}
  mean: [0.3]
  std: [0.38]
  tasks:
    digits:
      task: classification
      data: {train: {source: {name: some_digits, n: 24}}}
    parity:
      task: {name: classification, loss: {name: cross_entropy, label_smoothing: 0.5}}
      data: {train: {source: {name: some_digits, n: 12}}}
data: {batch_size: 9}
optimizer: {name: adamw, lr: 0.01, weight_decay: 0.1}
train: {length: 12it, num_threads: 1, log_every: 1}
evaluate: {every: 0ep}
checkpoint: {every: 5it, keep: 9}
loggers: []
seed: 3
"""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recipes") / "tiny.yaml"
    path.write_text(RECIPE)
    return path


def lines(run: Path) -> list[dict[str, Any]]:
    values = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in values if "train/loss" in line]


def weights(run: Path, step: int = 12) -> dict[str, Tensor]:
    return load_safetensors(run / "checkpoints" / f"step-{step:08d}" / "model.safetensors")


def unchanged(actual: dict[str, Tensor], expected: dict[str, Tensor], start: str = "") -> bool:
    names = [name for name in expected if name.startswith(start)]
    assert names
    return all(torch.equal(actual[name], expected[name]) for name in names)


@pytest.mark.parametrize("balance", ["dwa", "gradnorm"])
def test_a_balanced_run_resumes_exactly(recipe: Path, tmp_path: Path, balance: str) -> None:
    """Resumed in the middle of an epoch of 4 steps, with a task per step."""
    changes = [f"task.balance={balance}", "task.alternate=true", "train.micro_batch_size=5"]
    run, _ = launch.train(recipe, changes, out=tmp_path)
    expected, logged = weights(run), lines(run)
    shares = [(line["train/digits/weight"], line["train/parity/weight"]) for line in logged]
    assert len(set(shares)) > 1 and all(sum(pair) == pytest.approx(2, abs=1e-5) for pair in shares)
    launch.train(recipe, changes, out=tmp_path, resume=str(run / "checkpoints" / "step-00000005"))
    assert unchanged(weights(run), expected)
    assert [line["train/loss"] for line in lines(run)] == [line["train/loss"] for line in logged]


def test_heads_and_backbone_are_frozen_and_weighted_over_time(recipe: Path, tmp_path: Path) -> None:
    schedule = "{name: constant, warmup: 3it, warmup_factor: 0, warmup_mode: constant}"
    changes = [
        *("train.length=5it", "checkpoint.every=1it", f"task.tasks.parity.weight_schedule={schedule}"),
        r"hooks.head={name: freeze, pattern: '^tasks\.digits\.'}",
        "hooks.backbone={name: freeze, pattern: ^backbone, until: 2it}",
    ]
    run, _ = launch.train(recipe, changes, out=tmp_path)
    states = [weights(run, step) for step in range(1, 6)]
    constant = {
        part: [unchanged(new, old, part) for old, new in itertools.pairwise(states)]
        for part in ("tasks.digits.", "tasks.parity.", "backbone.")
    }
    assert constant == {
        "tasks.digits.": [True, True, True, True],
        "tasks.parity.": [True, True, False, False],
        "backbone.": [True, False, False, False],
    }
    # A task of weight 0 is not computed: it has no loss and no weight decay.
    assert ["train/parity/loss" in line for line in lines(run)] == [False, False, False, True, True]
    assert all("train/digits/loss" in line for line in lines(run))


def test_the_loss_of_a_step_without_a_trained_task_is_on_the_device() -> None:
    """Tensors on the device meta stand for those of a GPU."""
    labels = DatasetInfo(samples=8, channels=1, classes=("a", "b"))
    task = Subtask(task=partial(Classification, backbone=shared), weight=0.0)
    info = DatasetInfo(samples=8, channels=1, streams={"labels": labels})
    model = Multitask(info, backbone=partial(timm, model="test_resnet"), tasks={"labels": task}).to("meta")
    images = {"image": torch.empty(2, 1, 32, 32, device="meta"), "id": ["a", "b"]}
    global_batch = GlobalBatch(step=0, epoch=0, first=0, count=2)
    batch = join_batches(global_batch, {"labels": images}, {"labels": global_batch})
    total = model(batch, Clock(total_steps=1))["total_loss"]
    assert total.device.type == "meta" and total.shape == ()
    assert repr(model).count("ResNet(") == 1 and "(labels): weight 0" in repr(model), "the backbone is printed once"


def test_a_head_added_later_does_not_change_other_heads(recipe: Path, tmp_path: Path) -> None:
    base_run, _ = launch.train(recipe, ["train.length=5it"], out=tmp_path, name="first")
    added_task = (
        "{task: classification, data: {train: {source: {name: some_digits, n: 12}, transforms: [RandomInvert]}}}"
    )
    freeze = r"hooks.freeze={name: freeze, pattern: '^(backbone|tasks\.(digits|parity))\.'}"
    changes = ["train.length=5it", f"task.tasks.added={added_task}", f"init.weights={base_run}", freeze]
    extended_run, _ = launch.train(recipe, changes, out=tmp_path, name="second")
    base_weights, extended_weights = weights(base_run, 5), weights(extended_run, 5)
    assert unchanged(extended_weights, base_weights) and any(
        name.startswith("tasks.added.") for name in extended_weights.keys() - base_weights.keys()
    )
    images = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    for task in ("digits", "parity"):
        outputs, expected = (
            opabinia.load(run, checkpoint="last", task=task).task.predict({"image": images})
            for run in (extended_run, base_run)
        )
        assert all(torch.equal(outputs[name], expected[name]) for name in expected)


def test_options_of_single_tasks() -> None:
    streams = dict.fromkeys(("boxes", "labels"), DatasetInfo(samples=8, channels=1, classes=("a", "b")))
    vit = partial(timm, model="test_vit", options={"img_size": 32})
    part = partial(Classification, backbone=shared)
    model = Multitask(
        DatasetInfo(samples=8, channels=1, streams=streams),
        backbone=vit,
        tasks={name: Subtask(task=part) for name in streams},
        balance=UncertaintyWeights,
    )
    rules = [
        Rule(pattern=r"^tasks\.boxes\.", lr_factor=2.0),
        Rule(pattern="^backbone", weight_decay=0.01),
        Rule(pattern="^balance", weight_decay=0.0),
    ]
    options = {}
    for group in parameter_groups(model, ParamGroups(rules=rules, layer_decay=0.5)):
        for param in group["params"]:
            options[param] = group["lr_factor"], group.get("weight_decay")
    options_by_name = {name: options[param] for name, param in model.named_parameters()}
    assert {value for name, value in options_by_name.items() if name.startswith("tasks.boxes.")} == {(2.0, None)}
    assert {value for name, value in options_by_name.items() if name.startswith("tasks.labels.")} == {(1.0, None)}
    assert options_by_name["balance.log_variances"] == (1.0, 0.0)
    single_task = layer_factors(Classification(streams["labels"], backbone=vit), 0.5)
    backbone = {name: value for name, value in options_by_name.items() if name.startswith("backbone.")}
    assert backbone == {name: (single_task[name], 0.01) for name in backbone} and len(set(backbone.values())) > 2


def test_the_last_shared_layer_is_read_by_all_tasks() -> None:
    """EfficientNet has layers between its last feature maps and its vector."""
    labels = DatasetInfo(samples=8, channels=1, classes=("a", "b"))
    boxes = DatasetInfo(samples=8, channels=1, classes=("a", "b"), boxes=True)
    detection = partial(Detection, detector=partial(Fcos, neck=partial(fpn, channels=32)), backbone=shared)
    parts = {"labels": (labels, partial(Classification, backbone=shared)), "boxes": (boxes, detection)}
    for names, expected in ((["labels"], "conv_head"), (["labels", "boxes"], "blocks.4.0.conv_pwl")):
        model = Multitask(
            DatasetInfo(samples=8, channels=1, streams={name: parts[name][0] for name in names}),
            backbone=partial(timm, model="test_efficientnet"),
            tasks={name: Subtask(task=parts[name][1]) for name in names},
        )
        (weight,) = model._last_shared()
        assert weight is model.backbone.model.get_submodule(expected).weight
        model.backbone.requires_grad_(False)
        assert model._last_shared() == []


def test_hooks_read_the_training_data_of_every_task(tmp_path: Path) -> None:
    """Also of one that is called as the stream of semi-supervised training is."""
    recipe = tmp_path / "named.yaml"
    recipe.write_text(RECIPE.replace("parity:", "unlabeled:"))
    hooks = ["hooks.int8={name: quantization_aware, batches: 1}", "hooks.bn={name: precise_bn, batches: 1}"]
    run, _ = launch.train(str(recipe), ["train.length=1it", *hooks], out=tmp_path)
    ranges = load_safetensors(run / "checkpoints" / "step-00000001" / "int8.safetensors")
    assert {name.split(".")[0] for name in ranges} == {"backbone", "tasks"}
    assert {name.split(".")[1] for name in ranges if name.startswith("tasks")} == {"digits", "unlabeled"}
