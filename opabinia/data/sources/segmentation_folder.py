"""Semantic segmentation in folders of images and of label maps: PNG files with the class of each pixel."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Interval
from numpy.typing import NDArray
from PIL import Image

from opabinia.config import register
from opabinia.contracts import IGNORE_LABEL, Channels, GroundTruthMap, Indices, InputPath, Sample, SourceInfo
from opabinia.data.decoding.images import read_image
from opabinia.data.file_search import find_files
from opabinia.data.sources import annotation_errors as kinds
from opabinia.data.sources.annotation_errors import ErrorCollector, ErrorGroup, check_errors
from opabinia.data.sources.annotation_values import check_below_root
from opabinia.data.sources.file_names import FileNames, short_digest
from opabinia.data.sources.folder import existing_folder
from opabinia.data.sources.image_headers import files_exist, read_sizes
from opabinia.data.sources.labels import check_class
from opabinia.data.sources.list_files import raise_for_invalid, read_lines
from opabinia.data.sources.map_names import MapNaming, pair_with_maps
from opabinia.data.sources.named import NamedFiles
from opabinia.data.sources.segmentation_base import (
    Color,
    MapError,
    blocks_of_rows,
    check_map_classes,
    color_codes,
    make_map_sample,
    read_map,
)
from opabinia.runtime.log import warn_once
from opabinia.runtime.text import plural

Byte = Annotated[int, Interval(ge=0, le=255)]
PixelValue = Annotated[int, Interval(ge=0, le=65535)]
Unlisted = Literal["error", "ignore", "nearest"]
BrokenMap = Literal["error", "drop", "fix"]


@dataclass(frozen=True)
class PixelLabels:
    """Converts the values in map files to labels.

    Attributes:
        table: label of each gray value or palette index; 255 is ignored, -1 an error (int16, 65536).
        colors: of the classes, for maps in color; may be empty.
        unlisted: label of other colors: 255, or -1 for an error; None: that of the nearest color.
    """

    table: NDArray[np.int16]
    colors: Sequence[Color]
    unlisted: int | None

    def convert(self, values: NDArray[Any], name: str) -> NDArray[np.uint8]:
        """Return the labels (uint8, H x W) of values as :func:`read_map` returns them.

        Raises:
            MapError: a value is no label; the text names the value, its pixel and the file ``name``.
        """
        if values.ndim == 2:
            labels = self.table[values]
        elif not self.colors:
            raise MapError(f"{name} is a color image; give the colors of the classes, or save labels as gray values")
        else:
            labels = np.concatenate([self._labels_of_colors(rows) for rows in blocks_of_rows(values)])
        wrong = np.argwhere(labels < 0)
        if len(wrong):
            row, column = wrong[0].tolist()
            more = f", and {len(wrong) - 1} more pixels" if len(wrong) > 1 else ""
            value, place = values[row, column].tolist(), f"row {row}, column {column}{more}"
            raise MapError(f"{name}: no class has the value {value} ({place}); unlisted: ignore ignores such pixels")
        result: NDArray[np.uint8] = labels.astype(np.uint8)
        return result

    def _labels_of_colors(self, values: NDArray[np.uint8]) -> NDArray[np.int16]:
        """Return the labels (int16, H x W) of colors, -1 for errors."""
        codes, listed = color_codes(values), color_codes(np.array(self.colors, np.uint8))
        order = np.argsort(listed)
        places = np.searchsorted(listed[order], codes).clip(max=len(order) - 1)
        others = self._nearest(values) if self.unlisted is None else self.unlisted
        return np.where(listed[order][places] == codes, order[places], others).astype(np.int16)

    def _nearest(self, values: NDArray[Any]) -> NDArray[np.int64]:
        """Return the labels of the nearest colors (int64, H x W) of a map in color."""
        distances = [np.square(values.astype(np.int32) - color).sum(-1) for color in self.colors]
        nearest: NDArray[np.int64] = np.argmin(distances, axis=0)
        return nearest


class SegmentationFiles(NamedFiles):
    """Images with a label map each. A sample's id is the path of the image below the root.

    Args:
        root: the folder that names are relative to.
        images, maps: names of the files, as the file system has them.
        sizes: height and width of each image (int64, N x 2).
        classes: their names.
        labels: converts the values in the maps.
        errors: the errors that were fixed.
        channels: 3 for color, 1 for gray; images are converted.
    """

    def __init__(
        self,
        root: Path,
        images: Sequence[bytes],
        maps: Sequence[bytes],
        *,
        sizes: Indices,
        classes: Sequence[str],
        labels: PixelLabels,
        errors: Sequence[ErrorGroup],
        channels: Channels,
    ) -> None:
        info = SourceInfo(
            channels=channels,
            classes=tuple(classes),
            sizes=sizes,
            errors=tuple(errors),
            maps=True,
            colors=tuple(labels.colors),
        )
        super().__init__(root, images, info)
        self._maps, self._labels = FileNames(maps), labels

    def __getitem__(self, index: int) -> Sample:
        image_file, map_file = self.paths(index)
        image, name = read_image(image_file, self.channels), os.fsdecode(map_file)
        labels = self._labels.convert(read_map(map_file), name)
        height, width = image.shape[-2:]
        if labels.shape != (height, width):
            if not _are_proportional(np.array([[height, width]]), np.array([labels.shape])).all():
                raise MapError(f"{name} has {_pixels(labels.shape)} pixels, the image {_pixels(image.shape[-2:])}")
            labels = np.array(Image.fromarray(labels).resize((width, height), Image.Resampling.NEAREST))
        return make_map_sample(image, self.id(index), GroundTruthMap(self.id(index), labels))

    def paths(self, index: int) -> Sequence[bytes]:
        """Return the files of the image and of the map."""
        return self.path(index), os.path.join(os.fsencode(self.root), self._maps[index])

    def fingerprint(self) -> str:
        """Return a text that changes with the names of the files, the classes and the labels of values."""
        digest = short_digest(
            self.names.tobytes(),
            self._maps.tobytes(),
            "\0".join(self.classes).encode(),
            self._labels.table.tobytes(),
            repr((self._labels.colors, self._labels.unlisted)).encode(),
        )
        return f"{len(self)} images with maps of {len(self.classes)} classes, {digest}"


def _pixels(size: Sequence[int]) -> str:
    """Return (height, width) as width x height."""
    return f"{size[1]} x {size[0]}"


@register.source
def segmentation_folder(
    *,
    root: InputPath,
    images: str = "images",
    labels: str = "labels",
    image_suffix: str | None = None,
    label_suffix: str = ".png",
    image_prefix: str = "",
    label_prefix: str = "",
    list_file: str | None = None,
    classes: list[str] | None = None,
    class_file: InputPath | None = None,
    colors: list[tuple[Byte, Byte, Byte]] | None = None,
    values: dict[str, list[PixelValue]] | None = None,
    reduce_zero_label: bool = False,
    ignore: list[PixelValue] | None = None,
    unlisted: Unlisted = "error",
    broken: BrokenMap = "error",
    channels: Channels = 3,
) -> SegmentationFiles:
    """Images with label maps in a second folder: ``labels/a/1.png`` has the class of each pixel of ``images/a/1.jpg``.

    Maps are gray (8 or 16 bits) or have a palette, of which the indices count, not the colors; the value is the label,
    unless ``values`` says otherwise. Maps in color need the color of each class. Hidden files are skipped, and
    maps without an image. Sizes of images and maps are compared when the source is made, values when a map is read.

    Args:
        root: the folder that holds both.
        images: the folder with images, and its subfolders.
        labels: the folder with maps in the same subfolders; it may be that of the images, if ``label_suffix`` or
            ``label_prefix`` distinguishes them.
        image_suffix: end of the names of images, which is replaced by ``label_suffix``; others are skipped. null: any
            extension of an image.
        label_suffix: end of the names of maps.
        image_prefix: beginning of the names of images, which is replaced by ``label_prefix``; others are skipped.
        label_prefix: beginning of the names of maps.
        list_file: a file below the root with the names of the images to use, one per line, with or without suffix;
            null: all.
        classes: names of the classes, in the order of their labels.
        class_file: a file with these instead, one per line, optionally followed by the color: ``road 128 64 128``.
        colors: color of each class (red, green, blue), for maps in color and for drawing.
        values: the values of each class in the maps: ``{road: [7], vehicle: [26, 27, 28]}``; without ``classes`` its
            keys are the classes. null: the labels.
        reduce_zero_label: 0 in a map is ignored, and 1 is the first class (as in ADE20K).
        ignore: values of pixels without a label; null: 255, unless ``values`` gives it to a class.
        unlisted: for values that are neither a class nor ignored: ``error`` raises; ``ignore`` ignores the pixels;
            ``nearest`` takes the class of the nearest value or color, for maps that are JPEG or were interpolated.
        broken: for images without a map, of another size than their map, or that cannot be read: ``error`` raises;
            ``drop`` drops them; ``fix`` scales maps with the proportions of their image, and drops the rest.
        channels: 3 for color, 1 for gray; images are converted.

    Raises:
        ValueError: a folder or file is missing or has no images, the classes are incomplete or contradictory, or there
            are errors that ``broken`` does not allow.
    """
    root = existing_folder(root, "root is the folder that holds images and label maps")
    names, pixel_labels = _pixel_labels(
        classes, class_file, colors, values, reduce_zero_label=reduce_zero_label, ignore=ignore, unlisted=unlisted
    )
    naming = MapNaming(image_prefix, image_suffix, label_prefix, label_suffix)
    image_files, map_files = pair_with_maps(root, images, labels, naming, list_file)
    searched = None if list_file or images == labels else (labels, label_suffix.lower())
    return _open(root, image_files, map_files, searched, names, pixel_labels, broken, channels)


@register.source
def segmentation_list(
    *,
    file: InputPath,
    root: InputPath | None = None,
    separator: str | None = None,
    classes: list[str] | None = None,
    class_file: InputPath | None = None,
    colors: list[tuple[Byte, Byte, Byte]] | None = None,
    values: dict[str, list[PixelValue]] | None = None,
    reduce_zero_label: bool = False,
    ignore: list[PixelValue] | None = None,
    unlisted: Unlisted = "error",
    broken: BrokenMap = "error",
    channels: Channels = 3,
) -> SegmentationFiles:
    """Images and label maps as a list: a line has the path of an image and that of its map, ``a/1.jpg maps/1.png``.

    Args:
        file: the list.
        root: the folder that the paths are relative to; the list's own folder when not given.
        separator: between both paths; whitespace when not given.
        classes: names of the classes, in the order of their labels.
        class_file: a file with these instead; see ``segmentation_folder``, as for all that follow.
        colors: color of each class (red, green, blue), for maps in color and for drawing.
        values: the values of each class in the maps; null: the labels.
        reduce_zero_label: 0 in a map is ignored, and 1 is the first class.
        ignore: values of pixels without a label; null: 255.
        unlisted: for values that are neither a class nor ignored: ``error``, ``ignore`` or ``nearest``.
        broken: for images without a map, of another size, or that cannot be read: ``error``, ``drop`` or ``fix``.
        channels: 3 for color, 1 for gray; images are converted.

    Raises:
        ValueError: a line does not have two paths, or see ``segmentation_folder``.
    """
    file = file.expanduser()
    root = existing_folder(root or file.parent, "root is the folder that the paths are relative to")
    names, pixel_labels = _pixel_labels(
        classes, class_file, colors, values, reduce_zero_label=reduce_zero_label, ignore=ignore, unlisted=unlisted
    )
    rows = [(location, line.split(separator)) for location, line in read_lines(file)]
    wrong = [f"{location} has {plural(len(row), 'field')}" for location, row in rows if len(row) != 2]
    raise_for_invalid(file, wrong, len(rows), "an image and its map")
    image_files, map_files = ([os.fsencode(row[side].strip()) for _, row in rows] for side in (0, 1))
    check_below_root(file, root, image_files)
    check_below_root(file, root, map_files)
    return _open(root, image_files, map_files, None, names, pixel_labels, broken, channels)


def _pixel_labels(
    classes: Sequence[str] | None,
    class_file: Path | None,
    colors: Sequence[Color] | None,
    values: Mapping[str, Sequence[int]] | None,
    *,
    reduce_zero_label: bool,
    ignore: Sequence[int] | None,
    unlisted: Unlisted,
) -> tuple[list[str], PixelLabels]:
    """Return the classes, and the labels of the values in maps."""
    names, file_colors = _read_classes(classes, class_file, values)
    colors = file_colors if colors is None else colors
    check_map_classes("classes" if class_file is None else class_file, names)
    if len(colors) not in (0, len(names)):
        raise ValueError(f"colors: {plural(len(colors), 'color')} for {plural(len(names), 'class', 'es')}")
    table = _make_table(names, values, reduce_zero_label, ignore, unlisted)
    of_others = {"error": -1, "ignore": IGNORE_LABEL, "nearest": None}
    return names, PixelLabels(table, colors, of_others[unlisted])


def _open(
    root: Path,
    image_files: Sequence[bytes],
    map_files: Sequence[bytes],
    searched: tuple[str, str] | None,
    classes: Sequence[str],
    pixel_labels: PixelLabels,
    broken: BrokenMap,
    channels: Channels,
) -> SegmentationFiles:
    """Check the files of images and maps, and return the source; ``searched``: the folder and suffix of maps, of which
    unused ones are reported."""
    sizes, kept, errors = _check_files(root, image_files, map_files, fix=broken == "fix")
    check_errors(root, errors.groups(), broken)
    _report_unused(root, find_files(root, searched[0], [searched[1]]) if searched else [], map_files, errors)
    if not kept.any():
        raise ValueError(f"{root}: no image is left to train on")
    chosen = np.flatnonzero(kept).tolist()
    return SegmentationFiles(
        root,
        [image_files[index] for index in chosen],
        [map_files[index] for index in chosen],
        sizes=sizes[kept],
        classes=classes,
        labels=pixel_labels,
        errors=errors.groups(),
        channels=channels,
    )


# --- classes ----------------------------------------------------------------------------------------------------------


def _read_classes(
    classes: Sequence[str] | None, class_file: Path | None, values: Mapping[str, Sequence[int]] | None
) -> tuple[list[str], list[Color]]:
    """Return the names of the classes, and their colors if the file has them."""
    if (classes is not None) + (class_file is not None) > 1:
        raise ValueError("classes and class_file exclude each other; give one of them")
    if class_file is not None:
        return read_class_file(class_file.expanduser())
    if classes is None and values is None:
        raise ValueError("classes: the names of the classes are needed, as a list or in a class_file")
    return list(classes if classes is not None else values or ()), []


def read_class_file(file: Path) -> tuple[list[str], list[Color]]:
    """Read a file with the name of a class in each line, optionally before or after its color; none have one otherwise.

    Raises:
        ValueError: it cannot be read, or a color is none.
    """
    lines = [text for _, text in read_lines(file) if not text.startswith("#")]
    found = (
        [match for text in lines if (match := form.fullmatch(text))] for form in (_NAME_BEFORE_COLOR, _NAME_AFTER_COLOR)
    )
    rows = next((matches for matches in found if len(matches) == len(lines)), None)
    if rows is None:
        return lines, []
    colors = [(int(row["red"]), int(row["green"]), int(row["blue"])) for row in rows]
    wrong = [row.string for row, color in zip(rows, colors, strict=True) if max(color) > 255]
    raise_for_invalid(file, wrong, len(rows), "names with colors from 0 to 255")
    return [row["name"] for row in rows], colors


_COLOR = r"(?P<red>\d{1,9})[\s,]+(?P<green>\d{1,9})[\s,]+(?P<blue>\d{1,9})"
_NAME_BEFORE_COLOR = re.compile(rf"(?P<name>.+?)[\s,:]+{_COLOR}:*")
_NAME_AFTER_COLOR = re.compile(rf"{_COLOR}[\s,:]+(?P<name>.*\D.*)")
"""As in the label_colors.txt of CamVid."""


def _make_table(
    classes: Sequence[str],
    values: Mapping[str, Sequence[int]] | None,
    reduce_zero_label: bool,
    ignore: Sequence[int] | None,
    unlisted: Unlisted,
) -> NDArray[np.int16]:
    """Return the table of :class:`PixelLabels`."""
    if values is not None and reduce_zero_label:
        raise ValueError("values and reduce_zero_label exclude each other: values can list the classes from 1")
    first = int(reduce_zero_label)
    by_class = values if values is not None else {name: [first + label] for label, name in enumerate(classes)}
    table = np.full(2**16, IGNORE_LABEL if unlisted == "ignore" else -1, dtype=np.int16)
    owner: dict[int, str] = {}
    for name, numbers in by_class.items():
        check_class("values: the list of classes", name, classes)
        for number in numbers:
            if owner.setdefault(number, name) != name:
                raise ValueError(f"values: {number} belongs to {owner[number]!r} and {name!r}")
            table[number] = classes.index(name)
    if ignore is None:  # masks of one object often have the value 255 in it
        ignore = [] if values is not None and IGNORE_LABEL in owner else [IGNORE_LABEL]
    table[[*ignore, *range(first)]] = IGNORE_LABEL
    if unlisted == "nearest":
        listed = np.flatnonzero(table >= 0)
        ends = (listed[1:] + listed[:-1]) // 2 + 1  # from here on the next value is nearer
        table = table[listed[np.searchsorted(ends, np.arange(2**16), "right")]]
    return table


# --- files ------------------------------------------------------------------------------------------------------------


def _report_unused(root: Path, found: Sequence[bytes], used: Sequence[bytes], errors: ErrorCollector) -> None:
    """Add the maps without an image to the errors, and log them; they are no reason to stop."""
    unused = sorted(set(found) - set(used))
    for name in unused:
        errors.add(kinds.UNUSED_MAP, os.fsdecode(name), "", "not used")
    if unused:
        warn_once("%s: %s", root, errors.groups()[-1])


def _check_files(
    root: Path, images: Sequence[bytes], maps: Sequence[bytes], *, fix: bool
) -> tuple[Indices, NDArray[np.bool_], ErrorCollector]:
    """Return the sizes of images (int64, N x 2), which of them can be used (bool, N), and the errors of the others:
    missing, listed twice, unreadable, or of different sizes; with ``fix`` maps that can be scaled are used."""
    errors = ErrorCollector()
    first = {name: index for index, name in reversed(list(enumerate(images)))}
    repeated = np.array([first[name] != index for index, name in enumerate(images)])
    image_exists, map_exists = files_exist(root, images), files_exist(root, maps)
    if not map_exists.any():
        image, expected = os.fsdecode(images[0]), os.fsdecode(maps[0])
        raise ValueError(
            f"{root}: none of {plural(len(images), 'image')} has a label map; expected {expected:.300} for {image:.300}"
        )
    sizes, map_sizes = read_sizes(root, images, errors), read_sizes(root, maps, errors)
    same, proportional = (sizes == map_sizes).all(1), _are_proportional(sizes, map_sizes)
    for index in np.flatnonzero(repeated | ~image_exists | ~map_exists | ~same).tolist():
        name, map_name = os.fsdecode(images[index]), os.fsdecode(maps[index])
        if repeated[index]:
            errors.add(kinds.DUPLICATE_IMAGE, name, "", "in the list")
        elif not image_exists[index]:
            errors.add(kinds.MISSING, name, "", f"not in {root}")
        elif not map_exists[index]:
            errors.add(kinds.MISSING_MAP, name, "", f"there is no {map_name}")
        elif sizes[index].all() and map_sizes[index].all():
            value = f"{_pixels(sizes[index])} pixels, {map_name} has {_pixels(map_sizes[index])}"
            errors.add(kinds.SCALED_MAP if fix and proportional[index] else kinds.WRONG_SIZE, name, "", value)
    kept = ~repeated & (sizes > 0).all(1) & (same | (fix & proportional))
    return sizes, kept, errors


def _are_proportional(sizes: Indices, map_sizes: Indices) -> NDArray[np.bool_]:
    """Return which maps (int64, N x 2) have the proportions of their image, but for rounding to a pixel (bool, N)."""
    deviations = np.abs(sizes[:, 0] * map_sizes[:, 1] - sizes[:, 1] * map_sizes[:, 0])
    close: NDArray[np.bool_] = (deviations < sizes.max(1)) & (map_sizes > 0).all(1)
    return close
