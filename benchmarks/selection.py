"""Claim: images that `opabinia data select` chooses train a better model than as many random ones.

Rounds begin with a random 2.5 % of the training images, and choose up to 5, 10 and 20 % of them, each with the model
that was trained on the labels so far; every model is trained from scratch with the same number of steps. Embedded
digits (classification), scenes of digits (detection) and their segmentation maps. Run:
``python benchmarks/selection.py [--runs FOLDER] [--seeds 0 1 2] [--strategies random both ...] [classification ...]``.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import NamedTuple

import numpy as np

import opabinia
from opabinia.config.paths import holds_run
from opabinia.contracts import Source
from opabinia.data.sources import Digits, DigitScenes
from opabinia.data.sources.subset import write_split
from opabinia.evaluation.selection.batches import Pool, k_center, nearest_distances, unit_rows, weighted_seeding
from opabinia.inference.load import RunModel
from opabinia.inference.selection.select import SelectOptions, select
from opabinia.visualization.drawing import to_pil

SHARES = (0.025, 0.05, 0.1, 0.2)
QUICK = ["train.device=cpu", "train.num_threads=1", "data.num_workers=0"]
STRATEGIES = ("random", "uncertainty", "diversity", "both")


class Setting(NamedTuple):
    """A task.

    Attributes:
        recipe: of the runs.
        source: name of its source.
        images: its training data.
        metric: the score that is compared.
        words: changes to the recipe.
    """

    recipe: str
    source: str
    images: Source
    metric: str
    words: Sequence[str]


def setting_of(task: str) -> Setting:
    """Return the setting of a task by its name."""
    scenes = ["train.length=200it", "evaluate.every=200it", "data.batch_size=8"]
    return {
        "classification": lambda: Setting(
            *("classification/digits", "digits", Digits(split="train"), "val/top1"),
            ["train.length=100it", "evaluate.every=100it", "data.batch_size=32"],
        ),
        "detection": lambda: Setting("detection/digits", "digit_scenes", DigitScenes(split="train"), "val/AP", scenes),
        "segmentation": lambda: Setting(
            "segmentation/digits", "digit_maps", DigitScenes(split="train"), "val/mIoU", scenes
        ),
    }[task]()


def train(setting: Setting, folder: Path, name: str, labeled: Sequence[int], seed: int) -> tuple[Path, float]:
    """Train on some of the images, unless that is done already, and return the run and its score."""
    run, split = folder / setting.recipe / name, folder / f"{name}.json"
    write_split(split, [setting.images.id(index) for index in labeled])
    source = f"{{name: subset, source: {setting.source}, file: {split}, split: val}}"  # the named samples
    words = [*QUICK, *setting.words, f"data.train.source={source}", f"seed={seed}"]
    if not (run / "results.json").is_file():
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            resume = "auto" if holds_run(run) else None
            run, _ = opabinia.train(setting.recipe, words, out=folder, name=name, resume=resume)
    return run, json.loads((run / "results.json").read_text())[setting.metric]


def write_images(setting: Setting, folder: Path) -> list[Path]:
    """Write the training images as files, and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{index:05d}.png" for index in range(len(setting.images))]
    for index, path in enumerate(paths):
        if not path.is_file():
            to_pil(setting.images[index]["image"]).save(path)
    return paths


def learning_curve(setting: Setting, strategy: str, paths: Sequence[Path], folder: Path, seed: int) -> list[float]:
    """Return the score at each of :data:`SHARES`."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(paths)).tolist()
    counts = [round(share * len(paths)) for share in SHARES]
    labeled = order[: counts[0]]
    run, score = train(setting, folder, f"start-seed{seed}", labeled, seed)
    scores = [score]
    for number, count in enumerate(counts[1:], 1):
        wanted = count - len(labeled)
        if strategy == "random":
            labeled = order[:count]
        else:
            unlabeled = [path for index, path in enumerate(paths) if index not in set(labeled)]
            out = Path(tempfile.mkdtemp(dir=folder))
            options = SelectOptions(wanted, strategy, seed=seed, out=out)  # type: ignore[arg-type]
            with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
                chosen = select(RunModel(run), unlabeled, options).paths
            labeled = [*labeled, *(int(path.stem) for path in chosen)]
        run, score = train(setting, folder, f"{strategy}{number}-seed{seed}", labeled, seed)
        scores.append(score)
    return scores


def scale() -> None:
    """Print the CPU time of choosing 1,000 of 100,000 random features of 512 numbers, with 5,000 labeled ones."""
    rng = np.random.default_rng(0)
    features = unit_rows(rng.normal(size=(100_000, 512)).astype(np.float32))
    groups, taken = np.arange(len(features)), np.zeros(len(features), dtype=bool)
    for name in ("diversity", "both"):
        began = time.process_time()
        pool = Pool(features, groups, nearest_distances(features, features[:5000]), taken)
        if name == "diversity":
            k_center(pool, 1000)
        else:
            weighted_seeding(pool, 1000, rng.random(len(features)), rng)
        peak = getrusage(RUSAGE_SELF).ru_maxrss / 1024
        print(f"scale, {name}: {time.process_time() - began:.0f} s of CPU time, peak memory {peak:.0f} MiB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("tasks", nargs="*", default=["scale", "classification"])
    parser.add_argument("--runs", type=Path, help="Keep the runs in this folder, and use those that are there.")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--strategies", nargs="+", default=STRATEGIES)
    args = parser.parse_args()
    began = time.process_time()
    with tempfile.TemporaryDirectory() as temporary:
        if "scale" in args.tasks:
            scale()
        for task in [task for task in args.tasks if task != "scale"]:
            setting, folder = setting_of(task), (args.runs or Path(temporary)) / task
            paths = write_images(setting, folder / "images")
            print(f"{task}: {setting.metric} with 2.5, 5, 10, 20 % of {len(paths):,} images, seeds {args.seeds}")
            for strategy in args.strategies:
                curves = [learning_curve(setting, strategy, paths, folder, seed) for seed in args.seeds]
                values = np.array(curves)
                means = "  ".join(f"{mean:.3f}" for mean in values.mean(0))
                each = "; ".join(" ".join(f"{value:.3f}" for value in curve) for curve in curves)
                print(f"  {strategy:<12}{means}   ({each})", flush=True)
    print(f"CPU time {time.process_time() - began:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
