"""The objects in files of masks and of maps, whose values say which object a pixel is of."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from opabinia.contracts.masks import compress_rle
from opabinia.data.sources.annotation_values import errors_in
from opabinia.data.sources.segmentation_base import color_codes, read_map
from opabinia.runtime.resources import cores

_MAX_OBJECTS = 10_000
"""Objects of a file, at most: more different values are no numbers of objects."""


class ObjectMask(NamedTuple):
    """Box (left, top, width, height), COCO's compressed counts and number of pixels of an object."""

    box: tuple[int, int, int, int]
    counts: bytes
    area: int


class FileObjects(NamedTuple):
    """Height and width of a file, and its objects in the order of their values."""

    size: tuple[int, int]
    objects: tuple[ObjectMask, ...]


def read_objects(root: bytes, names: Sequence[bytes]) -> list[FileObjects | ValueError]:
    """Return the objects in each of the files below a root: the pixels of each value or color other than 0; or the
    error of a file that cannot be read."""

    def read(name: bytes) -> FileObjects | ValueError:
        try:
            with errors_in("", OSError):
                status = os.stat(os.path.join(root, name))
            return _read(os.path.join(root, name), status.st_mtime_ns, status.st_size)
        except ValueError as error:
            return error

    with ThreadPoolExecutor(cores()) as pool:
        return list(pool.map(read, names))


@lru_cache(maxsize=1 << 18)
def _read(path: bytes, changed: int, length: int) -> FileObjects:
    """Return the objects in a file. A command makes a source several times, and decodes a file of this time of change
    and number of bytes once."""
    values = read_map(path)
    return FileObjects((values.shape[0], values.shape[1]), find_objects(values))


def find_objects(values: NDArray[Any]) -> tuple[ObjectMask, ...]:
    """Return an object for each value other than 0, or color other than black, in the order of these.

    Args:
        values: H x W, or H x W x 3.

    Raises:
        ValueError: there are more than 10,000.
    """
    codes = values if values.ndim == 2 else color_codes(values)
    size = (codes.shape[0], codes.shape[1])
    column_by_column = codes.ravel(order="F")
    pixels = np.flatnonzero(column_by_column != 0)  # of truth values, which is faster
    order = np.argsort(column_by_column[pixels], kind="stable")
    pixels, numbers = pixels[order], column_by_column[pixels][order]
    ends = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(pixels)] if len(pixels) else []
    if len(ends) > _MAX_OBJECTS + 1:
        raise ValueError(f"{len(ends) - 1} values other than 0; a file has at most {_MAX_OBJECTS} objects")
    return tuple(_object(pixels[start:end], size) for start, end in pairwise(ends))


def _object(pixels: NDArray[np.int64], size: tuple[int, int]) -> ObjectMask:
    """Return the object of these pixels: their sorted numbers, counted column by column."""
    gaps = np.flatnonzero(np.diff(pixels) > 1)
    runs = np.stack([pixels[np.append(0, gaps + 1)], pixels[np.append(gaps, -1)] + 1], 1).ravel()
    counts = np.diff(runs, prepend=0, append=size[0] * size[1]).tolist()
    columns, rows = np.divmod(pixels, size[0])
    left, top = int(columns[0]), int(rows.min())
    box = (left, top, int(columns[-1]) - left + 1, int(rows.max()) - top + 1)
    segment = {"size": list(size), "counts": counts}
    return ObjectMask(box, compress_rle(segment, size).encode("ascii"), len(pixels))
