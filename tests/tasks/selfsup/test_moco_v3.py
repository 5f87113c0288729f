"""MoCo v3: predictions of each view against the teacher's keys of the other view, contrasted within the batch."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from opabinia.contracts import Clock, DataMismatch
from opabinia.models.backbones.timm import timm
from opabinia.tasks.selfsup.moco_v3 import MoCoV3
from tests.tasks.selfsup.views import DATASET_INFO, batch_of, make_task, run_at_step, train_steps

CLOCK = Clock(total_steps=10)


def small_moco(**keys: Any) -> MoCoV3:
    return make_task(MoCoV3, **{"projection": 8, "hidden": 16, **keys})


def moco_with_timm(model: str, **keys: Any) -> MoCoV3:
    torch.manual_seed(0)
    return MoCoV3(
        DATASET_INFO, backbone=partial(timm, model=model), hidden=16, projection=8, mean=[0.5], std=[0.25], **keys
    )


# --- the loss ---------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_the_loss_is_algorithm_1() -> None:
    task, batch = small_moco(temperature=0.3), batch_of()
    student = nn.Sequential(task.backbone, task.projector, task.predictor)
    queries, keys = (
        [F.normalize(network(view), dim=1) for view in task.views(batch)] for network in (student, task.teacher)
    )
    losses = [F.cross_entropy(q @ k.T / 0.3, torch.arange(16)) for q, k in zip(queries, reversed(keys), strict=True)]
    expected = 2 * 0.3 * (losses[0] + losses[1])
    assert task(batch, CLOCK)["loss"].item() == pytest.approx(expected.item(), rel=1e-5)


def test_only_the_student_has_gradients() -> None:
    task = small_moco()
    task(batch_of(), CLOCK)["loss"].backward()
    for network in (task.backbone, task.projector, task.predictor):
        assert all(param.grad is not None and param.grad.any() for param in network.parameters())
    assert all(param.grad is None and not param.requires_grad for param in task.teacher.parameters())


def test_projector_and_predictor_are_those_of_the_paper() -> None:
    task = make_task(MoCoV3)
    shapes = [[tuple(layer.weight.shape) for layer in network if isinstance(layer, nn.Linear)]
              for network in (task.projector, task.predictor)]  # fmt: skip
    assert shapes == [[(4096, 12), (4096, 4096), (256, 4096)], [(4096, 256), (256, 4096)]]
    assert isinstance(task.projector[-1], nn.BatchNorm1d) and not task.projector[-1].affine
    assert isinstance(task.predictor[-1], nn.Linear)
    assert all(
        layer.bias is None
        for network in (task.projector, task.predictor)
        for layer in network
        if isinstance(layer, nn.Linear)
    )


# --- the teacher ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("step", "momentum"), [(0, 0.9), (5, 0.95), (10, 1.0)])
def test_the_momentum_follows_a_cosine_to_1(step: int, momentum: float) -> None:
    task = small_moco(momentum=0.9)
    weight = task.projector[0].weight
    (hook,) = task.hooks(DATASET_INFO)
    with torch.no_grad():
        weight += 1
    before = task.teacher.projector[0].weight.clone()  # type: ignore[index, union-attr, operator]
    hook.after_step(run_at_step(step, 10))
    after = task.teacher.projector[0].weight  # type: ignore[index, union-attr]
    torch.testing.assert_close(after, before + (1 - momentum))


def test_the_teacher_has_no_predictor() -> None:
    assert [name for name, _ in small_moco().teacher.named_children()] == ["backbone", "projector"]


# --- patches ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("freeze", [None, True, False])
def test_the_patch_projection_is_frozen_by_default(freeze: bool | None) -> None:
    task = moco_with_timm("test_vit", freeze_patches=freeze)
    frozen = {name for name, param in task.backbone.named_parameters() if not param.requires_grad}
    expected = {"model.patch_embed.proj.weight", "model.patch_embed.proj.bias"}
    assert frozen == (set() if freeze is False else expected)


def test_a_convolutional_network_has_no_patches() -> None:
    assert all(param.requires_grad for param in moco_with_timm("test_resnet").backbone.parameters())
    with pytest.raises(ValueError, match="freeze_patches: the backbone has no patch projection"):
        moco_with_timm("test_resnet", freeze_patches=True)


# --- training ---------------------------------------------------------------------------------------------------------


def test_it_learns() -> None:
    task = small_moco()
    history = train_steps(task, 40, hooks=task.hooks(DATASET_INFO))
    assert sum(logged["loss"] for logged in history[-5:]) < 0.8 * sum(logged["loss"] for logged in history[:5])
    assert history[-1]["std"] > 0.3


def test_a_resumed_run_restores_the_teacher() -> None:
    untrained, first, second = small_moco(), small_moco(), small_moco()
    train_steps(first, 3, hooks=first.hooks(DATASET_INFO))
    second.load_state_dict(first.state_dict())
    assert any(
        not torch.equal(initial, restored)
        for initial, restored in zip(untrained.teacher.parameters(), second.teacher.parameters(), strict=True)
    )
    for task in (first, second):
        train_steps(task, 3, hooks=task.hooks(DATASET_INFO))
    for name, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[name]), name


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("views", [1, 3])
def test_another_number_of_views_is_reported(views: int) -> None:
    with pytest.raises(
        DataMismatch, match=rf"MoCoV3 learns from 2 views of an image; data.train.transforms gives {views}"
    ):
        small_moco()(batch_of(views=views), CLOCK)


def test_a_batch_of_one_is_reported() -> None:
    with pytest.raises(DataMismatch, match="MoCoV3 learns from 2 images or more per process, not 1; raise"):
        small_moco()(batch_of(images=1), CLOCK)
