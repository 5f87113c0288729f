"""MoCo v3: predictions of each view against the teacher's keys of the other view, contrasted within the batch."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from opabinia.contracts import Clock
from opabinia.models.backbones.timm import timm
from opabinia.tasks.selfsup.moco_v3 import MoCoV3
from tests.tasks.selfsup.views import DATASET_INFO, batch_of, make_task

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


# --- the teacher ------------------------------------------------------------------------------------------------------


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
