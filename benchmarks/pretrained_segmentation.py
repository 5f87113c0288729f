"""Claim: a backbone that was pretrained without labels helps segmentation with a tenth of the labels.

A small network on the embedded scenes, 400 steps of 8 images on one thread, with the maps of every tenth scene (the
same 160 for all seeds): from random weights, from a backbone that ``selfsup/crops`` trained on all scenes, and with
that backbone frozen. Three seeds, one pretraining. Run: ``python benchmarks/pretrained_segmentation.py --out FOLDER``;
runs that are finished are not trained again.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

from unlabelled_to_detector import COMMON, PRETRAINING, pretraining

from opabinia.training.launch import train

SEEDS = (0, 1, 2)
SHORT = [
    "data.sampler={name: subset, fraction: 0.1, stratified: false}",
    *("train.length=400it", "evaluate.every=400it", "schedule.warmup=100it", "checkpoint.best=null"),
]
STARTS = {
    "from scratch": [],
    "pretrained": ["init.weights=WEIGHTS"],
    "pretrained, frozen": ["init.weights=WEIGHTS", "hooks.freeze.name=freeze", "hooks.freeze.pattern=^backbone"],
}


def score(out: Path, start: str, seed: int) -> float:
    """Train one network, unless that is done; return its mIoU."""
    weights = out / "selfsup" / "crops" / "scenes"
    if not (weights / "results.json").exists():
        train("selfsup/crops", [*COMMON, *PRETRAINING, *pretraining("scenes", None)], out=out, name="scenes")
    name = f"{start.replace(', ', '-').replace(' ', '-')}-{seed}"
    results = out / "segmentation" / "digits" / name / "results.json"
    if not results.exists():
        overrides = [text.replace("WEIGHTS", str(weights)) for text in STARTS[start]]
        train("segmentation/digits", [*COMMON, *SHORT, *overrides, f"seed={seed}"], out=out, name=name, resume="auto")
    miou: float = json.loads(results.read_text(encoding="utf-8"))["val/mIoU"]
    return miou


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/pretrained_segmentation"))
    out = parser.parse_args().out
    print("| backbone | mIoU of three seeds | mean |\n|---|---|---|")
    for start in STARTS:
        scores = [score(out, start, seed) for seed in SEEDS]
        shown = ", ".join(f"{value:.3f}" for value in scores)
        print(f"| {start} | {shown} | {statistics.mean(scores):.3f} ± {statistics.stdev(scores):.3f} |", flush=True)


if __name__ == "__main__":
    main()
