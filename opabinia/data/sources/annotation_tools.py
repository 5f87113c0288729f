"""Annotations of LabelMe (a JSON file for each image) and CVAT (one XML file): polygons and other shapes."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree.ElementTree import Element

import numpy as np
from numpy.typing import NDArray

from opabinia.config import register
from opabinia.contracts import Channels, InputPath
from opabinia.contracts.masks import compress_rle, encode_rle
from opabinia.data.decoding.images import EXTENSIONS
from opabinia.data.file_search import find_files
from opabinia.data.sources import annotation_errors as kinds
from opabinia.data.sources.annotation_errors import Broken, ErrorCollector
from opabinia.data.sources.annotation_values import (
    errors_in,
    image_size,
    numbers,
    parse_json,
    parse_number,
    parse_whole,
    shortened,
    text,
)
from opabinia.data.sources.detection_base import (
    AnnotatedImages,
    DetectionListing,
    Empty,
    build_source,
    given_classes,
    pick_classes,
)
from opabinia.data.sources.file_names import printable
from opabinia.data.sources.folder import existing_folder
from opabinia.data.sources.list_files import existing_file
from opabinia.data.sources.voc import parse_xml

Polygon = list[float]
"""Corners x, y, x, y ..., in pixels."""


def rectangle(left: float, top: float, right: float, bottom: float) -> Polygon:
    """Return the corners of a rectangle."""
    return [left, top, right, top, right, bottom, left, bottom]


def ellipse(x: float, y: float, radius_x: float, radius_y: float) -> Polygon:
    """Return a polygon of 90 corners around the center ``x``, ``y``."""
    angles = 2 * np.pi * np.arange(90) / 90
    points = np.stack([x + radius_x * np.cos(angles), y + radius_y * np.sin(angles)], 1)
    return points.ravel().tolist()


def rotate(polygon: Polygon, degrees: float) -> Polygon:
    """Return a symmetric polygon turned clockwise about its center."""
    points, angle = np.reshape(polygon, (-1, 2)), np.deg2rad(degrees)
    center, turn = points.mean(0), [[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]]
    return ((points - center) @ np.array(turn) + center).ravel().tolist()  # type: ignore[no-any-return]


# --- LabelMe ----------------------------------------------------------------------------------------------------------


@register.source
def labelme(
    *,
    root: InputPath,
    annotations: str = "",
    images: str = "",
    masks: bool = False,
    classes: list[str] | None = None,
    empty: Empty = "keep",
    broken: Broken = "error",
    channels: Channels = 3,
) -> AnnotatedImages:
    """Images annotated with LabelMe: all JSON files below a folder, with polygons, rectangles and circles.

    Shapes of an image with the same label and ``group_id`` are one object. A sample's id is the path of its image below
    the root. ``object_maps`` makes segmentation maps of the objects.

    Args:
        root: the folder with the JSON files; images are where their ``imagePath`` leads, or next to them.
        annotations: the folder below the root with the JSON files, if they are not in all of it.
        images: the folder below the root in which images are searched, if they are not next to the JSON files.
        masks: instance masks from the shapes; otherwise only their bounding boxes.
        classes: names of the labels to use, in the order of the classes, other shapes are dropped; all that occur,
            sorted, when not given.
        empty: ``drop`` drops images without objects.
        broken: for shapes without area (lines and points), shapes beyond the image, missing images and broken files:
            ``error`` raises; ``clip`` clips shapes to the image and drops those without area; ``drop`` drops them.
            ``fix`` clips what ``clip`` does and drops the rest.
        channels: 3 for color, 1 for gray; images are converted.

    Raises:
        ValueError: there are no JSON files, or there are errors that ``broken`` does not allow.
    """
    root = existing_folder(root, "root is the folder that holds the JSON files")
    files = find_files(root, annotations, [".json"])
    if not files:
        raise ValueError(f"{root / annotations} has no JSON files")
    listing = DetectionListing(file=root, root=root, classes=given_classes(root, classes), masks=masks, noun="object")
    seen: set[bytes] = set()
    for file in map(os.fsdecode, files):
        content = _read_labelme(root, file, images, listing.errors)
        if content is None:
            continue
        name, size, objects = content
        if name in seen:
            listing.errors.add(kinds.DUPLICATE_IMAGE, os.fsdecode(name), "", f"also in {file}")
            continue
        seen.add(name)
        image = listing.add_image(name, size)
        chosen = [key for key in objects if classes is None or key[0] in classes]
        for number, key in enumerate(chosen, 1):
            listing.add(image, number, key[0], polygons=objects[key])
    return build_source(listing, broken=broken, empty=empty, channels=channels)


def _read_labelme(
    root: Path, name: str, images: str, errors: ErrorCollector
) -> tuple[bytes, tuple[int, int], dict[tuple[str, str], list[Polygon]]] | None:
    """Return the path of the image below the root, its height and width (0 if not given), and the polygons of each
    object, by label and group. Shapes without area are errors, as is a file that cannot be read (None)."""
    objects: dict[tuple[str, str], list[Polygon]] = {}
    where = ""
    try:
        content = parse_json((root / name).read_bytes(), "it")
        image = _find_image(root, name, images, text(content["imagePath"]))
        sides = content.get("imageHeight") or 0, content.get("imageWidth") or 0
        size = image_size(*sides) if all(sides) else (0, 0)
        for number, shape in enumerate(content["shapes"], 1):
            where = f"shape {number}: "
            kind, points = shape.get("shape_type") or "polygon", shape["points"]
            if not isinstance(points, list) or any(numbers(point, 2) is None for point in points):
                raise ValueError(f"points {shortened(points)} are not lists of two numbers")
            polygon = _outline(kind, np.array(points, dtype=np.float64).reshape(-1, 2))
            if polygon is None:
                value = f"a {kind!s:.60} of {len(points)} points"
                errors.add(kinds.BAD_SEGMENTATION, name, f"shape {number}", value)
            else:
                group = shape.get("group_id")
                key = printable(text(shape["label"])), where if group is None else text(group)
                objects.setdefault(key, []).append(polygon)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        value = f"not a file of LabelMe: {where}{type(error).__name__}: {error}"
        errors.add(kinds.BAD_LABELS, name, "", value)
        return None
    return image, size, objects


def _find_image(root: Path, name: str, images: str, image_path: str) -> bytes:
    """Return the path below the root of an image: ``image_path`` seen from the JSON file, or an image of its name there
    or in the folder ``images``."""
    folder, image_path = os.path.dirname(name), image_path.replace("\\", "/")
    paths = [os.path.normpath(os.path.join(folder, image_path))]
    stems = [os.path.splitext(name)[0]]
    if images:
        paths.append(os.path.join(images, os.path.basename(image_path)))
        stems.append(os.path.join(images, os.path.basename(stems[0])))
    paths += [stem + extension for stem in stems for extension in EXTENSIONS]
    names = [os.fsencode(path) for path in paths]
    return next((path for path in names if os.path.exists(os.path.join(os.fsencode(root), path))), names[0])


def _outline(kind: Any, points: np.ndarray[Any, np.dtype[np.float64]]) -> Polygon | None:
    """Return a shape as a polygon; None if it has no area."""
    if kind == "polygon" and len(points) >= 3:
        return points.ravel().tolist()
    if kind == "rectangle" and len(points) == 2:
        return rectangle(*points.min(0).tolist(), *points.max(0).tolist())
    if kind == "circle" and len(points) == 2:
        (x, y), edge = points.tolist()
        radius = math.dist((x, y), edge)
        return ellipse(x, y, radius, radius)
    return None


# --- CVAT -------------------------------------------------------------------------------------------------------------


@register.source
def cvat(
    *,
    root: InputPath,
    file: InputPath,
    masks: bool = False,
    classes: list[str] | None = None,
    empty: Empty = "keep",
    broken: Broken = "error",
    channels: Channels = 3,
) -> AnnotatedImages:
    """Images annotated with CVAT, exported as "CVAT for images 1.1": polygons, boxes, ellipses and brush masks.

    Later shapes, and those with a higher ``z_order``, come after others. Tags are ignored. A sample's id is its path
    below the root. ``object_maps`` makes segmentation maps of the objects.

    Args:
        root: the folder that image names are relative to, often ``images``.
        file: the XML file, often ``annotations.xml``.
        masks: instance masks from the shapes; otherwise only their bounding boxes.
        classes: names of the labels to use, in the order of the classes; all labels of the task when not given.
        empty: ``drop`` drops images without objects.
        broken: for shapes without area (polylines and points), shapes beyond the image and missing images: ``error``
            raises; ``clip`` clips shapes to the image and drops those without area; ``drop`` drops them. ``fix`` clips
            what ``clip`` does and drops the rest.
        channels: 3 for color, 1 for gray; images are converted.

    Raises:
        ValueError: the file is not such an XML file, or has errors that ``broken`` does not allow.
    """
    root, file = existing_folder(root, "root is the folder that holds the images"), existing_file(file)
    with errors_in(f"{file} is not an XML file of CVAT for images 1.1: ", OSError, ValueError):
        top = parse_xml(file.read_bytes())
        all_images = [_Image.parse(element) for element in top.findall("image")]
    with errors_in(f"{file}: the name of a label: "):
        names = [text(element.text or "") for element in top.findall("meta/*/labels/label/name")]
    chosen = [names[index] for index in pick_classes(file, names, classes)]
    labels = dict.fromkeys(names, -1) | {name: label for label, name in enumerate(chosen)}
    listing = DetectionListing(file=file, root=root, classes=chosen, masks=masks, noun="shape")
    for name, count in Counter(image.name for image in all_images).items():
        if count > 1:
            listing.errors.add(kinds.DUPLICATE_IMAGE, name, "", f"{count} times")
    seen: set[str] = set()
    for image in all_images:
        if image.name not in seen:
            seen.add(image.name)
            index = listing.add_image(os.fsencode(image.name), image.size)
            for number, element in enumerate(image.elements, 1):
                _add_shape(listing, index, number, image, element, labels)
    return build_source(listing, broken=broken, empty=empty, channels=channels)


class _Image(NamedTuple):
    """An image: its height and width, and its shapes in the order in which they are drawn."""

    name: str
    size: tuple[int, int]
    elements: Sequence[Element]

    @classmethod
    def parse(cls, element: Element) -> _Image:
        """Read the attributes of an ``image`` element.

        Raises:
            ValueError: it has no name or size, or a ``z_order`` is no integer.
        """
        name = element.get("name", "")
        with errors_in(f"image {name!r:.60} has no width and height: "):
            size = image_size(*(parse_whole(element.get(side, "")) for side in ("height", "width")))
        if not name:
            raise ValueError(f"an image of {size[1]} x {size[0]} pixels has no name")
        shapes = [shape for shape in element if shape.tag != "tag"]
        with errors_in(f"image {name!r:.60}: z_order "):
            shapes.sort(key=lambda shape: parse_whole(shape.get("z_order") or "0"))
        return cls(name, size, shapes)


def _add_shape(
    listing: DetectionListing, index: int, number: int, image: _Image, element: Element, labels: Mapping[str, int]
) -> None:
    name, place = element.get("label", ""), f"shape {number}"
    if name not in labels:
        listing.errors.add(kinds.UNKNOWN_CLASS, image.name, place, f"label {name!r}")
    elif labels[name] >= 0:
        try:
            if element.tag == "mask":
                box, rle = _read_mask(element, image.size)
                listing.add(index, number, labels[name], box, rle=rle)
            else:
                listing.add(index, number, labels[name], polygons=[_read_shape(element)])
        except ValueError as error:
            listing.errors.add(kinds.BAD_SEGMENTATION, image.name, place, error)


def _attributes(element: Element, names: str) -> list[float]:
    """Return attributes that are numbers.

    Raises:
        ValueError: one is missing, not finite or too large.
    """
    with errors_in(f"a {element.tag} without the numbers {names}: "):
        return [parse_number(element.get(name, "")) for name in names.split()]


def _read_shape(element: Element) -> Polygon:
    """Return a shape as a polygon.

    Raises:
        ValueError: it has no area, or cannot be read.
    """
    if element.tag in ("box", "ellipse"):
        is_box = element.tag == "box"
        sides = _attributes(element, "xtl ytl xbr ybr" if is_box else "cx cy rx ry")
        if (sides[2] < sides[0] or sides[3] < sides[1]) if is_box else min(sides[2:]) < 0:
            raise ValueError(f"a {element.tag} of a negative size: {', '.join(f'{value:g}' for value in sides)}")
        polygon = rectangle(*sides) if is_box else ellipse(*sides)
        return rotate(polygon, parse_number(element.get("rotation") or "0"))
    points = [parse_number(value) for value in element.get("points", "").replace(";", ",").split(",")]
    if element.tag != "polygon" or len(points) < 6 or len(points) % 2:
        raise ValueError(f"a {element.tag} of {len(points) // 2} points")
    return points


def _read_mask(element: Element, size: tuple[int, int]) -> tuple[list[float], bytes]:
    """Return the box (left, top, width, height) and the compressed RLE of a mask, which is stored as the lengths of
    runs outside and inside in turn, row by row of its box.

    Raises:
        ValueError: the runs do not fill the box, or the box is not in the image.
    """
    left, top, width, height = (int(value) for value in _attributes(element, "left top width height"))
    runs = [parse_whole(value, 0, 2**31) for value in element.get("rle", "").split(",")]
    if min(width, height) < 1 or sum(runs) != width * height:
        raise ValueError(f"a mask of {sum(runs)} pixels for {width} x {height}")
    if min(left, top) < 0 or left + width > size[1] or top + height > size[0]:
        raise ValueError(f"a mask that extends beyond the image: left {left}, top {top}, {width} x {height}")
    mask: NDArray[np.bool_] = np.zeros(size, dtype=bool)
    inside = np.arange(len(runs)) % 2 == 1
    mask[top : top + height, left : left + width] = np.repeat(inside, runs).reshape(height, width)
    return [left, top, width, height], compress_rle(encode_rle(mask), size).encode("ascii")
