"""Descriptions of layouts for folders that none of the readers recognizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

from opabinia.data.decoding.images import EXTENSIONS as IMAGES
from opabinia.data.decoding.video import EXTENSIONS as VIDEOS
from opabinia.data.layouts.folder import Folder, listed

_LOOKED_AT = 10_000
_TABLES = (".csv", ".tsv", ".jsonl", ".parquet")


class _Sketch(NamedTuple):
    """A layout, and the files that it has: an example and their suffixes."""

    name: str
    files: Sequence[tuple[str, Sequence[str]]]


_SKETCHES = (
    _Sketch("a folder for each class", [("train/cat/1.jpg, train/dog/2.jpg, val/cat/3.jpg", IMAGES)]),
    _Sketch("images without labels", [("a/1.jpg", IMAGES)]),
    _Sketch(
        "a list of images and labels", [("images/1.jpg", IMAGES), ("labels.csv with the columns path,label", _TABLES)]
    ),
    _Sketch("COCO's format", [("train/1.jpg", IMAGES), ("annotations/instances_train.json", [".json"])]),
    _Sketch(
        "YOLO's format",
        [("images/train/1.jpg", IMAGES), ("labels/train/1.txt", [".txt"]), ("data.yaml", [".yaml", ".yml"])],
    ),
    _Sketch("Pascal VOC's format", [("JPEGImages/1.jpg", IMAGES), ("Annotations/1.xml", [".xml"])]),
    _Sketch("segmentation maps", [("train/images/1.jpg", [".jpg", ".jpeg"]), ("train/labels/1.png", [".png", ".tif"])]),
    _Sketch("a folder of videos for each class", [("train/run/1.mp4, train/jump/2.mp4", VIDEOS)]),
    _Sketch("tar files of images and labels", [("train-000.tar with 1.jpg, 1.cls ...", [".tar"])]),
)


def describe_unrecognized(folder: Folder) -> list[str]:
    """Return lines that say what is in a folder, and which layouts are nearest."""
    names = [folder.only] if folder.only else folder.tree(("",), _LOOKED_AT)
    suffixes = Counter(PurePosixPath(name).suffix.lower() or "no suffix" for name in names)
    counts = ", ".join(f"{count} {suffix}" for suffix, count in suffixes.most_common(8))
    if not names:
        empty = f", and {len(folder.folders)} empty folders" if folder.folders else ""
        return [f"is empty: there are no files{empty}"]
    lines = [f"no layout of data is recognized in {len(names)} files ({counts}), such as {listed(names, 5)}"]
    if folder.folders:
        lines[0] += f"; folders: {listed(folder.folders)}"
    lines.append("the nearest layouts:")
    for sketch in sorted(_SKETCHES, key=lambda sketch: _missing_share(sketch, suffixes))[:3]:
        missing = [example for example, kinds in sketch.files if not suffixes.keys() & {*kinds}]
        files = "; ".join(example for example, _ in sketch.files)
        lines.append(f"  {sketch.name}: {files}" + (f" (here is no {', no '.join(missing)})" if missing else ""))
    return lines


def _missing_share(sketch: _Sketch, suffixes: Counter[str]) -> tuple[float, int]:
    present = [kinds for _, kinds in sketch.files if suffixes.keys() & {*kinds}]
    return 1 - len(present) / len(sketch.files), -len(present)
