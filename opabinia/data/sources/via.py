"""Annotations of VIA (VGG Image Annotator): rectangles, polygons and other shapes in one JSON or CSV file."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from opabinia.config import register
from opabinia.contracts import Channels, InputPath
from opabinia.data.sources import annotation_errors as kinds
from opabinia.data.sources.annotation_errors import Broken
from opabinia.data.sources.annotation_tools import Polygon, ellipse, rectangle, rotate
from opabinia.data.sources.annotation_values import errors_in, numbers, parse_json, shortened, text
from opabinia.data.sources.detection_base import AnnotatedImages, DetectionListing, Empty, build_source, given_classes
from opabinia.data.sources.file_names import printable
from opabinia.data.sources.list_files import existing_file, read_json, read_rows


@register.source
def via(
    *,
    file: InputPath,
    root: InputPath | None = None,
    attribute: str | None = None,
    masks: bool = False,
    classes: list[str] | None = None,
    empty: Empty = "keep",
    broken: Broken = "error",
    channels: Channels = 3,
) -> AnnotatedImages:
    """Images annotated with VIA 1 or 2 (VGG Image Annotator): a project, or exported annotations as JSON or CSV.

    Rectangles, polygons, closed polylines, circles and ellipses are objects. A sample's id is the path of its image
    below the root. ``object_maps`` makes segmentation maps of the objects.

    Args:
        file: the .json or .csv file, often ``via_region_data.json``.
        root: the folder that image names are relative to; that of the file when not given.
        attribute: the region attribute that has the class: text, or options of which one is chosen. null: all objects
            are of one class, ``object`` or the one of ``classes``.
        masks: instance masks from the shapes; otherwise only their bounding boxes.
        classes: names in the order of their labels, objects of others are dropped; all that occur, sorted, when not
            given.
        empty: ``drop`` drops images without objects.
        broken: for shapes without area (points and lines), objects without a class, shapes beyond the image and missing
            images: ``error`` raises; ``clip`` clips shapes to the image and drops those without area; ``drop`` drops
            them. ``fix`` clips what ``clip`` does and drops the rest.
        channels: 3 for color, 1 for gray; images are converted.

    Raises:
        ValueError: the file is none of VIA, or has errors that ``broken`` does not allow.
    """
    file = existing_file(file)
    single = (classes or ["object"])[0]
    listing = DetectionListing(
        file=file,
        root=(root or file.parent).expanduser(),
        classes=given_classes(file, classes),
        masks=masks,
        noun="region",
    )
    seen = set[str]()
    for image in read_via(file):
        if image.name in seen:
            listing.errors.add(kinds.DUPLICATE_IMAGE, image.name, "", "in the file")
        else:
            seen.add(image.name)
            _add_regions(listing, image, attribute, single)
    return build_source(listing, broken=broken, empty=empty, channels=channels)


def _add_regions(listing: DetectionListing, image: ViaImage, attribute: str | None, single: str) -> None:
    """Add an image and its regions, or their errors; without an attribute all are of the class ``single``."""
    index = listing.add_image(os.fsencode(image.name))
    for number, (shape, attributes) in enumerate(image.regions, 1):
        name = single if attribute is None else region_class(attributes, attribute)
        if name is None:
            value = f"{attribute}: {shortened(attributes.get(str(attribute)))}"
            listing.errors.add(kinds.UNKNOWN_CLASS, image.name, f"region {number}", value)
        elif not listing.classes or name in listing.classes:
            try:
                listing.add(index, number, name, polygons=[_outline(shape)])
            except (ValueError, TypeError) as error:
                listing.errors.add(kinds.BAD_SEGMENTATION, image.name, f"region {number}", error)


Region = tuple[Mapping[str, Any], Mapping[str, Any]]
"""Shape and attributes of an object."""


class ViaImage(NamedTuple):
    """An image and its regions."""

    name: str
    regions: list[Region]


def read_via(file: Path) -> Iterator[ViaImage]:
    """Yield the images of a file, in its order.

    Raises:
        ValueError: it cannot be read, or is none of VIA.
    """
    if file.suffix.lower() == ".csv":
        yield from _read_csv(file)
        return
    content = read_json(file)
    if isinstance(content, dict):
        content = content.get("_via_img_metadata", content)
    entries = content.values() if isinstance(content, dict) else content
    with errors_in(f"{file} is not a file of VIA: ", TypeError, KeyError, AttributeError, ValueError):
        for entry in entries:
            regions = entry.get("regions") or []
            regions = regions.values() if isinstance(regions, dict) else regions
            shapes = [(region["shape_attributes"], region.get("region_attributes") or {}) for region in regions]
            yield ViaImage(text(entry["filename"]), [_checked(*region) for region in shapes])


def _checked(shape: Any, attributes: Any) -> Region:
    if not isinstance(shape, dict) or not isinstance(attributes, dict):
        raise ValueError(f"{shortened(shape)} and {shortened(attributes)} are not two objects")
    return shape, attributes


def _read_csv(file: Path) -> Iterator[ViaImage]:
    """Yield the images of a CSV file, which has a row for each region, in the order of their first rows."""
    images: dict[str, list[Region]] = {}
    for location, row in read_rows(file, ("region_shape_attributes", "region_attributes")):
        with errors_in(f"{file}, {location}: ", ValueError):
            shape, attributes = (
                parse_json(row[key] or "{}", key) for key in ("region_shape_attributes", "region_attributes")
            )
            name = row.get("filename", row.get("#filename"))  # of version 2 and 1
            regions = images.setdefault(text(name), [])
            if shape:
                regions.append(_checked(shape, attributes))
    yield from (ViaImage(name, regions) for name, regions in images.items())


def region_class(attributes: Mapping[str, Any], attribute: str) -> str | None:
    """Return the class in an attribute of a region: a text, or the only chosen option; None if there is none."""
    value = attributes.get(attribute)
    if isinstance(value, dict):
        chosen = [name for name, marked in value.items() if marked in (True, "true")]
        value = chosen[0] if len(chosen) == 1 else None
    try:
        return printable(text(value))
    except ValueError:
        return None


def _outline(shape: Mapping[str, Any]) -> Polygon:
    """Return a shape as a polygon.

    Raises:
        ValueError: it has no area, or cannot be read.
    """
    kind = shape.get("name")
    if kind in ("polygon", "polyline"):
        x, y = (numbers(shape.get(f"all_points_{axis}")) for axis in "xy")
        if x is None or y is None or len(x) != len(y) or len(x) < 3:
            raise ValueError(f"a {kind} without three points: {shortened(shape)}")
        return [value for point in zip(x, y, strict=True) for value in point]
    sides = {"rect": "x y width height", "circle": "cx cy r r", "ellipse": "cx cy rx ry"}.get(str(kind))
    values = numbers([shape.get(side) for side in sides.split()], 4) if sides else None
    if values is None:
        raise ValueError(f"a {shortened(kind)} without area: {shortened(shape)}")
    x_side, y_side, third, fourth = values
    if kind == "rect":
        return rectangle(x_side, y_side, x_side + third, y_side + fourth)
    return rotate(ellipse(x_side, y_side, third, fourth), math.degrees(float(shape.get("theta") or 0)))
