"""Picture files to tensors."""

from __future__ import annotations

import os
import re
import warnings
from io import BytesIO
from typing import Literal

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torchvision.io import decode_image

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
