"""Picture files to tensors."""

from __future__ import annotations

import os
import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from hashlib import blake2b
from io import BytesIO
from typing import Any, Literal, NamedTuple

import numpy as np
import simplejpeg
import torch
from PIL import ExifTags, Image, ImageOps
from torch import Tensor
from torchvision import tv_tensors
from torchvision.io import decode_image

from opabinia.contracts import Sample

EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm")
"""What counts as a picture when a folder is searched."""

# JPEG: torchvision takes half the time of PIL for the same pixels. Not PNG: it would save a fifth there, but its
# decoder (0.29) ends the process with a segmentation fault at most kinds of damage inside the pixel data.
_FAST = b"\xff\xd8\xff"
_MODES = {1: ("GRAY", "L"), 3: ("RGB", "RGB")}


def read_image(path: str | bytes | os.PathLike[str], channels: Literal[1, 3] = 3) -> Tensor:
    """A picture as uint8, C x H x W, turned upright (EXIF); of an animation the first frame.

    Colours become grey, and grey colours, as ``channels`` asks. Transparency is dropped.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no picture, or a broken one.
    """
    with open(path, "rb") as file:
        return decoded(file.read(), os.fsdecode(path), channels)


def decoded(content: bytes, name: str, channels: Literal[1, 3] = 3) -> Tensor:
    """The bytes of a picture's file, as :func:`read_image` gives them.

    Raises:
        ValueError: they are no picture, or a broken one; the text begins with ``name``.
    """
    try:
        return (_decode_fast if content.startswith(_FAST) else _decode_any)(content, channels)
    except (RuntimeError, OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as error:
        first = (str(error) or type(error).__name__).splitlines()[0]
        reason = re.sub(r"^.*\.cpp:\d+, | <_io\.\w+ object at \w+>", "", first)
        raise ValueError(f"{name} cannot be decoded: {reason}") from error


class Box(NamedTuple):
    """A part of a picture, in pixels."""

    top: int
    left: int
    height: int
    width: int


class LazyImage(ABC):
    """A picture of which a small part costs less than all.

    Attributes:
        name: of its file, for errors.
        channels: 3 for colour, 1 for grey.
    """

    name: str
    channels: Literal[1, 3]

    @abstractmethod
    def stamp(self) -> str:
        """What changes with its file.

        Raises:
            OSError: there is no such file.
        """

    @property
    @abstractmethod
    def size(self) -> tuple[int, int] | None:
        """Height and width; None where only the whole picture can be had."""

    @abstractmethod
    def pixels(self) -> Tensor:
        """All of it (uint8, C x H x W).

        Raises:
            OSError: its file cannot be read.
            ValueError: it is no picture, or a broken one.
        """

    @abstractmethod
    def part(self, box: Box, least: tuple[int, int]) -> Tensor:
        """A part (uint8, C x h x w), the channels of a pixel beside each other, which is resized most quickly.

        Args:
            box: the part, in pixels of the whole picture, whose ``size`` is known.
            least: height and width that it is to be resized to. It may come smaller than ``box`` is, but has so many
                pixels down and across if the box has.

        Raises:
            ValueError: the picture is broken.
        """


class Encoded(LazyImage):
    """A picture that is not decoded yet.

    Args:
        content: of its file, or what reads it when it is asked for.
        name: of the file, for errors.
        channels: 3 for colour, 1 for grey.
        stamp: gives what changes with the file, without reading it; the content when not given.
    """

    def __init__(
        self,
        content: bytes | Callable[[], bytes],
        name: str,
        channels: Literal[1, 3],
        stamp: Callable[[], str] | None = None,
    ) -> None:
        self._content, self._stamp = content, stamp
        self.name, self.channels = name, channels

    @staticmethod
    def file(path: bytes, channels: Literal[1, 3] = 3) -> Encoded:
        """The file at ``path``, which is read when something of it is asked for."""
        return Encoded(partial(_read, path), os.fsdecode(path), channels, partial(_stamp, path))

    @cached_property
    def content(self) -> bytes:
        """Of its file.

        Raises:
            OSError: it cannot be read.
        """
        return self._content() if callable(self._content) else self._content

    def stamp(self) -> str:
        """What changes with its file: path, size and time of the last change; or the content, as a checksum.

        Raises:
            OSError: there is no such file.
        """
        return self._stamp() if self._stamp else f"{self.name} {blake2b(self.content, digest_size=16).hexdigest()}"

    def pixels(self) -> Tensor:
        """All of it, as :func:`read_image` gives it."""
        return decoded(self.content, self.name, self.channels)

    @cached_property
    def size(self) -> tuple[int, int] | None:
        """Height and width, from the header alone; None where the picture has to be decoded as a whole: it is no JPEG
        in the usual colours, or not stored upright."""
        if self._frame is None:
            return None
        try:
            height, width, colours, _ = simplejpeg.decode_jpeg_header(self.content)
        except ValueError:
            return None
        return (height, width) if colours in ("YCbCr", "Gray") else None

    @cached_property
    def _frame(self) -> _Frame | None:
        return _frame(self.content)

    def part(self, box: Box, least: tuple[int, int]) -> Tensor:
        """A part in the smallest of the sizes 1, 1/2, 1/4 and 1/8 in which it has at least so many pixels down and
        across as it is to be resized to. libjpeg makes them on the way, from fewer coefficients, and stops below it.

        Where the part begins and ends is rounded to whole pixels of the smaller picture.
        """
        factor = next(one for one in (8, 4, 2, 1) if one == 1 or _covers(box, one, least))
        pixels = self._down_to(box.top + box.height, factor)
        if pixels is None:
            factor, pixels = 1, self.pixels().permute(1, 2, 0).numpy()  # or its error
        top, bottom = (round(end / factor) for end in (box.top, box.top + box.height))
        left, right = (round(end / factor) for end in (box.left, box.left + box.width))
        # Resizing is quicker where pixels lie beside each other.
        return torch.from_numpy(np.ascontiguousarray(pixels[top:bottom, left:right])).permute(2, 0, 1)

    def _down_to(self, row: int, factor: int) -> Any:
        """At least all rows above this one, in a smaller size; None if it is broken."""
        height, width = self.size or (0, 0)
        content: bytes | bytearray = self.content
        rows, strict = height, True
        if self._frame and self._frame.block and content.endswith(_END):
            at, block = self._frame.place, self._frame.block
            # What lies below a row has a say in its colours, where these are stored in half the size.
            rows = min(height, -(-(row + 3 * factor) // block) * block)
            content = bytearray(content)
            content[at : at + 2] = rows.to_bytes(2, "big")
            strict = rows == height  # else it would miss that all data are used
        colours = "RGB" if self.channels == 3 else "GRAY"
        least = {"min_height": -(-rows // factor), "min_width": -(-width // factor), "min_factor": factor}
        try:
            return simplejpeg.decode_jpeg(content, colours, **least, strict=strict)
        except ValueError:
            return None


def _read(path: bytes) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _stamp(path: bytes) -> str:
    known = os.stat(path)
    return f"{os.fsdecode(os.path.abspath(path))} {known.st_size} {known.st_mtime_ns}"


def planar(image: Tensor) -> Tensor:
    """The same image (uint8, C x H x W), channel by channel in memory; twice as fast as ``contiguous``."""
    if image.is_contiguous():
        return image
    copy = np.empty(tuple(image.shape), dtype=np.uint8)
    for channel, values in zip(copy, image.numpy(), strict=True):
        channel[:] = values
    return torch.from_numpy(copy)


def whole(sample: Sample) -> Sample:
    """The sample with its picture decoded, if it is not yet.

    Raises:
        ValueError: it is no picture, or a broken one.
    """
    picture = sample["image"]
    return {**sample, "image": tv_tensors.Image(picture.pixels())} if isinstance(picture, LazyImage) else sample


def opened(sample: Sample) -> Sample:
    """The sample, whose file is read.

    Raises:
        OSError: it cannot be.
    """
    if isinstance(sample["image"], Encoded):
        _ = sample["image"].content
    return sample


def _covers(box: Box, factor: int, least: tuple[int, int]) -> bool:
    return box.height >= factor * least[0] and box.width >= factor * least[1]


class _Frame(NamedTuple):
    """What a JPEG that is stored upright says of itself before its pixels.

    Attributes:
        block: how many rows are stored together, if the picture lies there from top to bottom, once; else 0.
        place: where its height stands.
    """

    block: int
    place: int


def _frame(content: bytes) -> _Frame | None:
    """None: it is no JPEG, turned (EXIF), or in an order that is not understood."""
    if not content.startswith(_FAST):
        return None
    place, colours, block = 0, 0, 0
    for marker, at in _segments(content):
        if marker == _EXIF and content.startswith(b"Exif\0\0", at + 2) and not _upright(content):
            return None
        if marker == _BASELINE:
            place, colours = at + 3, content[at + 7]
            block = 8 * max((one & 15 for one in content[at + 9 : at + 9 + 3 * colours : 3]), default=0)
        if marker == _SCAN:
            return _Frame(block if content[at + 2] == colours else 0, place)
    return None


def _segments(content: bytes) -> Iterator[tuple[int, int]]:
    """Kind and place of each segment, up to the first that pixels follow."""
    place = 2
    while place + 10 < len(content) and content[place] == 0xFF:
        yield content[place + 1], place + 2
        place += 2 + int.from_bytes(content[place + 2 : place + 4], "big")


_BASELINE, _SCAN, _EXIF = 0xC0, 0xDA, 0xE1
_END = b"\xff\xd9"


def _upright(content: bytes) -> bool:
    """Whether a JPEG is stored as it is to be seen (EXIF)."""
    try:
        with Image.open(BytesIO(content)) as image:
            return bool(image.getexif().get(ExifTags.Base.Orientation, 1) == 1)
    except (OSError, SyntaxError, ValueError):
        return False


def _decode_fast(content: bytes, channels: Literal[1, 3]) -> Tensor:
    data = torch.from_numpy(np.frombuffer(bytearray(content), dtype=np.uint8))
    with warnings.catch_warnings():
        # torchvision 0.29 points to torchcodec, which needs FFmpeg. Once this is gone, _decode_any does for all.
        warnings.filterwarnings("ignore", "The image decoding", DeprecationWarning)
        image: Tensor = decode_image(data, mode=_MODES[channels][0], apply_exif_orientation=True)
    return image


def _decode_any(content: bytes, channels: Literal[1, 3]) -> Tensor:
    with Image.open(BytesIO(content)) as image:
        return from_pil(image, channels)


def from_pil(image: Image.Image, channels: Literal[1, 3] = 3) -> Tensor:
    """A picture of PIL as uint8, C x H x W, as :func:`read_image` gives it. Of 16 bits the upper 8 are kept.

    Raises:
        OSError: its pixels are floating point numbers, or its data are broken.
    """
    image = ImageOps.exif_transpose(image)  # a copy
    image.info.pop("transparency", None)  # of a palette: PIL would warn that it is lost
    if image.mode.startswith("F"):
        raise OSError("its pixels are floating point numbers, whose range is unknown; convert it to 8 or 16 bits")
    if image.mode.startswith("I"):  # PIL would cut their values off at 255
        values = np.array(image)
        if values.min(initial=0) < 0 or values.max(initial=0) > 65535:
            raise OSError("its pixels have more than 16 bits; convert it to 8 or 16 bits")
        grey = (values.astype(np.int64) >> 8).astype(np.uint8)
        pixels = np.repeat(grey[:, :, None], channels, axis=2)
    else:
        pixels = np.array(image.convert(_MODES[channels][1]))
    return torch.from_numpy(pixels.reshape(*pixels.shape[:2], channels)).permute(2, 0, 1)
