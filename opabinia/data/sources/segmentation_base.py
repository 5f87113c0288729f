"""The common parts of the sources of segmentation maps."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torchvision import tv_tensors

from opabinia.contracts import IGNORE_LABEL, GroundTruthMap, Sample
from opabinia.data.decoding.images import image_errors, open_image, upright
from opabinia.data.sources.labels import class_indices
from opabinia.runtime.local_copies import read_file

Color = tuple[int, int, int]


class MapError(ValueError):
    """A segmentation map that cannot be read, or with values that are no labels; the text names the file."""


def check_map_classes(where: object, classes: Sequence[str]) -> None:
    """Check the number of classes, and that each is listed once.

    Raises:
        ValueError: there are none, more than a map can hold, or a duplicate; the text begins with ``where``.
    """
    if not 0 < len(class_indices(classes, where)) <= IGNORE_LABEL:
        raise ValueError(f"{where}: {len(classes)} classes; segmentation needs 1 to {IGNORE_LABEL}")


def make_map_sample(image: torch.Tensor, sample_id: str, ground_truth: GroundTruthMap) -> Sample:
    """Return a sample with the map of an image as ``mask``.

    Args:
        image: uint8, C x H x W.
        sample_id: its id.
        ground_truth: of the image.
    """
    return {
        "image": tv_tensors.Image(image),
        "mask": tv_tensors.Mask(torch.from_numpy(ground_truth.labels.copy())),  # a transform may work in place
        "id": sample_id,
        "original_size": tuple(image.shape[-2:]),
        "ground_truth_map": ground_truth,
    }


def read_map(path: bytes) -> NDArray[Any]:
    """Return the values in the file of a segmentation map: gray values or palette indices (unsigned, H x W), or colors
    (uint8, H x W x 3).

    Raises:
        MapError: the file cannot be read, is no image, or has floating point numbers or more than 16 bits.
    """
    name = os.fsdecode(path)
    try:
        content = read_file(path)
        with image_errors(name), open_image(content) as file:
            image = upright(file)
            colored = image.mode not in _VALUE_MODES
            values = np.asarray(image.convert("RGB") if colored and image.mode != "RGB" else image)
    except OSError as error:
        raise MapError(f"{name} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise MapError(str(error)) from error
    if values.dtype.kind == "f" or (values.size and not 0 <= int(values.min()) <= int(values.max()) < 2**16):
        raise MapError(f"{os.fsdecode(path)} has values outside 0 to 65535; save it with 8 or 16 bits")
    return values.astype(np.uint8 if values.dtype.itemsize == 1 else np.uint16, copy=False)


_VALUE_MODES = ("1", "L", "P", "I", "F", "I;16", "I;16B", "I;16L", "I;16N")
"""Modes of PIL with one number for each pixel; of a palette the index, which is never converted to its color."""


_BLOCK = 1 << 20
"""Pixels of a map that are converted at once: 24 million in color would take a gigabyte."""


def blocks_of_rows(values: NDArray[Any]) -> list[NDArray[Any]]:
    """Return parts of a map (H x W x ...), one below the other, of about a million pixels each."""
    return np.array_split(values, 1 + values.shape[0] * values.shape[1] // _BLOCK)


def color_codes(colors: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """Return a number for each color (... x 3): red times 65536, green times 256, and blue."""
    red, green, blue = np.moveaxis(colors.astype(np.uint32), -1, 0)
    codes: NDArray[np.uint32] = red << 16 | green << 8 | blue
    return codes
