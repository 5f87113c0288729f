"""Claim: a save pauses the training loop for at most 10% of the time that a plain synchronous save takes.

A model of 100 M parameters and its AdamW (1.2 GB together) are saved in turn by torch.save and fsync, by our own
write_checkpoint called directly (checksums, fsync, rename), and by Checkpoints, which copies into reused buffers and
writes in the background. The claim compares the pause of ours with the faster of the other two in the same round. The
first save of a run allocates its buffers; it is listed separately. Training on the CPU shares cores and memory with a
save in progress: the slowdown of its steps is measured as well, and the time that a save adds to all of them. Takes
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
from opabinia.engine.checkpointing.content import optimizer_state
from opabinia.engine.checkpointing.manager import CheckpointManager

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
    """Save as a plain script does, and flush to the disk."""
    with (folder / "plain.pt").open("wb") as file:
        torch.save({"model": MODEL.state_dict(), "optimizer": OPTIMIZER.state_dict()}, file)
        file.flush()
        os.fsync(file.fileno())


def steps_during_save(saves: CheckpointManager) -> list[float]:
    """Return the seconds of each training step until the save in progress is done."""
    times = []
    while saves._background._thread is not None:
        times.append(seconds(train_step))
    return times


def main() -> None:
    train_step()
    pauses: dict[str, list[float]] = {"torch.save and fsync": [], "write_checkpoint": [], "Checkpoints": []}
    written, alone, during_save, added = list[float](), list[float](), list[float](), list[float]()
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
            disturbed = steps_during_save(saves)
            written.append(time.perf_counter() - began)
            added.append(written[-1] - len(disturbed) * statistics.median(undisturbed))
            alone += undisturbed
            during_save += disturbed
    finally:
        shutil.rmtree(folder)
    parameters = sum(param.numel() for param in MODEL.parameters())
    print(f"pause of the loop, {parameters / 1e6:.0f} M parameters with AdamW, {torch.get_num_threads()} threads;")
    print(f"median of {ROUNDS} rounds in turn (shortest to longest)")
    for name, values in pauses.items():
        print(f"  {name:<22} {summary(values)}")
    plain = [min(pair) for pair in zip(pauses["torch.save and fsync"], pauses["write_checkpoint"], strict=True)]
    shares = [ours / theirs for ours, theirs in zip(pauses["Checkpoints"], plain, strict=True)]
    print(f"  share of the faster of the other two: {statistics.median(shares):.1%} (largest {max(shares):.1%})")
    print(f"  the first save of a run, which allocates the buffers: {first:.3f} s")
    slower = statistics.median(during_save) / statistics.median(alone) - 1
    print("training on the same cores")
    print(f"  a step alone           {summary(alone)}")
    print(f"  a step during a save   {summary(during_save)}   {slower:+.0%}")
    print(f"  until it is written    {summary(written)}")
    print(f"  longer for one save    {summary(added)}")


def summary(values: list[float]) -> str:
    return f"{statistics.median(values):6.3f} s ({min(values):.3f} to {max(values):.3f})"


if __name__ == "__main__":
    main()
