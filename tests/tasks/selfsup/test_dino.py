import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from opabinia.contracts import Batch, Clock, DataMismatch, DatasetInfo
from opabinia.models.backbones.timm import timm
from opabinia.models.losses.self_distillation import centered_softmax, dino_loss
from opabinia.models.projectors import DinoHead
from opabinia.optim.schedules import cosine
from opabinia.runtime.durations import Duration
from opabinia.tasks.selfsup.dino import DINO
from opabinia.tasks.selfsup.momentum_teacher import MomentumTeacher
from tests.tasks.selfsup.views import DATASET_INFO, batch_of, make_task, run_at_step

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "selfsup" / "dino.json").read_text())
OPTIONS = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 3}


def small_dino(**keys: Any) -> DINO:
    return make_task(DINO, **{"hidden": 32, "bottleneck": 8, "outputs": 20, **keys})


def with_crops(batch: Batch, crops: int = 2) -> Batch:
    views = (*batch["views"], *(batch["views"][number % 2][:, :, :6, :6] for number in range(crops)))
    return {**batch, "views": views}


def outputs_of(network: nn.Module, images: Tensor) -> Tensor:
    logits: Tensor = network.get_submodule("head")(network.get_submodule("backbone")(images))
    return logits


@pytest.mark.parametrize("crops", [0, 3])
def test_the_loss_equals_dino_loss_of_its_inputs(crops: int) -> None:
    task, batch = small_dino(teacher_warmup=Duration(3, "it")), with_crops(batch_of(), crops)
    with torch.no_grad():
        task.center.value += torch.randn(20)
        for param in task.teacher.parameters():
            param += 0.1 * torch.randn_like(param)
    views = [task.normalize(view) for view in batch["views"]]
    for step, temperature in ((0, 0.04), (1, 0.055), (2, 0.07), (9, 0.07)):
        targets = [
            centered_softmax(outputs_of(task.teacher, view), task.center.value, temperature) for view in views[:2]
        ]
        expected = dino_loss([outputs_of(task, view) for view in views], targets, 0.1)
        torch.testing.assert_close(task(batch, Clock(step=step))["loss"], expected)


def test_the_center_is_updated_after_the_step_with_the_outputs_of_the_step() -> None:
    task = small_dino(center_momentum=0.75)
    hook = task.hooks(DATASET_INFO)[-1]
    task(batch_of(seed=7), Clock())  # outside of a step
    hook.before_step(run_at_step(0, 4), {})
    outputs = []
    for seed in (1, 2):  # two micro-batches
        batch = with_crops(batch_of(8 * seed, seed=seed))
        task(batch, Clock())
        outputs += [outputs_of(task.teacher, task.normalize(view)) for view in batch["views"][:2]]
    assert not task.center.value.any(), "never in forward"
    hook.after_step(run_at_step(1, 4))
    torch.testing.assert_close(task.center.value, 0.25 * torch.cat(outputs).mean(0))
    assert "center.value" in task.state_dict()


def center_after_step(task: DINO, batch: Batch) -> Tensor:
    """Return the center after a step with this batch."""
    hook = task.hooks(DATASET_INFO)[-1]
    hook.before_step(run_at_step(0, 4), batch)
    task(batch, Clock())
    hook.after_step(run_at_step(1, 4))
    return task.center.value.clone()


def test_skipped_steps_and_non_finite_outputs_do_not_move_the_center() -> None:
    """A rollback skips batches: there is no forward pass, but the step counts."""
    task = small_dino()
    hook = task.hooks(DATASET_INFO)[-1]
    hook.after_step(run_at_step(1, 4))
    assert not task.center.value.any()
    center = center_after_step(task, batch_of())
    hook.after_step(run_at_step(2, 4))
    assert center.any() and torch.equal(task.center.value, center)
    broken = batch_of(seed=2)
    broken["views"][0][0] = torch.nan
    assert torch.equal(center_after_step(task, broken), center)
    assert not torch.equal(center_after_step(task, batch_of(seed=3)), center)


@pytest.mark.parametrize(
    ("at_step", "momentum"), list(zip(GOLDEN["momentum"]["at"], GOLDEN["momentum"]["expected"], strict=True))
)
def test_the_teacher_momentum_equals_that_of_vissl(at_step: int, momentum: float) -> None:
    student = nn.ModuleDict({"layer": nn.Linear(1, 1)})
    nn.init.zeros_(student["layer"].weight)
    teacher = MomentumTeacher(GOLDEN["momentum"]["base"], cosine, layer=student["layer"])
    nn.init.ones_(student["layer"].weight)
    teacher.update_hook(student).after_step(run_at_step(at_step, GOLDEN["momentum"]["steps"]))
    assert 1 - float(teacher.get_parameter("layer.weight")) == pytest.approx(momentum, abs=1e-7)


def test_the_last_layer_is_frozen_at_first() -> None:
    task = small_dino(freeze_last_layer=Duration(2, "it"), norm_last_layer=False)
    hook = task.hooks(DATASET_INFO)[0]
    frozen = []
    for step in range(4):
        task.zero_grad()
        task(batch_of(), Clock(step=step))["loss"].backward()
        hook.after_backward(run_at_step(step, 4))
        frozen.append([param.grad is None for param in task.head.last.parameters()])
        assert all(param.grad is not None for param in task.head.mlp.parameters())
    assert frozen == [[True, True]] * 2 + [[False, False]] * 2


def test_the_head_of_the_paper() -> None:
    with torch.device("meta"):
        head = DinoHead(384)
    shapes = {
        name: tuple(param.shape) for name, param in head.named_parameters() if name.endswith(("weight", "direction"))
    }
    assert list(shapes.values()) == [(2048, 384), (2048, 2048), (256, 2048), (65536, 256)]
    assert [type(layer) for layer in head.mlp] == [nn.Linear, nn.GELU, nn.Linear, nn.GELU, nn.Linear]
    assert not any(name.endswith("length") for name, _ in head.named_parameters())


def test_the_head_gives_cosines() -> None:
    torch.manual_seed(0)
    head = DinoHead(6, 9, hidden=16, bottleneck=4)
    vectors = torch.randn(5, 6)
    logits = head(vectors)
    bottleneck = head.mlp(vectors)
    expected = nn.functional.cosine_similarity(bottleneck[:, None], head.last.direction[None], dim=-1)
    torch.testing.assert_close(logits, expected)
    with torch.no_grad():
        head.last.direction *= 3
    torch.testing.assert_close(head(vectors), logits)
    learned = DinoHead(6, 9, hidden=16, bottleneck=4, norm_last_layer=False)
    before = learned(vectors)
    assert learned.last.length is not None
    with torch.no_grad():
        learned.last.length *= 2
    torch.testing.assert_close(learned(vectors), 2 * before)


def test_batch_norm_in_the_head_separates_similar_vectors() -> None:
    torch.manual_seed(0)
    vectors = torch.randn(6) + 0.01 * torch.randn(32, 6)
    without_norm, with_norm = (
        DinoHead(6, 9, hidden=16, bottleneck=4, norm=norm)(vectors).std(0).mean() for norm in (False, True)
    )
    assert with_norm > 20 * without_norm
    task = small_dino(head_norm=True)
    assert [type(layer) for layer in task.head.mlp[:3]] == [nn.Linear, nn.BatchNorm1d, nn.GELU]
    assert not any(param.requires_grad for param in task.teacher.parameters())


def vit(**options: Any) -> DINO:
    backbone = partial(timm, model="vit_tiny_patch16_224", options={**OPTIONS, **options})
    return DINO(DatasetInfo(samples=64), backbone=backbone, hidden=32, bottleneck=8, outputs=20)


def test_a_transformer_needs_dynamic_img_size_for_views_of_several_sizes() -> None:
    images = torch.rand(2, 3, 32, 32)
    batch = {"views": (images, images, images[:, :, :16, :16]), "id": ["a", "b"]}
    assert vit(dynamic_img_size=True)(batch, Clock())["loss"].isfinite()
    with pytest.raises(DataMismatch, match=r"views of 32 x 32, 16 x 16: .*dynamic_img_size: true"):
        vit()(batch, Clock())
