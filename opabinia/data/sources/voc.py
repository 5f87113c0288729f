"""Object detection in the XML format of Pascal VOC."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple
from xml.etree.ElementTree import Element, ParseError, TreeBuilder, XMLParser

from opabinia.config import register
from opabinia.contracts import Channels, InputPath
from opabinia.data.file_search import list_images
from opabinia.data.sources import annotation_errors as kinds
from opabinia.data.sources.annotation_errors import Broken, ErrorCollector
from opabinia.data.sources.annotation_values import (
    errors_in,
    image_size,
    parse_flag,
    parse_number,
    parse_whole,
    shortened,
    text,
)
from opabinia.data.sources.detection_base import AnnotatedImages, DetectionListing, Empty, build_source, pick_classes
from opabinia.data.sources.file_names import sort_names
from opabinia.data.sources.folder import existing_folder
from opabinia.data.sources.list_files import read_fields
from opabinia.runtime.log import warn_once
from opabinia.runtime.text import plural

CLASSES = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable", "dog"),
    *("horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)
"""Classes of Pascal VOC 2007 to 2012."""


@register.source
def voc(
    *,
    root: InputPath,
    split: str | None = "train",
    images: str = "JPEGImages",
    annotations: str = "Annotations",
    classes: list[str] | None = None,
    difficult: Literal["ignore", "learn"] = "ignore",
    oriented: bool = False,
    empty: Empty = "keep",
    broken: Broken = "error",
    channels: Channels = 3,
) -> AnnotatedImages:
    """Images with bounding boxes in the format of Pascal VOC: ``JPEGImages``, ``Annotations``, ``ImageSets/Main``; or
    XML files beside their images in one folder. An object may have a rotated box, as of roLabelImg (``robndbox``).

    Pixels are counted from 1 there, and ``xmax`` and ``ymax`` are in the box: a box from 1 to 10 is 10 pixels wide and
    begins at 0 here (detectron2's rule). A sample's id is its path below the root.

    Args:
        root: the folder with these, such as ``VOCdevkit/VOC2007``.
        split: the list in ``ImageSets/Main``, or in ``ImageSets`` without such a folder; null takes every XML file.
        images: the folder with the images; those of ``root`` itself if there is none.
        annotations: the folder with the XML files; those of ``root`` itself if there is none.
        classes: names in the order of their labels; objects of others are dropped. When not given the 20 of VOC, or,
            if an XML file of any split has others, all that occur, sorted.
        difficult: ``ignore`` does not train on difficult objects; ``learn`` does, as detectron2. Evaluation ignores
            them in either case.
        oriented: oriented boxes; otherwise rotated ones are read as the upright boxes around them.
        empty: ``drop`` drops images without objects to train on.
        broken: handling of broken annotations: ``error`` raises; ``clip`` clips to the image and drops objects without
            area; ``drop`` drops them, and also images that are missing or whose XML cannot be read. ``fix`` clips what
            ``clip`` does and drops the rest.
        channels: 3 for color, 1 for gray; images are converted.

    Raises:
        ValueError: a folder or list is missing, or there are errors that ``broken`` does not allow.
    """
    root = existing_folder(root, "root is the folder that holds Annotations and JPEGImages")
    folder = root / annotations if (root / annotations).is_dir() else root
    stems = sorted(file.stem for file in folder.glob("[!.]*.xml"))
    if not stems:
        raise ValueError(f"{folder} has no XML files")
    lists = next((path for path in (root / "ImageSets" / "Main", root / "ImageSets") if path.is_dir()), None)
    if split is not None and lists is None:
        raise ValueError(f"split: {root} has no folder ImageSets/Main with lists; split: null reads all XML files")
    file = folder if split is None or lists is None else lists / f"{split}.txt"
    chosen = stems if split is None else [fields[0] for _, fields in read_fields(file, "name")]
    names_of_images = _image_names(root, images, chosen)
    listing = DetectionListing(file=file, root=root, oriented=oriented, noun="object")
    names: set[str] = set()
    for stem, count in Counter(chosen).items():
        if count > 1:
            listing.errors.add(kinds.DUPLICATE_IMAGE, stem, "", "in the list")
        content = _read_file(folder, stem, listing.errors)
        if content is not None:
            size, objects = content
            image = listing.add_image(names_of_images[stem], size)
            for number, (name, box, corners, crowd) in enumerate(objects, 1):
                trainable = difficult == "learn" or not crowd
                listing.add(image, number, name, box, corners=corners, crowd=crowd, trainable=trainable)
                names.add(name)
    if classes is None:  # the same for all splits
        others = [_read_file(folder, stem, ErrorCollector()) for stem in stems if stem not in names_of_images]
        names |= {found.name for content in others if content for found in content[1]}
        classes = list(CLASSES) if names <= set(CLASSES) else sort_names(names)
    pick_classes(file, classes, None)
    listing.classes = classes
    return build_source(listing, broken=broken, empty=empty, channels=channels)


class _Object(NamedTuple):
    """An object: its class, left, top, width and height of an upright box, x, y ... of its corners, and whether it is
    difficult."""

    name: str
    box: tuple[float, float, float, float] | None
    corners: Sequence[float]
    is_difficult: bool


def _read_file(folder: Path, stem: str, errors: ErrorCollector) -> tuple[tuple[int, int], list[_Object]] | None:
    """Return height and width (0 if not given) and the objects in an XML file; None and an error if it cannot be
    read."""
    try:
        top = parse_xml((folder / f"{stem}.xml").read_bytes())
        sides = [(top.findtext(f"size/{side}") or "").strip() for side in ("height", "width")]
        # Some tools write 0; the size is then read from the image.
        height, width = (parse_whole(side) if side.isdecimal() else 0 for side in sides)
        size = image_size(height, width) if height and width else (0, 0)
        return size, [_parse_object(element) for element in top.findall("object")]
    except (OSError, ValueError) as error:
        errors.add(kinds.BAD_LABELS, f"{stem}.xml", "", getattr(error, "strerror", None) or error)
        return None


def _image_names(root: Path, images: str, stems: Sequence[str]) -> dict[str, bytes]:
    """Return the paths below the root of the images with these names, whatever their suffixes."""
    separate = (root / images).is_dir()
    folder, prefix = (root / images, os.fsencode(f"{images}/")) if separate else (root, b"")
    names = {os.path.splitext(name)[0]: name for name in list_images(folder)}
    if not separate and (unlabeled := len(names.keys() - set(map(os.fsencode, stems)))):
        warn_once("%s: %s without an XML file skipped", root, plural(unlabeled, "image"))
    return {stem: prefix + names.get(os.fsencode(stem), os.fsencode(f"{stem}.jpg")) for stem in stems}


# --- XML --------------------------------------------------------------------------------------------------------------


def _parse_object(element: Element) -> _Object:
    name = (element.findtext("name") or "").strip()
    rotated = element.find("robndbox") is not None
    kind, keys = ("robndbox", ("cx", "cy", "w", "h", "angle")) if rotated else ("bndbox", _SIDES)
    count = "five" if rotated else "four"
    with errors_in(f"object {shortened(name)} has no box of {count} numbers ({', '.join(keys)}): "):
        numbers = [parse_number(element.findtext(f"{kind}/{key}") or "") for key in keys]
    place = ", ".join(f"{value:g}" for value in numbers)
    with errors_in(f"the object with the box {place}: name or difficult: "):
        name, is_difficult = text(name), parse_flag(element.findtext("difficult") or "0")
    if rotated:
        return _Object(name, None, _corners(numbers), is_difficult)
    left, top, right, bottom = numbers
    corners = (left - 1, top - 1, right, top - 1, right, bottom, left - 1, bottom)
    return _Object(name, (left - 1, top - 1, right - left + 1, bottom - top + 1), corners, is_difficult)


_SIDES = ("xmin", "ymin", "xmax", "ymax")


def _corners(box: Sequence[float]) -> list[float]:
    """Return x, y, x, y ... of the corners of a box: its center, width, height and clockwise rotation in radians."""
    x, y, *sides, angle = box
    width, height = (max(side, 0.0) / 2 for side in sides)  # below 0 there is no area, which is an error
    across = width * math.cos(angle), width * math.sin(angle)
    down = -height * math.sin(angle), height * math.cos(angle)
    signs = ((-1, -1), (1, -1), (1, 1), (-1, 1))
    return [value for i, j in signs for value in (x + i * across[0] + j * down[0], y + i * across[1] + j * down[1])]


def parse_xml(content: bytes) -> Element:
    """Return the root of an XML document. Document types, whose entities could read files or exhaust memory, are
    rejected.

    Raises:
        ValueError: it is not XML, or declares a document type.
    """
    parser = XMLParser(target=_WithoutDocumentType())
    with errors_in("not complete XML: ", ParseError, LookupError):  # LookupError: unknown encoding
        parser.feed(content)
        top: Element = parser.close()
    return top


class _WithoutDocumentType(TreeBuilder):
    def doctype(self, *arguments: object) -> None:
        raise ValueError("it declares a document type, which annotations do not need")
