"""Image sizes from the headers of files, and which files exist."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image

from opabinia.data.sources.annotation_errors import UNREADABLE, ErrorCollector
from opabinia.runtime.local_copies import is_placeholder, read_file

_TRANSPOSED = range(5, 9)
"""EXIF orientations that swap height and width."""


def read_size(path: str | bytes) -> tuple[int, int]:
    """Return height and width of an image after EXIF rotation, without decoding it.

    Raises:
        ValueError: the file cannot be read or is not an image.
    """
    try:
        with Image.open(BytesIO(read_file(path)) if is_placeholder(path) else path) as image:
            width, height = image.size
            # Not that of PngImageFile, which decodes all pixels to find EXIF data behind them.
            transposed = Image.Image.getexif(image).get(ExifTags.Base.Orientation) in _TRANSPOSED
    except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as error:
        reason = re.sub(r" <_io\.\w+ object at \w+>| b?'.*'$", "", str(error))
        raise ValueError(f"{os.fsdecode(path)} cannot be opened: {reason or type(error).__name__}") from error
    return (width, height) if transposed else (height, width)


def read_sizes(root: Path, names: Sequence[bytes], errors: ErrorCollector) -> NDArray[np.int64]:
    """Return height and width of each image (N x 2), zeros for missing and unreadable ones; the latter are added to
    ``errors``. Threads hide the latency of slow disks."""

    def read(name: bytes) -> tuple[int, int]:
        path = os.path.join(os.fsencode(root), name)
        return read_size(path) if os.path.exists(path) else (0, 0)

    sizes = np.zeros((len(names), 2), dtype=np.int64)
    with ThreadPoolExecutor(8) as pool:
        for index, size in enumerate([pool.submit(read, name) for name in names]):
            try:
                sizes[index] = size.result()
            except ValueError as error:
                errors.add(UNREADABLE, os.fsdecode(names[index]), "", error)
    return sizes


def files_exist(root: Path, names: Sequence[bytes]) -> NDArray[np.bool_]:
    """Return which of the files below ``root`` exist (bool, N). Each folder is listed once."""
    folders: dict[bytes, list[int]] = defaultdict(list)
    for index, name in enumerate(names):
        folders[os.path.dirname(name)].append(index)
    exist = np.zeros(len(names), dtype=bool)
    for folder, indices in folders.items():
        path = os.path.join(os.fsencode(root), folder)
        entries = set(os.listdir(path)) if os.path.isdir(path) else set()
        exist[indices] = [os.path.basename(names[index]) in entries for index in indices]
    return exist
