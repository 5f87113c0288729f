"""Descriptions of layouts for folders that none of the readers recognizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

from opabinia.data.decoding.images import EXTENSIONS as IMAGES
from opabinia.data.decoding.video import EXTENSIONS as VIDEOS
from opabinia.data.layouts.folder import Folder, listed
from opabinia.runtime.text import plural

_LOOKED_AT = 10_000


class _Sketch(NamedTuple):
    """A layout: examples of its files, and the suffixes of each kind of them."""

    name: str
    files: str
    kinds: Mapping[str, Sequence[str]]


_SKETCHES = (
    _Sketch("a folder for each class", "train/cat/1.jpg, train/dog/2.jpg, val/cat/3.jpg", {"images": IMAGES}),
    _Sketch("images without labels", "1.jpg, 2.jpg", {"images": IMAGES}),
    _Sketch(
        "a list",
        "labels.csv with the columns path and label, images/1.jpg",
        {"images": IMAGES, "list": (".csv", ".tsv", ".jsonl", ".parquet")},
    ),
    _Sketch(
        "COCO's format",
        "annotations/instances_train.json, train/1.jpg",
        {"images": IMAGES, "JSON file": (".json",)},
    ),
    _Sketch(
        "YOLO's format",
        "data.yaml with train, val and names, images/train/1.jpg, labels/train/1.txt",
        {"images": IMAGES, "label files": (".txt",), "data.yaml": (".yaml", ".yml")},
    ),
    _Sketch("Pascal VOC's format", "JPEGImages/1.jpg, Annotations/1.xml", {"images": IMAGES, "XML files": (".xml",)}),
    _Sketch(
        "segmentation maps",
        "train/images/1.jpg, train/labels/1.png, classes.txt",
        {"images": (".jpg", ".jpeg"), "maps": (".png", ".tif", ".bmp")},
    ),
    _Sketch("a folder of videos for each class", "train/run/1.mp4, train/jump/2.mp4", {"videos": VIDEOS}),
    _Sketch("tar files", "train-000.tar with 1.jpg, 1.cls, 2.jpg, 2.cls ...", {"tar files": (".tar",)}),
)


def describe_unrecognized(folder: Folder) -> list[str]:
    """Return lines that say what is in a folder, and which layouts are nearest."""
    names = [folder.only] if folder.only else folder.tree(("",), _LOOKED_AT)
    suffixes = Counter(PurePosixPath(name).suffix.lower() or "without suffix" for name in names)
    counts = ", ".join(f"{count} {suffix}" for suffix, count in suffixes.most_common(8))
    if not names:
        empty = f", and {plural(len(folder.folders), 'empty folder')}" if folder.folders else ""
        return [f"is empty: there are no files{empty}"]
    first = f"no layout of data is recognized in {plural(len(names), 'file')} ({counts}), such as {listed(names)}"
    if folder.folders:
        first += f"; folders: {listed(folder.folders)}"
    return [first, *nearest_layouts(names)]


def nearest_layouts(names: Sequence[str]) -> list[str]:
    """Return lines that describe the three layouts of which most files are among these."""
    suffixes = {PurePosixPath(name).suffix.lower() for name in names}

    def missing(sketch: _Sketch) -> list[str]:
        return [kind for kind, known in sketch.kinds.items() if not suffixes & {*known}]

    nearest = sorted(_SKETCHES, key=lambda sketch: (len(missing(sketch)) / len(sketch.kinds), -len(sketch.kinds)))[:3]
    lines = []
    for sketch in nearest:
        absent = missing(sketch)
        lines.append(f"  {sketch.name}: {sketch.files}" + (f" (missing: {', '.join(absent)})" if absent else ""))
    return ["the nearest layouts:", *lines]
