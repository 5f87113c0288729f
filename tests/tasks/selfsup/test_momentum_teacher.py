"""A momentum teacher starts as a copy of its student, also with pretrained weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from opabinia.models.backbones.timm import timm
from opabinia.models.weights.init import Init, initialize
from opabinia.tasks.selfsup.base import SelfSupervised
from opabinia.tasks.selfsup.byol import BYOL
from opabinia.tasks.selfsup.dino import DINO
from opabinia.tasks.selfsup.moco import MoCo
from opabinia.tasks.selfsup.momentum_teacher import MomentumTeacher
from opabinia.tasks.selfsup.simclr import SimCLR
from tests.tasks.selfsup.views import make_task

METHODS: dict[str, tuple[Callable[..., SelfSupervised], dict[str, Any]]] = {
    "byol": (BYOL, {"hidden": 12, "projection": 8}),
    "moco": (MoCo, {"projection": 8, "queue": 16}),
    "dino": (DINO, {"outputs": 8, "hidden": 8, "bottleneck": 4}),
}


def task_of(name: str) -> SelfSupervised:
    kind, keys = METHODS[name]
    return make_task(kind, **keys)


def state_with_prefix(task: SelfSupervised, prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in task.state_dict().items() if name.startswith(prefix)}


def save_weights(task: SelfSupervised, path: Path, add: float) -> Path:
    """Save the task's weights, with ``add`` added to each; return the path."""
    torch.save(
        {name: value + add if value.is_floating_point() else value for name, value in task.state_dict().items()}, path
    )
    return path


@pytest.mark.parametrize("name", METHODS)
def test_pretrained_weights_of_the_student_are_copied_to_the_teacher(name: str, tmp_path: Path) -> None:
    task = task_of(name)
    file = save_weights(make_task(SimCLR, projection=8), tmp_path / "simclr.pth", 1.0)
    initialize(task, Init(weights=file, target_prefix="backbone"))
    teacher_state, student_state = state_with_prefix(task, "teacher."), task.state_dict()
    assert teacher_state and all(torch.equal(value, student_state[key]) for key, value in teacher_state.items())
    expected = torch.load(file, weights_only=True)
    assert torch.equal(teacher_state["backbone.layers.0.weight"], expected["backbone.layers.0.weight"])
    assert not any(param.requires_grad for param in task.get_submodule("teacher").parameters())


@pytest.mark.parametrize("name", METHODS)
def test_pretrained_weights_of_the_teacher_are_kept(name: str, tmp_path: Path) -> None:
    task, pretrained = task_of(name), task_of(name)
    with torch.no_grad():
        for param in pretrained.get_submodule("teacher").parameters():
            param.add_(1)
    initialize(task, Init(weights=save_weights(pretrained, tmp_path / "run.pth", 0.0)))
    assert all(torch.equal(value, task.state_dict()[key]) for key, value in pretrained.state_dict().items())


def test_a_teacher_has_no_dropout() -> None:
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2}
    drops = {"patch_drop_rate": 0.5, "pos_drop_rate": 0.5, "proj_drop_rate": 0.5, "attn_drop_rate": 0.5}
    student = timm(1, model="vit_tiny_patch16_224", drop_path=0.5, options={**sizes, **drops})
    teacher, images = MomentumTeacher(0.9, backbone=student), torch.rand(4, 1, 32, 32)
    assert student.training and teacher.training
    assert not torch.equal(student(images), student(images))
    assert torch.equal(teacher(images), teacher(images))
