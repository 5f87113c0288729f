"""Object detection in YOLO's text format: a label file per image, a line per object."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml
from numpy.typing import NDArray

from opabinia.config import register
from opabinia.contracts import Channels, Indices, InputPath
from opabinia.contracts.keypoints import COCO_SIGMAS
from opabinia.data.file_search import find_files
from opabinia.data.sources import annotation_errors as kinds
from opabinia.data.sources.annotation_errors import Broken, ErrorCollector
from opabinia.data.sources.annotation_values import MAX_CLASSES, errors_in, numbers, shortened, text
from opabinia.data.sources.detection_base import (
    PIXEL_CENTER,
    AnnotatedImages,
    DetectionListing,
    Empty,
    build_source,
    check_not_both,
    flip_pairs,
    pick_classes,
    read_label_file,
)
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
    keypoints: bool = False,
    classes: list[str] | None = None,
    empty: Empty = "keep",
    broken: Broken = "error",
    channels: Channels = 3,
) -> AnnotatedImages:
    """Images with bounding boxes in YOLO's format: a ``data.yaml``, and a ``labels/a/1.txt`` for ``images/a/1.jpg``.

    A line is a class number and the center, width and height of a box, or the corners of a polygon; all as fractions of
    the image. With ``kpt_shape`` in ``data.yaml`` (Ultralytics' format of poses) the keypoints follow the box: x, y and
    perhaps visibility of each. An image without a text file has no objects. ``data.yaml`` has the class names and for
    each split a folder of images (including subfolders), a list of folders, or a text file with an image per line.
    Sizes are read from the images' headers. A sample's id is its path below the root.

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
        keypoints: read keypoints. Without a visibility those at 0, 0 or below are not labeled. ``flip_idx`` of
            ``data.yaml`` has the counterpart of each in a mirrored image; ``kpt_names`` has their names, which are
            COCO's for 17 keypoints with its counterparts, and numbers otherwise.
        classes: names of the classes to use, in the order of their labels; all of them when not given.
        empty: ``drop`` drops images without objects to train on.
        broken: handling of broken annotations: ``error`` raises; ``clip`` clips to the image and drops objects without
            area; ``drop`` drops them, and also invalid lines, unknown classes, missing and unreadable images. ``fix``
            clips what ``clip`` does and drops the rest.
        channels: 3 for color, 1 for gray; images are converted.

    Raises:
        ValueError: ``data.yaml`` is invalid, or has no keypoints and they are asked for; there are no images or no
            labels, or there are errors that ``broken`` does not allow; or both masks and oriented boxes are asked for.
    """
    data = data.expanduser()
    check_not_both(masks, oriented)
    content, class_names = _read_classes(data, names, split)
    root = _find_root(data, content, root)
    shape = read_keypoint_shape(data, content)
    if keypoints and shape is None:
        raise ValueError(f"{data} has no keypoints: expected kpt_shape, such as [17, 3]")
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
        keypoints=shape.names if shape and keypoints else (),
        flip_pairs=shape.flip_pairs if shape and keypoints else None,
        noun="line",
        below_root=False,  # folders and lists of a data.yaml may be anywhere
    )
    for name in _list_images(data, content, split, root, listing.errors):
        listing.add_image(name)
    images = None if names is None else os.path.relpath(data, root)
    _add_objects(listing, _label_files(listing.names, images, labels), label_of, shape)
    return build_source(listing, broken=broken, empty=empty, channels=channels)


# --- data.yaml --------------------------------------------------------------------------------------------------------


def _read_classes(data: Path, names: list[str] | None, split: str) -> tuple[dict[str, Any], dict[int, str]]:
    """Return the content of ``data.yaml``, or what it would be for a folder, and the names of the classes.

    Raises:
        ValueError: it cannot be read or has another number of classes, or a folder comes without names, or a file with
            names.
    """
    if data.is_dir() != (names is not None):
        reason = "has the names of the classes itself" if names else "is a folder: names gives the names of its classes"
        raise ValueError(f"{data} {reason}")
    if names is None:
        content, by_number = read_data_yaml(data)
        if "nc" in content and content["nc"] != len(by_number):
            raise ValueError(f"{data}: nc is {shortened(content['nc'])}, but {len(by_number)} classes have names")
        return content, by_number
    return {split: os.path.abspath(data)}, dict(enumerate(names))


def _find_root(data: Path, content: Mapping[str, Any], root: Path | None) -> Path:
    """Return the folder that paths are relative to.

    Raises:
        ValueError: there is no such folder.
    """
    path = os.path.expanduser(_text(data, "path", content.get("path") or "."))
    root = root.expanduser() if root else data.parent / path
    if not root.is_dir():
        path = shortened(content.get("path"))
        raise ValueError(f"{data}: path {path} leads to {root}, which is not a folder; set root")
    return root


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
    names = content["names"]
    by_number = dict(enumerate(names)) if isinstance(names, list) else names
    if not isinstance(by_number, dict) or not all(type(key) is int and 0 <= key < MAX_CLASSES for key in by_number):
        raise ValueError(f"{data}: names is {shortened(names)}; expected a list of names, or names by number from 0")
    return content, {number: _text(data, f"names.{number}", by_number[number]) for number in sorted(by_number)}


class KeypointShape(NamedTuple):
    """The keypoints of an object.

    Attributes:
        names: of the keypoints.
        numbers: for each keypoint, 2 or 3: x, y and perhaps visibility.
        flip_pairs: index of each one's counterpart in a mirrored image; None: as names say.
    """

    names: tuple[str, ...]
    numbers: int
    flip_pairs: list[int] | None


def read_keypoint_shape(data: Path, content: Mapping[str, Any]) -> KeypointShape | None:
    """Return the keypoints by the content of ``data.yaml``; None without ``kpt_shape``.

    Raises:
        ValueError: ``kpt_shape``, ``flip_idx`` or ``kpt_names`` is invalid.
    """
    shape, pairs, names = content.get("kpt_shape"), content.get("flip_idx"), content.get("kpt_names")
    if shape is None:
        return None
    if numbers(shape, 2) is None or type(shape[0]) is not int or not 0 < shape[0] < 2**16 or shape[1] not in (2, 3):
        raise ValueError(f"{data}: kpt_shape is {shortened(shape)}; expected the number of keypoints, and 2 or 3")
    count = shape[0]
    if pairs is not None and (numbers(pairs, count) is None or sorted(pairs) != list(range(count))):
        raise ValueError(f"{data}: flip_idx is {shortened(pairs)}; expected each index from 0 to {count - 1} once")
    if isinstance(names, dict):  # of each class
        names = next(iter(names.values()), None) if len({*map(str, names.values())}) == 1 else None
    if names is not None and not (isinstance(names, list) and len(names) == count and {*map(type, names)} == {str}):
        raise ValueError(f"{data}: kpt_names is {shortened(names)}; expected {count} names")
    return KeypointShape(tuple(names or _keypoint_names(pairs or range(count))), shape[1], pairs)


def _keypoint_names(pairs: Sequence[int]) -> list[str]:
    """Return names for keypoints with these counterparts in a mirrored image: COCO's, or sides and numbers."""
    if [*pairs] == flip_pairs([*COCO_SIGMAS]):
        return [*COCO_SIGMAS]
    sides = ["keypoint" if pair == index else "left" if index < pair else "right" for index, pair in enumerate(pairs)]
    return [f"{side}_{min(index, pair)}" for index, (side, pair) in enumerate(zip(sides, pairs, strict=True))]


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
        files = [os.path.join(os.fsencode(path), name) for name in find_files(path)]
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
    """A class number, a box (left, top, width, height) in fractions of the image, a polygon if given, and the numbers
    of keypoints."""

    number: float
    box: tuple[float, float, float, float]
    polygon: Sequence[float]
    keypoints: Sequence[float] = ()


def _add_objects(
    listing: DetectionListing, files: Sequence[bytes], labels: Mapping[int, int], shape: KeypointShape | None
) -> None:
    """Add the objects in the label files of all images.

    Args:
        listing: has the images.
        files: the label file of each.
        labels: label of each class number, -1 of those that are not used.
        shape: of the keypoints that follow a box; None: there are none.
    """
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
            line, where = _parse_line(words, shape), f"line {number}"
            if line is None:
                listing.errors.add(kinds.BAD_KEYPOINTS if shape else kinds.BAD_LINE, name, where, words[:60])
            elif line.number not in labels:
                listing.errors.add(kinds.UNKNOWN_CLASS, name, where, f"class {line.number:g}")
            elif needs_polygon and not line.polygon:
                listing.errors.add(kinds.NO_SEGMENTATION, name, where, words[:60])
            elif labels[int(line.number)] >= 0:
                box, polygon = (
                    (np.reshape(part, (-1, 2)) * size).ravel().tolist() for part in (line.box, line.polygon)
                )
                points = _keypoints(line.keypoints, size, shape) if shape and listing.keypoints else ()
                if points is None:
                    listing.errors.add(kinds.BAD_KEYPOINTS, name, where, words[:60])
                else:
                    listing.add(image, number, labels[int(line.number)], box, polygons=[polygon], keypoints=points)


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


def _keypoints(values: Sequence[float], size: Indices, shape: KeypointShape) -> list[float] | None:
    """Return x, y in pixels and visibility of keypoints, which are 0 if they are not labeled; None if a visibility is
    not 0, 1 or 2.

    Args:
        values: of a line.
        size: width and height of the image.
        shape: of the keypoints.
    """
    points: NDArray[np.float64] = np.reshape(values, (-1, shape.numbers))
    positions = points[:, :2]
    visibility = points[:, 2] if shape.numbers > 2 else np.where((positions > 0).all(1), 2.0, 0.0)
    if not np.isin(visibility, (0, 1, 2)).all():
        return None
    pixels = np.column_stack([positions * size - PIXEL_CENTER, visibility])
    labeled: list[float] = np.where(visibility[:, None] > 0, pixels, 0.0).ravel().tolist()
    return labeled


def _parse_line(words: str, shape: KeypointShape | None) -> _Line | None:
    """Parse a line; None if it is neither a box, with keypoints if these have a shape, nor a polygon."""
    try:
        number, *values = map(float, words.split())
    except ValueError:
        return None
    if numbers([number, *values]) is None:
        return None
    if len(values) == 4 + (len(shape.names) * shape.numbers if shape else 0):
        x, y, width, height, *keypoints = values
        return _Line(number, (x - width / 2, y - height / 2, width, height), (), keypoints)
    if shape or len(values) < 6 or len(values) % 2:
        return None
    left, top = min(values[::2]), min(values[1::2])
    return _Line(number, (left, top, max(values[::2]) - left, max(values[1::2]) - top), values)
