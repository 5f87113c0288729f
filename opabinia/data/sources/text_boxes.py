"""Object detection with a text file for each image and pixels in it: the formats of KITTI and VisDrone."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

from opabinia.config import register
from opabinia.contracts import Channels, InputPath
from opabinia.data.file_search import list_images
from opabinia.data.sources import annotation_errors as kinds
from opabinia.data.sources.annotation_errors import Broken
from opabinia.data.sources.annotation_values import parse_number, parse_whole, shortened, text
from opabinia.data.sources.detection_base import (
    AnnotatedImages,
    DetectionListing,
    Empty,
    build_source,
    given_classes,
    read_label_file,
)
from opabinia.data.sources.folder import existing_folder


class _Object(NamedTuple):
    """Class and box (left, top, width, height) in pixels."""

    name: str
    box: Sequence[float]


Parser = Callable[[str], _Object | None]
"""Returns the object in a line; None if it is to be ignored. ValueError: it is none."""


@register.source
def kitti(
    *,
    root: InputPath,
    images: str = "image_2",
    labels: str = "label_2",
    classes: list[str] | None = None,
    empty: Empty = "keep",
    broken: Broken = "error",
    channels: Channels = 3,
) -> AnnotatedImages:
    """Images with bounding boxes in KITTI's format of objects: ``label_2/000001.txt`` for ``image_2/000001.png``.

    A line has a class, truncation, occlusion and angle, then left, top, right and bottom in pixels; what follows, of
    three dimensions, is not used. Regions of the class ``DontCare`` are dropped. Images without a text file are
    skipped. A sample's id is its path below the root.

    Args:
        root: the folder with these.
        images: the folder with the images.
        labels: the folder with the text files.
        classes: names in the order of their labels, objects of others are dropped; all that occur, sorted, when not
            given; training and validation need the same.
        empty: ``drop`` drops images without objects.
        broken: handling of broken annotations: ``error`` raises; ``clip`` clips to the image and drops objects without
            area; ``drop`` drops them, and also invalid lines and images that cannot be read. ``fix`` clips what
            ``clip`` does and drops the rest.
        channels: 3 for color, 1 for gray; images are converted.

    Raises:
        ValueError: a folder is missing or empty, or there are errors that ``broken`` does not allow.
    """
    listing = _read(root, images, labels, classes, _parse_kitti)
    return build_source(listing, broken=broken, empty=empty, channels=channels)


VISDRONE_CLASSES = (
    *("pedestrian", "people", "bicycle", "car", "van", "truck", "tricycle", "awning-tricycle", "bus", "motor"),
)
"""Classes 1 to 10 of VisDrone's format."""


@register.source
def visdrone(
    *,
    root: InputPath,
    images: str = "images",
    labels: str = "annotations",
    names: list[str] | None = None,
    empty: Empty = "keep",
    broken: Broken = "error",
    channels: Channels = 3,
) -> AnnotatedImages:
    """Images with bounding boxes in VisDrone's format: ``annotations/1.txt`` for ``images/1.jpg``.

    A line has left, top, width, height, score, class number, truncation and occlusion, with commas between them.
    Ignored regions (class 0, or a score of 0) and classes without a name (11) are dropped. Images without a text file
    are skipped. A sample's id is its path below the root.

    Args:
        root: the folder with these.
        images: the folder with the images.
        labels: the folder with the text files.
        names: names of the classes 1, 2 ...; VisDrone's ten when not given.
        empty: ``drop`` drops images without objects.
        broken: handling of broken annotations: ``error`` raises; ``clip`` clips to the image and drops objects without
            area; ``drop`` drops them, and also invalid lines and images that cannot be read. ``fix`` clips what
            ``clip`` does and drops the rest.
        channels: 3 for color, 1 for gray; images are converted.

    Raises:
        ValueError: a folder is missing or empty, or there are errors that ``broken`` does not allow.
    """
    classes = list(VISDRONE_CLASSES if names is None else names)
    listing = _read(root, images, labels, classes, lambda line: _parse_visdrone(line, classes))
    return build_source(listing, broken=broken, empty=empty, channels=channels)


def _read(root: InputPath, images: str, labels: str, classes: Sequence[str] | None, parse: Parser) -> DetectionListing:
    """Return the images that have a text file, and their objects.

    Raises:
        ValueError: a folder is missing or empty.
    """
    root = existing_folder(root, f"root is the folder that holds {images} and {labels}")
    folder = existing_folder(root / labels, "labels is a folder below root")
    listing = DetectionListing(file=folder, root=root, classes=given_classes(folder, classes), noun="line")
    prefix = os.fsencode(images)
    for name in list_images(existing_folder(root / images, "images is a folder below root")):
        label_name = f"{os.fsdecode(os.path.splitext(name)[0])}.txt"
        if not (folder / label_name).is_file():
            continue
        image = listing.add_image(os.path.join(prefix, name))
        for number, line in enumerate(read_label_file(folder, label_name, listing.errors) or (), 1):
            try:
                found = parse(line) if line.strip() else None
            except ValueError as error:
                listing.errors.add(kinds.BAD_BOX, label_name, f"line {number}", error)
            else:
                if found is not None:
                    listing.add(image, number, found.name, found.box)
    if not listing.names:
        raise ValueError(f"{root / images} has no image with a text file of its name in {folder}")
    return listing


def _parse_kitti(line: str) -> _Object | None:
    fields = line.split()
    if len(fields) not in (15, 16):
        raise ValueError(f"{shortened(line)} has {len(fields)} fields, expected 15")
    left, top, right, bottom = (parse_number(field) for field in fields[4:8])
    return None if fields[0] == "DontCare" else _Object(text(fields[0]), (left, top, right - left, bottom - top))


def _parse_visdrone(line: str, classes: Sequence[str]) -> _Object | None:
    fields = line.strip().rstrip(",").split(",")
    if len(fields) != 8:
        raise ValueError(f"{shortened(line)} has {len(fields)} fields, expected 8")
    box, number = [parse_number(field) for field in fields[:4]], parse_whole(fields[5])
    if not 1 <= number <= len(classes) or not parse_number(fields[4]):
        return None
    return _Object(classes[number - 1], box)
