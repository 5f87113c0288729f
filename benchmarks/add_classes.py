"""Claim: ten images of each old class are enough to add classes to a trained classifier at a loss of at most three
points on the old ones, and with distillation of at most two; training on the new images alone forgets the old classes,
with distillation and with a frozen backbone, too.

scikit-learn's digits: a model of the classes 0 to 7 (``classification/digits``) learns 8 and 9, in 150 steps of 64
images from its weights. Accuracy on the validation images of old and of new classes, each among all ten; the bound is a
training of all classes on all images, of 10 epochs. With ``--folder``, the last two classes of a folder of photographs
with ``train`` and ``validation`` are new, and the network is a pretrained EfficientNet-Lite0 on 64 x 64 pixels, in 60
steps of 32 (100 for the old classes); the two rows with all images are omitted. Run:
``python benchmarks/add_classes.py``, or with ``--seeds 0``.
"""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

import numpy as np
from PIL import Image

from opabinia.data.sources.digits import load_digits, split_digits
from opabinia.training.launch import train

RECIPE = "classification/digits"
COMMON = ("data.num_workers=0", "train.num_threads=1", "loggers=[]", "evaluate.every=0ep", "checkpoint.best=null")
SHORT = ("train.length=150it", "schedule.warmup=15it", "optimizer.lr=0.002")
FREEZE = "hooks.freeze={name: freeze, pattern: ^backbone}"
DISTILL = "distill={run: OLD, task_weight: 1.0, logits_weight: 1.0, temperature: 2.0}"
SCRATCH = "all images, from scratch"
METHODS = {
    "new images alone": ("new",),
    "new images alone, frozen backbone": ("new", FREEZE),
    "new images alone, distillation": ("new", DISTILL),
    "replay of 10 images a class": ("replay",),
    "replay, frozen backbone": ("replay", FREEZE),
    "replay, distillation": ("replay", DISTILL),
    "all images, from the old weights": ("all",),
    SCRATCH: ("all",),
}
PRETRAINED = (
    *("task.backbone={name: timm, model: tf_efficientnet_lite0, pretrained: true}", "task.mean=null", "task.std=null"),
    *("data.batch_size=32", "optimizer.lr=0.001", "schedule.warmup=10it"),
    "data.train.transforms=[{name: RandomResizedCrop, size: 64, scale: [0.35, 1.0]}, RandomHorizontalFlip]",
)
VIEW, PHOTOGRAPH_VIEW = "[{name: Resize, size: 32}]", "[{name: Resize, size: 72}, {name: CenterCrop, size: 64}]"


def write_digits(root: Path) -> None:
    """Write the digits as folders of images: ``train/7/0012.png``."""
    images, labels = load_digits()
    for split, folder in (("train", "train"), ("val", "validation")):
        for number in split_digits(labels)[split].tolist():
            path = root / folder / str(labels[number]) / f"{number:04d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.asarray(images[number])).save(path)


class Classes:
    """Overrides of the data for old and new classes of a folder.

    Args:
        root: the folder, with ``train`` and ``validation``.
        channels: of its images.
        seed: of the replayed images.
    """

    def __init__(self, root: Path, channels: int, seed: int) -> None:
        self._root, self._channels, self._seed = root, channels, seed
        names = sorted(path.name for path in (root / "train").iterdir())
        self.old, self.new = names[:-2], names[-2:]

    def images(self, split: str, classes: Sequence[str]) -> dict[str, object]:
        """Return the source of some classes."""
        folder = str(self._root / split)
        return {"name": "image_folder", "root": folder, "channels": self._channels, "classes": [*classes]}

    def united(self, *sources: dict[str, object]) -> str:
        """Return sources with the labels of all classes."""
        return json.dumps({"name": "concat", "classes": [*self.old, *self.new], "sources": sources})

    def train(self, kind: str) -> list[str]:
        """Return the overrides of the training data: ``old``, ``new``, ``replay`` or ``all``."""
        old, new = (self.images("train", classes) for classes in (self.old, self.new))
        if kind == "old":
            return [f"data.train.source={json.dumps(old)}"]
        part = {"name": "random_part", "source": old, "per_class": 10, "seed": self._seed}
        sources = {"new": [new], "replay": [part, new], "all": [old, new]}[kind]
        return [f"data.train.source={self.united(*sources)}", *(["data.sampler=balanced"] * (kind == "replay"))]

    def validation(self, transforms: str, *, old_only: bool = False) -> str:
        """Return the override of the validation data."""
        old, new = (self.images("validation", classes) for classes in (self.old, self.new))
        sources = {"old": json.dumps(old)} if old_only else {"old": self.united(old), "new": self.united(new)}
        sets = (f"{{prefix: {name}, source: {source}, transforms: {transforms}}}" for name, source in sources.items())
        return f"data.val=[{', '.join(sets)}]"


def measure(root: Path, out: Path, seed: int, *, photographs: bool) -> dict[str, tuple[float, float]]:
    """Train with each method; return the accuracy on old and new classes."""
    data, view = Classes(root, 3 if photographs else 1, seed), PHOTOGRAPH_VIEW if photographs else VIEW
    common = [*COMMON, f"seed={seed}", *(PRETRAINED if photographs else ())]
    first = [*common, *(["train.length=100it"] * photographs), *data.train("old"), data.validation(view, old_only=True)]
    old, scores = train(RECIPE, first, out=out, name=f"old-{seed}")
    print(f"seed {seed}  before: old {scores['old/top1']:.3f}", flush=True)
    short = ["train.length=60it", "optimizer.lr=0.0005"] if photographs else SHORT
    results = {}
    for number, (method, (kind, *changes)) in enumerate(METHODS.items()):
        if photographs and kind == "all":
            continue
        start = () if method == SCRATCH else (*short, f"init.weights={old}")
        overrides = [*common, *start, data.validation(view), *data.train(kind), *changes]
        overrides = [override.replace("OLD", str(old)) for override in overrides]
        scores = train(RECIPE, overrides, out=out, name=f"{number}-{seed}")[1]
        results[method] = scores["old/top1"], scores["new/top1"]
        print(f"seed {seed}  {method}: old {results[method][0]:.3f}, new {results[method][1]:.3f}", flush=True)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--folder", type=Path, help="photographs in train/CLASS and validation/CLASS")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    seeds = [int(seed) for seed in options.seeds.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        root = options.folder or Path(folder) / "digits"
        if options.folder is None:
            write_digits(root)
        results = [measure(root, Path(folder), seed, photographs=options.folder is not None) for seed in seeds]
    for method in results[0]:
        old, new = ([result[method][column] for result in results] for column in (0, 1))
        values = "; ".join(f"{a:.3f}, {b:.3f}" for a, b in zip(old, new, strict=True))
        print(f"{method}: old {mean(old):.3f}, new {mean(new):.3f}   ({values})")


if __name__ == "__main__":
    main()
