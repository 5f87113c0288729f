"""Claim: a save holds the loop up for at most 10% of the time that a plain synchronous save takes.

A model of 100 M parameters and its AdamW (1.2 GB together) are saved in turn by torch.save and fsync, by our own
write_checkpoint called directly (checksums, fsync, rename), and by Checkpoints, which copies into reused buffers and
writes in the background. What is claimed is the pause of ours beside the faster of the other two in the same round.
The first save of a run makes its buffers; it is shown apart. Training on the CPU shares cores and memory with a save
under way: how much slower its steps are then is shown, too, and how much longer all of them take for one save. Takes
6 GB of memory and 4 GB of disk. Run: ``python benchmarks/save_pause.py``.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from opabinia.engine.checkpointing.checkpoint import Snapshot, write_checkpoint
from opabinia.engine.checkpointing.manager import CheckpointManager
from opabinia.engine.checkpointing.optimizer_state import optimizer_state

ROUNDS, WIDTH, LAYERS, BATCH, ALONE = 7, 5000, 4, 64, 4

torch.manual_seed(0)
MODEL = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
OPTIMIZER = torch.optim.AdamW(MODEL.parameters(), lr=1e-5)
IMAGES = torch.randn(BATCH, WIDTH)


def train_step() -> None:
    OPTIMIZER.zero_grad()
    MODEL(IMAGES).square().mean().backward()
    OPTIMIZER.step()


def capture() -> Snapshot:
    tensors, plain = optimizer_state(MODEL, OPTIMIZER)
    return Snapshot(1, {"model": MODEL.state_dict(), "optimizer": tensors}, {"step": 1, "optimizer": plain})


def seconds(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def by_torch(folder: Path) -> None:
    """What a script does, and nothing but that it is on the disk when it is done."""
    with (folder / "plain.pt").open("wb") as file:
        torch.save({"model": MODEL.state_dict(), "optimizer": OPTIMIZER.state_dict()}, file)
        file.flush()
        os.fsync(file.fileno())


def steps_beside(saves: CheckpointManager) -> list[float]:
    """Seconds of each training step until the save under way is done."""
    took = []
    while saves._background._thread is not None:
        took.append(seconds(train_step))
    return took


def main() -> None:
    train_step()
    pauses: dict[str, list[float]] = {"torch.save and fsync": [], "write_checkpoint": [], "Checkpoints": []}
    written, alone, beside, lost = list[float](), list[float](), list[float](), list[float]()
    folder = Path(tempfile.mkdtemp())
    try:
        saves = CheckpointManager(folder, 1, capture)
        first = seconds(saves.save)
        saves.wait()
        for _ in range(ROUNDS):
            pauses["torch.save and fsync"].append(seconds(lambda: by_torch(folder)))
            direct = seconds(lambda: write_checkpoint(folder / "step-00000000", capture()))
            pauses["write_checkpoint"].append(direct)
            undisturbed = [seconds(train_step) for _ in range(ALONE)]
            began = time.perf_counter()
            pauses["Checkpoints"].append(seconds(saves.save))
            disturbed = steps_beside(saves)
            written.append(time.perf_counter() - began)
            lost.append(written[-1] - len(disturbed) * statistics.median(undisturbed))
            alone += undisturbed
            beside += disturbed
    finally:
        shutil.rmtree(folder)
    parameters = sum(parameter.numel() for parameter in MODEL.parameters())
    print(f"pause of the loop, {parameters / 1e6:.0f} M parameters with AdamW, {torch.get_num_threads()} threads;")
    print(f"median of {ROUNDS} rounds in turn (shortest to longest)")
    for name, values in pauses.items():
        print(f"  {name:<22} {told(values)}")
    plain = [min(pair) for pair in zip(pauses["torch.save and fsync"], pauses["write_checkpoint"], strict=True)]
    shares = [ours / theirs for ours, theirs in zip(pauses["Checkpoints"], plain, strict=True)]
    print(f"  share of the faster of the other two: {statistics.median(shares):.1%} (largest {max(shares):.1%})")
    print(f"  the first save of a run, which makes the buffers: {first:.3f} s")
    slower = statistics.median(beside) / statistics.median(alone) - 1
    print("training on the same cores")
    print(f"  a step alone           {told(alone)}")
    print(f"  a step beside a save   {told(beside)}   {slower:+.0%}")
    print(f"  until it is written    {told(written)}")
    print(f"  longer for one save    {told(lost)}")


def told(values: list[float]) -> str:
    return f"{statistics.median(values):6.3f} s ({min(values):.3f} to {max(values):.3f})"


if __name__ == "__main__":
    main()
