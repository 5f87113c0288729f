"""Image files to tensors."""

from __future__ import annotations

import os
import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from hashlib import blake2b
from io import BytesIO
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import simplejpeg
import torch
from PIL import ExifTags, Image, ImageFile, ImageOps, TiffImagePlugin, UnidentifiedImageError
from torch import Tensor
from torchvision import tv_tensors
from torchvision.io import decode_image

from opabinia.contracts import Channels, FrameChannels, Pixels, Sample, are_8bit_images, pixels_of
from opabinia.data.decoding.values import (
    MAX_DEFLATE_RATIO,
    array_size,
    file_values,
    image_size,
    is_array,
    is_tiff,
    needs_tifffile,
    read_array,
    read_tiff,
    scale_values,
    tiff_shape,
)
from opabinia.runtime.local_copies import is_placeholder, read_file

EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm")
"""File extensions of images, for searching folders."""

FORMATS = ("JPEG", "PNG", "GIF", "BMP", "TIFF", "PPM", "WEBP")
"""Formats of images, by PIL's names. Files of any other format are refused, whatever their names say: PIL would run
Ghostscript on EPS."""

# JPEGs are decoded by torchvision, in half the time of PIL and to the same pixels, and so are WebPs, in 0.3 to 0.7 of
# its time, unless they have an extended header: they may be animations or rotated. PNGs are not: it would save a fifth,
# but its decoder (0.29) ends the process with a segmentation fault on most kinds of damaged pixel data.
_JPEG_START, _JPEG_END = b"\xff\xd8\xff", b"\xff\xd9"
_SIMPLE_WEBP = re.compile(rb"RIFF.{4}WEBPVP8[ L]", re.DOTALL)
_MODES = {1: ("GRAY", "L"), 3: ("RGB", "RGB")}


def read_image(path: str | bytes | os.PathLike[str], channels: Channels = 3) -> Tensor:
    """Read an image file, C x H x W, rotated upright (EXIF); of an animation the first frame.

    With 1 or 3 ``channels`` it is uint8: color is converted to gray, or gray to color, and transparency is dropped.
    With others, or :class:`opabinia.contracts.Pixels`, the channels are those of the file; values of 8 bits stay uint8,
    others become float32 in 0..1 (:func:`opabinia.data.decoding.values.scale_values`).

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not an image, or a broken one, or has other channels or values.
    """
    return decode_bytes(read_file(path), os.fsdecode(path), channels)


def decode_bytes(content: bytes, name: str, channels: Channels = 3) -> Tensor:
    """Decode the content of an image file as :func:`read_image` does.

    Raises:
        ValueError: it is not an image, or a broken one; the text begins with ``name``.
    """
    fast = content.startswith(_JPEG_START) or (channels == 3 and _SIMPLE_WEBP.match(content))
    with image_errors(name):
        if not are_8bit_images(channels):
            return _decode_values(content, pixels_of(channels))
        return (_decode_by_torchvision if fast else _decode_any)(content, channels)


@contextmanager
def image_errors(name: str) -> Iterator[None]:
    """Turn every error of an image library into one kind. On damaged files PIL's plugins raise any exception.

    Raises:
        ValueError: something failed inside; the text begins with ``name`` and has one line.
    """
    try:
        yield
    except Exception as error:
        first_line = next(iter(str(error).splitlines()), "") or type(error).__name__
        reason = re.sub(r"^.*\.cpp:\d+, | <_io\.\w+ object at \w+>", "", first_line)
        if isinstance(error, UnidentifiedImageError):
            reason = f"it is no image ({', '.join(FORMATS)})"
        raise ValueError(f"{name} cannot be decoded: {reason}") from error


def open_image(content: bytes | BinaryIO) -> ImageFile.ImageFile:
    """Open an image file with PIL: its header is read, its pixels are not. Call it inside of :func:`image_errors`."""
    file = BytesIO(content) if isinstance(content, bytes) else content
    image = Image.open(file, formats=FORMATS)
    if image.format == "PNG":
        position, size = file.tell(), file.seek(0, os.SEEK_END)
        file.seek(position)
        # PIL would fill the rows that are not there with black, in gigabytes.
        if image.height * image.width * _PNG_BITS.get(image.mode, 1) > 8 * MAX_DEFLATE_RATIO * size:
            raise OSError(f"its {size} bytes cannot hold {image.width} x {image.height} pixels")
    return image


_PNG_BITS = {"RGB": 24, "RGBA": 32, "LA": 16, "I;16": 16}
"""Bits of a pixel in a PNG, by PIL's mode; others have at least one."""


def read_size(path: str | bytes | os.PathLike[str]) -> tuple[int, int]:
    """Return height and width of an image as :func:`read_image` returns it, rotated upright, without decoding it.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not an image.
    """
    content = BytesIO(read_file(path)) if is_placeholder(path) else open(path, "rb")  # noqa: SIM115 (closed below)
    with content as file, image_errors(os.fsdecode(path)):
        return size_of(file)


def size_of(file: BinaryIO) -> tuple[int, int]:
    """Return height and width of an open image file, as :func:`read_size` does; inside of :func:`image_errors`."""
    start = file.read(8)
    file.seek(0)
    if is_array(start):
        return array_size(file.read())
    try:
        return _header_size(file)
    except UnidentifiedImageError:
        if not is_tiff(start):
            raise
    file.seek(0)
    return image_size(tiff_shape(file.read()))


def _header_size(file: BinaryIO) -> tuple[int, int]:
    with open_image(file) as image:
        width, height = image.size
        if isinstance(image, TiffImagePlugin.TiffImageFile):  # of which the size is upright already, in some versions
            width, height = (image.tag_v2[tag] for tag in (TiffImagePlugin.IMAGEWIDTH, TiffImagePlugin.IMAGELENGTH))
        return (width, height) if _orientation(image) in _TRANSPOSED else (height, width)


def file_channels(content: bytes) -> int | None:
    """Return the channels of an array of NumPy or a TIFF that is not 8-bit gray or color; None for other files.

    Raises:
        ImportError: tifffile is needed, and is not installed.
        ValueError: the file is damaged.
    """
    if is_array(content):
        array = read_array(content)
        count = 1 if array.ndim == 2 else min(array.shape[0], array.shape[-1])
        return None if array.dtype == np.uint8 and count in (1, 3) else int(count)
    if not is_tiff(content):
        return None
    try:
        with open_image(content) as image:
            if not needs_tifffile(image):
                return None
    except UnidentifiedImageError:
        pass
    shape = tiff_shape(content)
    return 1 if len(shape) == 2 else min(shape[0], shape[-1])


_TRANSPOSED = range(5, 9)
"""EXIF orientations that swap height and width."""


def _orientation(image: ImageFile.ImageFile) -> int:
    """Return the EXIF orientation (1: upright), without decoding the pixels."""
    if image.format in ("JPEG", "MPO"):
        image.info.pop("xmp", None)  # PIL would look for an orientation there, viewers do not
    # Not getexif of PngImageFile, which decodes all pixels to find EXIF data behind them.
    orientation: int = Image.Image.getexif(image).get(ExifTags.Base.Orientation, 1)
    return orientation


def _decode_by_torchvision(content: bytes, channels: FrameChannels) -> Tensor:
    data = torch.from_numpy(np.frombuffer(bytearray(content), dtype=np.uint8))
    with warnings.catch_warnings():
        # torchvision 0.29 points to torchcodec, which needs FFmpeg. Once this is gone, _decode_any does for all.
        warnings.filterwarnings("ignore", "The image decoding", DeprecationWarning)
        image: Tensor = decode_image(data, mode=_MODES[channels][0])
    return _rotate_upright(image, _jpeg_orientation(content)) if content.startswith(_JPEG_START) else image


def _rotate_upright(image: Tensor, orientation: int) -> Tensor:
    """Rotate and mirror an image (C x H x W) that is stored in an EXIF orientation."""
    if orientation in _TRANSPOSED:
        image = image.transpose(1, 2)
    axes = {2: (2,), 3: (1, 2), 4: (1,), 6: (2,), 7: (1, 2), 8: (1,)}.get(orientation)
    return image.flip(axes) if axes else image


def _decode_any(content: bytes, channels: FrameChannels) -> Tensor:
    with _array_image(content) if is_array(content) else open_image(content) as image:
        return from_pil(image, channels)


def _array_image(content: bytes) -> Image.Image:
    """Return an array of NumPy (uint8, H x W or H x W x 3) as a PIL image."""
    array = read_array(content)
    if array.dtype != np.uint8 or array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] != 3):
        shape = " x ".join(map(str, array.shape))
        raise OSError(
            f"it is an array of {array.dtype}, {shape}; channels: 1 and 3 take uint8, H x W or H x W x 3; for others "
            "channels is {count: CHANNELS, max_value: VALUE}"
        )
    return Image.fromarray(array)


def _decode_values(content: bytes, pixels: Pixels) -> Tensor:
    if is_array(content):
        return scale_values(read_array(content), pixels)
    if content.startswith(_PNG_START) and content[24] == 16 and content[25] != _PNG_GRAY:
        raise OSError("PNGs with 16 bits and several channels are not read; convert it to TIFF or .npy")
    try:
        with open_image(content) as image:
            if not needs_tifffile(image):
                return scale_values(file_values(upright(image)), pixels)
    except UnidentifiedImageError:  # PIL knows no mode for these channels
        if not is_tiff(content):
            raise
    return scale_values(read_tiff(content, pixels.count), pixels)


_PNG_START, _PNG_GRAY = b"\x89PNG\r\n\x1a\n", 0


def upright(image: Image.Image) -> Image.Image:
    """Decode the pixels of a PIL image and rotate it upright (EXIF).

    Raises:
        Exception: of any kind: its data are broken.
    """
    image.load()  # NumPy would hide the error of a broken file
    # Every copy of a large image costs as much as a twentieth of decoding it.
    is_upright = image.getexif().get(ExifTags.Base.Orientation, 1) == 1
    return image if is_upright else ImageOps.exif_transpose(image)


def from_pil(image: Image.Image, channels: Channels = 3) -> Tensor:
    """Convert a PIL image to C x H x W, as :func:`read_image` returns it. As 8-bit gray or color the upper 8 of 16 bits
    are kept.

    Raises:
        OSError: its pixels are floating point numbers, or its data are broken.
    """
    if not are_8bit_images(channels):
        return scale_values(file_values(upright(image)), pixels_of(channels))
    mode = _MODES[channels][1]
    image = upright(image)
    if image.mode.startswith("F"):
        raise OSError("its pixels are floating point numbers, whose range is unknown; convert it to 8 or 16 bits")
    if image.mode.startswith("I"):  # PIL would clip the values at 255
        values = np.array(image)
        if values.min(initial=0) < 0 or values.max(initial=0) > 65535:
            raise OSError("its pixels have more than 16 bits; convert it to 8 or 16 bits")
        gray = (values.astype(np.int64) >> 8).astype(np.uint8)
        pixels = np.repeat(gray[:, :, None], channels, axis=2)
    else:
        if "transparency" in image.info:  # of a palette: PIL would warn that it is lost
            image = image.copy()
            del image.info["transparency"]
        pixels = np.array(image if image.mode == mode else image.convert(mode))
    return torch.from_numpy(pixels.reshape(*pixels.shape[:2], channels)).permute(2, 0, 1)


def planar(image: Tensor) -> Tensor:
    """Return the same image (uint8, C x H x W), channel by channel in memory; twice as fast as ``contiguous``."""
    if image.is_contiguous():
        return image
    copy = np.empty(tuple(image.shape), dtype=np.uint8)
    for channel, values in zip(copy, image.numpy(), strict=True):
        channel[:] = values
    return torch.from_numpy(copy)


# --- images that are not decoded yet ----------------------------------------------------------------------------------


class Box(NamedTuple):
    """A crop of an image, in pixels."""

    top: int
    left: int
    height: int
    width: int


class DeferredImage(ABC):
    """An image that is decoded on request."""

    @abstractmethod
    def decode(self) -> Tensor:
        """Return the whole image (C x H x W).

        Raises:
            OSError: the file cannot be read.
            ValueError: it is not an image, or a broken one.
        """


class LazyImage(DeferredImage):
    """An image file or its pixels; a small crop costs less than the whole image.

    Attributes:
        name: the file's name, for errors.
        channels: as the image is read.
    """

    name: str
    channels: Channels

    @abstractmethod
    def stamp(self) -> str:
        """Return a text that changes with the file.

        Raises:
            OSError: there is no such file.
        """

    @property
    @abstractmethod
    def held_bytes(self) -> int:
        """Memory of this process that the file or its pixels take."""

    @property
    @abstractmethod
    def size(self) -> tuple[int, int] | None:
        """Height and width; None if only the whole image can be decoded."""

    @abstractmethod
    def crop(self, box: Box, min_size: tuple[int, int]) -> Tensor:
        """Return a crop (uint8, C x h x w) with the channels of a pixel adjacent in memory, the fastest to resize.

        Args:
            box: the crop, in pixels of the whole image, whose ``size`` is known.
            min_size: height and width that it will be resized to. The result may have a lower resolution than ``box``,
                but not fewer pixels than this unless ``box`` has fewer.

        Raises:
            ValueError: the image is broken.
        """


class EncodedImage(LazyImage):
    """An image file that is not decoded yet.

    Args:
        content: of the file, or a function that reads it when it is needed.
        name: of the file, for errors.
        channels: as the image is read.
        stamp: returns a text that changes with the file, without reading it; by default a checksum of the content.
    """

    def __init__(
        self,
        content: bytes | Callable[[], bytes],
        name: str,
        channels: Channels,
        stamp: Callable[[], str] | None = None,
    ) -> None:
        self._content, self._stamp = content, stamp
        self.name, self.channels = name, channels

    @staticmethod
    def file(path: bytes, channels: Channels = 3) -> EncodedImage:
        """Return the image file at ``path``; it is read when it is needed."""
        return EncodedImage(partial(read_file, path), os.fsdecode(path), channels, partial(_stamp, path))

    @cached_property
    def content(self) -> bytes:
        """The file's content.

        Raises:
            OSError: it cannot be read.
        """
        return self._content() if callable(self._content) else self._content

    def stamp(self) -> str:
        """Return path, size and modification time, or a checksum of the content.

        Raises:
            OSError: there is no such file.
        """
        return self._stamp() if self._stamp else f"{self.name} {blake2b(self.content, digest_size=16).hexdigest()}"

    @property
    def held_bytes(self) -> int:
        """Size of the file."""
        return len(self.content)

    def decode(self) -> Tensor:
        """Return the whole image, as :func:`read_image` does."""
        return decode_bytes(self.content, self.name, self.channels)

    @property
    def size(self) -> tuple[int, int] | None:
        """Height and width, read from the header alone; None for anything but a JPEG in YCbCr or gray that is stored
        upright, which has to be decoded as a whole."""
        return self._header.size if are_8bit_images(self.channels) and self._header else None

    @cached_property
    def _header(self) -> _JpegHeader | None:
        return _read_header(self.content)

    def crop(self, box: Box, min_size: tuple[int, int]) -> Tensor:
        """Return a crop at the lowest of the resolutions 1, 1/2, 1/4 and 1/8 at which it is not smaller than
        ``min_size``. libjpeg computes these while decoding, from fewer coefficients, and stops below the crop.

        Its edges are rounded to whole pixels of the lower resolution.
        """
        factor = next((f for f in (8, 4, 2) if box.height >= f * min_size[0] and box.width >= f * min_size[1]), 1)
        pixels = self._decode_above(box.top + box.height, factor)
        if pixels is None:
            factor, pixels = 1, self.decode().permute(1, 2, 0).numpy()  # which also raises the error of a broken image
        top, bottom = (round(edge / factor) for edge in (box.top, box.top + box.height))
        left, right = (round(edge / factor) for edge in (box.left, box.left + box.width))
        bottom, right = max(bottom, top + 1), max(right, left + 1)  # 7.5 and 8.5 are both rounded to 8
        return torch.from_numpy(np.ascontiguousarray(pixels[top:bottom, left:right])).permute(2, 0, 1)

    def _decode_above(self, row: int, factor: int) -> Any:
        """Decode at least all rows above ``row``, reduced by ``factor`` (H x W x C); return None if they are broken."""
        assert self._header is not None
        (height, width), block_rows, offset = self._header
        content: bytes | bytearray = self.content
        rows, strict = height, True
        if block_rows and content.endswith(_JPEG_END):
            # A lower height in the header makes libjpeg stop early. The rows below `row` influence its colors if color
            # is stored at half the resolution.
            rows = min(height, -(-(row + 3 * factor) // block_rows) * block_rows)
            content = bytearray(content)
            content[offset : offset + 2] = rows.to_bytes(2, "big")
            strict = rows == height  # otherwise the decoder complains about unused data
        color_space = "RGB" if self.channels == 3 else "GRAY"
        minimum = {"min_height": -(-rows // factor), "min_width": -(-width // factor), "min_factor": factor}
        try:
            return simplejpeg.decode_jpeg(content, color_space, **minimum, strict=strict)
        except ValueError:
            return None


def _stamp(path: bytes) -> str:
    status = os.stat(path)
    return f"{os.fsdecode(os.path.abspath(path))} {status.st_size} {status.st_mtime_ns}"


def decode_sample(sample: Sample) -> Sample:
    """Return the sample with its image decoded, if it is not yet.

    Raises:
        ValueError: it is not an image, or a broken one.
    """
    image = sample["image"]
    if not isinstance(image, DeferredImage):
        return sample
    return {**sample, "image": image.decode().as_subclass(tv_tensors.Image)}


def read_encoded(sample: Sample) -> Sample:
    """Read the image file of the sample, without decoding it, so that an error names the source and not a transform.

    Raises:
        OSError: it cannot be read.
    """
    if isinstance(sample["image"], EncodedImage):
        _ = sample["image"].content
    return sample


# --- the header of a JPEG ---------------------------------------------------------------------------------------------


class _JpegHeader(NamedTuple):
    """The header of a JPEG in YCbCr or gray that is stored upright.

    Attributes:
        size: height and width.
        block_rows: rows that are stored together, if the file has one scan from top to bottom; else 0.
        height_offset: where the image's height is stored, in bytes.
    """

    size: tuple[int, int]
    block_rows: int
    height_offset: int


_BASELINE, _SCAN, _EXIF = 0xC0, 0xDA, 0xE1


def _read_header(content: bytes) -> _JpegHeader | None:
    """Return None if it is not such a JPEG, or has an unexpected order of segments."""
    try:
        height, width, color_space, _ = simplejpeg.decode_jpeg_header(content)
    except ValueError:
        return None
    if color_space not in ("YCbCr", "Gray") or _jpeg_orientation(content) != 1:
        return None
    height_offset, components, block_rows = 0, 0, 0
    for marker, offset in _segments(content):
        if marker == _BASELINE:
            height_offset, components = offset + 3, content[offset + 7]
            sampling = content[offset + 9 : offset + 9 + 3 * components : 3]
            block_rows = 8 * max((factors & 15 for factors in sampling), default=0)
        if marker == _SCAN:
            return _JpegHeader((height, width), block_rows if content[offset + 2] == components else 0, height_offset)
    return None


def _segments(content: bytes) -> Iterator[tuple[int, int]]:
    """Yield marker and offset of each segment, up to the first one that pixels follow."""
    offset = 2
    while offset + 10 < len(content) and content[offset] == 0xFF:
        yield content[offset + 1], offset + 2
        offset += 2 + int.from_bytes(content[offset + 2 : offset + 4], "big")


def _jpeg_orientation(content: bytes) -> int:
    """Return the EXIF orientation of a JPEG, as :func:`read_size` does; 1 if its header cannot be read. That of
    torchvision may come from segments and values of other kinds."""
    for marker, offset in _segments(content):
        if marker == _SCAN:  # no EXIF data
            return 1
        if marker == _EXIF and content.startswith(b"Exif\0\0", offset + 2):
            break
    with suppress(ValueError), image_errors(""), open_image(content) as image:
        return _orientation(image)
    return 1
