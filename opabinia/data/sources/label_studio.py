"""Annotations of Label Studio: tasks exported as JSON, with rectangles and polygons."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import numpy as np

from opabinia.config import register
from opabinia.contracts import Channels, InputPath
from opabinia.data.sources import annotation_errors as kinds
from opabinia.data.sources.annotation_errors import Broken
from opabinia.data.sources.annotation_tools import Polygon
from opabinia.data.sources.annotation_values import image_size, numbers, shortened, text
from opabinia.data.sources.detection_base import AnnotatedImages, DetectionListing, Empty, build_source, given_classes
from opabinia.data.sources.file_names import printable
from opabinia.data.sources.folder import existing_folder
from opabinia.data.sources.list_files import read_json

SUSPECT = "suspect"
"""A label of regions that may be wrong, next to that of their class, which comes first: `opabinia data labels`."""


@register.source
def label_studio(
    *,
    root: InputPath,
    file: InputPath,
    masks: bool = False,
    classes: list[str] | None = None,
    empty: Empty = "keep",
    broken: Broken = "error",
    channels: Channels = 3,
) -> AnnotatedImages:
    """Images annotated with Label Studio, exported as "JSON": rectangles, also rotated ones, and polygons.

    The last submitted annotation of a task counts; tasks without one are omitted. A region is of its first label. A
    sample's id is the path of its image below the root.

    Args:
        root: the folder of the images: the local storage, or that of the uploaded files.
        file: the exported JSON file.
        masks: instance masks from the shapes; otherwise only their bounding boxes.
        classes: names of the labels to use, in the order of the classes, other regions are dropped; all that occur,
            sorted, when not given.
        empty: ``drop`` drops images without objects.
        broken: for regions without area, regions beyond the image and missing images: ``error`` raises; ``clip`` clips
            regions to the image and drops those without area; ``drop`` drops them. ``fix`` clips what ``clip`` does and
            drops the rest.
        channels: 3 for color, 1 for gray; images are converted.

    Raises:
        ValueError: the file is no such export, or has errors that ``broken`` does not allow.
    """
    root = existing_folder(root, "root is the folder that holds the images")
    listing = DetectionListing(file=file, root=root, classes=given_classes(file, classes), masks=masks, noun="region")
    seen: set[str] = set()
    for image, results in submitted_tasks(file):
        name = _find_image(root, image)
        if name in seen:
            listing.errors.add(kinds.DUPLICATE_IMAGE, name, "", "listed twice")
            continue
        seen.add(name)
        try:
            regions = [region for result in results if (region := _read_region(result)) is not None]
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            listing.errors.add(kinds.BAD_LABELS, name, "", f"{type(error).__name__}: {error}")
            continue
        index, numbered = listing.add_image(os.fsencode(name)), count(1)
        for label, polygon in regions:
            if classes is None or label in classes:
                listing.add(index, next(numbered), label, polygons=[polygon])
    return build_source(listing, broken=broken, empty=empty, channels=channels)


def submitted_tasks(file: Path) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    """Yield the address of the image and the results of the last submitted annotation of each task that has one.

    Raises:
        ValueError: the file is no export of Label Studio as JSON.
    """
    content = read_json(file)
    try:
        for task in content:
            submitted = [item for item in task["annotations"] if not item.get("was_cancelled")]
            if submitted:
                yield text(task["data"]["image"]), list(submitted[-1]["result"])
    except (LookupError, TypeError, AttributeError) as error:
        message = f"{file} is no JSON export of Label Studio: {type(error).__name__}: {error}"
        raise ValueError(f"{message}; tasks have data.image and annotations") from error


def image_path(address: str) -> str:
    """Return the path in the address of an image: of local storage (``/data/local-files/?d=PATH``), of an upload
    (``/data/upload/1/PREFIX-NAME``), or of anything else."""
    parts = urlsplit(address)
    path = parse_qs(parts.query).get("d", [""])[0] or unquote(parts.path)
    return re.sub(r"^/?data/upload/\d+/(?:[0-9a-f]{8}-)?", "", path).lstrip("/")


def _find_image(root: Path, address: str) -> str:
    """Return the path of an image below the root, which may be a folder within that of the storage."""
    path = os.path.normpath(image_path(address))
    parts = path.split("/")
    candidates = ["/".join(parts[start:]) for start in range(len(parts))]
    return next((name for name in candidates if (root / name).is_file()), path)


def _read_region(result: Mapping[str, Any]) -> tuple[str, Polygon] | None:
    """Return the label and the polygon of a region in pixels; None for other results.

    Raises:
        ValueError, LookupError, TypeError, AttributeError: it is broken.
    """
    kind, value = text(result["type"]), result["value"]
    if kind not in ("rectanglelabels", "polygonlabels"):
        return None
    label = next((name for name in value[kind] if name != SUSPECT), None)
    if label is None:
        return None
    height, width = image_size(result["original_height"], result["original_width"])
    scale = np.array([width, height]) / 100
    if kind == "polygonlabels":
        points = np.array([_numbers(point, 2) for point in value["points"]]).reshape(-1, 2)
        if len(points) < 3:
            raise ValueError(f"a polygon of {len(points)} points")
        return printable(text(label)), (points * scale).ravel().tolist()
    x, y, percent_width, percent_height = _numbers([value[key] for key in ("x", "y", "width", "height")], 4)
    (angle,) = np.deg2rad(_numbers([value.get("rotation") or 0], 1))
    along_width = percent_width * scale[0] * np.array([np.cos(angle), np.sin(angle)])
    along_height = percent_height * scale[1] * np.array([-np.sin(angle), np.cos(angle)])
    corner = np.array([x, y]) * scale
    corners = [corner, corner + along_width, corner + along_width + along_height, corner + along_height]
    return printable(text(label)), np.concatenate(corners).tolist()


def _numbers(values: Any, count: int) -> list[float]:
    checked = numbers(values, count)
    if checked is None:
        raise ValueError(f"{shortened(values)} are not {count} numbers")
    return checked
