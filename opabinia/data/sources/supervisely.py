"""Annotations of Supervisely: a JSON file for each image, with polygons, rectangles and bitmaps."""

from __future__ import annotations

import base64
import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opabinia.config import register
from opabinia.contracts import Channels, InputPath
from opabinia.contracts.masks import compress_rle, decode_rle, encode_rle
from opabinia.data.decoding.images import EXTENSIONS, image_errors, open_image
from opabinia.data.file_search import find_files
from opabinia.data.sources import annotation_errors as kinds
from opabinia.data.sources.annotation_errors import Broken
from opabinia.data.sources.annotation_tools import Polygon, rectangle
from opabinia.data.sources.annotation_values import image_size, numbers, parse_json, shortened, text
from opabinia.data.sources.detection_base import AnnotatedImages, DetectionListing, Empty, build_source, given_classes
from opabinia.data.sources.file_names import printable
from opabinia.data.sources.folder import existing_folder

_MAX_BITMAP = 1 << 26
"""Bytes of the PNG file of a bitmap, at most."""


@register.source
def supervisely(
    *,
    root: InputPath,
    annotations: str = "ann",
    images: str = "img",
    masks: bool = False,
    classes: list[str] | None = None,
    empty: Empty = "keep",
    broken: Broken = "error",
    channels: Channels = 3,
) -> AnnotatedImages:
    """Images annotated with Supervisely, whose format Dataset Ninja has, too: ``img/1.jpg`` and ``ann/1.jpg.json``.

    Polygons, rectangles and bitmaps are objects; tags are ignored. A sample's id is the path of its image below the
    root. ``object_maps`` makes segmentation maps of the objects.

    Args:
        root: the folder of a dataset, which holds both folders.
        annotations: the folder below the root with the JSON files.
        images: the folder below the root with the images.
        masks: instance masks from the shapes; otherwise only their bounding boxes.
        classes: names in the order of their labels, objects of others are dropped; all that occur, sorted, when not
            given.
        empty: ``drop`` drops images without objects.
        broken: for shapes without area (points and lines), shapes beyond the image, missing images and broken files:
            ``error`` raises; ``clip`` clips shapes to the image and drops those without area; ``drop`` drops them.
            ``fix`` clips what ``clip`` does and drops the rest.
        channels: 3 for color, 1 for gray; images are converted.

    Raises:
        ValueError: there are no JSON files, or there are errors that ``broken`` does not allow.
    """
    root = existing_folder(root, "root is the folder that holds ann and img")
    files = [os.fsdecode(file) for file in find_files(root, annotations, [".json"])]
    if not files:
        raise ValueError(f"{root / annotations} has no JSON files")
    listing = DetectionListing(file=root, root=root, classes=given_classes(root, classes), masks=masks, noun="object")
    for file in files:
        try:
            content = parse_json((root / file).read_bytes(), "it")
            size = image_size(content["size"]["height"], content["size"]["width"])
            objects = [(printable(text(shape["classTitle"])), shape) for shape in content["objects"]]
        except (OSError, ValueError, LookupError, TypeError) as error:
            value = f"not a file of Supervisely: {type(error).__name__}: {error}"
            listing.errors.add(kinds.BAD_LABELS, file, "", value)
            continue
        image = listing.add_image(_image_of(root, file, annotations, images), size)
        for number, (name, shape) in enumerate(objects, 1):
            try:
                segmentation = _segmentation(shape, size)
            except (ValueError, LookupError, TypeError) as error:
                listing.errors.add(kinds.BAD_SEGMENTATION, file, f"object {number}", error)
            else:
                listing.add(image, number, name, **segmentation)
    return build_source(listing, broken=broken, empty=empty, channels=channels)


def _image_of(root: Path, file: str, annotations: str, images: str) -> bytes:
    """Return the path below the root of the image of ``ann/1.jpg.json`` or, as older projects have it, of
    ``ann/1.json``."""
    name = os.path.join(images, os.path.relpath(file, annotations or ".").removesuffix(".json"))
    names = [name] if name.lower().endswith(EXTENSIONS) else [name + suffix for suffix in EXTENSIONS]
    return os.fsencode(next((name for name in names if (root / name).is_file()), names[0]))


def _segmentation(shape: Any, size: tuple[int, int]) -> dict[str, Any]:
    """Return the segmentation of an object as arguments of :meth:`DetectionListing.add`.

    Raises:
        ValueError, LookupError, TypeError: it has no area, or cannot be read.
    """
    kind = shape["geometryType"]
    if kind == "bitmap":
        return _of_mask(_bitmap(shape["bitmap"], size), size)
    exterior = _points(shape["points"]["exterior"])
    holes = [hole for hole in map(_points, shape["points"].get("interior") or ()) if len(hole) >= 6]
    if kind == "rectangle" and len(exterior) == 4:
        (left, right), (top, bottom) = sorted(exterior[::2]), sorted(exterior[1::2])
        return {"polygons": [rectangle(left, top, right, bottom)]}
    if kind != "polygon" or len(exterior) < 6:
        raise ValueError(f"a {kind!s:.60} of {len(exterior) // 2} points")
    if not holes:
        return {"polygons": [exterior]}
    return _of_mask(decode_rle([exterior], size).astype(bool) & (decode_rle(holes, size) == 0), size)


def _points(points: Any) -> Polygon:
    """Return a list of points as x, y, x, y ..."""
    if not isinstance(points, list) or any(numbers(point, 2) is None for point in points):
        raise ValueError(f"points {shortened(points)} are not lists of two numbers")
    return [float(value) for point in points for value in point]


def _bitmap(bitmap: Any, size: tuple[int, int]) -> NDArray[np.bool_]:
    """Return the mask of a bitmap: a PNG file, compressed by zlib and base64, and the pixel of its upper left corner.

    Raises:
        ValueError: it cannot be read, or extends beyond the image.
    """
    origin = numbers(bitmap["origin"], 2)
    if origin is None or not isinstance(bitmap["data"], str):
        raise ValueError("a bitmap without data and the two numbers of its origin")
    try:
        content = zlib.decompressobj().decompress(base64.b64decode(bitmap["data"]), _MAX_BITMAP)
    except zlib.error as error:
        raise ValueError(f"a bitmap that cannot be decompressed: {error}") from error
    left, top = (int(value) for value in origin)
    with image_errors("the bitmap"), open_image(content) as image:
        right, bottom = left + image.width, top + image.height
        if min(left, top) < 0 or bottom > size[0] or right > size[1]:
            raise ValueError(f"it is from {left}, {top} to {right}, {bottom}, beyond the image")
        transparent = "A" in image.mode or "transparency" in image.info
        pixels = np.asarray(image.convert("RGBA"))[..., 3:] if transparent else np.asarray(image)
    mask = np.zeros(size, dtype=bool)
    mask[top:bottom, left:right] = pixels.reshape(bottom - top, right - left, -1).any(-1)
    return mask


def _of_mask(mask: NDArray[np.bool_], size: tuple[int, int]) -> dict[str, Any]:
    """Return the box and the RLE of a mask.

    Raises:
        ValueError: it is empty.
    """
    rows, columns = (np.flatnonzero(mask.any(axis)) for axis in (1, 0))
    if not rows.size:
        raise ValueError("a mask without pixels")
    left, top = int(columns[0]), int(rows[0])
    box = [left, top, int(columns[-1]) + 1 - left, int(rows[-1]) + 1 - top]
    return {"box": box, "rle": compress_rle(encode_rle(mask), size).encode("ascii")}
