"""MoCo v3: predictions of each view against the teacher's keys of the other one, among the batch."""

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
from tests.tasks.selfsup.views import FACTS, at, batch_of, make, trained

CLOCK = Clock(total_steps=10)


def small(**keys: Any) -> MoCoV3:
    return make(MoCoV3, **{"projection": 8, "hidden": 16, **keys})


def on_timm(model: str, **keys: Any) -> MoCoV3:
    torch.manual_seed(0)
    return MoCoV3(FACTS, backbone=partial(timm, model=model), hidden=16, projection=8, mean=[0.5], std=[0.25], **keys)


# --- the loss ---------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_the_loss_is_algorithm_1() -> None:
    task, batch = small(temperature=0.3), batch_of()
    student = nn.Sequential(task.backbone, task.projector, task.predictor)
    queries, keys = (
        [F.normalize(network(view), dim=1) for view in task.views(batch)] for network in (student, task.teacher)
    )
    losses = [F.cross_entropy(q @ k.T / 0.3, torch.arange(16)) for q, k in zip(queries, reversed(keys), strict=True)]
    expected = 2 * 0.3 * (losses[0] + losses[1])
    assert task(batch, CLOCK)["loss"].item() == pytest.approx(expected.item(), rel=1e-5)


def test_the_student_alone_learns() -> None:
    task = small()
    task(batch_of(), CLOCK)["loss"].backward()
    for part in (task.backbone, task.projector, task.predictor):
        assert all(one.grad is not None and one.grad.any() for one in part.parameters())
    assert all(one.grad is None and not one.requires_grad for one in task.teacher.parameters())


def test_projector_and_predictor_are_those_of_the_paper() -> None:
    task = make(MoCoV3)
    shapes = [[tuple(one.weight.shape) for one in part if isinstance(one, nn.Linear)]
              for part in (task.projector, task.predictor)]  # fmt: skip
    assert shapes == [[(4096, 12), (4096, 4096), (256, 4096)], [(4096, 256), (256, 4096)]]
    assert isinstance(task.projector[-1], nn.BatchNorm1d) and not task.projector[-1].affine
    assert isinstance(task.predictor[-1], nn.Linear)
    assert all(
        one.bias is None for part in (task.projector, task.predictor) for one in part if isinstance(one, nn.Linear)
    )


# --- the teacher ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("step", "kept"), [(0, 0.9), (5, 0.95), (10, 1.0)])
def test_the_momentum_is_a_cosine_to_1(step: int, kept: float) -> None:
    task = small(momentum=0.9)
    weight = task.projector[0].weight
    (follow,) = task.hooks(FACTS)
    with torch.no_grad():
        weight += 1
    before = task.teacher.projector[0].weight.clone()  # type: ignore[index, union-attr, operator]
    follow.after_step(at(step, 10))
    now = task.teacher.projector[0].weight  # type: ignore[index, union-attr]
    torch.testing.assert_close(now, before + (1 - kept))


def test_the_predictor_is_the_students_alone() -> None:
    assert [name for name, _ in small().teacher.named_children()] == ["backbone", "projector"]


# --- patches ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("freeze", [None, True, False])
def test_the_projection_of_patches_stays_as_drawn(freeze: bool | None) -> None:
    task = on_timm("test_vit", freeze_patches=freeze)
    frozen = {name for name, one in task.backbone.named_parameters() if not one.requires_grad}
    expected = {"model.patch_embed.proj.weight", "model.patch_embed.proj.bias"}
    assert frozen == (set() if freeze is False else expected)


def test_a_convolutional_network_has_no_patches() -> None:
    assert all(one.requires_grad for one in on_timm("test_resnet").backbone.parameters())
    with pytest.raises(ValueError, match="freeze_patches: the backbone has no patch projection"):
        on_timm("test_resnet", freeze_patches=True)


# --- training ---------------------------------------------------------------------------------------------------------


def test_it_learns() -> None:
    task = small()
    said = trained(task, 40, hooks=task.hooks(FACTS))
    assert sum(one["loss"] for one in said[-5:]) < 0.8 * sum(one["loss"] for one in said[:5])
    assert said[-1]["std"] > 0.3


def test_a_resume_has_the_teacher_as_it_was() -> None:
    whole, first, second = small(), small(), small()
    trained(first, 3, hooks=first.hooks(FACTS))
    second.load_state_dict(first.state_dict())
    assert any(
        not torch.equal(one, other)
        for one, other in zip(whole.teacher.parameters(), second.teacher.parameters(), strict=True)
    )
    for task in (first, second):
        trained(task, 3, hooks=task.hooks(FACTS))
    for name, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[name]), name


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("views", [1, 3])
def test_another_number_of_views_is_reported(views: int) -> None:
    with pytest.raises(
        DataMismatch, match=rf"MoCoV3 learns from 2 views of an image; data.train.transforms gives {views}"
    ):
        small()(batch_of(views=views), CLOCK)


def test_a_batch_of_one_is_reported() -> None:
    with pytest.raises(DataMismatch, match="MoCoV3 learns from 2 images or more per process, not 1; raise"):
        small()(batch_of(images=1), CLOCK)
