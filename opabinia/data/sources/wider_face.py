"""Faces in the annotation format of WIDER FACE."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from opabinia.config import register
from opabinia.contracts import Channels, InputPath
from opabinia.data.decoding.images import EXTENSIONS
from opabinia.data.sources import annotation_errors as kinds
from opabinia.data.sources.annotation_errors import Broken
from opabinia.data.sources.annotation_values import parse_number, parse_whole, shortened
from opabinia.data.sources.detection_base import AnnotatedImages, DetectionListing, Empty, build_source
from opabinia.data.sources.folder import existing_folder
from opabinia.data.sources.list_files import read_lines

_FACE = "face"

_INVALID = 7
"""Number of a face that says whether it is to be ignored, after the four of its box and three of its look."""


@register.source
def wider_face(
    *,
    root: InputPath,
    file: InputPath,
    empty: Empty = "keep",
    broken: Broken = "error",
    channels: Channels = 3,
) -> AnnotatedImages:
    """Images with boxes of faces in the format of WIDER FACE (Yang et al. 2016): ``wider_face_train_bbx_gt.txt``.

    For each image the file has a line with its path, one with the number of faces, and one for each face: left, top,
    width, height in pixels, blur, expression, illumination, invalid, occlusion, pose. Invalid faces are dropped. An
    image without faces has one line of zeros, which may be missing.

    Args:
        root: the folder that paths are relative to, such as ``WIDER_train/images``.
        file: the text file.
        empty: ``drop`` drops images without objects.
        broken: handling of broken annotations: ``error`` raises; ``clip`` clips to the image and drops objects without
            area; ``drop`` drops them, and also images that cannot be read. ``fix`` clips what ``clip`` does and drops
            the rest.
        channels: 3 for color, 1 for gray; images are converted.

    Raises:
        ValueError: the file cannot be read or has other lines, or there are errors that ``broken`` does not allow.
    """
    root = existing_folder(root, "root is the folder that the paths in the file are relative to")
    listing = DetectionListing(file=file, root=root, classes=[_FACE], noun="line")
    for path, faces in _records(file):
        image = listing.add_image(os.fsencode(path))
        for number, (place, line) in enumerate(faces, 1):
            try:
                values = [parse_number(value) for value in line.split()]
            except ValueError as error:
                listing.errors.add(kinds.BAD_BOX, file.name, place, error)
                continue
            if len(values) <= _INVALID or not values[_INVALID]:
                listing.add(image, number, _FACE, values[:4])
    if not listing.names:
        raise ValueError(f"{file} has no image")
    return build_source(listing, broken=broken, empty=empty, channels=channels)


def _records(file: Path) -> Iterator[tuple[str, Sequence[tuple[str, str]]]]:
    """Yield the path of each image, and the lines of its faces with their places in the file.

    Raises:
        ValueError: the file cannot be read, or its lines are others.
    """
    lines = read_lines(file)
    start = 0
    while start < len(lines):
        place, path = lines[start]
        try:
            count = parse_whole(lines[start + 1][1] if start + 1 < len(lines) else "", 0)
        except ValueError as error:
            raise ValueError(f"{file}, line after {place}: number of faces: {error}") from error
        faces = lines[start + 2 : start + 2 + count]
        if not _is_image(path) or len(faces) < count or not all(map(_is_face, faces)):
            raise ValueError(
                f"{file}, {place}: {shortened(path)}: expected the path of an image, the number of its faces, and a "
                "line with at least four numbers for each"
            )
        yield path, faces
        start += 2 + count
        if not count and start < len(lines) and _is_face(lines[start]):  # zeros
            start += 1


def _is_face(line: tuple[str, str]) -> bool:
    return len(line[1].split()) >= 4 and not _is_image(line[1])


def _is_image(path: str) -> bool:
    return path.lower().endswith(EXTENSIONS)
