"""Sizes of pictures from the beginning of their files, and which files there are."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image

from opabinia.data.sources.annotation_errors import UNREADABLE, Faults

_TURNED = range(5, 9)
"""Orientations of EXIF that change height and width."""


def size_of(path: str | bytes) -> tuple[int, int]:
    """Height and width of a picture that is turned upright, without decoding it.

    Raises:
        ValueError: it cannot be read or is no picture.
    """
    try:
        with Image.open(path) as picture:
            width, height = picture.size
            turned = picture.getexif().get(ExifTags.Base.Orientation) in _TURNED
    except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as error:
        reason = re.sub(r" <_io\.\w+ object at \w+>| b?'.*'$", "", str(error))
        raise ValueError(f"{os.fsdecode(path)} cannot be opened: {reason or type(error).__name__}") from error
    return (width, height) if turned else (height, width)


def sizes_of(root: Path, names: Sequence[bytes], told: Faults) -> NDArray[np.int64]:
    """Height and width of each picture (N x 2), zeros where they cannot be told: of a picture that is missing, or that
    cannot be read, which is told. Several are opened at once, for slow disks."""

    def tell(name: bytes) -> tuple[int, int] | str:
        path = os.path.join(os.fsencode(root), name)
        try:
            return size_of(path) if os.path.exists(path) else (0, 0)
        except ValueError as error:
            return str(error)

    sizes = np.zeros((len(names), 2), dtype=np.int64)
    with ThreadPoolExecutor(8) as pool:
        for number, found in enumerate(pool.map(tell, names)):
            if isinstance(found, str):
                told.add(UNREADABLE, os.fsdecode(names[number]), "", found)
            else:
                sizes[number] = found
    return sizes


def are_there(root: Path, names: Sequence[bytes]) -> NDArray[np.bool_]:
    """Whether each of the files below ``root`` exists (bool, N). Each folder is listed once."""
    folders: dict[bytes, list[int]] = defaultdict(list)
    for number, name in enumerate(names):
        folders[os.path.dirname(name)].append(number)
    found = np.zeros(len(names), dtype=bool)
    for folder, numbers in folders.items():
        path = os.path.join(os.fsencode(root), folder)
        held = set(os.listdir(path)) if os.path.isdir(path) else set()
        found[numbers] = [os.path.basename(names[number]) in held for number in numbers]
    return found
