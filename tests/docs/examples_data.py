"""Small files, datasets and runs that commands and examples of the documentation name, created on demand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from opabinia.data.sources import Digits
from opabinia.training import launch
from scripts import small_data
from tests.data.videos import write
from tests.docs.pages import block_text, blocks
from tests.inference.tracking.squares import write_videos
from tests.migration import test_basecls, test_vissl
from tests.migration.recipes import example, table

CPU = ["train.device=cpu", "train.num_threads=1", "data.num_workers=0", "loggers=[]"]


def sources(train: str, val: str) -> list[str]:
    return [f"data.train.source={train}", f"data.val.source={val}"]


BOXES = "{name: coco, root: path/to/data/train, file: path/to/data/annotations/instances_train.json, channels: 1}"
MAPS = "{name: segmentation_folder, root: path/to/maps/SPLIT, classes: [background, object], channels: 1}"
PEOPLE = "{name: market1501, root: path/to/Market-1501-v15.09.15, channels: 1, split: SPLIT}"
RETRIEVAL = sources(PEOPLE.replace("SPLIT", "train"), PEOPLE.replace("SPLIT", "test"))
VIDEOS = "{name: videos, root: path/to/clips/train, channels: 1}"
DIGITS = sources("{name: digits, split: train}", "{name: digits, split: val}")
TWO_STEPS = ["train.length=2it", "evaluate.every=2it"]
SMALL_SCENES = ["vars.short=[64]", "vars.test=64", "data.batch_size=4", *TWO_STEPS]

OVERRIDES = {
    "classification/digits": ["data.sampler={name: subset, num_samples: 64}", "train.length=2ep"],
    "classification/digits_semi": ["semi_supervised.warmup=1it", *TWO_STEPS],
    "segmentation/digits_semi": ["semi_supervised.warmup=1it", "data.batch_size=4", *TWO_STEPS],
    "detection/digits_semi": ["semi_supervised.warmup=1it", "data.batch_size=4", *TWO_STEPS],
    "classification/placed_digits": [*DIGITS, "data.sampler={name: subset, num_samples: 50}", *TWO_STEPS],
    "detection/bccd": SMALL_SCENES,
    "detection/coco_format": SMALL_SCENES,
    "detection/finetune": ["vars.size=[64, 64]", "data.batch_size=4", *TWO_STEPS],
    "detection": [*sources(BOXES, BOXES), "data.batch_size=4", *TWO_STEPS],
    "segmentation/image_folder": ["vars.short=[64, 96]", "vars.crop=[64, 64]", "vars.test=48", *TWO_STEPS],
    "segmentation": [*sources(*(MAPS.replace("SPLIT", split) for split in ("train", "val"))), *TWO_STEPS],
    "reid/digits": [*RETRIEVAL, "data.batch_size=16", *TWO_STEPS],
    "classification/image_folder": ["vars.size=32", "vars.enlarged=36", "data.batch_size=4", *TWO_STEPS],
    "clothes": ["data.batch_size=4", *TWO_STEPS],
    "path": ["data.batch_size=4", *TWO_STEPS],
    "clothes.yaml": ["vars.size=32", "vars.enlarged=36", "data.batch_size=4", *TWO_STEPS],
    "flowers.yaml": ["task.backbone.pretrained=false", "data.batch_size=4", *TWO_STEPS],
    "lilies.yaml": [
        "data.train.source.sources.0.per_class=1",
        "task.backbone.model=test_resnet",
        "vars.size=32",
        "vars.enlarged=36",
        "data.batch_size=4",
        *TWO_STEPS,
    ],
    "photos.yaml": ["vars.size=32", "vars.batch=4", *TWO_STEPS],
    "products.yaml": ["vars.size=[32, 32]", "data.sampler.instances=2", "data.batch_size=8", *TWO_STEPS],
    "scenes.yaml": ["vars.short=[64, 96]", "vars.crop=[64, 64]", "vars.test=48", "data.batch_size=4", *TWO_STEPS],
    "strokes.yaml": ["vars.size=32", "data.batch_size=4", *TWO_STEPS],
    "multitask/digits": TWO_STEPS,
    "multitask/digit_tracks": ["data.batch_size=16", *TWO_STEPS],
    "my.yaml": ["data.sampler={name: subset, num_samples: 64}", "data.batch_size=4", *TWO_STEPS],
    "reid/digit_tracks": ["data.batch_size=16", *TWO_STEPS],
    "reid/folder": ["vars.size=[32, 32]", "vars.identities=2", "vars.instances=2", "data.batch_size=4", *TWO_STEPS],
    "reid": [
        "vars.pretrained=false",
        "data.batch_size=16",
        "task.backbone.model=resnet18",
        "task.backbone.ibn=false",
        *TWO_STEPS,
    ],
    "selfsup/images": ["vars.size=32", "vars.batch=4", "task.backbone.model=test_resnet", *TWO_STEPS],
    "selfsup/crops": ["vars.short=48", "vars.crop=32", "vars.batch=4", *TWO_STEPS],
    "selfsup/fashion_mnist": ["vars.root=path/to/fashion_mnist", *TWO_STEPS],
    "selfsup": [*DIGITS, "data.batch_size=32", *TWO_STEPS],
    "video/folder": [
        "vars.pretrained=false",
        "vars.size=32",
        "task.backbone.backbone.model=test_resnet",
        "data.batch_size=4",
        *TWO_STEPS,
    ],
    "video/omniglot_strokes": ["data.batch_size=4", *TWO_STEPS],
    "video": [*sources(VIDEOS, VIDEOS), "data.batch_size=4", *TWO_STEPS],
    "detector.yaml": ["data.batch_size=4", *TWO_STEPS],
    "appearance.yaml": ["data.batch_size=8", *TWO_STEPS],
}


def small(recipe: str) -> list[str]:
    """Return overrides that shorten a recipe to a second or two: few steps on few samples."""
    return [*CPU, *OVERRIDES.get(recipe, OVERRIDES.get(recipe.partition("/")[0], []))]


RUNS: dict[str, list[str]] = {
    "runs/classification/digits/default": ["data.batch_size=4", "train.length=122it", "evaluate.every=122it"],
    "runs/classification/digits/slow": [],
    "runs/classification/digits/fast": ["optimizer.lr=0.01"],
    "runs/clothes/default": [],
    "runs/clothes/mixup": [],
    "runs/clothes/pretrained": [],
    "runs/clothes/slower": [],
    "runs/appearance/default": [],
    "runs/detection/bccd/default": ["vars.root=cells"],
    "runs/detection/coco_format/default": ["vars.root=cells"],
    "runs/detection/digits/default": [],
    "runs/detector/default": [],
    "runs/flowers/default": ["task.backbone.model=test_resnet", "vars.size=32", "vars.enlarged=36"],
    "runs/multitask/digits/default": [],
    "runs/photos/default": [],
    "runs/products/default": [],
    "runs/reid/digits/default": [],
    "runs/scenes/default": [],
    "runs/segmentation/digits/default": [],
    "runs/selfsup/crops/default": ["vars.root=cells/train"],
    "runs/selfsup/crops/pretrained": ["vars.root=cells/train", "task.backbone.model=hgnetv2_b0"],
    "runs/selfsup/digits_vicreg/default": [],
    "runs/selfsup/fashion_mnist/default": [],
    "runs/strokes/default": [],
    "runs/video/digits/default": [],
}
"""Runs that pages name, and the additional overrides of each."""


def trained(folder: Path, run: str) -> Path:
    """Return the folder of a run below ``folder``, trained if missing. The working directory has all datasets."""
    if not (folder / run / "results.json").exists():
        recipe, _, name = run.removeprefix("runs/").rpartition("/")
        recipe = recipe if "/" in recipe else f"{recipe}.yaml"
        launch.train(recipe, [*small(recipe), *RUNS[run]], out=folder / "runs", name=name)
    return folder / run


# --- files and datasets -----------------------------------------------------------------------------------------------


def digit(path: Path, number: int = 3) -> None:
    """Write a handwritten digit as an image file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(Digits(split="val")[number]["image"][0].numpy()).resize((32, 32)).save(path)


def images(folder: Path, names: Sequence[str]) -> None:
    """Write images of color noise."""
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (40, 48, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / name)


def people(folder: Path, numbers: range) -> None:
    """Write images with names like Market-1501's."""
    for shot in small_data.shots(small_data.SEARCHED):
        if shot.number in numbers:
            small_data.save(folder / f"{shot.identity:04d}_c{shot.camera}s1_{shot.number:06d}_00.png", shot)


def videos(folder: Path) -> None:
    """Write four videos of two classes."""
    for number in range(4):
        write(folder / ("to" if number % 2 else "fro") / f"{number}.mp4", 18 + number, size=(32, 32))


def tracked_videos(root: Path) -> None:
    """Write two videos with tracks in the layout of MOTChallenge."""
    write_videos(root)
    for number, folder in enumerate(sorted(root.iterdir())):
        folder.rename(root / f"{number:02d}")


def idx(root: Path) -> None:
    """Write Fashion-MNIST's files with handwritten digits."""
    root.mkdir(parents=True)
    for prefix, split in (("train", "train"), ("t10k", "val")):
        source = Digits(split=split)  # type: ignore[arg-type]
        samples = [source[number] for number in range(256)]
        enlarged = [np.kron(sample["image"][0].numpy(), np.ones((4, 4), np.uint8))[2:30, 2:30] for sample in samples]
        labels = np.array([sample["label"] for sample in samples], np.uint8)
        for name, array in (("images-idx3", np.stack(enlarged)), ("labels-idx1", labels)):
            head = bytes([0, 0, 8, array.ndim]) + b"".join(side.to_bytes(4, "big") for side in array.shape)
            (root / f"{prefix}-{name}-ubyte").write_bytes(head + array.tobytes())


def text(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")


def recipe_of(tutorial: str, path: Path, number: int = 1) -> None:
    """Write a recipe of a tutorial, by default the first."""
    name = f"docs/tutorials/{tutorial}.md-{number}"
    text(path, next(block.text for block in blocks("yaml") if block.name == name))


CLOTHES = [
    f"{split}/{name}/{number}.jpg"
    for split in ("train", "validation", "test")
    for name in ("dress", "hat")
    for number in "12"
]
FLOWERS = [
    f"{split}/{name}/{number}.jpg" for split in ("train", "val") for name in ("rose", "tulip") for number in "12"
]
SIMCLR = test_vissl.config_of("{name: simclr_info_nce_loss}")
RESNEXT = "config: {MODEL: {TRUNK: {RESNETS: {DEPTH: 101}}}}"
REGNET = test_basecls.config_of("RegNetConfig", 'model=dict(name="regnety_004")')
KINETICS = "base: video/digits\ndata: {train: {source: {name: videos, root: path/to/clips/train, channels: 1}}}\n"

FILES: dict[str, Callable[[Path], None]] = {
    "path/to/data": small_data.coco_folders,
    "path/to/maps": small_data.label_maps,
    "path/to/Market-1501-v15.09.15": small_data.market1501,
    "path/to/images": partial(images, names=[f"{number % 3}/{number}.jpg" for number in range(8)]),
    "path/to/flowers": partial(images, names=FLOWERS),
    **dict.fromkeys(("path/to/clips", "path/to/videos"), small_data.kinetics),
    "path/to/omniglot_strokes_video": small_data.kinetics,
    "new_flowers": partial(
        images, names=[f"{split}/lily/{number}.jpg" for split in ("train", "val") for number in "12"]
    ),
    "clothes": partial(images, names=CLOTHES),
    "new_photos": partial(images, names=["coat.jpg", "hat.jpg"]),
    "cells": small_data.coco_folders,
    "new_cells": partial(images, names=["1.jpg", "2.jpg"]),
    "photos": partial(images, names=[f"{number}.jpg" for number in range(40)]),
    "products": small_data.market1501,
    "scenes": small_data.label_maps,
    "new_scenes": partial(images, names=["1.png", "2.png"]),
    "strokes": small_data.kinetics,
    "new_videos": videos,
    "clothes.yaml": partial(recipe_of, "classification"),
    "photos.yaml": partial(recipe_of, "selfsup"),
    "products.yaml": partial(recipe_of, "reid"),
    "scenes.yaml": partial(recipe_of, "segmentation"),
    "strokes.yaml": partial(recipe_of, "video"),
    "detector.yaml": partial(recipe_of, "tracking"),
    "appearance.yaml": partial(recipe_of, "tracking", number=2),
    **dict.fromkeys(("crossings/train", "crossings/val"), tracked_videos),
    "path/to/fashion_mnist": idx,
    **dict.fromkeys(("photo.jpg", "image.png", "aerial.png"), lambda path: images(path.parent, [path.name])),
    "path/to/products": partial(images, names=[f"{number % 4}/{number}.jpg" for number in range(16)]),
    "long.mp4": partial(write, count=60, size=(32, 32)),
    "queries": partial(people, numbers=range(1)),
    "gallery": partial(people, numbers=range(1, 4)),
    "folder": videos,
    "video.mp4": partial(write, count=18, size=(32, 32)),
    "one.png": digit,
    "one.jpg": digit,
    "three.png": digit,
    "four.jpg": partial(digit, number=4),
    "flowers.yaml": lambda path: text(path, block_text("README.md", "# flowers.yaml", "yaml")),
    "lilies.yaml": lambda path: text(path, block_text("docs/adding_classes.md", "# lilies.yaml", "yaml")),
    "my_parts.py": lambda path: text(path, block_text("docs/extending.md", "# my_parts.py", "python")),
    "my.yaml": lambda path: text(path, block_text("docs/configs.md", "base: classification/digits ", "yaml")),
    "kinetics.yaml": lambda path: text(path, KINETICS),
    "mask_rcnn_R_50_FPN_1x.yaml": lambda path: text(path, table("detectron2")["files"]["Base.yaml"]),
    "configs/Market1501/sbs_R50.yml": lambda path: text(path, table("fastreid")["files"]["Base.yml"]),
    "own.yml": lambda path: text(path, table("fastreid")["files"]["Base.yml"]),
    "configs/config/pretrain/swav/swav_8node_resnet.yaml": lambda path: text(path, SIMCLR),
    "config/pretrain/simclr/models/resnext101.yaml": lambda path: text(path, RESNEXT),
    "zoo/public/regnet/regnety_004.py": lambda path: text(path, REGNET),
    "simclr.yaml": lambda path: text(path, SIMCLR),
    "own.yaml": lambda path: text(path, table("detectron2")["files"]["Base.yaml"]),
    "own.py": lambda path: text(path, REGNET),
    "slowfast_multigrid.yaml": lambda path: text(
        path, example("paddlevideo", "the batch size per gpu becomes the total")
    ),
}
