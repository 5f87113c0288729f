"""Limits of uploads: size, file type and image size, all checked before anything is decoded."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from io import BytesIO
from typing import Any, NamedTuple

import av
from PIL import Image

from opabinia.data.decoding.images import size_of
from opabinia.data.decoding.values import is_npy

IMAGE_SIGNATURES = {
    b"\xff\xd8\xff": "JPEG",
    b"\x89PNG\r\n\x1a\n": "PNG",
    b"GIF87a": "GIF",
    b"GIF89a": "GIF",
    b"BM": "BMP",
    b"II*\0": "TIFF",
    b"MM\0*": "TIFF",
    b"II+\0": "TIFF",
    b"MM\0+": "TIFF",
    b"P5": "PPM",
    b"P6": "PPM",
}
"""First bytes of image files; WebP begins as AVI does."""

VIDEO_SIGNATURES = {
    "mov": re.compile(rb".{4}(ftyp|moov|mdat)", re.DOTALL),
    "matroska": re.compile(rb"\x1aE\xdf\xa3"),
    "avi": re.compile(rb"RIFF.{4}AVI ", re.DOTALL),
    "mpeg": re.compile(rb"\0\0\x01\xba"),
    "mpegvideo": re.compile(rb"\0\0\x01\xb3"),
    "gif": re.compile(rb"GIF8[79]a"),
}
"""First bytes of video files, by FFmpeg's name of the format, which opens them: a format that FFmpeg guesses may be a
session description or a playlist, for which it would open network connections or other files."""

VIDEO_TYPES = "AVI, GIF, MP4, MPEG, Matroska, WebM"

MAX_FILES = 32
"""Files in one request."""

MAX_TOTAL = 8
"""The images of one request may together have this many times the pixels that one image may have."""

INPUT_PIXELS = {"images": 4_000_000, "videos": 100_000_000}
"""Default of ``Limits.input_pixels``: detectors take up to 1 megapixel, segmentation models 2; 30 views of 32 frames
have 63."""

MAX_ASPECT_RATIO = 20
"""With a larger one, resizing the shorter side to 256 pixels would make the longer side fill the memory."""


class RequestError(Exception):
    """An upload is refused.

    Args:
        status: HTTP status.
        text: the reason, in one line.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True)
class Limits:
    """Limits of requests.

    Attributes:
        bytes: maximum size of a request's body.
        pixels: maximum number of pixels of an image, or of a video's frame.
        waiting: maximum number of requests that wait while another is answered.
        input_pixels: pixels of what the model gets at a time, after the transforms; None: see ``INPUT_PIXELS``.
    """

    bytes: int = 20_000_000
    pixels: int = 50_000_000
    waiting: int = 16
    input_pixels: int | None = None

    def for_channels(self, count: int) -> Limits:
        """Return the limits of images with ``count`` channels: of more than three, they have no more values than the
        largest color image."""
        return replace(self, pixels=self.pixels * 3 // max(3, count))


class Upload(NamedTuple):
    """An uploaded file: its name, as the client gives it, and its content."""

    name: str
    content: bytes


def check_body_size(size: int, limits: Limits) -> None:
    """Check the size of a request's body.

    Raises:
        RequestError: it is too large (413).
    """
    if size > limits.bytes:
        raise RequestError(413, f"the request is larger than {limits.bytes / 1e6:g} MB")


def check_image(upload: Upload, limits: Limits) -> tuple[int, int]:
    """Check an image by its first bytes and its header; return its width and height.

    Raises:
        RequestError: it is not an image (415), broken (422) or too large (413).
    """
    content = upload.content
    is_webp = content[:4] == b"RIFF" and content[8:12] == b"WEBP"
    is_array = is_npy(content)  # not .npz, which may be much larger than the request
    if not is_webp and not is_array and not content.startswith(tuple(IMAGE_SIGNATURES)):
        types = ", ".join(sorted({*IMAGE_SIGNATURES.values(), "WebP"}))
        raise RequestError(415, f"{upload.name} is not an image ({types}), whatever its name says")
    try:
        height, width = size_of(BytesIO(content))
    except Image.DecompressionBombError as error:  # more than twice Image.MAX_IMAGE_PIXELS
        raise RequestError(413, f"{upload.name} has more than {limits.pixels / 1e6:g} megapixels") from error
    except ImportError as error:
        raise RequestError(415, f"{upload.name} cannot be read here: {error}") from error
    except Exception as error:  # PIL and tifffile raise any on damaged files
        reason = error if is_array else "its header cannot be read"
        raise RequestError(422, f"{upload.name} is broken: {reason}") from error
    return _check_size(upload.name, width, height, limits)


def check_video(upload: Upload, limits: Limits) -> tuple[int, int]:
    """Check a video by its first bytes and its header; return width and height of its frames.

    Raises:
        RequestError: it is not a video (415), broken (422) or has frames that are too large (413).
    """
    form = next((name for name, start in VIDEO_SIGNATURES.items() if start.match(upload.content)), None)
    if form is None:
        raise RequestError(415, f"{upload.name} is not a video ({VIDEO_TYPES}), whatever its name says")
    try:
        with av.open(BytesIO(upload.content), format=form, options={"protocol_whitelist": "file"}) as container:
            contexts: list[Any] = [stream.codec_context for stream in container.streams.video]
            sizes = [(context.width, context.height) for context in contexts if context]  # None: an unknown codec
    except Exception as error:  # PyAV raises others than its own, as for a codec that FFmpeg does not know
        raise RequestError(422, f"{upload.name} is broken: its header cannot be read") from error
    if not any(width * height for width, height in sizes):
        raise RequestError(422, f"{upload.name} has no frames")
    return _check_size(
        upload.name, *max(sizes, key=math.prod), limits
    )  # any of the streams may be the one that is read


def check_total(sizes: Iterable[tuple[int, int]], limits: Limits) -> None:
    """Check the sizes of the images of a request together, by their headers.

    Raises:
        RequestError: they have too many pixels (413).
    """
    total, most = sum(width * height for width, height in sizes), MAX_TOTAL * limits.pixels
    if total > most:
        text = f"more than {most / 1e6:g}, {MAX_TOTAL} times what one may have (--max-megapixels)"
        raise RequestError(413, f"the files of the request have {total / 1e6:.0f} megapixels, {text}")


def _check_size(name: str, width: int, height: int, limits: Limits) -> tuple[int, int]:
    if width * height > limits.pixels:
        size = f"{width} x {height} = {width * height / 1e6:.0f} megapixels"
        raise RequestError(413, f"{name} has {size}, more than {limits.pixels / 1e6:g}")
    if max(width, height) > MAX_ASPECT_RATIO * min(width, height):
        limit = f"one side may be at most {MAX_ASPECT_RATIO} times the other"
        raise RequestError(422, f"{name} is {width} x {height}: {limit}")
    return width, height
