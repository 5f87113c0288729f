"""Claim: multigrid training takes a third of the CPU time of its baseline; the loss in accuracy is measured as well.

The baseline is the recipe ``video/digits`` on 480 of its videos, with batches of 8 clips of all 16 frames, trained on
one thread by SGD for 24 epochs, with two drops of the learning rate. The other side is the multigrid schedule that
``shapes`` makes of it, with long and short cycle and an epoch factor of 1.2: 29 epochs. (With the paper's 1.5 it saves
less: clips as small as these cost more per pixel, and reading them is a part of a step.) Nothing else differs: the
baseline also uses ``multigrid``, without cycles. Both evaluate at the end only, on the 720 videos of the validation set
at full size.

Three seeds, both sides in turn, each run in its own process. CPU time is that of the whole run, from its config to its
scores; it is compared because wall time depends on other work of the machine. The computed savings of steps and of
pixels (``opabinia config show --schedule``) are printed as well.
Targets: at least 3 times less, and at most 0.5 points lower on average; docs/log.md lists the trials.

It takes about thirteen minutes on one core. ``--quick`` takes few videos and one seed, to see that it runs. Run:
``python benchmarks/multigrid.py``.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

QUICK = "--quick" in sys.argv
VIDEOS, SEEDS = (40, 1) if QUICK else (480, 3)
RECIPE = "video/digits"
SHAPES = "name: multigrid, size: 32, frames: 16, milestones: [12, 20], epoch_factor: 1.2"
SIDES = {"baseline": f"{{{SHAPES}, long_cycle: [], short_cycle: []}}", "multigrid": f"{{{SHAPES}}}"}
OVERRIDES = [
    "task.backbone.widths=[16, 32, 64]",
    *("data.train.transforms=[{name: clip, frames: 16}]", "data.val.transforms=[{name: clip, frames: 16}]"),
    *("data.batch_size=8", f"data.sampler={{name: subset, num_samples: {VIDEOS}}}", "data.num_workers=0"),
    "optimizer={name: sgd, lr: 0.02, momentum: 0.9, nesterov: true, weight_decay: 1.0e-4}",
    "schedule={name: constant, warmup: 2ep}",
    *("train.length=24ep", "train.num_threads=1", "loggers=[]"),
    *("evaluate={every: 0ep, batch_size: 48}", "checkpoint.every=0ep"),
]


class RunCost(NamedTuple):
    """Steps, CPU time and wall time in seconds, and accuracy of a run."""

    steps: int
    processor: float
    clock: float
    top1: float


def train_run(side: str, seed: int) -> RunCost:
    """Train in this process, which has done nothing else."""
    from opabinia.training.launch import train

    sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (until the process ends)
    overrides = [*OVERRIDES, f"shapes={SIDES[side]}", f"seed={seed}"]
    with tempfile.TemporaryDirectory() as out:
        processor, clock = time.process_time(), time.perf_counter()
        folder, scores = train(RECIPE, overrides, out=Path(out))
        processor, clock = time.process_time() - processor, time.perf_counter() - clock
        last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    return RunCost(last["step"], processor, clock, scores["val/top1"])


def computed_savings() -> str:
    """Return the savings of the multigrid schedule in steps and pixels, as computed from its shapes."""
    from opabinia.training.run_folder import build_parts, resolve
    from opabinia.training.schedule_preview import schedule_preview

    table = schedule_preview(build_parts(resolve(RECIPE, [*OVERRIDES, f"shapes={SIDES['multigrid']}"])).keywords)
    return f"{table.step_ratio:.2f} x of steps, {table.pixel_ratio:.2f} x of pixels"


def in_own_process(side: str, seed: int) -> RunCost:
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(train_run, side, seed).result()


def row(side: str, runs: list[RunCost]) -> None:
    processor, clock = (statistics.mean(column) for column in list(zip(*runs, strict=True))[1:3])
    scores = " ".join(f"{run.top1:.4f}" for run in runs)
    mean = statistics.mean(run.top1 for run in runs)
    print(
        f"  {side:<10} {runs[0].steps:>5} steps   processor {processor:6.1f} s   clock {clock:6.1f} s   "
        f"val/top1 {mean:.4f} ({scores})"
    )


def main() -> None:
    runs: dict[str, list[RunCost]] = {side: [] for side in SIDES}
    for seed in range(SEEDS):
        for side, results in runs.items():
            results.append(in_own_process(side, seed))
    print(f"{VIDEOS} videos of 16 frames, 32 x 32, batches of 8, 24 epochs; means of {SEEDS} seeds, one thread")
    for side, results in runs.items():
        row(side, results)
    baseline, multigrid = runs.values()
    ratios = [base.processor / short.processor for base, short in zip(baseline, multigrid, strict=True)]
    clocks = [base.clock / short.clock for base, short in zip(baseline, multigrid, strict=True)]
    points = 100 * (statistics.mean(run.top1 for run in multigrid) - statistics.mean(run.top1 for run in baseline))
    print(f"  processor {statistics.mean(ratios):.2f} x less ({min(ratios):.2f} to {max(ratios):.2f})")
    print(f"  clock     {statistics.mean(clocks):.2f} x less ({min(clocks):.2f} to {max(clocks):.2f})")
    print(f"  by arithmetic {computed_savings()}")
    print(f"  val/top1 {points:+.2f} points")


if __name__ == "__main__":
    main()
