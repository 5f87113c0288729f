"""Images with a mask file for each object: masks with the name of their image, or a folder for each image."""

from __future__ import annotations

import os
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from opabinia.data.decoding.images import EXTENSIONS
from opabinia.data.layouts.folder import ANNOTATIONS, Folder, UnreadableLayout, listed
from opabinia.data.layouts.layout import Layout
from opabinia.data.layouts.map_values import LOSSLESS, read_values
from opabinia.data.layouts.readings import check_training, with_alternatives, with_masks
from opabinia.data.sources.mask_files import UNNAMED, Pairing, split_mask_name
from opabinia.runtime.text import plural

_OPENED = 20
"""Masks that are opened to see whether they are of one object."""
_PAIRED = 0.9
"""Share of the masks that belong to an image, at least."""
_MAX_CLASSES = 20
"""Classes in the names of masks, at most, unless there are two masks of each."""


@dataclass(frozen=True)
class ObjectMasks:
    """Folders of images and of masks.

    Attributes:
        root: the folder of both, below the folder that is read.
        images, annotations, pairing: of the source ``mask_files``.
        labels: class in the name of each mask, which may be empty.
        may_be_maps: the masks may be segmentation maps, of which few images have several, or all the same ones.
    """

    root: str
    images: str
    annotations: str
    pairing: Pairing
    labels: Sequence[str]
    may_be_maps: bool

    def section(self, folder: Folder, classes: Sequence[str]) -> dict[str, Any]:
        """Return the source."""
        given = {"images": self.images, "annotations": self.annotations, "pairing": self.pairing}
        usual = {"images": "images", "annotations": "masks", "pairing": "name"}
        options = {key: value for key, value in given.items() if value != usual[key]}
        return {"name": "mask_files", "root": folder.at(self.root), **options, "classes": classes}


def read_mask_files(folder: Folder) -> Iterator[Layout]:
    """Yield the reading of a mask for each object.

    Raises:
        UnreadableLayout: there is no training data, or names of masks have neither a class nor a number.
    """
    found = find_object_masks(folder)
    if not found:
        return
    check_training(folder, found, "expected a folder train")
    labels = Counter(label or UNNAMED for masks in found.values() for label in masks.labels)
    if len(labels) > max(_MAX_CLASSES, labels.total() / 2):
        raise UnreadableLayout(
            f"{folder.text}: masks of objects have {len(labels)} classes in their names: {listed([*labels], 3)}; "
            "expected a class and a number after the name of the image, or a number: 1_cat_0.png for 1.jpg"
        )
    classes = sorted(labels)
    sections = {split: masks.section(folder, classes) for split, masks in found.items()}
    description = f"{plural(labels.total(), 'mask')} of one object each, of {plural(len(classes), 'class', 'es')}"
    used = {masks.root or name for masks in found.values() for name in (masks.images, masks.annotations)}
    are_below = any(masks.pairing == "folder" and not masks.root for masks in found.values())  # all folders are used
    notes = folder.others([*(folder.folders if are_below else ()), *(name.partition("/")[0] for name in used)])
    boxes = Layout("mask_files", "detection", description, sections, notes=notes)
    objects, maps = with_masks(boxes)
    yield from with_alternatives(objects, [boxes, maps])


def find_object_masks(folder: Folder) -> dict[str, ObjectMasks]:
    """Return the images and masks of each split, if there is a mask for each object; nothing for other data."""
    if folder.only is not None:
        return {}
    places = ((split, _masks_in(folder, name)) for split, name in folder.splits.items())
    found = {split: masks for split, masks in places if masks is not None}
    whole = None if found else _masks_in(folder, "")
    return found if whole is None else _splits_in(folder, whole) or {"train": whole}


def _masks_in(folder: Folder, root: str) -> ObjectMasks | None:
    """Return the images in a folder, and a mask for each of their objects."""
    inner = folder.sub(root)
    maps = [name for name in inner.folders if ANNOTATIONS.search(name) and inner.sub(name).holds(LOSSLESS)]
    images = [name for name in inner.folders if name not in maps and inner.sub(name).holds()] if maps else []
    pairs = (_by_name(folder, root, image, annotations) for image in images for annotations in maps)
    return next(filter(None, pairs), None) or _by_folder(folder, root)


def _splits_in(folder: Folder, whole: ObjectMasks) -> dict[str, ObjectMasks]:
    """Return the splits that are folders of both images and masks: ``images/train`` and ``masks/train``."""
    if whole.pairing == "folder":
        return {}
    images, annotations = folder.sub(whole.images).splits, folder.sub(whole.annotations).splits
    parts = {
        split: _by_name(folder, "", f"{whole.images}/{name}", f"{whole.annotations}/{annotations[split]}")
        for split, name in images.items()
        if split in annotations
    }
    return {split: masks for split, masks in parts.items() if masks is not None}


def _by_name(folder: Folder, root: str, images: str, annotations: str) -> ObjectMasks | None:
    """Return masks whose names begin with those of images."""
    inner = folder.sub(root)
    stems = {os.path.splitext(name)[0] for name in inner.sub(images).tree(EXTENSIONS)}
    masks = inner.sub(annotations).tree(LOSSLESS)
    ends, labels = defaultdict[str, set[str]](set), list[str]()
    for name in (os.path.splitext(name)[0] for name in masks):
        if (split := split_mask_name(name, stems)) is not None:
            ends[split[0]].add(name[len(split[0]) :])
            labels.append(split[1])
    if not labels or len(labels) < _PAIRED * len(masks) or (len(labels) == len(ends) and len({*labels}) == 1):
        return None
    paths = [f"{inner.sub(annotations).path}/{name}" for name in masks]
    few = sum(len(group) > 1 for group in ends.values()) < len(ends) / 2 and len({*labels}) == 1
    same = len({*map(frozenset, ends.values())}) == 1  # of several annotators
    found = ObjectMasks(root, images, annotations, "name", labels, may_be_maps=few or same)
    return found if _are_of_objects(paths) else None


def _by_folder(folder: Folder, root: str) -> ObjectMasks | None:
    """Return images that are each in a folder of its own, with a folder of masks next to it."""
    inner = folder.sub(root)
    first = inner.sub(inner.folders[0]) if inner.folders else inner
    images, annotations = first.find("images", "image"), first.find("masks", "mask")
    if images is None or annotations is None:
        return None
    places = [inner.sub(name) for name in inner.folders]
    if any(len(place.sub(images).named(*EXTENSIONS)) != 1 for place in places if images in place.folders):
        return None
    masks = {place.text: place.sub(annotations) for place in places if {images, annotations} <= {*place.folders}}
    if len(masks) < len(places) / 2:
        return None
    paths = [str(inside.path / name) for inside in masks.values() for name in inside.named(*LOSSLESS)]
    found = ObjectMasks(root, images, annotations, "folder", [""] * len(paths), may_be_maps=False)
    return found if len(paths) > len(masks) and _are_of_objects(paths) else None


def _are_of_objects(paths: Sequence[str]) -> bool:
    """Return whether some masks have at most one value other than 0."""
    for path in random.Random(0).sample(paths, min(_OPENED, len(paths))):
        with suppress(UnreadableLayout):  # the source reports it
            found = read_values([path])
            if found.count > 2 or (found.count == 2 and not (found.gray[0] or found.colors[0, 0, 0])):
                return False
    return True
