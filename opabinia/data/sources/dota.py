"""Oriented object detection in DOTA's text format: a label file per image, a line with four corners per object."""

from __future__ import annotations

import os
from collections.abc import Sequence

from opabinia.config import register
from opabinia.contracts import Channels, InputPath
from opabinia.data.file_search import list_images
from opabinia.data.sources import annotation_errors as kinds
from opabinia.data.sources.annotation_errors import Broken, check_errors
from opabinia.data.sources.annotation_values import parse_number, shortened, text
from opabinia.data.sources.detection_base import (
    AnnotatedImages,
    DetectionListing,
    Empty,
    build_source,
    given_classes,
    read_label_file,
)
from opabinia.data.sources.folder import existing_folder


@register.source
def dota(
    *,
    root: InputPath,
    labels: str = "labelTxt",
    classes: list[str] | None = None,
    empty: Empty = "keep",
    broken: Broken = "error",
    channels: Channels = 3,
) -> AnnotatedImages:
    """Images with oriented bounding boxes in the text format of DOTA v1.0, v1.5 and v2.0: ``labelTxt/P0000.txt`` for
    ``images/P0000.png``.

    A line is ``x1 y1 x2 y2 x3 y3 x4 y4 class difficult``, corners in pixels; header lines (``imagesource:``, ``gsd:``)
    are skipped. A sample has the rectangle of minimum area around the corners, the ground truth the corners as they
    are. Difficult objects (1 or 2) are not trained on and ignored in evaluation. A sample's id is its path below the
    root.

    Args:
        root: a folder with ``images`` and the label files.
        labels: the folder of the label files below ``root``, such as ``annfiles`` of tiles.
        classes: all class names, in the order of their labels; a line with another one is an error. When not given, the
            classes in the files, sorted; training and validation need the same list.
        empty: ``drop`` drops images without objects to train on.
        broken: handling of broken annotations (no area, center outside the image): ``error`` raises; ``clip`` drops
            them; ``drop`` also drops invalid lines, other classes, and images that are unreadable or have no label
            file. ``fix`` clips what ``clip`` does and drops the rest.
        channels: 3 for color, 1 for gray; images are converted.

    Raises:
        ValueError: a folder is missing or empty, or there are errors that ``broken`` does not allow.
    """
    root = existing_folder(root, f"root is the folder that holds images and {labels}")
    folder = existing_folder(root / labels, "labels is a folder below root")
    images = [os.path.join(b"images", name) for name in list_images(existing_folder(root / "images"))]
    listing = DetectionListing(
        file=folder, root=root, classes=given_classes(folder, classes), oriented=True, noun="line"
    )
    for name in images:
        label_file = os.fsdecode(os.path.splitext(os.path.basename(name))[0]) + ".txt"
        lines = read_label_file(folder, label_file, listing.errors)
        if lines is not None:
            _add_objects(listing, listing.add_image(name), label_file, lines)
    if images and not listing.names:
        check_errors(folder, listing.errors.groups(), broken)
        raise ValueError(f"{folder} has no label file that can be read")
    return build_source(listing, broken=broken, empty=empty, channels=channels)


def _add_objects(listing: DetectionListing, image: int, file: str, lines: Sequence[str]) -> None:
    """Add the objects in the lines of a label file; errors are added for invalid ones."""
    for number, words in enumerate(lines, 1):
        columns = words.split()
        if not columns or columns[0].lower().startswith(("imagesource:", "gsd:")):
            continue
        try:
            name, corners, difficult = _parse(columns)
        except ValueError as error:
            listing.errors.add(kinds.BAD_CORNERS, file, f"line {number}", error)
            continue
        if listing.classes and name not in listing.classes:
            listing.errors.add(kinds.UNKNOWN_CLASS, file, f"line {number}", f"class {shortened(name)}")
        else:
            listing.add(image, number, name, corners=corners, crowd=difficult)


def _parse(columns: Sequence[str]) -> tuple[str, list[float], bool]:
    """Return the class, corners (x, y, x, y ...) and whether the object is difficult.

    Raises:
        ValueError: they are not eight finite numbers, a class and 0, 1 or 2.
    """
    if len(columns) != 10:
        raise ValueError(f"{len(columns)} columns, expected 10")
    corners = [parse_number(column) for column in columns[:8]]
    if columns[9] not in ("0", "1", "2"):
        raise ValueError(f"difficult is {shortened(columns[9])}, expected 0, 1 or 2")
    return text(columns[8]), corners, columns[9] != "0"
