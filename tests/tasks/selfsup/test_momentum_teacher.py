"""A teacher begins as a copy of its student, wherever the student's weights are from."""

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
from tests.tasks.selfsup.views import make

METHODS: dict[str, tuple[Callable[..., SelfSupervised], dict[str, Any]]] = {
    "byol": (BYOL, {"hidden": 12, "projection": 8}),
    "moco": (MoCo, {"projection": 8, "queue": 16}),
    "dino": (DINO, {"outputs": 8, "hidden": 8, "bottleneck": 4}),
}


def task_of(name: str) -> SelfSupervised:
    kind, keys = METHODS[name]
    return make(kind, **keys)


def parts(task: SelfSupervised, beginning: str) -> dict[str, Tensor]:
    return {name.removeprefix(beginning): one for name, one in task.state_dict().items() if name.startswith(beginning)}


def saved(task: SelfSupervised, path: Path, add: float) -> Path:
    """Its weights in a file, each larger by a number."""
    torch.save({name: one + add if one.is_floating_point() else one for name, one in task.state_dict().items()}, path)
    return path


@pytest.mark.parametrize("name", METHODS)
def test_weights_of_the_student_alone_are_the_teachers_too(name: str, tmp_path: Path) -> None:
    task = task_of(name)
    file = saved(make(SimCLR, projection=8), tmp_path / "simclr.pth", 1.0)
    initialize(task, Init(weights=file, target_prefix="backbone"))
    own, followed = parts(task, "teacher."), task.state_dict()
    assert own and all(torch.equal(one, followed[key]) for key, one in own.items())
    wanted = torch.load(file, weights_only=True)
    assert torch.equal(own["backbone.layers.0.weight"], wanted["backbone.layers.0.weight"])
    assert not any(one.requires_grad for one in task.get_submodule("teacher").parameters())


@pytest.mark.parametrize("name", METHODS)
def test_a_teacher_with_weights_of_its_own_keeps_them(name: str, tmp_path: Path) -> None:
    task, other = task_of(name), task_of(name)
    with torch.no_grad():
        for one in other.get_submodule("teacher").parameters():
            one.add_(1)
    initialize(task, Init(weights=saved(other, tmp_path / "run.pth", 0.0)))
    assert all(torch.equal(one, task.state_dict()[name]) for name, one in other.state_dict().items())


def test_nothing_is_dropped_in_a_teacher() -> None:
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2}
    drops = {"patch_drop_rate": 0.5, "pos_drop_rate": 0.5, "proj_drop_rate": 0.5, "attn_drop_rate": 0.5}
    student = timm(1, model="vit_tiny_patch16_224", drop_path=0.5, options={**sizes, **drops})
    teacher, images = MomentumTeacher(backbone=student), torch.rand(4, 1, 32, 32)
    assert student.training and teacher.training
    assert not torch.equal(student(images), student(images))
    assert torch.equal(teacher(images), teacher(images))
