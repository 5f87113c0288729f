"""Claim: a backbone that was pretrained without labels helps segmentation with a tenth of the labels.

A small network on whole embedded scenes, 400 steps of 8 images on one thread, with the maps of every tenth scene (the
same 160 for all seeds): from random weights, from a backbone that ``selfsup/crops`` trained on all scenes, and with
that backbone frozen. Three seeds, one pretraining. Run: ``python benchmarks/pretrained_segmentation.py --out FOLDER``;
after Ctrl-C the same command resumes, and finished runs are not trained again. ``--quick``, four steps of one seed,
shows only that everything runs.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

from unlabelled_to_detector import COMMON, PRETRAINING, pretraining

from opabinia.training.launch import train

SEEDS = (0, 1, 2)
AFFINE = (
    "{name: RandomAffine, degrees: 0, translate: [0.05, 0.05], scale: [0.9, 1.1], interpolation: bilinear, fill: 60}"
)
SHORT = [
    *("task.decoder.neck.channels=64", "task.decoder.channels=64", f"data.train.transforms=[{AFFINE}]"),
    "data.sampler={name: subset, fraction: 0.1, stratified: false}",
    *("train.length=400it", "evaluate.every=400it", "schedule.warmup=100it", "checkpoint.best=null"),
]
QUICK = ["train.length=4it", "evaluate.every=4it", "schedule.warmup=1it"]
STARTS = {
    "from scratch": [],
    "pretrained": ["init.weights=WEIGHTS"],
    "pretrained, frozen": ["init.weights=WEIGHTS", "hooks.freeze.name=freeze", "hooks.freeze.pattern=^backbone"],
}


def score(out: Path, start: str, seed: int, quick: list[str]) -> float:
    """Train a network, after its backbone unless that exists; return its mIoU."""
    pretrain = [*COMMON, *PRETRAINING, *pretraining("scenes", None), *quick]
    weights, _ = train("selfsup/crops", pretrain, out=out, name="scenes", resume="auto")
    name = f"{start.replace(', ', '-').replace(' ', '-')}-{seed}"
    overrides = [text.replace("WEIGHTS", str(weights)) for text in STARTS[start]]
    overrides = [*COMMON, *SHORT, *quick, *overrides, f"seed={seed}"]
    return train("segmentation/digits", overrides, out=out, name=name, resume="auto")[1]["val/mIoU"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/pretrained_segmentation"))
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    out, quick = arguments.out, list[str]()
    seeds: tuple[int, ...] = SEEDS
    if arguments.quick:
        out, quick, seeds = out / "quick", QUICK, SEEDS[:1]
    print("| backbone | mIoU by seed | mean |\n|---|---|---|")
    for start in STARTS:
        scores = [score(out, start, seed, quick) for seed in seeds]
        shown = ", ".join(f"{value:.3f}" for value in scores)
        deviation = f" ± {statistics.stdev(scores):.3f}" if len(scores) > 1 else ""
        print(f"| {start} | {shown} | {statistics.mean(scores):.3f}{deviation} |", flush=True)


if __name__ == "__main__":
    main()
