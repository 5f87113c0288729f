"""Object detection in COCO's JSON format: COCO itself, LVIS, Roboflow and others."""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge

from opabinia.config import register
from opabinia.contracts import Channels, InputPath
from opabinia.contracts.masks import compress_rle
from opabinia.data.sources import annotation_errors as kinds
from opabinia.data.sources.annotation_errors import Broken, ErrorCollector
from opabinia.data.sources.annotation_values import (
    MAX_PIXELS,
    errors_in,
    flag,
    image_size,
    numbers,
    shortened,
    text,
    whole_number,
)
from opabinia.data.sources.detection_base import (
    AnnotatedImages,
    DetectionListing,
    Empty,
    build_source,
    check_not_both,
    pick_classes,
)
from opabinia.data.sources.file_names import printable
from opabinia.data.sources.folder import existing_folder
from opabinia.data.sources.list_files import listed_path, raise_for_invalid, read_json
from opabinia.runtime.log import log


@register.source
def coco(
    *,
    root: InputPath,
    file: InputPath,
    masks: bool = False,
    oriented: bool = False,
    keypoints: bool = False,
    classes: list[str] | None = None,
    empty: Empty = "keep",
    min_keypoints: Annotated[int, Ge(0)] = 0,
    broken: Broken = "error",
    channels: Channels = 3,
) -> AnnotatedImages:
    """Images with bounding boxes in the format of COCO or LVIS.

    Category ids become labels from 0 in the order of the ids. Crowds are not trained on. Images without ``file_name``
    (LVIS) are located by the end of their ``coco_url``: ``train2017/000000391895.jpg``; LVIS v0.5's names of COCO 2014
    are replaced by those in the URL (detectron2's rule). A file without ``annotations`` (COCO's test-dev) has images to
    predict only. Keypoints in the file are
    pixel indices, those of a sample positions in the image: half a pixel is added, as in detectron2. A sample's id is
    its path below the root.

    Args:
        root: the folder that image names are relative to.
        file: the JSON file, with ``images``, ``annotations`` and ``categories``.
        masks: read segmentations (polygons or RLE); every object must have one.
        oriented: oriented boxes: the rectangles of minimum area around the segmentations; without ``masks``.
        keypoints: read keypoints; their names are in the categories.
        classes: names of the categories to use, in the order of their labels; all of them when not given.
        empty: ``drop`` drops images without objects to train on, as detectron2 does in training.
        min_keypoints: drop images with fewer visible keypoints; detectron2 uses 1 in training.
        broken: handling of broken annotations (boxes without area, NaN, more than a pixel beyond their image, ...):
            ``error`` raises; ``clip`` clips to the image and drops objects without area; ``drop`` drops them, and also
            annotations of unknown categories and images, and missing images. ``fix`` clips what ``clip`` does and drops
            the rest. Dropped objects are not evaluated either. COCO's own training set has two boxes without area.
        channels: 3 for color, 1 for gray; images are converted.

    Raises:
        ValueError: the file is not such a JSON file, or has errors that ``broken`` does not allow; or both masks and
            oriented boxes are asked for.
    """
    file = file.expanduser()
    check_not_both(masks, oriented)
    gc_enabled = gc.isenabled()
    # Millions of small objects are allocated and none is in a reference cycle: searching for cycles would take half
    # of the time.
    gc.disable()
    try:
        content = read_lists(file)
        listing = _read_listing(content, file, root, classes, keypoints=keypoints, masks=masks, oriented=oriented)
    finally:
        if gc_enabled:
            gc.enable()
    return build_source(listing, broken=broken, empty=empty, min_keypoints=min_keypoints, channels=channels)


@register.source
def roboflow(
    *,
    root: InputPath,
    split: Literal["train", "valid", "test"] = "train",
    masks: bool = False,
    classes: list[str] | None = None,
    empty: Empty = "keep",
    broken: Broken = "error",
    channels: Channels = 3,
) -> AnnotatedImages:
    """A dataset exported by Roboflow in COCO's format: ``train|valid|test/_annotations.coco.json``.

    Its first category is often a placeholder with the name of the dataset. A category that is the ``supercategory`` of
    all others and has no annotation in any split is dropped, and the log says so.

    Args:
        root: the folder with the splits.
        split: the split to read.
        masks: read segmentations (polygons or RLE); every object must have one.
        classes: names of the categories to use, in the order of their labels; all of them when not given.
        empty: ``drop`` drops images without objects to train on.
        broken: handling of broken annotations: ``error`` raises; ``clip`` clips to the image and drops objects without
            area; ``drop`` drops them. ``fix`` clips what ``clip`` does and drops the rest.
        channels: 3 for color, 1 for gray; images are converted.

    Raises:
        ValueError: there is no such file, it is not such a JSON file, or it has errors that ``broken`` does not allow.
    """
    root = existing_folder(root, "root is the folder that holds train, valid and test")
    files = {name: root / name / "_annotations.coco.json" for name in ("train", "valid", "test")}
    file = files[split]
    content = read_lists(file)
    placeholder = _find_placeholder(content["categories"])
    if placeholder is not None and not any(
        row.get("category_id") == placeholder["id"]
        for path in files.values()
        if path == file or path.is_file()
        for row in (content if path == file else read_lists(path))["annotations"]
    ):
        number, name = placeholder["id"], placeholder["name"]
        log.info("%s: category %s, %r, is a placeholder without annotations: dropped", file, number, name)
        content["categories"] = [category for category in content["categories"] if category["id"] != number]
    listing = _read_listing(content, file, file.parent, classes, masks=masks)
    return build_source(listing, broken=broken, empty=empty, channels=channels)


def _find_placeholder(categories: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the category that is the supercategory of all others."""
    for category in categories:
        others = [other.get("supercategory") for other in categories if other is not category]
        name = category["name"]
        same = bool(others) and all(other == name for other in others)
        if same and category.get("supercategory") in (None, "", "none", name):
            return category
    return None


# --- the file ---------------------------------------------------------------------------------------------------------


_LISTS: Mapping[str, Sequence[str]] = {
    "images": ("id", "width", "height"),
    "annotations": ("id", "image_id", "category_id", "bbox"),
    "categories": ("id", "name"),
}


def read_lists(file: Path, lists: Mapping[str, Sequence[str]] = _LISTS) -> dict[str, Any]:
    """Read a COCO file and check that it has these lists of objects with these keys.

    Raises:
        ValueError: it does not, or cannot be read.
    """
    content = read_json(file)
    if not isinstance(content, dict):
        raise ValueError(f"{file} holds a {type(content).__name__}; expected an object with {', '.join(lists)}")
    content = {"annotations": [], **content} if "categories" in content else content
    for name, keys in lists.items():
        if name not in content:
            present = ", ".join(map(str, content)) or "nothing"
            raise ValueError(f"{file} has no {name!r}; expected {', '.join(lists)}, found {present}")
        rows = content[name]
        if not isinstance(rows, list):
            raise ValueError(f"{file}: {name!r} is a {type(rows).__name__}; expected a list")
        invalid = [
            f"number {number}: {shortened(row)}"
            for number, row in enumerate(rows)
            if not isinstance(row, dict) or any(key not in row for key in keys)
        ]
        raise_for_invalid(f"{file}, {name}", invalid, len(rows), f"objects with {', '.join(keys)}")
    return content


def _read_listing(
    content: Mapping[str, Any],
    file: Path,
    root: Path,
    classes: Sequence[str] | None,
    *,
    masks: bool,
    keypoints: bool = False,
    oriented: bool = False,
) -> DetectionListing:
    root = existing_folder(root, "root is the folder that holds the images")
    categories = sorted(content["categories"], key=lambda category: check_id(file, "category", category["id"]))
    ids = Counter(category["id"] for category in categories)
    if duplicates := [number for number, count in ids.items() if count > 1]:
        raise ValueError(f"{file} has two categories with the id {duplicates[0]}")
    names = [category_name(file, category) for category in categories]
    selected = pick_classes(file, names, classes)
    chosen = [categories[index] for index in selected]
    keypoint_names = _keypoint_names(file, chosen) if keypoints else []
    errors = ErrorCollector()
    images, index_of = select_images(file, content["images"], errors)
    labels: dict[Any, int] = dict.fromkeys(ids, -1) | {category["id"]: label for label, category in enumerate(chosen)}
    is_lvis = all("frequency" in category for category in chosen)
    listing = DetectionListing(
        file=file,
        root=root,
        image_ids=np.array([image["id"] for image in images], dtype=np.int64),
        classes=[names[index] for index in selected],
        category_ids=[category["id"] for category in chosen],
        errors=errors,
        masks=masks,
        oriented=oriented,
        frequencies=[category["frequency"] for category in chosen] if is_lvis else (),
        keypoints=keypoint_names,
        absent=_image_classes(file, images, "neg_category_ids", labels),
        not_exhaustive=_image_classes(file, images, "not_exhaustive_category_ids", labels),
    )
    for image in images:
        listing.add_image(os.fsencode(file_name(file, image)), (image["height"], image["width"]))
    reader = _AnnotationReader(listing, index_of, labels)
    for annotation in content["annotations"]:
        reader.read(annotation)
    return listing


def category_name(file: Path, category: Mapping[str, Any]) -> str:
    """Return the name of a category.

    Raises:
        ValueError: it is no text.
    """
    with errors_in(f"{file}: category {category['id']}: name "):
        return printable(text(category["name"]))


def check_id(file: Path, noun: str, value: Any) -> int:
    """Return an id.

    Raises:
        ValueError: it is not an integer of 64 bits.
    """
    with errors_in(f"{file}: {noun} id "):
        return whole_number(value)


def file_name(file: Path, image: Mapping[str, Any], noun: str = "image") -> str:
    """Return the path of an image below the root.

    Args:
        file: the JSON file, for errors.
        image: the object in it.
        noun: what errors call it, followed by its id.

    Raises:
        ValueError: the file does not say.
    """
    place = f"{noun} {shortened(image['id'])}" if "id" in image else noun
    url = str(image.get("coco_url") or "").split("/")
    name = image.get("file_name") or "/".join(url[-2:])
    if "neg_category_ids" in image and str(name).startswith("COCO_") and url[-1]:  # the URL is that of 2017
        name = url[-1]
    if not name or not isinstance(name, str):
        raise ValueError(f"{file}: {place} has neither file_name nor coco_url")
    try:
        os.fsencode(name)
    except UnicodeEncodeError as error:
        raise ValueError(f"{file}: {place}: {shortened(name)} is not a file name") from error
    return listed_path(name, "")


def select_images(
    file: Path, images: Sequence[dict[str, Any]], errors: ErrorCollector
) -> tuple[list[dict[str, Any]], dict[Any, int]]:
    """Return images with a unique id and name, and the index of each id; -1 for dropped images."""
    invalid = []
    for image in images:
        try:
            image_size(image["height"], image["width"])
        except ValueError as error:
            invalid.append(f"image {shortened(image['id'])}: {error}")
    raise_for_invalid(file, invalid, len(images), "sizes in pixels")
    selected: list[dict[str, Any]] = []
    index_of: dict[Any, int] = {}
    id_of: dict[str, int] = {}
    for image in images:
        number, name = check_id(file, "image", image["id"]), os.path.normpath(file_name(file, image))
        if name in id_of:
            errors.add(kinds.DUPLICATE_IMAGE, name, "", f"as image {id_of[name]} and {number}")
            index_of.setdefault(number, -1)
        elif number in index_of:
            errors.add(kinds.DUPLICATE_IMAGE, name, "", f"another image has the same id, {number}")
        else:
            index_of[number] = len(selected)
            id_of[name] = number
            selected.append(image)
    return selected, index_of


def _image_classes(
    file: Path, images: Sequence[Mapping[str, Any]], key: str, labels: Mapping[Any, int]
) -> list[list[int]] | None:
    """Return the labels of the categories that LVIS lists with each image under ``key``."""
    if not any(key in image for image in images):
        return None
    invalid = [
        f"image {image['id']}: {shortened(image[key])}"
        for image in images
        if key in image and not (isinstance(image[key], list) and all(type(number) is int for number in image[key]))
    ]
    raise_for_invalid(f"{file}, {key}", invalid, len(images), "lists of category ids")
    return [[label for number in image.get(key, ()) if (label := labels.get(number, -1)) >= 0] for image in images]


def _keypoint_names(file: Path, categories: Sequence[Mapping[str, Any]]) -> list[str]:
    with_keypoints = [category for category in categories if category.get("keypoints")]
    invalid = [
        f"{row['id']}: {shortened(row['keypoints'])}"
        for row in with_keypoints
        if type(row["keypoints"]) is not list or not all(isinstance(name, str) for name in row["keypoints"])
    ]
    raise_for_invalid(f"{file}, keypoints of categories", invalid, len(categories), "lists of names")
    names = {tuple(map(printable, category["keypoints"])) for category in with_keypoints}
    if len(names) != 1:
        reason = "categories with different keypoints" if names else "no category with keypoints"
        raise ValueError(f"{file} has {reason}; expected the same names in all, such as [nose, left_eye, right_eye]")
    return list(names.pop())


class _Invalid(Exception):
    """An invalid annotation, which is dropped: the kind of its error, and the value."""


@dataclass(frozen=True)
class _AnnotationReader:
    """Adds annotations to a listing; invalid ones are added to the errors and dropped."""

    listing: DetectionListing
    index_of: Mapping[Any, int]
    labels: Mapping[Any, int]
    _seen: set[int] = field(default_factory=set)

    def read(self, annotation: Mapping[str, Any]) -> None:
        """Add an annotation, or an error; of annotations with the same id the first is used."""
        try:
            self._add(annotation)
        except _Invalid as error:
            self._report(annotation, *error.args)

    def _report(self, annotation: Mapping[str, Any], kind: str, value: str) -> None:
        number = annotation["image_id"]
        index = self.index_of.get(number, -1) if type(number) in (int, float) else -1
        name = f"image {shortened(number)}" if index < 0 else os.fsdecode(self.listing.names[index])
        self.listing.errors.add(kind, name, f"annotation {shortened(annotation['id'])}", value)

    def _add(self, annotation: Mapping[str, Any]) -> None:
        label = self._look_up(self.labels, annotation, "category_id", kinds.UNKNOWN_CLASS)
        image = self._look_up(self.index_of, annotation, "image_id", kinds.UNKNOWN_IMAGE)
        if image < 0 or label < 0:
            return
        number = check_id(self.listing.file, "annotation", annotation["id"])
        if number in self._seen:
            raise _Invalid(kinds.DUPLICATE_ID, "used before")
        self._seen.add(number)
        box = numbers(annotation["bbox"], 4)
        if box is None:
            raise _Invalid(kinds.BAD_BOX, f"bbox {shortened(annotation['bbox'])}")
        polygons, rle = self._segmentation(annotation, image)
        keypoints = self._keypoints(annotation)
        area = annotation.get("area")
        if area is not None and (not numbers([area], limit=MAX_PIXELS) or area < 0):
            raise _Invalid(kinds.BAD_AREA, f"area {shortened(area)}")
        try:
            crowd = flag(annotation.get("iscrowd"))
        except ValueError as error:
            raise _Invalid(kinds.BAD_FLAG, f"iscrowd {error}") from error
        self.listing.add(
            image, number, label, box, polygons=polygons, rle=rle, area=area, crowd=crowd, keypoints=keypoints
        )

    def _look_up(self, index_of: Mapping[Any, int], annotation: Mapping[str, Any], key: str, kind: str) -> int:
        """Return the index of a referenced image or class; -1 and an error if it does not exist."""
        value = annotation[key]
        if type(value) in (int, float) and value in index_of:
            return index_of[value]
        self._report(annotation, kind, f"{key} {shortened(value)}")
        return -1

    def _segmentation(self, annotation: Mapping[str, Any], image: int) -> tuple[list[list[float]], bytes]:
        """Return polygons, or compressed RLE. Invalid polygons among valid ones are dropped."""
        if not self.listing.masks and not self.listing.oriented:
            return [], b""
        segment = annotation.get("segmentation")
        if not segment:
            raise _Invalid(kinds.NO_SEGMENTATION, f"segmentation {shortened(segment)}")
        if isinstance(segment, dict):
            size, counts = self.listing.sizes[image].tolist(), segment.get("counts")
            if segment.get("size") == size and isinstance(counts, list | str):
                with suppress(ValueError):
                    return [], compress_rle(segment, tuple(size)).encode("ascii")
            value = f"size {shortened(segment.get('size'))}, counts {shortened(counts):.40}"
            raise _Invalid(kinds.BAD_SEGMENTATION, value)
        polygons = [numbers(polygon) for polygon in segment] if isinstance(segment, list) else []
        valid = [points for points in polygons if points is not None and len(points) >= 6 and len(points) % 2 == 0]
        invalid = _Invalid(kinds.BAD_SEGMENTATION, f"segmentation {shortened(segment)}")
        if not valid:
            raise invalid
        if len(valid) < len(polygons):
            self._report(annotation, *invalid.args)
        return valid, b""

    def _keypoints(self, annotation: Mapping[str, Any]) -> list[float]:
        """Return the keypoints; zeros if it has none."""
        count = 3 * len(self.listing.keypoints)
        values = annotation.get("keypoints")
        if values is None or not count:
            return [0.0] * count
        keypoints = numbers(values, count)
        if keypoints is None or not {0, 1, 2}.issuperset(keypoints[2::3]):
            length = f"{len(values)} values, " if isinstance(values, list) and len(values) != count else ""
            raise _Invalid(kinds.BAD_KEYPOINTS, f"{length}{shortened(values)}, expected {count} numbers")
        return keypoints
