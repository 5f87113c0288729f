"""Claim: a planned recipe beats the starting recipe in the same time, and loses at most a point to a hand-tuned one.

For each dataset and budget three sides train in turn, each in a process of its own: ``opabinia train FOLDER --budget``,
nothing else; the starting recipe of the task, ended by the budget; and the recipe of the repository that was tuned by
hand for this dataset, ended by the budget, where there is one. The score is the better of the weights and their moving
average after the last step, on the validation data of the folder. Embedded datasets are written as folders first: the
planner sees files only. Run: ``python benchmarks/planning.py``, or with some of the names below, ``--budgets 3m,10m``,
``--seeds 0,1,2`` and ``--sides planned,tuned``. Data of ../shared is used if it is there. Each score is added to
``planning.jsonl``; scores of the same rules on as many cores are not measured again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
from PIL import Image

from opabinia.runtime.durations import parse_seconds
from opabinia.training.autoconfig.plan import VERSION

SHARED = Path(__file__).resolve().parent.parent.parent / "shared" / "data"


@dataclass(frozen=True)
class Dataset:
    """A dataset and what it is trained with.

    Attributes:
        score: name of the score, without that of the validation set.
        folder: returns the folder, which may be written below the given one.
        starting: words of ``opabinia train`` for the starting recipe; FOLDER stands for the folder.
        tuned: those for the hand-tuned recipe; empty: there is none.
        options: of the planned run.
    """

    score: str
    folder: Callable[[Path], Path]
    starting: Sequence[str]
    tuned: Sequence[str] = ()
    options: Sequence[str] = ()


def shared(name: str) -> Callable[[Path], Path]:
    return lambda _: SHARED / name


def digits(folder: Path) -> Path:
    """Write the embedded digits as a folder for each class."""
    from opabinia.data.sources import Digits

    for split in ("train", "val"):
        write_class_folders(Digits(split=split), folder / split)  # type: ignore[arg-type]
    return folder


def write_class_folders(source: Any, folder: Path) -> None:
    """Write the gray images of a source as a folder for each class."""
    for index in range(len(source)):
        sample = source[index]
        path = folder / source.classes[sample["label"]] / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.asarray(sample["image"]).squeeze().astype(np.uint8)).save(path)


def scenes(folder: Path) -> Path:
    """Write the embedded scenes of digits in COCO's format."""
    from opabinia.data.sources.digit_scenes import DigitScenes

    for split in ("train", "val"):
        source = DigitScenes(split=split)  # type: ignore[arg-type]
        images, annotations = [], list[dict[str, Any]]()
        (folder / split).mkdir(parents=True)
        for index in range(len(source)):
            sample = source[index]
            pixels = np.asarray(sample["image"])[0]
            Image.fromarray(pixels.astype(np.uint8)).save(folder / split / f"{index}.png")
            height, width = pixels.shape
            images.append({"id": index, "file_name": f"{index}.png", "height": height, "width": width})
            for (left, top, right, bottom), label in zip(
                np.asarray(sample["boxes"]).tolist(), np.asarray(sample["labels"]).tolist(), strict=True
            ):
                box = [left, top, right - left, bottom - top]
                annotations.append(
                    {"id": len(annotations) + 1, "image_id": index, "category_id": label + 1, "bbox": box,
                     "area": box[2] * box[3], "iscrowd": 0}
                )  # fmt: skip
        categories = [{"id": label + 1, "name": name} for label, name in enumerate(source.classes)]
        file = folder / "annotations" / f"instances_{split}.json"
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories}))
    return folder


def maps(folder: Path) -> Path:
    """Write the embedded scenes as images and maps of the class of each pixel."""
    from opabinia.data.sources.object_maps import digit_maps

    for split in ("train", "val"):
        source = digit_maps(split=split)  # type: ignore[arg-type]
        for kind in ("images", "labels"):
            (folder / split / kind).mkdir(parents=True)
        for index in range(len(source)):
            sample = source[index]
            for kind, pixels in (("images", sample["image"][0]), ("labels", sample["mask"])):
                Image.fromarray(np.asarray(pixels).astype(np.uint8)).save(folder / split / kind / f"{index}.png")
    (folder / "classes.txt").write_text("\n".join(source.classes) + "\n")
    return folder


DATASETS = {
    "clothing": Dataset(
        "top1",
        shared("clothing_small"),
        ["classification/image_folder", "vars.root=FOLDER", "vars.val=validation"],
        ["classification/clothing_small", "vars.root=FOLDER"],
    ),
    "fashion": Dataset(
        "top1",
        shared("fashion_mnist"),
        ["classification/image_folder", "data.train.source={name: idx, root: FOLDER, split: train}",
         "data.val.source={name: idx, root: FOLDER, split: test}"],
        ["classification/fashion_mnist", "vars.root=FOLDER"],
    ),
    "cells": Dataset(
        "AP",
        shared("bccd"),
        ["detection/coco_format", "vars.root=FOLDER", "data.train.source.broken=clip", "data.val.source.broken=clip"],
        ["detection/bccd", "vars.root=FOLDER"],
    ),
    "grocery": Dataset(
        "mAP",
        shared("grocery_reid"),
        ["reid/market1501/bot", "vars.root=FOLDER", "vars.pretrained=false", "train.precision=fp32",
         "data.train.source.cameras=3", "data.val.source.cameras=3", "data.num_workers=2"],
        ["reid/grocery", "vars.root=FOLDER"],
    ),
    "strokes": Dataset(
        "top1",
        shared("omniglot_strokes_video"),
        ["video/folder", "vars.root=FOLDER", "vars.pretrained=false"],
        ["video/omniglot_strokes", "vars.root=FOLDER"],
    ),
    "digits": Dataset(
        "top1", digits, ["classification/image_folder", "vars.root=FOLDER"], ["classification/digits"]
    ),
    "scenes": Dataset("AP", scenes, ["detection/coco_format", "vars.root=FOLDER"], ["detection/digits"]),
    "maps": Dataset(
        "mIoU",
        maps,
        ["segmentation/image_folder", "vars.root=FOLDER",
         "vars.classes=[background,'0','1','2','3','4','5','6','7','8','9']"],
        ["segmentation/digits"],
    ),
}  # fmt: skip


def train_command(words: Sequence[str], seed: int, out: Path) -> list[str]:
    """Return the command of a run that prints its scores as JSON."""
    return [sys.executable, "-m", "opabinia", "train", *words, f"seed={seed}", "--out", str(out), "--quiet", "--json"]


def train(words: Sequence[str], seed: int, out: Path, score: str) -> tuple[float, float]:
    """Train in a process; return the better score of weights and EMA, and the wall time."""
    command = train_command(words, seed, out)
    began = time.perf_counter()
    result = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    seconds = time.perf_counter() - began
    if result.returncode:
        raise SystemExit(f"{' '.join(command)}\n{result.stderr[-2000:]}")
    scores = json.loads(result.stdout)["scores"]
    return max(scores.get(f"{prefix}/{score}") or 0.0 for prefix in ("val", "val_ema")), seconds


def limited(words: Sequence[str], folder: Path, budget: float) -> list[str]:
    """Return the words of a recipe whose schedule ends, with an evaluation, when the budget is used."""
    limit = f"hooks.budget={{name: time_limit, max_time: {budget / 3600}h, final: true, shorten: true}}"
    rare = ["evaluate.every=0ep", "checkpoint.every=0ep"]
    return [*(word.replace("FOLDER", str(folder)) for word in words), limit, *rare]


class Records:
    """The scores that were measured, a line of a file for each.

    Args:
        path: the file; it may not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self._rows: list[dict[str, Any]] = [json.loads(line) for line in lines]

    def find(self, key: dict[str, Any]) -> dict[str, Any] | None:
        """Return the record with all values of ``key``."""
        return next((row for row in self._rows if key.items() <= row.items()), None)

    def add(self, row: dict[str, Any]) -> dict[str, Any]:
        """Add a record, and return it."""
        self._rows.append(row)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", default=list(DATASETS))
    parser.add_argument("--budgets", default="3m,10m")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--sides", default="planned,starting,tuned")
    parser.add_argument("--records", type=Path, default=Path(__file__).with_suffix(".jsonl"))
    arguments = parser.parse_args()
    records, seeds = Records(arguments.records), [int(seed) for seed in arguments.seeds.split(",")]
    print("| dataset | budget | score | planned | starting recipe | hand-tuned recipe | seeds | wall time, planned |")
    print("|---|---|---|---|---|---|---|---|")
    for name in arguments.names:
        dataset = DATASETS[name]
        with tempfile.TemporaryDirectory() as temporary:
            folder = dataset.folder(Path(temporary) / name)
            if not folder.is_dir():
                print(f"| {name} | | | no data here | | | | |")
                continue
            for text in arguments.budgets.split(","):
                budget = parse_seconds(text)
                recipes = {
                    "planned": [str(folder), "--budget", text, *dataset.options],
                    "starting": limited(dataset.starting, folder, budget),
                    "tuned": limited(dataset.tuned, folder, budget) if dataset.tuned else [],
                }
                sides: dict[str, list[dict[str, Any]]] = {side: [] for side in recipes}
                for seed, side in product(seeds, arguments.sides.split(",")):
                    if recipes[side]:
                        key = {"dataset": name, "budget": text, "side": side, "seed": seed, "cores": cores()}
                        key |= {"rules": VERSION} if side == "planned" else {}
                        row = records.find(key)
                        if row is None:
                            out = Path(temporary) / f"{side}-{text}-{seed}"
                            score, seconds = train(recipes[side], seed, out, dataset.score)
                            today = date.today().isoformat()
                            row = records.add({**key, "score": score, "seconds": round(seconds), "date": today})
                        sides[side].append(row)
                cells = [_cell([row["score"] for row in rows]) for rows in sides.values()]
                wall = f"{mean(row['seconds'] for row in sides['planned']):.0f} s" if sides["planned"] else ""
                print("|", " | ".join([name, text, dataset.score, *cells, str(len(seeds)), wall]), "|", flush=True)


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def _cell(scores: Sequence[float]) -> str:
    if not scores:
        return ""
    return f"{mean(scores):.3f}" + (f" ± {stdev(scores):.3f}" if len(scores) > 1 else "")


if __name__ == "__main__":
    main()
