"""MNIST's file format: all images in one file, all labels in another."""

from __future__ import annotations

import gzip
import zlib
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torchvision import tv_tensors

from opabinia.config import register
from opabinia.contracts import Batch, Indices, Sample

_PREFIX = {"train": "train", "test": "t10k"}


@register.source
class Idx:
    """Grey images and labels in idx files, plain or gzipped: MNIST, Fashion-MNIST, KMNIST, EMNIST ...

    The folder holds files under their usual names: ``train-images-idx3-ubyte``, ``train-labels-idx1-ubyte``,
    ``t10k-images-idx3-ubyte``, ``t10k-labels-idx1-ubyte``, each with ``.gz`` or without. All images stay in memory,
    once for all workers. A sample's id is ``train/00042``.

    Args:
        root: the folder.
        split: which files.
        classes: names in the order of the labels; the numbers from 0 to the largest label when not given.

    Raises:
        ValueError: a file is missing or broken, or the files do not fit together.
    """

    channels = 1

    def __init__(
        self, *, root: Path, split: Literal["train", "test"] = "train", classes: list[str] | None = None
    ) -> None:
        folder = root.expanduser()
        images = read_idx(_existing(folder, f"{_PREFIX[split]}-images-idx3-ubyte"), 3)
        self.labels = read_idx(_existing(folder, f"{_PREFIX[split]}-labels-idx1-ubyte"), 1).astype(np.int64)
        if len(images) != len(self.labels):
            raise ValueError(f"{folder} holds {len(images)} {split} images and {len(self.labels)} labels")
        largest = int(self.labels.max(initial=-1))
        if classes is not None and largest >= len(classes):
            raise ValueError(f"classes: {len(classes)} names, but {folder} has labels up to {largest}")
        self.classes = tuple(classes or map(str, range(largest + 1)))
        self.split = split
        self._images = torch.from_numpy(images).unsqueeze(1)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Sample:
        image = tv_tensors.Image(self._images[index].clone())  # a transform may work in place
        return {"image": image, "label": int(self.labels[index]), "id": self._id(index)}

    def batch(self, indices: Indices) -> Batch:
        """Samples by their indices (int64, B), as a whole batch."""
        labels = torch.from_numpy(self.labels[indices])
        return {"image": self._images[indices], "label": labels, "id": [self._id(i) for i in indices.tolist()]}

    def fingerprint(self) -> str:
        """Changes with the labels and their order."""
        return f"{len(self)} images, {blake2b(self.labels.tobytes(), digest_size=8).hexdigest()}"

    def _id(self, index: int) -> str:
        return f"{self.split}/{index:05d}"


def _existing(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise ValueError(f"there is no {folder / name} (nor with .gz)")


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """The array (uint8) of an idx file, plain or gzipped.

    Raises:
        ValueError: it is none, has other dimensions, or is cut short; the text names the file.
    """
    content = path.read_bytes()
    if content[:2] == b"\x1f\x8b":
        try:
            content = gzip.decompress(content)
        except (EOFError, OSError, zlib.error) as error:
            raise ValueError(f"{path} is no whole gzip file: {error}") from error
    header = 4 + 4 * dimensions
    if len(content) < header or content[:4] != bytes([0, 0, 8, dimensions]):
        raise ValueError(
            f"{path} is no idx file of bytes in {dimensions} dimensions (it begins with {content[:4].hex()})"
        )
    shape = tuple(int(size) for size in np.frombuffer(content, ">u4", dimensions, 4))
    expected = header + int(np.prod(shape, dtype=np.int64))
    if len(content) != expected:
        raise ValueError(f"{path} has {len(content)} bytes where its header promises {expected}")
    # A copy of its own: what is read from bytes cannot be written to, which torch warns of.
    array: NDArray[Any] = np.frombuffer(content, np.uint8, offset=header).reshape(shape).copy()
    return array
