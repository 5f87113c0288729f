import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from opabinia.contracts import Clock
from opabinia.optim.groups import parameter_groups
from opabinia.optim.schedules import constant
from opabinia.tasks.selfsup.byol import BYOL
from tests.tasks.selfsup.views import FACTS, at, batch_of, make, trained, widths


def byol(**keys: Any) -> BYOL:
    return make(BYOL, **{"hidden": 32, "projection": 16, **keys})


def test_the_networks_of_the_paper() -> None:
    with torch.device("meta"):
        task = make(BYOL)
    assert (widths(task.projector), widths(task.predictor)) == ([12, 4096, 256], [256, 4096, 256])
    assert not isinstance(task.projector[-1], nn.BatchNorm1d)


def test_the_loss_is_two_squared_distances() -> None:
    task, batch = byol(), batch_of()
    with torch.no_grad():
        for one in task.teacher.parameters():
            one += 0.1 * torch.randn_like(one)
    first, second = (task.normalize(view) for view in batch["views"])

    def distance(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        prediction = F.normalize(task.predictor(task.projector(task.backbone(one))))
        target = F.normalize(task.teacher(other))
        return (prediction - target).square().sum(1).mean()

    torch.testing.assert_close(task(batch, Clock())["loss"], distance(first, second) + distance(second, first))


def test_no_gradient_reaches_the_teacher() -> None:
    task = byol()
    task(batch_of(), Clock())["loss"].backward()
    assert all(one.grad is None and not one.requires_grad for one in task.teacher.parameters())
    theirs = {id(one) for one in task.teacher.parameters()}
    assert not theirs & {id(one) for group in parameter_groups(task) for one in group["params"]}

    class Cut(nn.Module):
        def forward(self, vectors: torch.Tensor) -> torch.Tensor:
            return vectors.detach()

    task.predictor = Cut()
    assert not task(batch_of(), Clock())["loss"].requires_grad, "there is no way around the predictor"


def test_the_teacher_begins_as_the_student_and_has_norms_of_its_own() -> None:
    task = byol()
    own = {name: one.clone() for name, one in task.teacher.state_dict().items()}
    theirs = {
        f"{part}.{name}": one
        for part in ("backbone", "projector")
        for name, one in getattr(task, part).state_dict().items()
    }
    assert own.keys() == theirs.keys() and all(torch.equal(own[name], theirs[name]) for name in own)
    task(batch_of(), Clock())
    changed = {name for name, one in task.teacher.state_dict().items() if not torch.equal(one, own[name])}
    assert changed == {f"projector.1.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")}


@pytest.mark.parametrize("step", [1, 3, 8])
def test_the_teacher_follows_more_and_more_slowly(step: int) -> None:
    task = byol(momentum=0.9)
    trained(task, 1)
    before = [one.clone() for one in task.teacher.parameters()]
    (hook,) = task.hooks(FACTS)
    hook.after_step(at(step, 8))
    momentum = 1 - 0.1 * (math.cos(math.pi * step / 8) + 1) / 2
    student = [*task.backbone.parameters(), *task.projector.parameters()]
    for one, was, other in zip(task.teacher.parameters(), before, student, strict=True):
        torch.testing.assert_close(one, momentum * was + (1 - momentum) * other)
    moved = any(not torch.equal(one, was) for one, was in zip(task.teacher.parameters(), before, strict=True))
    assert moved == (step < 8)


def test_the_momentum_may_stay() -> None:
    task = byol(momentum=0.5, momentum_schedule=constant)
    trained(task, 1)
    before = task.teacher.state_dict()["backbone.layers.4.weight"].clone()
    task.hooks(FACTS)[0].after_step(at(8, 8))
    expected = (before + task.backbone.state_dict()["layers.4.weight"]) / 2
    torch.testing.assert_close(task.teacher.state_dict()["backbone.layers.4.weight"], expected)
