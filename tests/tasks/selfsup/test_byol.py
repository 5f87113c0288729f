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
from tests.tasks.selfsup.views import DATASET_INFO, batch_of, linear_widths, make_task, run_at_step, train_steps


def byol(**keys: Any) -> BYOL:
    return make_task(BYOL, **{"hidden": 32, "projection": 16, **keys})


def test_network_widths_are_those_of_the_paper() -> None:
    with torch.device("meta"):
        task = make_task(BYOL)
    assert (linear_widths(task.projector), linear_widths(task.predictor)) == ([12, 4096, 256], [256, 4096, 256])
    assert not isinstance(task.projector[-1], nn.BatchNorm1d)


def test_the_loss_is_two_squared_distances() -> None:
    task, batch = byol(), batch_of()
    with torch.no_grad():
        for param in task.teacher.parameters():
            param += 0.1 * torch.randn_like(param)
    first, second = (task.normalize(view) for view in batch["views"])

    def distance(view: torch.Tensor, other_view: torch.Tensor) -> torch.Tensor:
        prediction = F.normalize(task.predictor(task.projector(task.backbone(view))))
        target = F.normalize(task.teacher(other_view))
        return (prediction - target).square().sum(1).mean()

    torch.testing.assert_close(task(batch, Clock())["loss"], distance(first, second) + distance(second, first))


def test_no_gradient_reaches_the_teacher() -> None:
    task = byol()
    task(batch_of(), Clock())["loss"].backward()
    assert all(param.grad is None and not param.requires_grad for param in task.teacher.parameters())
    teacher_ids = {id(param) for param in task.teacher.parameters()}
    assert not teacher_ids & {id(param) for group in parameter_groups(task) for param in group["params"]}

    class Detach(nn.Module):
        def forward(self, vectors: torch.Tensor) -> torch.Tensor:
            return vectors.detach()

    task.predictor = Detach()
    assert not task(batch_of(), Clock())["loss"].requires_grad, "all gradients pass the predictor"


def test_the_teacher_starts_as_a_copy_with_its_own_batch_statistics() -> None:
    task = byol()
    teacher_state = {name: value.clone() for name, value in task.teacher.state_dict().items()}
    student_state = {
        f"{part}.{name}": value
        for part in ("backbone", "projector")
        for name, value in getattr(task, part).state_dict().items()
    }
    assert teacher_state.keys() == student_state.keys() and all(
        torch.equal(teacher_state[name], student_state[name]) for name in teacher_state
    )
    task(batch_of(), Clock())
    changed = {name for name, value in task.teacher.state_dict().items() if not torch.equal(value, teacher_state[name])}
    assert changed == {f"projector.1.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")}


@pytest.mark.parametrize("step", [1, 3, 8])
def test_the_teacher_momentum_follows_a_cosine(step: int) -> None:
    task = byol(momentum=0.9)
    train_steps(task, 1)
    before = [param.clone() for param in task.teacher.parameters()]
    (hook,) = task.hooks(DATASET_INFO)
    hook.after_step(run_at_step(step, 8))
    momentum = 1 - 0.1 * (math.cos(math.pi * step / 8) + 1) / 2
    student = [*task.backbone.parameters(), *task.projector.parameters()]
    for param, old, student_param in zip(task.teacher.parameters(), before, student, strict=True):
        torch.testing.assert_close(param, momentum * old + (1 - momentum) * student_param)
    moved = any(not torch.equal(param, old) for param, old in zip(task.teacher.parameters(), before, strict=True))
    assert moved == (step < 8)


def test_the_momentum_may_be_constant() -> None:
    task = byol(momentum=0.5, momentum_schedule=constant)
    train_steps(task, 1)
    before = task.teacher.state_dict()["backbone.layers.4.weight"].clone()
    task.hooks(DATASET_INFO)[0].after_step(run_at_step(8, 8))
    expected = (before + task.backbone.state_dict()["layers.4.weight"]) / 2
    torch.testing.assert_close(task.teacher.state_dict()["backbone.layers.4.weight"], expected)
