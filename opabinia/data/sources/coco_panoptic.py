"""Panoptic segmentation in COCO's format: a JSON file, and a PNG file with the segment of each pixel of each image."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from opabinia.config import register
from opabinia.contracts import (
    IGNORE_LABEL,
    Channels,
    GroundTruth,
    GroundTruthMap,
    Indices,
    InputPath,
    RaggedArray,
    Sample,
    SourceInfo,
)
from opabinia.contracts.masks import encode_rle
from opabinia.data.sources import annotation_errors as kinds
from opabinia.data.sources.annotation_errors import ErrorCollector, ErrorGroup, check_errors
from opabinia.data.sources.annotation_values import check_below_root, errors_in, flag, shortened
from opabinia.data.sources.coco import category_name, check_id, file_name, read_lists, select_images
from opabinia.data.sources.detection_base import make_sample, read_annotated
from opabinia.data.sources.file_names import FileNames, short_digest
from opabinia.data.sources.folder import existing_folder
from opabinia.data.sources.image_headers import files_exist
from opabinia.data.sources.list_files import raise_for_invalid
from opabinia.data.sources.named import NamedFiles
from opabinia.data.sources.segmentation_base import Color, MapError, check_map_classes, make_map_sample, read_map


@register.source
def coco_panoptic(
    *,
    root: InputPath,
    maps: InputPath,
    file: InputPath,
    broken: Literal["error", "drop"] = "error",
    channels: Channels = 3,
) -> PanopticImages:
    """Images with segments of countable objects and of stuff in COCO's panoptic format.

    Labels are countable categories (``isthing``) in the order of their ids, then the others. Samples are those of
    semantic segmentation and of instance segmentation together: crowds are in the map, but not trained on as objects. A
    sample's id is its path below the root.

    Args:
        root: the folder that image names are relative to.
        maps: the folder with the PNG files; the color of a pixel is the id of its segment, R + 256 G + 65536 B.
        file: the JSON file, with ``images``, ``annotations`` (``segments_info``) and ``categories``.
        broken: for missing images and maps, repeated ids and unknown categories: ``error`` raises; ``drop`` drops the
            images, and ignores the pixels of segments.
        channels: 3 for color, 1 for gray; images are converted.

    Raises:
        ValueError: the file is not such a JSON file, or has errors that ``broken`` does not allow.
    """
    file = file.expanduser()
    root = existing_folder(root, "root is the folder that holds the images")
    maps = existing_folder(maps, "maps is the folder that holds the PNG files")
    content = read_lists(file, _LISTS)
    rows = content["annotations"]
    for number, row in enumerate(rows):
        file_name(file, row, f"annotation {number}")
    invalid = [f"image {shortened(row['image_id'])}" for row in rows if not _is_list_of_objects(row["segments_info"])]
    raise_for_invalid(f"{file}, segments_info", invalid, len(rows), "lists of objects")
    for category in content["categories"]:
        _check_category(file, category)
    categories = sorted(content["categories"], key=lambda category: (not category["isthing"], category["id"]))
    label_of = {category["id"]: label for label, category in enumerate(categories)}
    if len(label_of) < len(categories):
        raise ValueError(f"{file} has two categories with the same id")
    check_map_classes(file, [category_name(file, category) for category in categories])
    errors = ErrorCollector()
    images, index_of = select_images(file, content["images"], errors)
    annotations = _select_annotations(rows, images, index_of, errors)
    names = [os.fsencode(file_name(file, image)) for image in images]
    map_names = [os.fsencode(row["file_name"]) if row else b"" for row in annotations]
    check_below_root(file, root, names)
    check_below_root(file, maps, map_names)
    exist = files_exist(root, names), files_exist(maps, map_names)
    for index, (name, has_image, has_map) in enumerate(zip(map(os.fsdecode, names), *exist, strict=True)):
        if not has_image:
            errors.add(kinds.MISSING, name, "", f"not in {root}")
        elif not has_map:
            errors.add(kinds.MISSING_MAP, name, "", f"there is no {os.fsdecode(map_names[index]) or 'annotation'}")
    kept = np.flatnonzero(exist[0] & exist[1]).tolist()
    segments = [_read_segments(file, images[index], annotations[index], label_of, errors) for index in kept]
    check_errors(file, errors.groups(), broken)
    if not kept:
        raise ValueError(f"{file}: no image is left to train on")
    return PanopticImages(
        file,
        (root, [names[index] for index in kept]),
        (maps, [map_names[index] for index in kept]),
        [images[index] for index in kept],
        segments,
        categories,
        errors=errors.groups(),
        channels=channels,
    )


_LISTS = {
    "images": ("id", "width", "height"),
    "annotations": ("image_id", "file_name", "segments_info"),
    "categories": ("id", "name", "isthing"),
}

Segments = NDArray[np.int64]
"""Segments of an image: id, label (255 is ignored) and whether it is a crowd (S x 3), ordered by id."""


def _check_category(file: Path, category: Mapping[str, Any]) -> None:
    """Check a category, which may be shown with its color.

    Raises:
        ValueError: its id, ``isthing`` or color is invalid.
    """
    place = f"{file}: category {check_id(file, 'category', category['id'])}"
    with errors_in(f"{place}: isthing "):
        flag(category["isthing"])
    color = category.get("color")
    if color and not (isinstance(color, list) and len(color) == 3 and all(part in range(256) for part in color)):
        raise ValueError(f"{place}: color is {shortened(color)}, expected three numbers from 0 to 255")


def _is_list_of_objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


def _select_annotations(
    rows: Sequence[Mapping[str, Any]],
    images: Sequence[Mapping[str, Any]],
    index_of: Mapping[Any, int],
    errors: ErrorCollector,
) -> list[Mapping[str, Any] | None]:
    """Return the annotation of each image, None without one."""
    selected: list[Mapping[str, Any] | None] = [None] * len(images)
    for row in rows:
        index = index_of.get(row["image_id"]) if type(row["image_id"]) is int else None
        if index is None:
            errors.add(kinds.UNKNOWN_IMAGE, row["file_name"], "", f"image {shortened(row['image_id'])}")
        elif index >= 0:
            selected[index] = row
    return selected


def _read_segments(
    file: Path,
    image: Mapping[str, Any],
    annotation: Mapping[str, Any] | None,
    label_of: Mapping[Any, int],
    errors: ErrorCollector,
) -> Segments:
    rows: dict[int, tuple[int, int, bool]] = {}
    for segment in annotation["segments_info"] if annotation else ():
        number, category = segment.get("id"), segment.get("category_id")
        place = file_name(file, image), f"segment {shortened(number)}"
        if type(number) is not int or not 0 < number < 2**24 or number in rows:
            errors.add(
                kinds.BAD_SEGMENT,
                *place,
                "used twice" if type(number) is int and number in rows else "not in this range",
            )
            continue
        label = label_of.get(category, IGNORE_LABEL) if type(category) is int else IGNORE_LABEL
        if label == IGNORE_LABEL:
            errors.add(kinds.UNKNOWN_CLASS, *place, f"category {shortened(category)}")
        try:
            rows[number] = (number, label, flag(segment.get("iscrowd")))
        except ValueError as error:
            errors.add(kinds.BAD_FLAG, *place, f"iscrowd {error}")
            rows[number] = (number, IGNORE_LABEL, False)
    return np.array(sorted(rows.values()), dtype=np.int64).reshape(-1, 3)


class PanopticImages(NamedFiles):
    """Images with segments: maps, and the objects of countable classes.

    Args:
        file: the JSON file, for messages.
        images, maps: the folder and the names of N images, and of their PNG files.
        sizes: rows of the images in the file, with ``id``, ``height`` and ``width``.
        segments: of each image.
        categories: in the order of their labels.
        errors: the errors that were fixed.
        channels: 3 for color, 1 for gray; images are converted.
    """

    def __init__(
        self,
        file: Path,
        images: tuple[Path, Sequence[bytes]],
        maps: tuple[Path, Sequence[bytes]],
        rows: Sequence[Mapping[str, Any]],
        segments: Sequence[Segments],
        categories: Sequence[Mapping[str, Any]],
        *,
        errors: Sequence[ErrorGroup] = (),
        channels: Channels = 3,
    ) -> None:
        colors: list[Color] = [tuple(category.get("color") or ()) for category in categories]
        info = SourceInfo(
            channels=channels,
            classes=tuple(category_name(file, category) for category in categories),
            sizes=np.array([(row["height"], row["width"]) for row in rows], dtype=np.int64),
            errors=tuple(errors),
            boxes=True,
            masks=True,
            category_ids=tuple(category["id"] for category in categories),
            present=RaggedArray(np.unique(own[own[:, 1] < IGNORE_LABEL, 1]) for own in segments),
            maps=True,
            thing_labels=tuple(label for label, category in enumerate(categories) if category["isthing"]),
            colors=tuple(colors) if all(len(color) == 3 for color in colors) else (),
        )
        super().__init__(*images, info)
        self.file, self.maps_root = file, maps[0]
        self._image_ids = np.array([row["id"] for row in rows], dtype=np.int64)
        self._maps = FileNames(maps[1])
        self._segments = np.concatenate(segments)
        self._ends = np.cumsum([len(own) for own in segments])

    def __getitem__(self, index: int) -> Sample:
        height, width = np.asarray(self.info.sizes)[index].tolist()
        size = (height, width)
        image = read_annotated(self.path(index), self.channels, size, self.file)
        ids, ground_truth = self._read_segments(index, size)
        labels, crowd = ground_truth.segment_labels, ground_truth.crowd
        assert ground_truth.segments is not None and labels is not None and crowd is not None
        areas = np.bincount(ground_truth.segments.ravel(), minlength=len(labels) + 1)[1:]
        rows = np.flatnonzero(np.isin(labels, self.info.thing_labels) & (areas > 0))
        masks = ground_truth.segments == (rows + 1)[:, None, None].astype(np.int32)
        objects = GroundTruth(
            image_id=ground_truth.image_id,
            size=size,
            ids=ids[rows],
            boxes=np.array([_bounds(mask) for mask in masks], dtype=np.float64).reshape(-1, 4),
            labels=labels[rows],
            areas=areas[rows].astype(np.float64),
            crowd=crowd[rows],
            segments=[encode_rle(mask) for mask in masks],
        )
        trainable = ~objects.crowd
        sample = make_sample(image, self.id(index), objects, trainable, masks[trainable].astype(np.uint8), [])
        return sample | make_map_sample(image, self.id(index), ground_truth)

    def _read_segments(self, index: int, size: tuple[int, int]) -> tuple[Indices, GroundTruthMap]:
        """Return the ids of the segments, and the map.

        Raises:
            MapError: the PNG file cannot be read, has another size, or a color that is no segment.
        """
        path = self.paths(index)[1]
        values, name = read_map(path), os.fsdecode(path)
        if values.shape != (*size, 3):
            shape = " x ".join(map(str, values.shape))
            raise MapError(f"{name}: expected a color image of {size[0]} rows x {size[1]} columns, not {shape}")
        own = self._segments[self._ends[index - 1] if index else 0 : self._ends[index]]
        table = np.concatenate([[[0, IGNORE_LABEL, 0]], own])  # the id 0 belongs to no segment
        ids = values @ np.array([1, 2**8, 2**16])
        places = np.searchsorted(table[:, 0], ids, "right") - 1
        wrong = np.argwhere(table[places, 0] != ids)
        if len(wrong):
            row, column = wrong[0].tolist()
            more = f" (and {len(wrong) - 1} more pixels)" if len(wrong) > 1 else ""
            place = f"at row {row}, column {column}{more}"
            raise MapError(f"{name}: {self.file} has no segment {ids[row, column]}, the color {place}")
        listed = table[:, 1] < IGNORE_LABEL
        numbers = np.where(listed, np.cumsum(listed), 0).astype(np.int32)
        return table[listed, 0], GroundTruthMap(
            image_id=int(self._image_ids[index]),
            labels=table[:, 1].astype(np.uint8)[places],
            segments=numbers[places],
            segment_labels=table[listed, 1],
            crowd=table[listed, 2].astype(bool),
        )

    def paths(self, index: int) -> Sequence[bytes]:
        """Return the files of the image and of the map."""
        return self.path(index), os.path.join(os.fsencode(self.maps_root), self._maps[index])

    def fingerprint(self) -> str:
        """Return a text that changes with the images, the classes and all segments."""
        names = self.names.tobytes() + self._maps.tobytes() + "\0".join(self.classes).encode()
        digest = short_digest(names, self._segments.tobytes(), self._ends.tobytes())
        return f"{len(self)} images with {len(self._segments)} segments of {len(self.classes)} classes, {digest}"


def _bounds(mask: NDArray[np.bool_]) -> tuple[int, int, int, int]:
    """Return left, top, width and height of a mask (H x W) with at least one pixel."""
    columns, rows = (np.flatnonzero(mask.any(axis)) for axis in (0, 1))
    return columns[0], rows[0], columns[-1] + 1 - columns[0], rows[-1] + 1 - rows[0]
