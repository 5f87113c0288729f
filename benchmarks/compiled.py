"""Claim: on the CPU ``torch.compile`` gains nothing, with ``train.compile`` or for more of a step; it is for GPUs.

A classifier with a ResNet-18 on images of 64 x 64 pixels and a network of two layers, which shows the time of calls,
both with fused AdamW in our step. Compared are torch's eager mode, ``train.compile`` (child modules of the task), the
whole task (forward pass and loss), and the whole task with the optimizer's update. All sides start from the same
weights and train on one batch; their losses are printed at the end. CUDA graphs are in ``gpu.py``.

One thread, CPU time; sides take turns, and a first round, in which they compile, does not count. Needs a C++ compiler.
``--quick`` runs few steps of the small network. Run: ``python benchmarks/compiled.py``.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import timm
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from opabinia.contracts import Batch, Clock, GlobalBatch, StepOptions, Task
from opabinia.engine.loop.step import StandardStep
from opabinia.training.compiling import compile_modules
from opabinia.training.model import Models

QUICK = "--quick" in sys.argv
ROUNDS, CLASSES = (1 if QUICK else 9), 10


class Classify(Task):
    """A classifier; ``forward`` is the network and its loss."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        return {"loss": cross_entropy(self.net(batch["image"]), batch["label"])}


def two_layers() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, CLASSES))


def resnet() -> nn.Module:
    return timm.create_model("resnet18", num_classes=CLASSES)  # type: ignore[no-any-return]


def eager(task: Task, optimizer: torch.optim.Optimizer) -> None:
    """Compile nothing: the eager mode."""


def modules(task: Task, optimizer: torch.optim.Optimizer) -> None:
    compile_modules(Models(task), torch.device("cpu"))


def whole_task(task: Task, optimizer: torch.optim.Optimizer) -> None:
    task.compile()


def task_and_update(task: Task, optimizer: torch.optim.Optimizer) -> None:
    task.compile()
    optimizer.step = torch.compile(optimizer.step)  # type: ignore[method-assign]


SIDES: dict[str, Callable[[Task, torch.optim.Optimizer], None]] = {
    "eager": eager,
    "train.compile": modules,
    "whole task": whole_task,
    "and the update": task_and_update,
}


class Side:
    """Steps of a network, compiled in one of the ways."""

    def __init__(self, make: Callable[[], nn.Module], images: Tensor, side: str) -> None:
        torch.manual_seed(0)
        task = Classify(make()).train()
        optimizer = torch.optim.AdamW(task.parameters(), lr=1e-3, fused=True)
        SIDES[side](task, optimizer)
        self.step = StandardStep(task, optimizer, {}, StepOptions(0))
        self.batch = {"image": images, "label": torch.arange(len(images)) % CLASSES, "id": ["0"] * len(images)}
        self.clock, self.loss = Clock(total_steps=10**6), 0.0

    def seconds(self, steps: int) -> float:
        """Return the CPU time of a step."""
        row = GlobalBatch(step=0, epoch=0, first=0, count=len(self.batch["id"]))
        began = time.process_time()
        for _ in range(steps):
            self.loss = float(self.step(self.batch, row, self.clock, lambda: None)["loss"])
        return (time.process_time() - began) / steps


def compare(title: str, make: Callable[[], nn.Module], images: Tensor, steps: int) -> None:
    began = time.perf_counter()
    sides = {name: Side(make, images, name) for name in SIDES}
    first = {name: side.seconds(steps) for name, side in sides.items()}
    print(f"{title}; compiled and warmed up in {time.perf_counter() - began:.0f} s")
    times: dict[str, list[float]] = {name: [] for name in first}
    for _ in range(ROUNDS):
        for name, side in sides.items():
            times[name].append(side.seconds(steps))
    for name, taken in times.items():
        ratio = statistics.median(own / alone for own, alone in zip(taken, times["eager"], strict=True))
        middle = statistics.median(taken) * 1e6
        print(f"  {name:<15} {middle:8.0f} us   of eager {ratio:.2f}   loss {sides[name].loss:.6f}", flush=True)


def main() -> None:
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    print(f"CPU time of a step, median of {ROUNDS} rounds in turn")
    compare("two layers, 32 vectors", two_layers, torch.randn(32, 64, generator=generator), 5 if QUICK else 500)
    if not QUICK:
        compare("ResNet-18, 16 images of 64 x 64", resnet, torch.randn(16, 3, 64, 64, generator=generator), 5)


if __name__ == "__main__":
    main()
