"""Views of few images, and what goes through a small task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from opabinia.contracts import Backbone, Batch, Clock, DatasetInfo, Hook, Run, Task
from opabinia.engine.loop.step import total_loss

T = TypeVar("T", bound=Task)
FACTS = DatasetInfo(samples=64, channels=1)


class Small(Backbone):
    """One convolution and a layer; nothing in it depends on what else is in a batch, nor on the images' size."""

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


def make(kind: Callable[..., T], dataset_info: DatasetInfo = FACTS, **keys: Any) -> T:
    """A task on a small backbone, with the same weights each time."""
    torch.manual_seed(0)
    return kind(dataset_info, backbone=Small, mean=[0.5], std=[0.25], **keys)


def batch_of(images: int = 16, views: int = 2, seed: int = 1) -> Batch:
    """Smooth patterns that are brighter above, each image its own; views are shifted, and have noise of their own.
    Nobody tells labels."""
    generator = torch.Generator().manual_seed(seed)
    patterns = torch.randn(images, 1, 4, 4, generator=generator)
    patterns = nn.functional.interpolate(patterns, size=(12, 12), mode="bilinear")
    patterns += torch.linspace(2, -2, 12)[:, None]
    seen = []
    for number in range(views):
        noise = 0.1 * torch.randn(images, 1, 10, 10, generator=generator)
        seen.append((patterns[:, :, number % 3 :, 1:][:, :, :10, :10] / 4 + 0.5 + noise).clamp(0, 1))
    return {"views": tuple(seen), "id": [str(number) for number in range(images)]}


def at(step: int, steps: int) -> Run:
    """A run after so many of its steps, as far as hooks of tasks look at it."""
    return cast("Run", SimpleNamespace(clock=Clock(step=step, total_steps=steps)))


def trained(task: Task, steps: int, lr: float = 0.05, hooks: Sequence[Hook] = ()) -> list[dict[str, float]]:
    """What the task says in each step on batches that differ from step to step."""
    optimizer = torch.optim.SGD([one for one in task.parameters() if one.requires_grad], lr=lr, momentum=0.9)
    said = []
    for step in range(steps):
        values = task(batch_of(seed=step), Clock(step=step, total_steps=steps))
        loss, logged = total_loss(values)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        for hook in hooks:
            hook.after_step(at(step + 1, steps))
        said.append({name: value.item() for name, value in logged.items()} | {"total": loss.item()})
    return said


def widths(network: nn.Module) -> list[int]:
    """Of the input and of each linear layer."""
    layers = [one for one in network.modules() if isinstance(one, nn.Linear)]
    return [layers[0].in_features, *(one.out_features for one in layers)]
