"""MNIST's file format: all images in one file, all labels in another."""

from __future__ import annotations

import gzip
import zlib
from math import prod
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from opabinia.config import register
from opabinia.contracts import Batch, Indices, InputPath
from opabinia.data.sources.annotation_values import errors_in
from opabinia.data.sources.file_names import short_digest
from opabinia.data.sources.in_memory import ImageArray, collate_arrays


@register.source
class Idx(ImageArray):
    """Gray images and labels in idx files, plain or gzipped: MNIST, Fashion-MNIST, KMNIST, EMNIST ...

    The folder holds files with their usual names: ``train-images-idx3-ubyte``, ``train-labels-idx1-ubyte``,
    ``t10k-images-idx3-ubyte``, ``t10k-labels-idx1-ubyte``, with or without ``.gz``. All images are kept in memory, once
    for all workers. A sample's id is ``train/00042``.

    Args:
        root: the folder.
        split: the files to read.
        classes: names in the order of the labels; the numbers from 0 to the largest label when not given.

    Raises:
        ValueError: a file is missing or broken, or the files do not match.
    """

    def __init__(
        self, *, root: InputPath, split: Literal["train", "test"] = "train", classes: list[str] | None = None
    ) -> None:
        folder = root.expanduser()
        prefix = {"train": "train", "test": "t10k"}[split]
        images = read_idx(_find(folder, f"{prefix}-images-idx3-ubyte"), 3)
        labels = read_idx(_find(folder, f"{prefix}-labels-idx1-ubyte"), 1).astype(np.int64)
        if len(images) != len(labels):
            raise ValueError(f"{folder} holds {len(images)} {split} images and {len(labels)} labels")
        largest = int(labels.max(initial=-1))
        if classes is not None and largest >= len(classes):
            raise ValueError(f"classes: {len(classes)} names, but {folder} has labels up to {largest}")
        super().__init__(images, labels, classes or list(map(str, range(largest + 1))))
        self.split = split

    def id(self, index: int) -> str:
        """Return the split and the number of a sample."""
        return f"{self.split}/{index:05d}"

    def batch(self, indices: Indices) -> Batch:
        return collate_arrays(self, self._images, indices)

    def fingerprint(self) -> str:
        """Return a text that changes with the labels and their order."""
        return f"{len(self)} images, {short_digest(np.asarray(self.info.labels).tobytes())}"


def _find(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise ValueError(f"there is no {folder / name} (nor with .gz)")


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """Read the uint8 array in an idx file, plain or gzipped.

    Raises:
        ValueError: it is not an idx file, has other dimensions, or is truncated; the text names the file.
    """
    content = path.read_bytes()
    if content[:2] == b"\x1f\x8b":
        with errors_in(f"{path} is not a complete gzip file: ", EOFError, OSError, zlib.error):
            content = gzip.decompress(content)
    header = 4 + 4 * dimensions
    if len(content) < header or content[:4] != bytes([0, 0, 8, dimensions]):
        raise ValueError(
            f"{path} is not an idx file of bytes in {dimensions} dimensions (it begins with {content[:4].hex()})"
        )
    shape = tuple(int(size) for size in np.frombuffer(content, ">u4", dimensions, 4))
    expected = header + prod(shape)
    if len(content) != expected:
        raise ValueError(f"{path} has {len(content)} bytes, its header says {expected}")
    # A copy, because torch warns about read-only arrays.
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape).copy()
