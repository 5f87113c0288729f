"""Things in text files, a line each, in the form of YOLO."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import yaml

from opabinia.config import register
from opabinia.data.sources import annotation_errors as kinds
from opabinia.data.sources.annotation_arrays import Outlines, Things
from opabinia.data.sources.annotation_errors import Broken, Faults
from opabinia.data.sources.detection_base import Annotated, Empty, Listing, annotated, chosen_classes
from opabinia.data.sources.folder import is_picture
from opabinia.data.sources.image_headers import are_there, sizes_of


@register.source
def yolo(
    *,
    data: Path,
    split: str = "train",
    root: Path | None = None,
    masks: bool = False,
    classes: list[str] | None = None,
    empty: Empty = "keep",
    broken: Broken = "error",
    channels: Literal[1, 3] = 3,
) -> Annotated:
    """Pictures and things in the form of YOLO: a ``data.yaml``, and beside ``images/a/1.jpg`` a ``labels/a/1.txt``.

    A line is the number of a class and the middle, width and height of a box, or the corners of a polygon; all as
    fractions of the picture. A picture without a text file has nothing in it. ``data.yaml`` names the classes and says
    for each split a folder of pictures (searched with subfolders), a list of folders, or a text file with a picture a
    line. Sizes are read from the beginning of each picture. A sample's id is its path below the root.

    Args:
        data: the ``data.yaml``.
        split: its key to take: ``train``, ``val``, ``test``.
        root: the folder that its paths count from; what it gives as ``path``, or else its own folder, when not given.
        masks: read polygons, too; every line must have one.
        classes: names of the classes to take, in the order of their labels; all of them when not given.
        empty: ``drop`` leaves out pictures without things to learn.
        broken: what is done about broken things: ``error`` tells them and goes no further; ``clip`` cuts boxes to the
            picture and leaves out what has no area left; ``drop`` leaves them out, and also lines that say nothing,
            unknown classes, and pictures that are missing or cannot be read.
        channels: 3 for colour, 1 for grey; pictures of the other kind are converted.

    Raises:
        ValueError: ``data.yaml`` is none, there are no pictures or no labels, or something is broken and ``broken``
            does not allow that.
    """
    data = data.expanduser()
    said = _said(data)
    top = _root(data, said, root)
    numbers, known = _classes(data, said.get("names"))
    if "nc" in said and said["nc"] != len(known):
        raise ValueError(f"{data}: nc is {said['nc']!r}, but {len(known)} classes have names")
    places = chosen_classes(data, known, classes)
    labels = dict.fromkeys(numbers, -1) | {numbers[place]: label for label, place in enumerate(places)}
    told = Faults()
    names = _pictures(data, said, split, top, told)
    sizes = sizes_of(top, names, told)
    outlines = Outlines() if masks else None
    listing = Listing(
        file=data,
        root=top,
        names=names,
        sizes=sizes,
        things=_things(data, top, names, sizes, labels, outlines, told),
        classes=[known[place] for place in places],
        category_ids=[numbers[place] for place in places],
        outlines=outlines,
        word="line",
    )
    return annotated(listing, told, broken=broken, empty=empty, channels=channels)


# --- data.yaml --------------------------------------------------------------------------------------------------------


def _said(data: Path) -> dict[str, Any]:
    if not data.is_file():
        raise ValueError(f"there is no file {data}")
    try:
        said = yaml.safe_load(data.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{data} is no YAML: {' '.join(str(error).split())}") from error
    if not isinstance(said, dict) or "names" not in said:
        raise ValueError(f"{data} has no 'names'; expected train, val and names")
    if "kpt_shape" in said:
        raise ValueError(f"{data} is of keypoints (kpt_shape), which are read from COCO's form only")
    return said


def _root(data: Path, said: Mapping[str, Any], root: Path | None) -> Path:
    """The folder that paths count from."""
    found = root.expanduser() if root else data.parent / Path(str(said.get("path") or ".")).expanduser()
    if not found.is_dir():
        raise ValueError(f"{data}: path {said.get('path')!r} leads to {found}, which is no folder; root: overrules it")
    return found


def _classes(data: Path, names: Any) -> tuple[list[int], list[str]]:
    """Numbers and names of the classes, in ascending order of the numbers."""
    found = dict(enumerate(names)) if isinstance(names, list) else names
    if not isinstance(found, dict) or not all(type(number) is int and number >= 0 for number in found):
        raise ValueError(f"{data}: names is {names!r:.60}; expected a list of names, or names by number from 0")
    return sorted(found), [str(found[number]) for number in sorted(found)]


def _pictures(data: Path, said: Mapping[str, Any], split: str, root: Path, told: Faults) -> list[bytes]:
    """Paths below the root of the pictures of a split, each once."""
    if not said.get(split):
        splits = ", ".join(key for key in ("train", "val", "test") if said.get(key)) or "none"
        raise ValueError(f"{data} has no split {split!r}; splits: {splits}")
    entries = said[split] if isinstance(said[split], list) else [said[split]]
    names: dict[bytes, None] = {}
    for entry in entries:
        for name in _found(data, root, str(entry)):
            if name in names:
                told.add(kinds.TWICE, os.fsdecode(name), "", f"in {split}")
            names[name] = None
    return list(names)


def _found(data: Path, root: Path, entry: str) -> list[bytes]:
    """The pictures of a folder, or of a list: there, paths that begin with ``./`` count from its own folder."""
    path = root / entry
    if not path.exists() and entry.startswith("../"):  # Roboflow writes ../train/images and means train/images
        path = root / entry.removeprefix("../")
    if path.is_dir():
        walk = os.walk(os.fsencode(path), followlinks=True)
        files = sorted(os.path.join(folder, name) for folder, _, held in walk for name in held if is_picture(name))
    elif path.is_file():
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        files = [os.fsencode((path.parent if line.startswith("./") else root) / line) for line in lines]
    else:
        raise ValueError(f"{data}: there is no {path}")
    if not files:
        raise ValueError(f"{data}: {path} holds no picture")
    return [os.path.relpath(file, os.fsencode(root)) for file in files]


# --- lines ------------------------------------------------------------------------------------------------------------


class _Line(NamedTuple):
    """A class number, a box (left, top, width, height) in fractions of the picture, and a polygon if it has one."""

    number: float
    box: tuple[float, float, float, float]
    polygon: Sequence[float]


def _things(
    data: Path,
    root: Path,
    names: Sequence[bytes],
    sizes: Any,
    labels: Mapping[int, int],
    outlines: Outlines | None,
    told: Faults,
) -> Things:
    files = [_labels_of(name) for name in names]
    there = are_there(root, files)
    if names and not there.any():
        raise ValueError(f"{data}: no picture has labels; expected {os.fsdecode(files[0])} in {root}")
    rows: list[tuple[int, int, tuple[float, ...], int]] = []
    drawn: list[int] = []
    for picture in np.flatnonzero(there).tolist():
        name, (height, width) = os.fsdecode(files[picture]), sizes[picture].tolist()
        try:
            text = Path(os.fsdecode(os.path.join(os.fsencode(root), files[picture]))).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            told.add(kinds.BAD_LABELS, name, "", error)
            continue
        for place, words in enumerate(text.splitlines(), 1):
            if not words.strip():
                continue
            line = _line(words)
            if line is None:
                told.add(kinds.BAD_LINE, name, f"line {place}", words[:60])
            elif line.number not in labels:
                told.add(kinds.UNKNOWN_CLASS, name, f"line {place}", f"class {line.number:g}")
            elif outlines is not None and not line.polygon:
                told.add(kinds.NO_OUTLINE, name, f"line {place}", words[:60])
            elif (label := labels[int(line.number)]) >= 0:
                scale = (width, height)
                box = tuple(value * scale[side % 2] for side, value in enumerate(line.box))
                rows.append((picture, place, box, label))
                if outlines is not None:
                    polygon = [value * scale[side % 2] for side, value in enumerate(line.polygon)]
                    drawn.append(outlines.add([polygon]))
    pictures, ids, boxes, classes = zip(*rows, strict=True) if rows else ((),) * 4
    found = np.array(boxes, dtype=np.float64).reshape(-1, 4)
    return Things(
        pictures=np.array(pictures, dtype=np.int64),
        ids=np.array(ids, dtype=np.int64),
        boxes=found,
        labels=np.array(classes, dtype=np.int64),
        areas=found[:, 2] * found[:, 3],
        crowd=np.zeros(len(rows), dtype=bool),
        learnt=np.ones(len(rows), dtype=bool),
        outlines=None if outlines is None else np.array(drawn, dtype=np.int64),
    )


def _labels_of(name: bytes) -> bytes:
    """``images/a/1.jpg`` to ``labels/a/1.txt``, the last ``images`` counting; without one beside the picture."""
    before, folder, after = (b"/" + name).rpartition(b"/images/")
    path = before + b"/labels/" + after if folder else b"/" + name
    return os.path.splitext(path)[0].removeprefix(b"/") + b".txt"


def _line(words: str) -> _Line | None:
    """What a line says, or None where it is no box and no polygon."""
    try:
        number, *values = map(float, words.split())
    except ValueError:
        return None
    if not math.isfinite(number + sum(values)):
        return None
    if len(values) == 4:
        x, y, width, height = values
        return _Line(number, (x - width / 2, y - height / 2, width, height), ())
    if len(values) < 6 or len(values) % 2:
        return None
    left, top = min(values[::2]), min(values[1::2])
    return _Line(number, (left, top, max(values[::2]) - left, max(values[1::2]) - top), values)
