"""Claim: the hook ``quantization_aware`` recovers at least half of what a model loses by INT8 after its training.

EfficientNet-Lite0 with ImageNet weights is trained on photographs of clothes for five epochs. For each seed it is
trained for two more epochs, with the hook and without. Scores are the top-1 on the validation and test images together,
of the model and of its INT8 file. Run:
``python benchmarks/quantization.py path/to/clothing_small [--seeds 0 1 2] [--runs FOLDER]``.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import NamedTuple

RECIPE = "classification/image_folder"
SIDES = {"trained on": [], "quantization-aware": ["hooks.int8.name=quantization_aware"]}


class Scores(NamedTuple):
    """Top-1 of a model and of its INT8 file."""

    original: float
    int8: float

    @property
    def drop(self) -> float:
        return self.original - self.int8


def opabinia(*words: str) -> str:
    """Run a command, and return what it prints."""
    command = [sys.executable, "-m", "opabinia", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def common(root: Path) -> list[str]:
    """Return the words that all runs share."""
    parts = (f"{{name: image_folder, root: {root / part}}}" for part in ("validation", "test"))
    return [
        *(f"vars.root={root}", f"data.val.source={{name: concat, sources: [{', '.join(parts)}], _delete_: true}}"),
        *("vars.size=96", "vars.enlarged=109", "task.backbone.model=tf_efficientnet_lite0.in1k"),
        *("param_groups.rules=[{kind: 1d, weight_decay: 0}]", "train.num_threads=1", "train.channels_last=true"),
        *("data.num_workers=0", "loggers=[]", "train.device=cpu"),
    ]


def measure(folder: Path, name: str, words: Sequence[str]) -> Scores:
    """Train a run, unless it is there, export it, and return its scores."""
    run = folder / RECIPE / name
    if not (run / "results.json").is_file():
        opabinia("train", RECIPE, "--out", str(folder), "--name", name, *words)
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary) / "model.onnx"
        words = ["--evaluate", "--precision", "int8", "--max-drop", "1", "--weights", "raw"]
        table = opabinia("export", str(run), "--out", str(file), *words)
    row = next(line for line in table.splitlines() if "top1" in line)
    original, _, int8 = map(float, re.findall(r"\d\.\d{4}", row))
    return Scores(original, int8)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=Path, help="Folder of clothing_small.")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--runs", type=Path, help="Keep the runs in this folder, and use those that are there.")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.runs or Path(temporary)
        words = common(args.root)
        pretrained = ["task.backbone.pretrained=true", "optimizer.lr=0.0007", "schedule.warmup=20it"]
        base = measure(folder, "base", [*words, *pretrained, "train.length=5ep", "evaluate.every=5ep"])
        print(f"base: {base.original:.4f}, INT8 {base.int8:.4f}, drop {base.drop:.4f}", flush=True)
        more = [*words, f"init.weights={folder / RECIPE / 'base'}", "optimizer.lr=0.0001", "schedule.warmup=10it"]
        more += ["train.length=2ep", "evaluate.every=2ep"]
        drops: dict[str, list[float]] = {side: [] for side in SIDES}
        for seed in args.seeds:
            for side, hook in SIDES.items():
                scores = measure(folder, f"{side.replace(' ', '-')}-seed{seed}", [*more, *hook, f"seed={seed}"])
                drops[side].append(scores.drop)
                print(f"seed {seed}, {side}: {scores.original:.4f}, INT8 {scores.int8:.4f}, drop {scores.drop:.4f}")
        for side, values in drops.items():
            print(f"{side}: mean drop {mean(values):.4f}")


if __name__ == "__main__":
    main()
