"""The validation loss of self-supervised tasks."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from opabinia.contracts import Batch, Clock
from opabinia.tasks.selfsup.base import SelfSupervised
from opabinia.tasks.selfsup.dino import DINO
from opabinia.tasks.selfsup.moco import MoCo
from opabinia.tasks.selfsup.npid import NPID
from opabinia.tasks.selfsup.simclr import SimCLR
from opabinia.tasks.selfsup.swav import SwAV, SwavQueue
from opabinia.tasks.selfsup.vicreg import VICReg
from tests.tasks.selfsup import test_ibot
from tests.tasks.selfsup.views import DATASET_INFO, batch_of, make_task, run_at_step


def with_image(batch: Batch) -> Batch:
    return {**batch, "image": batch["views"][0]}


TASKS: dict[str, Callable[[], SelfSupervised]] = {
    "simclr": lambda: make_task(SimCLR),
    "vicreg": lambda: make_task(VICReg, hidden=16, projection=16),
    "moco": lambda: make_task(MoCo, queue=64),
    "swav": lambda: make_task(SwAV, prototypes=[6], queue=SwavQueue(length=32)),
    "swav with a teacher": lambda: make_task(SwAV, prototypes=[6], momentum=0.9),
    "dino": lambda: make_task(DINO, outputs=16, hidden=16, bottleneck=8),
    "ibot": lambda: test_ibot.make_task(),
}


def step(task: SelfSupervised, seed: int, optimizer: torch.optim.Optimizer) -> None:
    """Run one training step with the task's hooks."""
    batch = views_of(task, seed)
    hooks = task.hooks(DATASET_INFO)
    for hook in hooks:
        hook.before_step(run_at_step(seed, 10), batch)
    values = task(batch, Clock(step=seed, total_steps=10))
    optimizer.zero_grad()
    sum(value for name, value in values.items() if "loss" in name).backward()
    optimizer.step()
    for hook in hooks:
        hook.after_step(run_at_step(seed + 1, 10))


def views_of(task: SelfSupervised, seed: int) -> Batch:
    return test_ibot.batch_of(seed=seed) if type(task).__name__ == "IBot" else batch_of(seed=seed)


@pytest.mark.parametrize("name", TASKS)
def test_it_is_deterministic_and_changes_no_state(name: str) -> None:
    """A run that is evaluated between steps ends with the same tensors as one that is not."""
    tasks = TASKS[name](), TASKS[name]()
    for task, evaluates in zip(tasks, (False, True), strict=True):
        parameters = [param for param in task.parameters() if param.requires_grad]
        optimizer = torch.optim.SGD(parameters, lr=0.05)
        for number in range(3):
            step(task, number, optimizer)
            if evaluates:
                task.eval()
                with torch.no_grad():
                    first, repeated = (task.predict(with_image(views_of(task, 7))) for _ in range(2))
                task.train()
                assert (
                    torch.equal(first["losses/loss"], repeated["losses/loss"]) and first["losses/loss"].isfinite().all()
                )
                assert first["losses/loss"].shape == first["embedding"].shape[:1]
    for left, right in zip(tasks[0].state_dict().values(), tasks[1].state_dict().values(), strict=True):
        assert torch.equal(left, right)


def test_instance_discrimination_has_no_validation_loss() -> None:
    task: Any = make_task(NPID, negatives=8).eval()
    assert list(task.predict(with_image(batch_of()))) == ["embedding"]
