"""Claim: training a ResNet-18 with averaged weights, clipped gradients and logs takes as long as a loop by hand.

Images of 64 x 64 pixels in batches of 64, both sides with all cores. The loop has torchvision's network, SGD with
momentum and a cosine schedule, `clip_grad_norm_`, timm's ModelEmaV3 with `foreach`, and loss and norm logged every 5
steps. Ours runs twice: with torch's fused SGD, its default, and with the plain one of the loop. Target: 1.01 of the
loop's time. The sides take turns; the first round does not count.

Run: ``python benchmarks/resnet18.py``.
"""

from __future__ import annotations

import contextlib
import logging
import os
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from in_memory import Times, now, ours, since
from timm.utils import ModelEmaV3
from torch import nn
from torch.nn.functional import cross_entropy
from torchvision.models import resnet18

from opabinia.engine.loop.step import StandardStep
from opabinia.optim.ema import Ema

SAMPLES, BATCH, SIZE, STEPS, EVERY, ROUNDS, LIMIT = 640, 64, 64, 10, 5, 7, 1.0
IMAGES = torch.randn(SAMPLES, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
LABELS = torch.randint(10, (SAMPLES,), generator=torch.Generator().manual_seed(1))


def network() -> nn.Module:
    torch.manual_seed(0)
    return resnet18(num_classes=10)


def by_hand() -> Times:
    net = network().train()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    average = ModelEmaV3(net, decay=0.999, foreach=True)
    step, began = 0, now()
    while step < STEPS:
        order = torch.randperm(SAMPLES)
        for start in range(0, SAMPLES, BATCH):
            part = order[start : start + BATCH]
            loss = cross_entropy(net(IMAGES[part]), LABELS[part])
            optimizer.zero_grad()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(net.parameters(), LIMIT)
            optimizer.step()
            schedule.step()
            average.update(net)
            step += 1
            if step % EVERY == 0:
                print(step, loss.item(), norm.item())
    return since(began, STEPS)


def opabinia(fused: bool | None) -> Times:
    return ours(
        *(network, IMAGES, LABELS, BATCH, STEPS),
        optimizer=partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=1e-4, fused=fused),
        ema=Ema(decay=0.999),
        log_every=EVERY,
        step=partial(StandardStep, clip_norm=LIMIT),
    )


SIDES: dict[str, Callable[[], Times]] = {
    "a loop by hand": by_hand,
    "opabinia": partial(opabinia, None),
    "opabinia, not fused": partial(opabinia, False),
}


def main() -> None:
    times: dict[str, list[Times]] = {name: [] for name in SIDES}
    with Path(os.devnull).open("w") as nowhere:
        logging.disable()
        for _ in range(ROUNDS + 1):
            for name, side in SIDES.items():
                with contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
                    times[name].append(side())
    threads = torch.get_num_threads()
    print(f"a step of {BATCH} images on {threads} threads, median of {ROUNDS} rounds of {STEPS} steps in turn")
    for number, clock in enumerate(("wall", "CPU")):
        alone = [step_times[number] for step_times in times["a loop by hand"][1:]]
        for name, side_times in times.items():
            values = [step_times[number] for step_times in side_times[1:]]
            ratio = statistics.median(x / y for x, y in zip(values, alone, strict=True))
            print(f"  {clock:<5} {name:<20} {statistics.median(values) * 1e3:7.1f} ms   of the loop {ratio:.3f}")


if __name__ == "__main__":
    main()
