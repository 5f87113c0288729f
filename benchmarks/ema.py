"""Claim: averaging the weights of a ResNet-50 takes no longer than timm's ModelEmaV3 with `foreach`.

One thread; the sides take turns. Run: ``python benchmarks/ema.py``.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable

import torch
from timm.utils import ModelEmaV3
from torchvision.models import resnet50

from opabinia.optim.ema import WeightAverage

UPDATES, ROUNDS, DECAY = 10, 21, 0.999


def cpu_time(update: Callable[[], None]) -> float:
    """Return the milliseconds per update."""
    began = time.process_time()
    for _ in range(UPDATES):
        update()
    return (time.process_time() - began) / UPDATES * 1e3


def main() -> None:
    torch.set_num_threads(1)
    net = resnet50()
    ours = WeightAverage(copy.deepcopy(net), net, lambda clock: 1 - DECAY)
    theirs = ModelEmaV3(net, decay=DECAY, foreach=True)
    sides: dict[str, Callable[[], None]] = {
        "timm ModelEmaV3": lambda: theirs.update(net),
        "opabinia": lambda: ours.update(1 - DECAY),
    }
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(ROUNDS + 1):
        for name, update in sides.items():
            times[name].append(cpu_time(update))
    print(f"CPU time of an update, median of {ROUNDS} rounds of {UPDATES} in turn")
    for name, values in times.items():
        ratio = statistics.median(x / y for x, y in zip(values[1:], times["timm ModelEmaV3"][1:], strict=True))
        print(f"  {name:<16} {statistics.median(values[1:]):6.2f} ms   of timm's {ratio:.3f}")


if __name__ == "__main__":
    main()
