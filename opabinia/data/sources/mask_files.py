"""Instance segmentation with a mask file for each object."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Container, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from opabinia.config import register
from opabinia.contracts import Channels, InputPath
from opabinia.data.file_search import find_files
from opabinia.data.sources import annotation_errors as kinds
from opabinia.data.sources.annotation_errors import Broken, ErrorCollector
from opabinia.data.sources.detection_base import AnnotatedImages, DetectionListing, Empty, build_source, given_classes
from opabinia.data.sources.file_names import decode_name
from opabinia.data.sources.folder import existing_folder
from opabinia.data.sources.object_masks import FileObjects, ObjectMask, read_objects

Pairing = Literal["name", "folder"]

UNNAMED = "object"
"""Class of objects whose files have no class in their names."""


@register.source
def mask_files(
    *,
    root: InputPath,
    images: str = "images",
    annotations: str = "masks",
    pairing: Pairing = "name",
    masks: bool = False,
    classes: list[str] | None = None,
    empty: Empty = "keep",
    broken: Broken = "error",
    channels: Channels = 3,
) -> AnnotatedImages:
    """Images with a mask file for each object, as pycococreator and the Data Science Bowl of 2018 have it.

    The pixels of a mask are 0 outside the object and have one other value in it. By name a mask has the class and a
    number after the name of its image: ``masks/1_cat_0.png`` or ``masks/1/cat_0.png`` for ``images/1.jpg``. By folder,
    and without a class in the name, an object is an ``object``, or of the only one of ``classes``. Images without masks
    have no objects. All masks are read when the source is made. A sample's id is the path of its image below the root.

    Args:
        root: the folder that holds both.
        images: the folder with images, and its subfolders; by folder the name of all folders with an image.
        annotations: the folder with masks; by folder the name of those next to folders with an image.
        pairing: ``name``: a mask is of the image whose name its own begins with. ``folder``: all masks in a folder are
            of the only image in the folder next to it: ``a/masks/*.png`` of ``a/images/1.png``.
        masks: instance masks; otherwise only their bounding boxes.
        classes: names in the order of their labels, objects of others are dropped; all that occur, sorted, when not
            given.
        empty: ``drop`` drops images without objects.
        broken: for masks without an image, and those that are empty, unreadable, of more values or of another size than
            their image: ``error`` and ``clip`` raise; ``drop`` and ``fix`` drop them, and also unreadable images.
        channels: 3 for color, 1 for gray; images are converted.

    Raises:
        ValueError: a folder is missing, there are no images or no masks, several images are in one folder by folder, or
            there are errors that ``broken`` does not allow.
    """
    root = existing_folder(root, f"root is the folder that holds {images} and {annotations}")
    listing = DetectionListing(file=root, root=root, classes=given_classes(root, classes), masks=masks, noun="mask")
    pair = _pair_by_name if pairing == "name" else _pair_by_folder
    pairs = pair(root, images, annotations, listing.errors)
    for name in pairs:
        listing.add_image(name)
    if not any(pairs.values()):
        raise ValueError(f"{root}: none of {len(pairs)} images has a mask in {annotations}")
    _add_objects(listing, list(pairs.values()), classes[0] if classes and len(classes) == 1 else UNNAMED)
    return build_source(listing, broken=broken, empty=empty, channels=channels)


# --- names ------------------------------------------------------------------------------------------------------------


class MaskName(NamedTuple):
    """The path of a mask, and the class in its name, which may be empty."""

    path: bytes
    label: str


Pairs = dict[bytes, list[MaskName]]
"""Masks of each image."""

_SEPARATOR = re.compile(r"[_ ./-]")
_NUMBER = re.compile(r"(^|[_ ./-]+)(\d+|[0-9a-f]{8}[0-9a-f-]*)$", re.IGNORECASE)
"""The end of a name that numbers an object: digits, or a hexadecimal id."""


def split_mask_name(name: str, images: Container[str]) -> tuple[str, str] | None:
    """Return the image that a mask belongs to, and the class in its name; None if it begins with none of the images.

    Example: ``1_cat_0`` is of the image ``1`` and the class ``cat``, ``1/0`` of this image and of no class.

    Args:
        name: path of the mask without suffix.
        images: paths of the images without suffix; the longest counts.
    """
    for end in (len(name), *(match.start() for match in reversed([*_SEPARATOR.finditer(name)]))):
        if name[:end] in images:
            return name[:end], _NUMBER.sub("", name[end + 1 :]).strip("_ ./-")
    return None


def _pair_by_name(root: Path, images: str, annotations: str, errors: ErrorCollector) -> Pairs:
    """Return the masks of each image, whose names begin with that of the image.

    Raises:
        ValueError: a folder cannot be searched, or there are no images.
    """
    image_folder, mask_folder = (_below(name) for name in (images, annotations))
    mask_names = find_files(root, annotations)
    image_names = [name for name in find_files(root, images) if not name.startswith(mask_folder)]
    if not image_names:
        raise ValueError(f"{root / images} has no images")
    by_stem = {_stem(name[len(image_folder) :]): name for name in image_names}
    pairs: Pairs = {name: [] for name in image_names}
    for name in mask_names:
        split = split_mask_name(_stem(name[len(mask_folder) :]), by_stem)
        if split is None:
            errors.add(kinds.UNUSED_MASK, decode_name(name), "", f"its name begins with that of no image in {images}")
        else:
            pairs[by_stem[split[0]]].append(MaskName(name, split[1]))
    return pairs


def _below(folder: str) -> bytes:
    """Return the beginning of the paths of files in a folder below the root."""
    return os.fsencode(os.path.join(folder, ""))


def _pair_by_folder(root: Path, images: str, annotations: str, errors: ErrorCollector) -> Pairs:
    """Return the masks of each image, which are in the folder next to its own.

    Raises:
        ValueError: a folder cannot be searched or holds several images, or there are no images.
    """
    by_folder: dict[bytes, list[bytes]] = defaultdict(list)
    for name in find_files(root):
        by_folder[os.path.dirname(name)].append(name)
    folders = [folder for folder in by_folder if os.path.basename(folder) == os.fsencode(images)]
    if not folders:
        raise ValueError(f"{root} has no images in folders called {images}")
    pairs: Pairs = {}
    for folder in folders:
        image, *others = by_folder.pop(folder)
        if others:
            place = root / os.fsdecode(folder)
            raise ValueError(f"{place} holds {len(others) + 1} images; pairing: folder reads masks of one")
        found = by_folder.pop(os.path.join(os.path.dirname(folder), os.fsencode(annotations)), [])
        pairs[image] = [MaskName(path, "") for path in found]
    for folder, left in by_folder.items():
        if os.path.basename(folder) == os.fsencode(annotations):
            errors.add(
                kinds.UNUSED_MASK, decode_name(left[0]), "", f"there is no folder {images} with an image next to it"
            )
    return pairs


def _stem(name: bytes) -> str:
    return os.fsdecode(os.path.splitext(name)[0])


# --- masks ------------------------------------------------------------------------------------------------------------


def _add_objects(listing: DetectionListing, masks: Sequence[Sequence[MaskName]], unnamed: str) -> None:
    """Read the masks of each image and add their objects; errors are added for others."""
    results = iter(read_objects(os.fsencode(listing.root), [name.path for group in masks for name in group]))
    for image, group in enumerate(masks):
        size = tuple(listing.sizes[image].tolist())
        for number, name in enumerate(group, 1):
            try:
                mask = _only_object(next(results), size)
            except ValueError as error:
                listing.errors.add(kinds.BAD_MASK, decode_name(name.path), "", error)
            else:
                listing.add(image, number, name.label or unnamed, mask.box, rle=mask.counts, area=mask.area)


def _only_object(found: FileObjects | ValueError, size: tuple[int, ...]) -> ObjectMask:
    """Return the object of a mask; ``size``: height and width of its image, 0 if unknown.

    Raises:
        ValueError: it could not be read, is of another size, or has no object or several.
    """
    if isinstance(found, ValueError):
        raise found
    if found.size != size and all(size):
        raise ValueError(f"{found.size[1]} x {found.size[0]} pixels, the image {size[1]} x {size[0]}")
    if not found.objects:
        raise ValueError("no pixel differs from 0: there is no object")
    if len(found.objects) > 1:
        raise ValueError(f"{len(found.objects)} values other than 0; a mask has one (instance_maps reads several)")
    return found.objects[0]
