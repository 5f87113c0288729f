"""Recipes for a folder of data that was given in place of a recipe: its layout is recognised from names of files."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

_TRAIN, _VAL = ("train", "train2017", "training"), ("val", "valid", "validation", "val2017", "test")
"""Names of splits, the usual one first."""
_LOOKED_AT = 200
"""Entries of a folder, and maps of a dataset, that are looked at."""


def check_no_data(recipe: str) -> None:
    """Check that no folder of data is given in place of a recipe.

    Raises:
        ConfigError: it is one; the commands that train on it are named.
    """
    from opabinia.config import ConfigError, Problem
    from opabinia.config.compose import packaged_names

    folder = Path(recipe)
    if not os.path.isdir(recipe) or (folder / "config.yaml").exists() or recipe in packaged_names():
        return
    layout = ""
    commands: list[list[str]] = []
    with suppress(Exception):  # files may hold anything: then the error of the config remains
        layout, commands = next(_layouts(folder), (layout, commands))
    if commands:
        message = f"is a folder of data ({layout}), neither a recipe nor a run folder; train on it with"
        lines = [shlex.join(["opabinia", "train", *command]) for command in commands]
        raise ConfigError([Problem(recipe, "", message), *(Problem("", "", f"  {line}") for line in lines)])


def _layouts(folder: Path) -> Iterator[tuple[str, list[list[str]]]]:
    """Yield a description of the layout and the words of its commands, the most specific layout first."""
    from opabinia.data.decoding import images, video

    train, val = (next((name for name in split if (folder / name).is_dir()), "") for split in (_TRAIN, _VAL))
    place, at, root = folder / train, _text(folder), f"vars.root={_text(folder)}"
    splits = [f"vars.{key}={name or '.'}" for key, name in (("train", train), ("val", val or "val")) if name != key]
    words = [root, *splits, *([] if val else ["data.val=null"])]

    for file in sorted(folder.glob("*.y*ml")):
        keys = re.findall(r"^(names|train|val)\s*:", file.read_text(errors="replace")[:100_000], re.MULTILINE)
        if {"names", "train"} <= {*keys}:
            yield "YOLO", [_boxes(f"name: yolo, data: {_text(file)}, split: ", "train", "val" if "val" in keys else "")]
    if (folder / "train" / "_annotations.coco.json").is_file():
        has_val = (folder / "valid" / "_annotations.coco.json").is_file()
        yield "COCO files of Roboflow", [_boxes(f"name: roboflow, root: {at}, split: ", "train", "valid" * has_val)]
    if split_names := {file.stem.removeprefix("instances_") for file in folder.glob("annotations/instances_*.json")}:
        names = {
            key: next((name for name in split if name in split_names), "")
            for key, split in (("train", _TRAIN), ("val", _VAL))
        }
        changed = [f"vars.{key}={name}" for key, name in names.items() if name not in ("", key)]
        boxes = [root, *changed, *([] if names["val"] else ["data.val=null"])]
        yield "COCO files", [["detection/coco_format", *boxes], ["detection/finetune", *boxes]]
    for file in sorted(folder.glob("*.json")):
        with file.open(errors="replace") as start:
            if re.search(r'"(images|annotations|categories)"', start.read(1000)):
                yield "a COCO file", [_boxes(f"name: coco, root: {at}, file: ", _text(file), "")]
    if any(folder.glob("Annotations/*.xml")):
        lists = {file.stem for file in folder.glob("ImageSets/Main/*.txt")}
        chosen = ("train", "val" * ("val" in lists)) if "train" in lists else ("null", "")
        yield "Pascal VOC", [_boxes(f"name: voc, root: {at}, split: ", *chosen)]
    subsets = [folder / name for name in ("bounding_box_train", "query", "bounding_box_test")]
    if all(subset.is_dir() for subset in subsets):
        files = [name for subset in subsets for name in os.listdir(subset)]
        numbers = [int(match[1]) for name in files if (match := re.match(r"\d+_c(\d+)", name))]
        cameras = [f"data.{split}.source.cameras={max(numbers, default=1)}" for split in ("train", "val")]
        recipes = ("reid/grocery", "reid/market1501/bot")
        yield "identities, named like Market-1501", [[recipe, root, *cameras] for recipe in recipes]
    for maps in ("labels", "masks", "annotations"):
        if (place / "images").is_dir() and any(name.endswith(".png") for name in _names(place / maps)):
            keys = [] if maps == "labels" else ["train", "val"] if val else ["train"]
            others = [f"data.{key}.source.labels={maps}" for key in keys]
            classes = f"vars.classes=[{','.join(_classes(place / maps))}]"
            yield (
                "images with label maps; name their classes",
                [["segmentation/image_folder", *words, classes, *others]],
            )

    inside = [[name.lower() for name in _names(place / name)] for name in _names(place)]
    for kind, endings, recipe in (
        ("images", images.EXTENSIONS, "classification/image_folder"),
        ("videos", video.EXTENSIONS, "video/folder"),
    ):
        if sum(any(name.endswith(endings) for name in names) for names in inside) > 1:
            yield f"{kind} in a folder for each class", [[recipe, *words]]
    if any(name.endswith(images.EXTENSIONS) for names in [map(str.lower, _names(place)), *inside] for name in names):
        yield "images without labels", [["selfsup/images", root]]


def _boxes(source: str, train: str, val: str) -> list[str]:
    """Return the words of a command that trains a detector on another source than that of the recipe.

    Args:
        source: the beginning of its section.
        train: the rest, for training.
        val: the rest, for validation; empty: there is none.
    """
    validation = f"data.val.source={{{source}{val}}}" if val else "data.val=null"
    return ["detection/coco_format", f"data.train.source={{{source}{train}}}", validation]


def _classes(folder: Path) -> list[str]:
    """Return a name for each value of the first label maps; broken ones are skipped."""
    from opabinia.data.decoding.images import image_errors, open_image

    largest = 1
    for name in islice((name for name in _names(folder) if name.endswith(".png")), 20):
        with suppress(OSError, ValueError), (folder / name).open("rb") as file, image_errors(name):
            image = open_image(file)
            if image.mode in ("L", "P"):
                values = image.histogram()[:255]  # 255 is ignored
                largest = max([largest, *(value for value, pixels in enumerate(values) if pixels)])
    return [f"class_{number}" for number in range(largest + 1)]


def _names(folder: Path) -> list[str]:
    """Return the first names in a folder that are not hidden; empty if there is no such folder."""
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        return sorted(islice((entry.name for entry in entries if not entry.name.startswith(".")), _LOOKED_AT))


def _text(path: Path) -> str:
    """Return a path as text of YAML, quoted if needed."""
    text = str(path)
    return text if re.fullmatch(r"[\w./~-]+", text) else "'" + text.replace("'", "''") + "'"
