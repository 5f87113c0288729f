"""Oriented object detection in DOTA's text format: a label file per image, a line with four corners per object."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from opabinia.config import register
from opabinia.contracts import Channels, InputPath
from opabinia.data.sources import annotation_errors as kinds
from opabinia.data.sources.annotation_errors import Broken, ErrorCollector, check_errors
from opabinia.data.sources.annotation_values import parse_number, shortened, text
from opabinia.data.sources.detection_base import (
    AnnotatedImages,
    DetectionListing,
    Empty,
    build_source,
    pick_classes,
    read_label_file,
)
from opabinia.data.sources.file_names import sort_names
from opabinia.data.sources.folder import existing_folder, is_image_file


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
            file.
        channels: 3 for color, 1 for gray; images are converted.

    Raises:
        ValueError: a folder is missing or empty, or there are errors that ``broken`` does not allow.
    """
    root = existing_folder(root, f"root is the folder that holds images and {labels}")
    folder = existing_folder(root / labels, "labels is a folder below root")
    entries = sorted(os.listdir(os.fsencode(existing_folder(root / "images"))))
    images = [os.path.join(b"images", name) for name in entries if is_image_file(name)]
    errors = ErrorCollector()
    files: dict[bytes, list[_Line]] = {}
    for name in images:
        label_file = os.fsdecode(os.path.splitext(os.path.basename(name))[0]) + ".txt"
        lines = _read_file(folder, label_file, classes, errors)
        if lines is not None:
            files[name] = lines
    if classes is None:
        classes = sort_names({line.name for lines in files.values() for line in lines})
    if not classes:
        check_errors(folder, errors.groups(), broken)
    pick_classes(folder, classes, None)
    label_of = {name: label for label, name in enumerate(classes)}
    listing = DetectionListing(
        file=folder,
        root=root,
        names=list(files),
        sizes=np.zeros((len(files), 2), dtype=np.int64),
        classes=classes,
        errors=errors,
        oriented=True,
        noun="line",
    )
    for image, lines in enumerate(files.values()):
        for line in lines:
            listing.add(image, line.number, label_of[line.name], corners=line.corners, crowd=line.difficult)
    return build_source(listing, broken=broken, empty=empty, channels=channels)


class _Line(NamedTuple):
    """An object: the number of its line from 1, class name, corners (x, y, x, y ...) and whether it is difficult."""

    number: int
    name: str
    corners: Sequence[float]
    difficult: bool


def _read_file(folder: Path, name: str, classes: Sequence[str] | None, errors: ErrorCollector) -> list[_Line] | None:
    """Return the valid lines of a label file; errors are added for others. None if it cannot be read."""
    rows = read_label_file(folder, name, errors)
    if rows is None:
        return None
    lines = []
    for number, words in enumerate(rows, 1):
        columns = words.split()
        if not columns or columns[0].lower().startswith(("imagesource:", "gsd:")):
            continue
        try:
            line = _parse(number, columns)
        except ValueError as error:
            errors.add(kinds.BAD_CORNERS, name, f"line {number}", error)
            continue
        if classes is not None and line.name not in classes:
            errors.add(kinds.UNKNOWN_CLASS, name, f"line {number}", f"class {shortened(line.name)}")
        else:
            lines.append(line)
    return lines


def _parse(number: int, columns: Sequence[str]) -> _Line:
    """Parse the columns of a line.

    Raises:
        ValueError: they are not eight finite numbers, a class and 0, 1 or 2.
    """
    if len(columns) != 10:
        raise ValueError(f"{len(columns)} columns, expected 10")
    corners = [parse_number(column) for column in columns[:8]]
    if columns[9] not in ("0", "1", "2"):
        raise ValueError(f"difficult is {shortened(columns[9])}, expected 0, 1 or 2")
    return _Line(number, text(columns[8]), corners, columns[9] != "0")
