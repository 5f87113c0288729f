"""Views of a few images, and helpers to train small self-supervised tasks."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from opabinia.contracts import Backbone, Batch, Clock, DatasetInfo, Run, Task
from opabinia.engine.loop.step import total_loss

T = TypeVar("T", bound=Task)
DATASET_INFO = DatasetInfo(samples=64, channels=1)


class SmallBackbone(Backbone):
    """A convolution and a linear layer, independent of the rest of the batch and of the image size."""

    out_channels = 12

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(channels, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten()),
            nn.Linear(128, self.out_channels),
        )

    def forward(self, images: Tensor) -> Tensor:
        vectors: Tensor = self.layers(images)
        return vectors


def make_task(kind: Callable[..., T], dataset_info: DatasetInfo = DATASET_INFO, **keys: Any) -> T:
    """Return a task with a small backbone and always the same weights."""
    torch.manual_seed(0)
    return kind(dataset_info, backbone=SmallBackbone, mean=[0.5], std=[0.25], **keys)


def batch_of(images: int = 16, views: int = 2, seed: int = 1) -> Batch:
    """Return views of smooth random patterns that are brighter at the top, shifted and with noise, without labels."""
    generator = torch.Generator().manual_seed(seed)
    patterns = torch.randn(images, 1, 4, 4, generator=generator)
    patterns = nn.functional.interpolate(patterns, size=(12, 12), mode="bilinear")
    patterns += torch.linspace(2, -2, 12)[:, None]
    noisy_views = []
    for number in range(views):
        noise = 0.1 * torch.randn(images, 1, 10, 10, generator=generator)
        noisy_views.append((patterns[:, :, number % 3 :, 1:][:, :, :10, :10] / 4 + 0.5 + noise).clamp(0, 1))
    return {"views": tuple(noisy_views), "id": [str(number) for number in range(images)]}


def run_at_step(step: int, steps: int) -> Run:
    """Return a run after this step, with the attributes that hooks of tasks read."""
    return cast("Run", SimpleNamespace(clock=Clock(step=step, total_steps=steps)))


def train_step(task: Task, batch: Batch, optimizer: torch.optim.Optimizer, step: int, steps: int) -> dict[str, float]:
    """Train on a batch, with the hooks of the task; return the logged scalars and the total loss."""
    hooks = task.hooks(DATASET_INFO)
    for hook in hooks:
        hook.before_step(run_at_step(step, steps), batch)
    torch.manual_seed(step)
    loss, logged = total_loss(task(batch, Clock(step=step, total_steps=steps)))
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    for hook in hooks:
        hook.after_backward(run_at_step(step, steps))
    optimizer.step()
    for hook in hooks:
        hook.after_step(run_at_step(step + 1, steps))
    return {name: value.item() for name, value in logged.items()} | {"total": loss.item()}


def sgd(task: Task, lr: float = 0.05, momentum: float = 0.9) -> torch.optim.Optimizer:
    return torch.optim.SGD([param for param in task.parameters() if param.requires_grad], lr=lr, momentum=momentum)


def train_steps(task: Task, steps: int) -> list[dict[str, float]]:
    """Train on a new batch in each step; see :func:`train_step`."""
    optimizer = sgd(task)
    return [train_step(task, batch_of(seed=step), optimizer, step, steps) for step in range(steps)]


def linear_widths(network: nn.Module) -> list[int]:
    """Return the widths of the input and of each linear layer."""
    layers = [module for module in network.modules() if isinstance(module, nn.Linear)]
    return [layers[0].in_features, *(layer.out_features for layer in layers)]
