"""Annotations of LabelMe: a JSON file with polygons for each image."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from opabinia.config import register
from opabinia.contracts import Channels, InputPath
from opabinia.data.decoding.images import EXTENSIONS
from opabinia.data.sources import annotation_errors as kinds
from opabinia.data.sources.annotation_errors import Broken, ErrorCollector, check_errors
from opabinia.data.sources.annotation_values import image_size, numbers, parse_json, shortened, text
from opabinia.data.sources.detection_base import AnnotatedImages, DetectionListing, Empty, build_source, pick_classes
from opabinia.data.sources.file_names import printable, sort_names
from opabinia.data.sources.folder import existing_folder, find_files
from opabinia.data.sources.shapes import Polygon, ellipse, rectangle


@register.source
def labelme(
    *,
    root: InputPath,
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
        masks: instance masks from the shapes; otherwise only their bounding boxes.
        classes: names of the labels to use, in the order of the classes, other shapes are dropped; all that occur,
            sorted, when not given.
        empty: ``drop`` drops images without objects.
        broken: for shapes without area (lines and points), shapes beyond the image, missing images and broken files:
            ``error`` raises; ``clip`` clips shapes to the image and drops those without area; ``drop`` drops them.
        channels: 3 for color, 1 for gray; images are converted.

    Raises:
        ValueError: there are no JSON files, or there are errors that ``broken`` does not allow.
    """
    root = existing_folder(root, "root is the folder that holds the JSON files")
    errors = ErrorCollector()
    files = find_files(root, "", [".json"])
    if not files:
        raise ValueError(f"{root} has no JSON files")
    by_image: dict[bytes, _File] = {}
    for name in map(os.fsdecode, files):
        content = _read(root, name, errors)
        if content is not None and by_image.setdefault(content.image, content) is not content:
            errors.add(kinds.DUPLICATE_IMAGE, os.fsdecode(content.image), "", f"also in {name}")
    contents = list(by_image.values())
    if classes is None:
        classes = sort_names({shape.label for content in contents for shape in content.shapes})
    if not classes:
        check_errors(root, errors.groups(), broken)
    pick_classes(root, classes, None)
    label_of = {name: label for label, name in enumerate(classes)}
    listing = DetectionListing(
        file=root,
        root=root,
        names=list(by_image),
        sizes=np.array([content.size for content in contents], dtype=np.int64).reshape(-1, 2),
        classes=classes,
        errors=errors,
        masks=masks,
        noun="object",
    )
    for image, content in enumerate(contents):
        objects: dict[Any, list[Polygon]] = {}
        for number, shape in enumerate(content.shapes):
            if shape.label in label_of:
                objects.setdefault((shape.label, shape.group or f"shape {number}"), []).append(shape.polygon)
        for number, ((name, _), polygons) in enumerate(objects.items(), 1):
            listing.add(image, number, label_of[name], polygons=polygons)
    return build_source(listing, broken=broken, empty=empty, channels=channels)


class _Shape(NamedTuple):
    label: str
    group: str
    polygon: Polygon


class _File(NamedTuple):
    """Content of a JSON file: path of the image below the root, its height and width (0 if not given), and shapes."""

    image: bytes
    size: tuple[int, int]
    shapes: Sequence[_Shape]


def _read(root: Path, name: str, errors: ErrorCollector) -> _File | None:
    """Read a JSON file; None if it cannot be read, which is added to the errors as shapes without area are."""
    shapes: list[_Shape] = []
    where = ""
    try:
        content = parse_json((root / name).read_bytes(), "it")
        image = _find_image(root, name, text(content["imagePath"]))
        sides = content.get("imageHeight") or 0, content.get("imageWidth") or 0
        size = image_size(*sides) if all(sides) else (0, 0)
        for number, shape in enumerate(content["shapes"], 1):
            where = f"shape {number}: "
            kind, points = shape.get("shape_type") or "polygon", shape["points"]
            if not isinstance(points, list) or any(numbers(point, 2) is None for point in points):
                raise ValueError(f"points {shortened(points)} are not lists of two numbers")
            polygon = _polygon(kind, np.array(points, dtype=np.float64).reshape(-1, 2))
            if polygon is None:
                value = f"a {kind!s:.60} of {len(points)} points"
                errors.add(kinds.BAD_SEGMENTATION, name, f"shape {number}", value)
            else:
                group = shape.get("group_id")
                shapes.append(_Shape(printable(text(shape["label"])), "" if group is None else text(group), polygon))
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        value = f"not a file of LabelMe: {where}{type(error).__name__}: {error}"
        errors.add(kinds.BAD_LABELS, name, "", value)
        return None
    return _File(image, size, shapes)


def _find_image(root: Path, name: str, image_path: str) -> bytes:
    """Return the path below the root of an image: ``image_path`` seen from the JSON file, or an image of its name."""
    folder = os.path.dirname(name)
    paths = [os.path.normpath(os.path.join(folder, image_path.replace("\\", "/")))]
    paths += [os.path.splitext(name)[0] + extension for extension in EXTENSIONS]
    names = [os.fsencode(path) for path in paths]
    return next((path for path in names if os.path.exists(os.path.join(os.fsencode(root), path))), names[0])


def _polygon(kind: Any, points: np.ndarray[Any, np.dtype[np.float64]]) -> Polygon | None:
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
