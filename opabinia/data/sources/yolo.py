"""Object detection in YOLO's text format: a label file per image, a line per object."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from opabinia.config import register
from opabinia.contracts import Channels, InputPath
from opabinia.data.sources import annotation_errors as kinds
from opabinia.data.sources.annotation_errors import Broken, ErrorCollector
from opabinia.data.sources.annotation_values import MAX_CLASSES, errors_in, numbers, shortened, text
from opabinia.data.sources.detection_base import (
    AnnotatedImages,
    DetectionListing,
    Empty,
    build_source,
    check_not_both,
    pick_classes,
    read_label_file,
)
from opabinia.data.sources.folder import image_files
from opabinia.data.sources.image_headers import files_exist
from opabinia.data.sources.list_files import read_text
from opabinia.runtime.files import describe_missing


@register.source
def yolo(
    *,
    data: InputPath,
    split: str = "train",
    root: InputPath | None = None,
    names: list[str] | None = None,
    labels: str | None = None,
    masks: bool = False,
    oriented: bool = False,
    classes: list[str] | None = None,
    empty: Empty = "keep",
    broken: Broken = "error",
    channels: Channels = 3,
) -> AnnotatedImages:
    """Images with bounding boxes in YOLO's format: a ``data.yaml``, and a ``labels/a/1.txt`` for ``images/a/1.jpg``.

    A line is a class number and the center, width and height of a box, or the corners of a polygon; all as fractions of
    the image. An image without a text file has no objects. ``data.yaml`` has the class names and for each split a
    folder of images (including subfolders), a list of folders, or a text file with an image per line. Sizes are read
    from the images' headers. A sample's id is its path below the root.

    Args:
        data: the ``data.yaml``; or, with ``names``, a folder of images.
        split: key of ``data.yaml`` to use: ``train``, ``val``, ``test``.
        root: the folder that its paths are relative to; its ``path``, or else its own folder, when not given.
        names: names of the classes in the order of their numbers, for a dataset without a ``data.yaml``.
        labels: the folder below the root with the text files, which are in the same subfolders there as the images are
            in ``data``; for a dataset without a ``data.yaml``. When not given, ``labels`` in place of ``images``, or
            beside the images.
        masks: read polygons; every line must have one.
        oriented: oriented boxes (Ultralytics' OBB): the rectangles of minimum area around the polygons; without
            ``masks``.
        classes: names of the classes to use, in the order of their labels; all of them when not given.
        empty: ``drop`` drops images without objects to train on.
        broken: handling of broken annotations: ``error`` raises; ``clip`` clips to the image and drops objects without
            area; ``drop`` drops them, and also invalid lines, unknown classes, missing and unreadable images. ``fix``
            clips what ``clip`` does and drops the rest.
        channels: 3 for color, 1 for gray; images are converted.

    Raises:
        ValueError: ``data.yaml`` is invalid, there are no images or no labels, or there are errors that ``broken`` does
            not allow; or both masks and oriented boxes are asked for.
    """
    data = data.expanduser()
    check_not_both(masks, oriented)
    content, class_names = _read_classes(data, names, split)
    root = (
        root.expanduser() if root else data.parent / os.path.expanduser(_text(data, "path", content.get("path") or "."))
    )
    if not root.is_dir():
        path = shortened(content.get("path"))
        raise ValueError(f"{data}: path {path} leads to {root}, which is not a folder; set root")
    if "nc" in content and content["nc"] != len(class_names):
        raise ValueError(f"{data}: nc is {shortened(content['nc'])}, but {len(class_names)} classes have names")
    class_numbers = list(class_names)
    chosen = [class_numbers[index] for index in pick_classes(data, list(class_names.values()), classes)]
    label_of = dict.fromkeys(class_names, -1) | {number: label for label, number in enumerate(chosen)}
    listing = DetectionListing(
        file=data,
        root=root,
        classes=[class_names[number] for number in chosen],
        category_ids=chosen,
        masks=masks,
        oriented=oriented,
        noun="line",
        below_root=False,  # folders and lists of a data.yaml may be anywhere
    )
    for name in _list_images(data, content, split, root, listing.errors):
        listing.add_image(name)
    images = None if names is None else os.path.relpath(data, root)
    _add_objects(listing, _label_files(listing.names, images, labels), label_of)
    return build_source(listing, broken=broken, empty=empty, channels=channels)


# --- data.yaml --------------------------------------------------------------------------------------------------------


def _read_classes(data: Path, names: list[str] | None, split: str) -> tuple[dict[str, Any], dict[int, str]]:
    """Return the content of ``data.yaml``, or what it would be for a folder, and the names of the classes.

    Raises:
        ValueError: it cannot be read, or a folder comes without names, or a file with names.
    """
    if data.is_dir() != (names is not None):
        reason = "has the names of the classes itself" if names else "is a folder: names gives the names of its classes"
        raise ValueError(f"{data} {reason}")
    if names is None:
        return read_data_yaml(data)
    return {split: os.path.abspath(data)}, dict(enumerate(names))


def read_data_yaml(data: Path) -> tuple[dict[str, Any], dict[int, str]]:
    """Return the content of a ``data.yaml``, and the names of the classes by their number, ascending.

    Raises:
        ValueError: it is not such a file.
    """
    yaml_text = read_text(data)
    try:
        content = _load_yaml(yaml_text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a date that does not exist
        raise ValueError(f"{data} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict) or "names" not in content:
        raise ValueError(f"{data} has no 'names'; expected train, val and names")
    if "kpt_shape" in content:
        raise ValueError(f"{data} has keypoints (kpt_shape), which are read from COCO's format only")
    names = content["names"]
    by_number = dict(enumerate(names)) if isinstance(names, list) else names
    if not isinstance(by_number, dict) or not all(type(key) is int and 0 <= key < MAX_CLASSES for key in by_number):
        raise ValueError(f"{data}: names is {shortened(names)}; expected a list of names, or names by number from 0")
    return content, {number: _text(data, f"names.{number}", by_number[number]) for number in sorted(by_number)}


_MAX_DEPTH = 50


def _load_yaml(content: str) -> Any:
    """Parse YAML that is not deep and has no aliases of lists and mappings, by which few lines stand for many values.

    Raises:
        ValueError, yaml.YAMLError, RecursionError: it is not such YAML.
    """
    anchors, depth = set(), 0
    for event in yaml.parse(content, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            anchors.add(event.anchor)
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _MAX_DEPTH:
            raise ValueError(f"lists and mappings are nested more than {_MAX_DEPTH} times")
        if isinstance(event, yaml.AliasEvent) and event.anchor in anchors:
            raise ValueError(f"*{event.anchor} stands for a list or mapping; write it out")
    return yaml.safe_load(content)


def _text(data: Path, key: str, value: Any) -> str:
    """Return a value of data.yaml that is text or a number.

    Raises:
        ValueError: it is something else.
    """
    try:
        return text(value)
    except ValueError as error:
        raise ValueError(f"{data}: {key}: {error}; write it in quotes") from error


def _list_images(data: Path, content: Mapping[str, Any], split: str, root: Path, errors: ErrorCollector) -> list[bytes]:
    """Return the paths below the root of the images of a split, each once."""
    if not content.get(split):
        splits = ", ".join(key for key in ("train", "val", "valid", "validation", "test") if content.get(key)) or "none"
        raise ValueError(f"{data} has no split {split!r}; splits: {splits}")
    entries = content[split] if isinstance(content[split], list) else [content[split]]
    names: dict[bytes, None] = {}
    for entry in entries:
        for name in _find_images(data, root, _text(data, split, entry)):
            if name in names:
                errors.add(kinds.DUPLICATE_IMAGE, os.fsdecode(name), "", f"in {split}")
            names[name] = None
    return list(names)


def _find_images(data: Path, root: Path, entry: str) -> list[bytes]:
    """Return the images of a folder, or of a list, in which paths with ``./`` are relative to its own folder."""
    path = root / entry
    if not path.exists() and entry.startswith("../"):  # Roboflow writes ../train/images and means train/images
        path = root / entry.removeprefix("../")
    if path.is_dir():
        walk = os.walk(os.fsencode(path), followlinks=True)
        files = sorted(image_files(os.path.join(folder, name) for folder, _, names in walk for name in names))
    elif path.is_file():
        with errors_in(f"{data}: {path} cannot be read: ", OSError):
            content = path.read_text(encoding="utf-8", errors="surrogateescape")  # names need not be valid UTF-8
        lines = [line.strip() for line in content.splitlines() if line.strip()]
        if "\0" in content:
            raise ValueError(f"{data}: {path} is not a text file")
        files = [os.fsencode((path.parent if line.startswith("./") else root) / line) for line in lines]
    else:
        raise ValueError(f"{data}: there is no {path}; {describe_missing(path)}")
    if not files:
        raise ValueError(f"{data}: {path} has no images")
    return [os.path.relpath(file, os.fsencode(root)) for file in files]


# --- label files ------------------------------------------------------------------------------------------------------


class _Line(NamedTuple):
    """A class number, a box (left, top, width, height) in fractions of the image, and a polygon if given."""

    number: float
    box: tuple[float, float, float, float]
    polygon: Sequence[float]


def _add_objects(listing: DetectionListing, files: Sequence[bytes], labels: Mapping[int, int]) -> None:
    """Add the objects in the label files of all images; ``labels`` has the label of each class number, -1 of those that
    are not used."""
    exist = files_exist(listing.root, files)
    if files and not exist.any():
        expected = os.fsdecode(files[0])
        raise ValueError(f"{listing.file}: no image has labels; expected {expected} in {listing.root}")
    needs_polygon = listing.masks or listing.oriented
    for image in np.flatnonzero(exist).tolist():
        name, size = os.fsdecode(files[image]), listing.sizes[image, ::-1]
        for number, words in enumerate(read_label_file(listing.root, name, listing.errors) or (), 1):
            if not words.strip():
                continue
            line, where = _parse_line(words), f"line {number}"
            if line is None:
                listing.errors.add(kinds.BAD_LINE, name, where, words[:60])
            elif line.number not in labels:
                listing.errors.add(kinds.UNKNOWN_CLASS, name, where, f"class {line.number:g}")
            elif needs_polygon and not line.polygon:
                listing.errors.add(kinds.NO_SEGMENTATION, name, where, words[:60])
            elif labels[int(line.number)] >= 0:
                box, polygon = (
                    (np.reshape(part, (-1, 2)) * size).ravel().tolist() for part in (line.box, line.polygon)
                )
                listing.add(image, number, labels[int(line.number)], box, polygons=[polygon])


def _label_files(names: Sequence[bytes], images: str | None, labels: str | None) -> list[bytes]:
    """Return the label file of each image.

    Args:
        names: paths of images below the root.
        images: the folder that they are in; None with a ``data.yaml``.
        labels: the folder of the label files in its place; None: see :func:`label_file`.

    Raises:
        ValueError: there is a folder of label files, and a ``data.yaml``.
    """
    if labels is None:
        return [label_file(name) for name in names]
    if images is None:
        raise ValueError("labels: the label files of a data.yaml are in labels beside images; labels goes with names")
    paths = (os.path.join(labels, os.path.relpath(os.fsdecode(name), images)) for name in names)
    return [os.fsencode(f"{os.path.splitext(path)[0]}.txt") for path in paths]


def label_file(name: bytes) -> bytes:
    """Return ``labels/a/1.txt`` for ``images/a/1.jpg`` (the last ``images`` counts); else a path beside the image."""
    before, folder, after = (b"/" + name).rpartition(b"/images/")
    path = before + b"/labels/" + after if folder else b"/" + name
    return os.path.splitext(path)[0].removeprefix(b"/") + b".txt"


def _parse_line(words: str) -> _Line | None:
    """Parse a line; None if it is neither a box nor a polygon."""
    try:
        number, *values = map(float, words.split())
    except ValueError:
        return None
    if numbers([number, *values]) is None:
        return None
    if len(values) == 4:
        x, y, width, height = values
        return _Line(number, (x - width / 2, y - height / 2, width, height), ())
    if len(values) < 6 or len(values) % 2:
        return None
    left, top = min(values[::2]), min(values[1::2])
    return _Line(number, (left, top, max(values[::2]) - left, max(values[1::2]) - top), values)
