"""Picture files to tensors."""

from __future__ import annotations

import os
import re
import warnings
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from typing import Literal, NamedTuple

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


@dataclass(frozen=True)
class Encoded:
    """A picture whose file is read, but not decoded yet: a small part of it costs less than all.

    Attributes:
        content: of the file.
        name: of the file, for errors.
        channels: 3 for colour, 1 for grey.
    """

    content: bytes
    name: str
    channels: Literal[1, 3]

    @staticmethod
    def read(path: str | bytes | os.PathLike[str], channels: Literal[1, 3] = 3) -> Encoded:
        """The file at ``path``.

        Raises:
            OSError: it cannot be read.
        """
        with open(path, "rb") as file:
            return Encoded(file.read(), os.fsdecode(path), channels)

    def pixels(self) -> Tensor:
        """All of it, as :func:`read_image` gives it.

        Raises:
            ValueError: it is no picture, or a broken one.
        """
        return decoded(self.content, self.name, self.channels)

    @cached_property
    def size(self) -> tuple[int, int] | None:
        """Height and width, from the header alone; None where the picture has to be decoded as a whole: it is no JPEG
        in the usual colours, or not stored upright."""
        if not self.content.startswith(_FAST) or not _upright(self.content):
            return None
        try:
            height, width, colours, _ = simplejpeg.decode_jpeg_header(self.content)
        except ValueError:
            return None
        return (height, width) if colours in ("YCbCr", "Gray") else None

    def part(self, box: Box, least: tuple[int, int]) -> Tensor:
        """A part (uint8, C x h x w) in the smallest of the sizes 1, 1/2, 1/4 and 1/8 in which it has at least so many
        pixels down and across as it is to be resized to. libjpeg makes them on the way, from fewer coefficients.

        Where the part begins and ends is rounded to whole pixels of the smaller picture.

        Args:
            box: the part, in pixels of the whole picture, whose ``size`` is known.
            least: height and width.

        Raises:
            ValueError: the picture is broken.
        """
        factor = next(one for one in (8, 4, 2, 1) if one == 1 or _covers(box, one, least))
        height, width = (-(-side // factor) for side in self.size or (0, 0))
        colours = "RGB" if self.channels == 3 else "GRAY"
        try:
            pixels = simplejpeg.decode_jpeg(
                self.content, colours, min_height=height, min_width=width, min_factor=factor
            )
        except ValueError:
            factor, pixels = 1, self.pixels().permute(1, 2, 0).numpy()  # or its error
        top, bottom = (round(end / factor) for end in (box.top, box.top + box.height))
        left, right = (round(end / factor) for end in (box.left, box.left + box.width))
        # Resizing is quicker where pixels lie beside each other.
        return torch.from_numpy(np.ascontiguousarray(pixels[top:bottom, left:right])).permute(2, 0, 1)


def whole(sample: Sample) -> Sample:
    """The sample with its picture decoded, if it is not yet.

    Raises:
        ValueError: it is no picture, or a broken one.
    """
    picture = sample["image"]
    return {**sample, "image": tv_tensors.Image(picture.pixels())} if isinstance(picture, Encoded) else sample


def _covers(box: Box, factor: int, least: tuple[int, int]) -> bool:
    return box.height >= factor * least[0] and box.width >= factor * least[1]


def _upright(content: bytes) -> bool:
    """Whether a JPEG is stored as it is to be seen (EXIF)."""
    if b"Exif\0\0" not in content[:_EXIF_WITHIN]:
        return True
    try:
        with Image.open(BytesIO(content)) as image:
            return bool(image.getexif().get(ExifTags.Base.Orientation, 1) == 1)
    except (OSError, SyntaxError, ValueError):
        return False


_EXIF_WITHIN = 2**16
"""Where it begins, if anywhere: behind the first marker, or a JFIF header with its thumbnail."""


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
