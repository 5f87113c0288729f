"""Text files beside images or in a second folder: YOLO's boxes and polygons, DOTA's oriented boxes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from opabinia.data.decoding.images import EXTENSIONS
from opabinia.data.layouts.class_names import CLASS_FILES, ClassNames, find_class_names
from opabinia.data.layouts.folder import SPLITS, Folder, UnreadableLayout, listed, split_in
from opabinia.data.layouts.layout import Layout
from opabinia.data.layouts.pairing import above, check_alone, paired_folders
from opabinia.data.layouts.readings import check_training, convert, with_alternatives, with_masks
from opabinia.data.sources.yolo import KeypointShape, label_file, read_data_yaml, read_keypoint_shape
from opabinia.runtime.text import plural

_FEW = 10
"""Lines of label files that do not have equally many numbers by chance."""
_SAMPLED = 50
"""Label files of a split that are read to see which shapes they hold."""
_READ = 20_000
"""Label files that are read to collect the names or numbers of all classes."""
_LINE = re.compile(r"\d+(\s+-?[\d.]+(e-?\d+)?){4,}\s*", re.IGNORECASE)


def read_yolo(folder: Folder) -> Iterator[Layout]:
    """Yield the reading of a ``data.yaml``; or of folders of images and of label files without one.

    Raises:
        UnreadableLayout: ``data.yaml`` is broken, or its folders do not exist.
    """
    files = [name for name in folder.named(".yaml", ".yml") if _is_data_yaml(folder, name)]
    for file in files:
        yield from _read_yaml(folder, file, "yolo" if len(files) == 1 else f"yolo_{os.path.splitext(file)[0]}")
    if files or folder.only is not None:
        return
    below = [folder.sub(place) for place in folder.places((".yaml", ".yml")) if place]
    below = [inner for inner in below if any(_is_data_yaml(inner, name) for name in inner.named(".yaml", ".yml"))]
    if len(below) == 1 and below[0].holds():
        yield from read_yolo(below[0])
    elif not below:
        yield from _read_folders(folder)


def _is_data_yaml(folder: Folder, name: str) -> bool:
    keys = set(re.findall(r"^['\"]?(names|train|val|nc)['\"]?\s*:", folder.head(name), re.MULTILINE))
    return "names" in keys and bool(keys & {"train", "val"})


_KEYS = {"train": ("train",), "val": ("val", "valid", "validation"), "test": ("test",)}
"""Keys of ``data.yaml`` for each split."""


def _read_yaml(folder: Folder, file: str, name: str) -> Iterator[Layout]:
    try:
        content, names = read_data_yaml(folder.path / file)
    except ValueError as error:
        raise UnreadableLayout(str(error)) from error
    keys = {split: key for split, known in _KEYS.items() if (key := next(filter(content.get, known), None))}
    section, notes = {"name": "yolo", "data": folder.at(file)}, list[str]()
    root = os.path.expanduser(str(content.get("path") or "."))
    if not folder.has(root):
        near = os.path.basename(root) if os.path.basename(root) in folder.folders else ""
        notes.append(f"{folder.at(file)}: there is no folder {root} (path); {folder.at(near)} is used in its place")
        section["root"], root = folder.at(near), near or "."
    places: dict[str, list[str]] = {}
    for split, key in keys.items():
        entries = content[key] if isinstance(content[key], list) else [content[key]]
        found = [_find(folder, root, str(entry)) for entry in entries]
        missing = [str(entry) for entry, place in zip(entries, found, strict=True) if place is None]
        if missing and split != "test":
            place = os.path.normpath(folder.path / root / missing[0])
            raise UnreadableLayout(
                f"{folder.at(file)}: {key} is {missing[0]}, but there is no {place}; expected images"
            )
        if missing:
            notes.append(f"{folder.at(file)}: test is {missing[0]}, which does not exist, and is not read")
        else:
            places[split] = [place for place in found if place is not None]
    sections = {split: {**section, "split": keys[split]} for split in places}
    check_training(folder, sections, f"{file} should have the key train")
    lines = _sample_lines(folder, places["train"][0])
    used = [os.path.normpath(place).partition("/")[0] for found in places.values() for place in found]
    notes += folder.others([file, "images", "labels", *used])
    description = f"boxes of {plural(len(names), 'class', 'es')} in YOLO's format ({file})"
    layout = Layout(name, "detection", description, sections, notes=notes)
    shape = read_keypoint_shape(folder.path / file, content)
    yield from _shapes(layout, lines) if shape is None else _keypoints(layout, shape)


def _find(folder: Folder, root: str, entry: str) -> str | None:
    """Return the path below the folder of an entry of ``data.yaml``; None if it does not exist."""
    paths = [os.path.join(root, entry), os.path.join(root, entry.removeprefix("../"))]
    return next((path for path in paths if folder.has(path)), None)


def _sample_lines(folder: Folder, place: str) -> list[str]:
    """Return the lines of the label files of some images in a folder, or in a list of images."""
    path = folder.path / place
    if path.is_dir():
        images = Folder(path, place).tree(EXTENSIONS, _SAMPLED)
    else:
        images = _lines(str(path))[:_SAMPLED]
        place = os.path.dirname(place)
    return [line for image in images for line in _lines(_label_path(folder, place, image))]


def _label_path(folder: Folder, place: str, image: str) -> str:
    """Return the label file of an image in a folder below ``folder``."""
    return os.path.join(folder.path, os.fsdecode(label_file(os.fsencode(os.path.join(place, image)))))


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8-sig", errors="replace") as file:
            return [line.strip() for line in file.read(1 << 20).splitlines() if line.strip()]
    except OSError:
        return []


def _keypoints(layout: Layout, shape: KeypointShape) -> Iterator[Layout]:
    """Yield the reading of boxes with keypoints, and that of boxes."""
    described = replace(layout, description=f"{layout.description}, with {len(shape.names)} keypoints")
    points = convert(described, "keypoints", lambda section: {**section, "keypoints": True})
    yield from with_alternatives(points, [layout])


def _shapes(layout: Layout, lines: Sequence[str]) -> Iterator[Layout]:
    """Yield the reading of boxes or polygons, and the others that the lines of label files allow. Objects of four
    corners each may be oriented boxes or polygons, which have a layout of their own, so that the user is asked.

    Raises:
        UnreadableLayout: after the readings: all lines are equally long, and longer than those of four corners.
    """
    counts = {len(line.split()) for line in lines}
    if counts == {9}:
        corners = replace(layout, description=layout.description.replace("boxes", "four corners", 1))
        oriented = convert(corners, "detection", lambda section: {**section, "oriented": True})
        yield replace(oriented, description=f"{corners.description}, as oriented boxes")
        polygons = replace(corners, name=f"{layout.name}_polygons", description=f"{corners.description}, as polygons")
        yield from with_masks(polygons)
    elif lines and min(counts) >= 7:
        yield from with_alternatives(layout, with_masks(layout))
    else:
        yield layout
    if len(counts) == 1 and min(counts) > 9 and len(lines) >= _FEW:
        number = min(counts)
        raise UnreadableLayout(
            f"every line of the label files has {number} numbers, as keypoints have; these need kpt_shape in a "
            f"data.yaml, such as kpt_shape: [{max(1, (number - 5) // 3)}, 3]; or they are polygons"
        )


# --- without data.yaml ------------------------------------------------------------------------------------------------


def _read_folders(folder: Folder) -> Iterator[Layout]:
    """Yield the reading of images with label files, in the folders ``images`` and ``labels``, or beside each other."""
    places, labels = _image_folders(folder), dict[str, str]()
    if not places:
        pairs = paired_folders(folder, ".txt", _holds_labels)
        places = {split: images for split, (images, _) in pairs.items()}
        labels = {split: place for split, (_, place) in pairs.items()}
    if not places:
        return
    first = "train" if "train" in places else next(iter(places))
    if labels:
        inner = folder.sub(labels[first])
        lines = [line for name in inner.named(".txt")[:_SAMPLED] for line in _lines(str(inner.path / name))]
        lines = [line for line in lines if _LINE.fullmatch(line)]  # there may be a file with names of classes
    else:
        lines = _sample_lines(folder, places[first])
    if not lines or not all(_LINE.fullmatch(line) for line in lines):
        return
    check_training(folder, places, "expected a folder train")
    near = list(places.values()), list(labels.values())
    used = [place.partition("/")[0] for place in [*places.values(), *labels.values()]]
    if given := _class_names(folder, *near):
        names, note = list(given[0][0]), []
        used.append(given[1].partition("/")[0])
    else:
        names = [f"class_{number}" for number in range(_count_classes(folder, *near))]
        note = [f"no file has the names of the classes; classes.txt in {folder.text} would, with a name per line"]
    sections = {
        split: {"name": "yolo", "data": folder.at(place), "root": folder.text, "names": names}
        | ({"labels": labels[split]} if labels else {})
        for split, place in places.items()
    }
    check_alone(folder, used)
    used += ["images", "labels", *folder.splits.values()]
    layout = Layout(
        "yolo",
        "detection",
        f"boxes of {plural(len(names), 'class', 'es')} in YOLO's format, without a data.yaml",
        sections,
        notes=[*note, *folder.others(used)],
    )
    yield from _shapes(layout, lines)


def _image_folders(folder: Folder) -> dict[str, str]:
    """Return the folder of images of each split with label files."""
    images, found = folder.find("images", "image", "imgs"), {}
    if images == "images" and "labels" in folder.folders:
        found = {split: f"images/{name}" for split, name in folder.sub("images").splits.items()}
        found = found or {"train": "images"}
    for split, name in folder.splits.items() if not found else ():
        place = f"{name}/images" if "images" in folder.sub(name).folders else name
        if _sample_lines(folder, place):
            found[split] = place
    if not found:  # images and label files beside each other, such as obj_train_data
        below = [name for name in folder.folders[:50] if folder.sub(name).named(*EXTENSIONS)]
        below = [name for name in below if _sample_lines(folder, name)]
        found = {split_in(name) or "train": name for name in below} if len(below) < 4 else {}
    if not found and folder.named(*EXTENSIONS):
        found = {"train": ""}
    return {split: place for split, place in found.items() if _sample_lines(folder, place)}


def _holds_labels(folder: Folder) -> bool:
    """Return whether the first text files have lines of YOLO's format."""
    names = [name for name in folder.named(".txt") if name.lower() not in CLASS_FILES]
    lines = [line for name in names[:20] for line in _lines(str(folder.path / name))[:20]]
    return bool(lines) and all(_LINE.fullmatch(line) for line in lines)


def _class_names(folder: Folder, places: Sequence[str], labels: Sequence[str]) -> tuple[ClassNames, str] | None:
    """Return the names of the classes, and the file that has them, next to images or label files; None without one.

    Raises:
        UnreadableLayout: the file cannot be read.
    """
    of_labels = [place.replace("images", "labels", 1) for place in places]
    near = ["labels", *map(above, places), *places, *labels, *of_labels]
    return find_class_names(folder, [place for place in near if os.path.isdir(folder.path / place)])


def _count_classes(folder: Folder, places: Sequence[str], labels: Sequence[str]) -> int:
    """Return the number of classes by the largest number in the label files."""
    files = [
        _label_path(folder, place, image)
        for place in ([] if labels else places)
        for image in Folder(folder.path / place, place).tree(EXTENSIONS, _READ)
    ]
    files += [str(folder.path / place / name) for place in labels for name in folder.sub(place).named(".txt")[:_READ]]
    numbers = (line.split()[0] for file in files for line in _lines(file) if _LINE.fullmatch(line))
    return max(map(int, numbers), default=0) + 1


# --- DOTA -------------------------------------------------------------------------------------------------------------


_CORNERS = re.compile(r"(-?[\d.]+\s+){8}\S+\s+[012]")


def read_dota(folder: Folder) -> Iterator[Layout]:
    """Yield the reading of images with label files of four corners for each object."""
    places = {split: name for split, name in folder.splits.items() if _label_folder(folder.sub(name))}
    if not places and _label_folder(folder):
        places = {"train": ""}
    if not places:
        return
    check_training(folder, places, "expected a folder train")
    classes: set[str] = set()
    for place in places.values():
        labels = folder.sub(place).sub(_label_folder(folder.sub(place)) or "")
        rows = (line.split() for name in labels.named(".txt")[:_READ] for line in _lines(str(labels.path / name)))
        classes |= {row[8] for row in rows if len(row) == 10}
    sections: dict[str, Mapping[str, Any]] = {}
    for split, place in places.items():
        labels_name = _label_folder(folder.sub(place))
        section = {"name": "dota", "root": folder.at(place), "labels": labels_name, "classes": sorted(classes)}
        sections[split] = section
    notes = folder.others([*places.values(), "images", "labelTxt", "annfiles"])
    yield Layout(
        "dota",
        "detection",
        f"oriented boxes of {plural(len(classes), 'class', 'es')} in DOTA's format: {listed(sorted(classes))}",
        sections,
        notes=notes,
    )


def _label_folder(folder: Folder) -> str | None:
    """Return the folder with label files of DOTA, beside a folder ``images``."""
    if "images" not in folder.folders:
        return None
    for name in folder.places((".txt",)):
        if name.partition("/")[0] in ("", "images") or name.partition("/")[0].lower() in SPLITS:
            continue
        files = folder.sub(name).named(".txt")[:5]
        lines = [line for file in files for line in _lines(str(folder.sub(name).path / file))]
        lines = [line for line in lines if not line.lower().startswith(("imagesource:", "gsd:"))]
        if lines and all(_CORNERS.fullmatch(line) for line in lines):
            return name
    return None
