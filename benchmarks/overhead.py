"""Claim: with its default hooks on, a step takes less above a loop written by hand than in three other trainers.

The target is 15 us above the loop. The others are Lightning, Accelerate and MMEngine (`pip install -e .[bench]`;
those that are not installed are skipped), each used as its users do, but without progress bars and model summaries, and
none saves within the measured time. All train the same two-layer network on batches of 32 of the same samples, on one
thread, with SGD and momentum, a cosine schedule and the loss logged every 50 steps. The loop and ours log the norm of
all gradients, too; the others do not. Ours runs twice: with torch's fused SGD, its default, and with the plain one that
all others use. Lightning gets batches as the loop does; Accelerate and MMEngine use a DataLoader, ours its own loader.

Each side has a process of its own, so that no side is slowed by what another imports or leaves behind; they take turns
in many short rounds, and a first round does not count. A difference is the median over the rounds, each side compared
with the loop of the same round. The claim is about wall time; CPU time, of all threads, is nearly the same on an idle
machine, and more reliable on a busy one. ``--quick`` takes few steps, to see that it works. Run:
``python benchmarks/overhead.py``.
"""

from __future__ import annotations

import gc
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib.metadata import version
from multiprocessing import get_context
from typing import Any

import torch
from in_memory import Times, now, ours, since
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import get_total_norm

SAMPLES, BATCH, EVERY = 6400, 32, 50
STEPS, ROUNDS = (100, 1) if "--quick" in sys.argv else (1000, 21)
IMAGES = torch.randn(SAMPLES, 64, generator=torch.Generator().manual_seed(0))
LABELS = torch.randint(10, (SAMPLES,), generator=torch.Generator().manual_seed(1))
BY_HAND = "a loop by hand"
PLAIN = "opabinia, not fused"


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def optimizer_of(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


def cosine_of(optimizer: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)


class Batches:
    """Yield shuffled batches, each indexed from the tensors: no side waits for data."""

    def __len__(self) -> int:
        return SAMPLES // BATCH

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(SAMPLES)
        for start in range(0, SAMPLES, BATCH):
            part = order[start : start + BATCH]
            yield IMAGES[part], LABELS[part]


# --- the sides: each gives its times from the first step to the last ------------------------------------------------


def by_hand() -> Times:
    net = network()
    optimizer = optimizer_of(net)
    schedule, step = cosine_of(optimizer), 0
    began = now()
    while step < STEPS:
        for images, labels in Batches():
            loss = cross_entropy(net(images), labels)
            optimizer.zero_grad()
            loss.backward()
            norm = get_total_norm([parameter.grad for parameter in net.parameters() if parameter.grad is not None])
            optimizer.step()
            schedule.step()
            step += 1
            if step % EVERY == 0:
                print(step, loss.item(), norm.item())
    return since(began, STEPS)


def opabinia(fused: bool | None = None) -> Times:
    optimizer = partial(torch.optim.SGD, lr=0.1, momentum=0.9, fused=fused)
    return ours(network, IMAGES, LABELS, BATCH, STEPS, optimizer=optimizer, num_threads=1, log_every=EVERY)


def lightning() -> Times:
    import lightning.pytorch as L

    class Module(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def training_step(self, batch: Any, number: int) -> Tensor:
            images, labels = batch
            loss = cross_entropy(self.net(images), labels)
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            optimizer = optimizer_of(self)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": cosine_of(optimizer), "interval": "step"}}

    class Watch(L.Callback):
        def on_train_start(self, *_: Any) -> None:
            self.began = now()

        def on_train_end(self, *_: Any) -> None:
            self.took = since(self.began, STEPS)

    from lightning.pytorch.loggers import CSVLogger

    watch = Watch()
    with tempfile.TemporaryDirectory() as folder:
        trainer = L.Trainer(
            accelerator="cpu", max_steps=STEPS, logger=CSVLogger(folder), log_every_n_steps=EVERY, callbacks=[watch],
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(Module(), Batches())
    return watch.took


def accelerate() -> Times:
    from accelerate import Accelerator

    class Whole(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return SAMPLES

        def __getitems__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
            part = torch.tensor(indices)
            return IMAGES[part], LABELS[part]

    accelerator = Accelerator(cpu=True)
    net = network()
    optimizer = optimizer_of(net)
    loader = torch.utils.data.DataLoader(Whole(), batch_size=BATCH, shuffle=True, collate_fn=lambda batch: batch)
    net, optimizer, loader, schedule = accelerator.prepare(net, optimizer, loader, cosine_of(optimizer))
    step, began = 0, now()
    while step < STEPS:
        for images, labels in loader:
            loss = cross_entropy(net(images), labels)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            schedule.step()
            step += 1
            if step % EVERY == 0:
                print(step, loss.item())
    return since(began, STEPS)


def mmengine() -> Times:
    from mmengine.hooks import Hook
    from mmengine.model import BaseModel
    from mmengine.runner import Runner

    class Model(BaseModel):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def forward(self, images: Tensor, labels: Tensor, mode: str = "loss") -> dict[str, Tensor]:
            return {"loss": cross_entropy(self.net(images), labels)}

    class Watch(Hook):  # type: ignore[misc]
        priority = "LOWEST"

        def before_train(self, runner: Any) -> None:
            self.began = now()

        def after_train(self, runner: Any) -> None:
            self.took = since(self.began, STEPS)

    watch = Watch()
    rows = list(range(SAMPLES))

    def cut_out(indices: list[int]) -> list[Tensor]:
        part = torch.tensor(indices)
        return [IMAGES[part], LABELS[part]]

    with tempfile.TemporaryDirectory() as folder:
        runner = Runner(
            Model(), folder,
            train_dataloader={
                "dataset": rows, "batch_size": BATCH, "collate_fn": cut_out, "num_workers": 0,
                "sampler": {"type": "InfiniteSampler", "shuffle": True},
            },
            train_cfg={"type": "IterBasedTrainLoop", "max_iters": STEPS},
            optim_wrapper={"optimizer": {"type": "SGD", "lr": 0.1, "momentum": 0.9}},
            param_scheduler={"type": "CosineAnnealingLR", "T_max": STEPS, "by_epoch": False},
            default_hooks={"logger": {"type": "LoggerHook", "interval": EVERY}, "checkpoint": None},
            custom_hooks=[watch], experiment_name=f"run{time.time_ns()}",
        )  # fmt: skip
        runner.train()
    return watch.took


SIDES: dict[str, Callable[[], Times]] = {
    BY_HAND: by_hand,
    "opabinia": opabinia,
    PLAIN: partial(opabinia, fused=False),
    "lightning": lightning,
    "accelerate": accelerate,
    "mmengine": mmengine,
}


# --- turns ----------------------------------------------------------------------------------------------------------


def prepare() -> None:
    """Measure a side in this process; its output is discarded."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (until the process ends)


def turn(name: str) -> Times:
    gc.collect()
    return SIDES[name]()


def main() -> None:
    processes = {name: ProcessPoolExecutor(1, get_context("spawn"), prepare) for name in SIDES}
    for name in SIDES:
        try:
            processes[name].submit(turn, name).result()
        except ImportError as error:
            print(f"{name} is not installed: {error}")
            processes.pop(name).shutdown()
    times: dict[str, list[Times]] = {name: [] for name in processes}
    for _ in range(ROUNDS):
        for name, process in processes.items():
            times[name].append(process.submit(turn, name).result())
    for process in processes.values():
        process.shutdown()
    print(f"microseconds a step, median of {ROUNDS} rounds of {STEPS} steps in turn (smallest to largest)")
    for number, clock in enumerate(("wall", "CPU")):
        print(f"{clock} time")
        for name in times:
            row(
                name,
                [step_times[number] * 1e6 for step_times in times[name]],
                [step_times[number] * 1e6 for step_times in times[BY_HAND]],
            )


def row(name: str, values: list[float], alone: list[float]) -> None:
    middle, spread = statistics.median(values), f"({min(values):.0f} to {max(values):.0f})"
    # Per round: other work on the machine slows both sides.
    above = statistics.median(x - y for x, y in zip(values, alone, strict=True))
    label = name if name in (BY_HAND, PLAIN) else f"{name} {version(name)}"
    ratio = middle / statistics.median(alone)
    print(f"  {label:<20} {middle:7.0f} {spread:<16} above the loop {above:+7.0f}   ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
