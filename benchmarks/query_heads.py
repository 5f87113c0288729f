"""Claim: after equal training time masks and keypoints of D-FINE are at least as good as those of Mask R-CNN and of
Keypoint R-CNN, and oriented boxes of RT-DETR as those of a rotated FCOS.

Scenes of handwritten digits, from random weights, with the settings of the packaged recipes. Both sides of a comparison
are trained at once, on one thread each, for the same number of minutes: the time limit shortens a run and its schedule
to the steps for which there is time. Run:
``python benchmarks/query_heads.py [--minutes 10] [--seeds 0 1 2] [--runs FOLDER] [masks] [keypoints] [oriented]``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import NamedTuple


class Side(NamedTuple):
    """A detector.

    Attributes:
        name: of the detector.
        recipe: of the run.
        words: changes to the recipe.
    """

    name: str
    recipe: str
    words: Sequence[str] = ()


KEYPOINT_RCNN = [
    "task.detector={name: keypoint_rcnn, neck: {name: fpn, channels: 64}, "
    "proposals: {anchor_sizes: [16, 32, 64, 128, 256], pre_nms_topk_train: 200, post_nms_topk_train: 100, "
    "pre_nms_topk_test: 100, post_nms_topk_test: 50}, "
    "box: {fc_dim: 256, batch_size_per_image: 32, smooth_l1_beta: 0.5}, keypoint: {num_convs: 2, channels: 64}}",
    "task.evaluator={name: coco, sigmas: [0.05, 0.05, 0.05, 0.05]}",
    *(f"data.{part}.source.{key}" for part in ("train", "val") for key in ("masks=false", "keypoints=true")),
]

COMPARISONS: dict[str, tuple[str, tuple[Side, Side]]] = {
    "masks": (
        "val/mask_AP",
        (Side("d_fine", "detection/digits_d_fine_masks"), Side("mask_rcnn", "detection/digits_mask")),
    ),
    "keypoints": (
        "val/keypoint_AP",
        (
            Side("d_fine", "detection/digits_d_fine_keypoints"),
            Side("keypoint_rcnn", "detection/digits_mask", KEYPOINT_RCNN),
        ),
    ),
    "oriented": (
        "val/AP",
        (Side("rt_detr", "detection/digits_rt_detr_oriented"), Side("rotated_fcos", "detection/digits_oriented")),
    ),
}
"""The score that is compared, and both sides."""


def start(side: Side, folder: Path, seed: int, minutes: float) -> subprocess.Popen[str] | None:
    """Begin a run, unless it is there."""
    name = f"{side.name}-seed{seed}"
    if (folder / side.recipe / name / "results.json").is_file():
        return None
    limit = f"hooks.time_limit={{max_time: {minutes / 60}h, final: true, shorten: true}}"
    words = [
        *("train.device=cpu", "train.num_threads=1", "train.length=100ep", "evaluate.every=100ep"),
        *("data.num_workers=0", "loggers=[]", f"seed={seed}", limit, *side.words),
    ]
    command = [sys.executable, "-m", "opabinia", "train", side.recipe, "--out", str(folder), "--name", name, *words]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str] | None) -> None:
    """Wait for a run, and raise its error."""
    if process is not None:
        _, errors = process.communicate()
        if process.returncode:
            raise RuntimeError(errors)


def scores_of(side: Side, folder: Path, seed: int) -> tuple[dict[str, float], int]:
    """Return the scores of a run, and its number of steps."""
    run = folder / side.recipe / f"{side.name}-seed{seed}"
    last = (run / "checkpoints" / "last").read_text().strip()
    return json.loads((run / "results.json").read_text()), int(last.removeprefix("step-"))


def compare(name: str, folder: Path, seeds: Sequence[int], minutes: float) -> None:
    """Train both sides with all seeds, and print their scores."""
    metric, sides = COMPARISONS[name]
    scores: dict[str, list[float]] = {side.name: [] for side in sides}
    for seed in seeds:
        for process in [start(side, folder, seed, minutes) for side in sides]:
            finish(process)
        for side in sides:
            result, steps = scores_of(side, folder, seed)
            scores[side.name].append(result[metric])
            values = f"{result[metric]:.3f}, AP50 {result[f'{metric}50']:.3f}, boxes {result['val/AP']:.3f}"
            print(f"  seed {seed}, {side.name:<14}{values}, {steps} steps", flush=True)
    means = {side: mean(values) for side, values in scores.items()}
    ours, others = means.values()
    text = ", ".join(f"{side} {value:.3f}" for side, value in means.items())
    print(f"{name}, {metric} after {minutes:g} minutes: {text}, ratio {ours / others:.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("comparisons", nargs="*", choices=list(COMPARISONS))
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--runs", type=Path, help="Keep the runs in this folder, and use those that are there.")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        for name in args.comparisons or COMPARISONS:
            compare(name, args.runs or Path(temporary), args.seeds, args.minutes)


if __name__ == "__main__":
    main()
