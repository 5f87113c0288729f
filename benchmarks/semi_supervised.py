"""Claim: with unlabeled images 4 labels for each digit are enough for an accuracy of 0.93, at no more than 2.2 times
the time of training on these labels alone.

For each seed two runs of the recipe with equal steps follow each other: with ``semi_supervised=null``, where a batch
has all labeled images, and with its unlabeled images. The seed also chooses the labeled images. The time is the CPU
time of the whole run, evaluation included, on one thread without workers, so that other programs do not change it. Run:
``python benchmarks/semi_supervised.py``, or with ``--seeds 0``.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev

RECIPE, SCORE = "classification/digits_semi", "val/top1"
SIDES = {"labels only": ["semi_supervised=null"], "semi-supervised": ["semi_supervised.unlabeled.source.seed=SEED"]}
COMMON = ("seed=SEED", "data.train.source.seed=SEED", "data.num_workers=0", "train.num_threads=1", "loggers=[]")


def train(seed: int, overrides: Sequence[str], folder: Path) -> tuple[float, float]:
    """Train; return the last score and the CPU time in seconds."""
    values = [override.replace("SEED", str(seed)) for override in (*COMMON, *overrides)]
    before = cpu_seconds()
    command = [sys.executable, "-m", "opabinia", "train", RECIPE, "--out", str(folder), *values]
    subprocess.run(command, check=True, capture_output=True)
    lines = [json.loads(line) for path in folder.rglob("metrics.jsonl") for line in path.read_text().splitlines()]
    return [line[SCORE] for line in lines if SCORE in line][-1], cpu_seconds() - before


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2")
    seeds = [int(seed) for seed in parser.parse_args().seeds.split(",")]
    results: dict[str, list[tuple[float, float]]] = {side: [] for side in SIDES}
    for seed in seeds:
        for side, overrides in SIDES.items():
            with tempfile.TemporaryDirectory() as folder:
                score, seconds = train(seed, overrides, Path(folder))
            results[side].append((score, seconds))
            print(f"seed {seed}  {side}: {SCORE} {score:.4f} in {seconds:.0f} s", flush=True)
    scores, times = ({side: [row[column] for row in rows] for side, rows in results.items()} for column in (0, 1))
    for side, values in scores.items():
        deviation = f" ± {stdev(values):.4f}" if len(values) > 1 else ""
        print(f"{side}: {mean(values):.4f}{deviation}")
    first, second = SIDES
    gain, ratio = mean(scores[second]) - mean(scores[first]), sum(times[second]) / sum(times[first])
    print(f"gain {100 * gain:.1f} points, {ratio:.2f} times the CPU time")


if __name__ == "__main__":
    main()
