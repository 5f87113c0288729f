"""Images with any number of channels and any type of value: TIFF, PNG and NumPy files to tensors."""

from __future__ import annotations

import logging
import math
import zipfile
from collections.abc import Sequence
from importlib.util import find_spec
from io import BytesIO
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, TiffImagePlugin
from torch import Tensor

from opabinia.contracts import Pixels

Values = NDArray[Any]

ARRAY_EXTENSIONS = (".npy", ".npz")
"""File extensions of NumPy arrays: images in folders that have no others."""

_NPY, _NPZ = b"\x93NUMPY", b"PK\x03\x04"
_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
MAX_DEFLATE_RATIO = 1032
"""Bytes to which Deflate can expand a byte."""

_SAMPLE_BITS, _SAMPLES = TiffImagePlugin.BITSPERSAMPLE, TiffImagePlugin.SAMPLESPERPIXEL


def is_array(content: bytes) -> bool:
    """Return whether the content of a file is an array of NumPy."""
    return content.startswith((_NPY, _NPZ))


def is_npy(content: bytes) -> bool:
    """Return whether the content of a file is a single array of NumPy, which no compression makes smaller."""
    return content.startswith(_NPY)


def scale_values(values: Values, pixels: Pixels) -> Tensor:
    """Return an image (C x H x W): uint8 as it is if there is no ``max_value``, other values as float32 in 0..1 by
    :class:`opabinia.contracts.Pixels`.

    Args:
        values: H x W or H x W x C; or C x H x W.
        pixels: channels and range.

    Raises:
        ValueError: it has other channels, values without a known range, or pixels without data and no ``fill``.
    """
    image = _channels_first(values, pixels.count)
    if image.dtype == np.uint8 and pixels.max_value is None:
        return torch.from_numpy(image.copy() if not image.flags.writeable else image)
    if image.dtype.kind not in "uif":
        raise ValueError(f"its values are {values.dtype}; expected integers or floating point numbers")
    low, high = pixels.min_value or 0.0, _full_range(image.dtype) if pixels.max_value is None else pixels.max_value
    scaled = image.astype(np.float32)
    missing = ~np.isfinite(scaled)
    if pixels.no_data is not None:
        missing |= image == pixels.no_data
    if missing.any():
        if pixels.fill is None:
            raise ValueError(
                f"{int(missing.sum())} values are NaN or infinite; channels.fill is the value in place of them"
            )
        scaled[missing] = pixels.fill
    if pixels.max_value is None and not (scaled.min() >= 0 and scaled.max() <= high):
        raise ValueError(
            f"its values range from {scaled.min():g} to {scaled.max():g}; channels.max_value (and min_value) say what "
            "becomes 1 (and 0)"
        )
    return torch.from_numpy(((scaled - np.float32(low)) / np.float32(high - low)).clip(0, 1))


def _full_range(dtype: np.dtype[Any]) -> float:
    """Return the value that becomes 1 if the config does not give one.

    Raises:
        ValueError: values of this type have no known range.
    """
    if dtype.kind == "f":
        return 1.0
    if dtype in (np.uint8, np.uint16):
        return float(np.iinfo(dtype).max)
    raise ValueError(f"its values are {dtype}, whose range is unknown; channels.max_value is the value that becomes 1")


def _channels_first(values: Values, count: int) -> Values:
    """Return values as contiguous C x H x W in the byte order of the machine.

    Raises:
        ValueError: they have another number of channels.
    """
    _check_channels(values.shape, count)
    if values.ndim == 2:
        values = values[None]
    elif values.shape[2] == count:
        values = np.moveaxis(values, 2, 0)
    if not values.size:
        raise ValueError("it has no pixels")
    return np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("="))


def _check_channels(shape: Sequence[int], count: int) -> None:
    """Check that an image of this shape, H x W or with the channels first or last, has ``count`` channels.

    Raises:
        ValueError: it has others.
    """
    if (len(shape) == 2 and count == 1) or (len(shape) == 3 and count in (shape[0], shape[2])):
        return
    given = " x ".join(map(str, shape)) or "a single number"
    raise ValueError(f"its shape is {given}; channels: {count} expects H x W x {count}, or {count} x H x W")


# --- files ------------------------------------------------------------------------------------------------------------


def read_array(content: bytes) -> Values:
    """Return the array of a ``.npy`` file, or the only one of a ``.npz`` file. Arrays of Python objects are refused.

    Raises:
        ValueError: it is damaged, or has no such array.
    """
    if content.startswith(_NPY):
        return _read_npy(content)
    with zipfile.ZipFile(BytesIO(content)) as archive:
        names = [name for name in archive.namelist() if name.endswith(".npy")]
        if len(names) != 1:
            raise ValueError(f"an .npz file of an image has one array, this one has {len(names)}")
        return _read_npy(archive.read(names[0]))


def _read_npy(content: bytes) -> Values:
    shape, is_fortran, dtype, offset = _npy_header(content)
    count = math.prod(shape)
    if dtype.hasobject or offset + count * dtype.itemsize > len(content):
        raise ValueError("it has objects" if dtype.hasobject else "the file is truncated")
    values = np.frombuffer(content, dtype, count, offset)
    return values.reshape(shape, order="F" if is_fortran else "C")


def _npy_header(content: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Return shape, whether the first index varies fastest, type, and offset of the values of a ``.npy`` file."""
    file = BytesIO(content)
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"version {version} of .npy is not read")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, is_fortran, dtype = read(file)
    return shape, is_fortran, dtype, file.tell()


def array_size(content: bytes) -> tuple[int, int]:
    """Return height and width of an image that is an array of NumPy, see :func:`image_size`.

    Raises:
        ValueError: it is damaged, or has no such array.
    """
    return image_size(_npy_header(content)[0] if content.startswith(_NPY) else read_array(content).shape)


def image_size(shape: Sequence[int]) -> tuple[int, int]:
    """Return height and width of an image of this shape. If it has three sides, the shorter one of the first and the
    last is that of the channels.

    Raises:
        ValueError: it has others.
    """
    if len(shape) not in (2, 3):
        raise ValueError(f"its shape is {' x '.join(map(str, shape))}; expected H x W, H x W x C or C x H x W")
    is_first = len(shape) == 3 and shape[0] < shape[2]
    return (shape[1], shape[2]) if is_first else (shape[0], shape[1])


def is_tiff(content: bytes) -> bool:
    """Return whether the content of a file begins as a TIFF does."""
    return content.startswith(_TIFF)


def file_values(image: Image.Image) -> Values:
    """Return the values of a decoded PIL image as the file has them: H x W, or H x W x C."""
    if image.mode in ("P", "1"):
        image = image.convert("RGB" if image.mode == "P" else "L")
    return np.array(image)


def needs_tifffile(image: Image.Image) -> bool:
    """Return whether PIL would lose channels or bits of a TIFF: it reads 16 bits of one channel only."""
    if not isinstance(image, TiffImagePlugin.TiffImageFile):
        return False
    bits, samples = image.tag_v2.get(_SAMPLE_BITS, (1,)), image.tag_v2.get(_SAMPLES, 1)
    return samples > 1 and bool(np.max(bits) > 8 or samples != len(image.getbands()))


def read_tiff(content: bytes, count: int) -> Values:
    """Return the values of a TIFF with tifffile, of any number of bits.

    Args:
        content: of the file.
        count: its channels, which are checked before they are decoded.

    Raises:
        ImportError: tifffile is not installed.
        ValueError: the file is damaged, has other channels, or is compressed in a way that needs further packages.
    """
    tifffile = _tifffile()
    with tifffile.TiffFile(BytesIO(content)) as file:
        series = file.series[0]
        _check_channels(series.shape, count)
        if series.nbytes > MAX_DEFLATE_RATIO * len(content):
            raise ValueError(f"its {len(content)} bytes cannot hold {series.nbytes} bytes of pixels")
        values: Values = series.asarray()
        return values


def tiff_shape(content: bytes) -> tuple[int, ...]:
    """Return the shape of the values of a TIFF, as :func:`read_tiff` does, from its header.

    Raises:
        ImportError: tifffile is not installed.
        ValueError: the file is damaged.
    """
    tifffile = _tifffile()
    with tifffile.TiffFile(BytesIO(content)) as file:
        return tuple(file.series[0].shape)


def _tifffile() -> Any:
    """Return tifffile, which no longer logs what is wrong with a damaged file: errors are raised.

    Raises:
        ImportError: it is not installed.
    """
    if find_spec("tifffile") is None:
        raise ImportError("a TIFF with several channels of more than 8 bits needs pip install 'opabinia[tiff]'")
    import tifffile

    logging.getLogger("tifffile").setLevel(logging.CRITICAL)
    return tifffile
