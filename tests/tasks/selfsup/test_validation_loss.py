"""The loss of self-supervised tasks on images that are not trained on."""

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
from tests.tasks.selfsup.views import FACTS, at, batch_of, make


def whole(batch: Batch) -> Batch:
    return {**batch, "image": batch["views"][0]}


TASKS: dict[str, Callable[[], SelfSupervised]] = {
    "simclr": lambda: make(SimCLR),
    "vicreg": lambda: make(VICReg, hidden=16, projection=16),
    "moco": lambda: make(MoCo, queue=64),
    "swav": lambda: make(SwAV, prototypes=[6], queue=SwavQueue(length=32)),
    "swav with a teacher": lambda: make(SwAV, prototypes=[6], momentum=0.9),
    "dino": lambda: make(DINO, outputs=16, hidden=16, bottleneck=8),
    "ibot": lambda: test_ibot.make(),
}


def step(task: SelfSupervised, seed: int, optimizer: torch.optim.Optimizer) -> None:
    """One step of training with its hooks."""
    batch = views_of(task, seed)
    hooks = task.hooks(FACTS)
    for hook in hooks:
        hook.before_step(at(seed, 10), batch)
    values = task(batch, Clock(step=seed, total_steps=10))
    optimizer.zero_grad()
    sum(value for name, value in values.items() if "loss" in name).backward()
    optimizer.step()
    for hook in hooks:
        hook.after_step(at(seed + 1, 10))


def views_of(task: SelfSupervised, seed: int) -> Batch:
    return test_ibot.batch_of(seed=seed) if type(task).__name__ == "IBot" else batch_of(seed=seed)


@pytest.mark.parametrize("name", TASKS)
def test_it_is_the_same_each_time_and_changes_nothing(name: str) -> None:
    """Two runs of three steps, one of which is evaluated in between, end with the same tensors."""
    tasks = TASKS[name](), TASKS[name]()
    for task, evaluates in zip(tasks, (False, True), strict=True):
        parameters = [param for param in task.parameters() if param.requires_grad]
        optimizer = torch.optim.SGD(parameters, lr=0.05)
        for number in range(3):
            step(task, number, optimizer)
            if evaluates:
                task.eval()
                with torch.no_grad():
                    first, again = (task.predict(whole(views_of(task, 7))) for _ in range(2))
                task.train()
                assert torch.equal(first["losses/loss"], again["losses/loss"]) and first["losses/loss"].isfinite().all()
                assert first["losses/loss"].shape == first["embedding"].shape[:1]
    for left, right in zip(tasks[0].state_dict().values(), tasks[1].state_dict().values(), strict=True):
        assert torch.equal(left, right)


def test_methods_with_an_entry_for_each_image_have_none() -> None:
    task: Any = make(NPID, negatives=8).eval()
    assert list(task.predict(whole(batch_of()))) == ["embedding"]
