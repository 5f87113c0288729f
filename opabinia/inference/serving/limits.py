"""What is accepted: how much, of which kind, how large. All of it is known before anything is decoded."""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO
from typing import NamedTuple

import av
from PIL import Image

PICTURES = {
    b"\xff\xd8\xff": "JPEG",
    b"\x89PNG\r\n\x1a\n": "PNG",
    b"GIF8": "GIF",
    b"BM": "BMP",
    b"II*\0": "TIFF",
    b"MM\0*": "TIFF",
    b"P5": "PPM",
    b"P6": "PPM",
}
"""How the files of pictures begin; WebP's begin as AVI's do."""

FILMS = {b"\x1aE\xdf\xa3": "Matroska, WebM", b"\0\0\x01\xba": "MPEG", b"\0\0\x01\xb3": "MPEG", b"GIF8": "GIF"}
"""How those of films begin; those of AVI and MP4 are told by what comes next."""

MOST_PICTURES = 32
"""In one request."""

LONGEST = 20
"""Times that one side of a picture may be as long as the other: where the shorter one is made 256 pixels long, the
longer one of a line of pixels would fill the memory."""


class Refused(Exception):
    """Something posted is not accepted.

    Args:
        status: of HTTP.
        text: what is wrong, in one line.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True)
class Limits:
    """How much is accepted.

    Attributes:
        bytes: of a request's body.
        pixels: of a picture, or of a film's frame.
        waiting: requests that wait while another is answered.
    """

    bytes: int = 20_000_000
    pixels: int = 50_000_000
    waiting: int = 16


class Received(NamedTuple):
    """A file that was posted: its name, as the sender calls it, and what is in it."""

    name: str
    content: bytes


def refuse_body(size: int, limits: Limits) -> None:
    """Tell a body that is too large.

    Raises:
        Refused: it is (413).
    """
    if size > limits.bytes:
        raise Refused(413, f"the request is larger than {limits.bytes / 1e6:g} MB")


def refuse_picture(one: Received, limits: Limits) -> None:
    """Tell what is no picture, a broken one, or one too large, by its first bytes and its header.

    Raises:
        Refused: it is none (415), broken (422) or too large (413).
    """
    if _kind_of_picture(one.content) is None:
        kinds = ", ".join(sorted({*PICTURES.values(), "WebP"}))
        raise Refused(415, f"{one.name} is no picture ({kinds}), whatever its name says")
    try:
        with Image.open(BytesIO(one.content), formats=["JPEG", "PNG", "GIF", "BMP", "TIFF", "PPM", "WEBP"]) as image:
            width, height = image.size
    except Image.DecompressionBombError as error:  # above twice what PIL is told, see `command`
        raise Refused(413, f"{one.name} has more than {limits.pixels / 1e6:g} megapixels") from error
    except (OSError, SyntaxError, ValueError, EOFError) as error:
        raise Refused(422, f"{one.name} is broken: its header cannot be read") from error
    _refuse_size(one.name, width, height, limits)


def refuse_film(one: Received, limits: Limits) -> None:
    """Tell what is no film, a broken one, or one with frames too large.

    Raises:
        Refused: it is none (415), broken (422) or too large (413).
    """
    if _kind_of_film(one.content) is None:
        kinds = ", ".join(sorted({*FILMS.values(), "AVI", "MP4"}))
        raise Refused(415, f"{one.name} is no film ({kinds}), whatever its name says")
    try:
        with av.open(BytesIO(one.content)) as container:
            size = [(stream.width, stream.height) for stream in container.streams.video]
    except (av.FFmpegError, OSError, ValueError) as error:
        raise Refused(422, f"{one.name} is broken: its header cannot be read") from error
    if not size or not all(size[0]):
        raise Refused(422, f"{one.name} has no frames")
    _refuse_size(one.name, *size[0], limits)


def _refuse_size(name: str, width: int, height: int, limits: Limits) -> None:
    if width * height > limits.pixels:
        million = width * height / 1e6
        raise Refused(
            413, f"{name} has {width} x {height} = {million:.0f} megapixels, more than {limits.pixels / 1e6:g}"
        )
    if max(width, height) > LONGEST * min(width, height):
        raise Refused(422, f"{name} is {width} x {height}: one side may be at most {LONGEST} times the other")


def _kind_of_picture(content: bytes) -> str | None:
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "WebP"
    return next((kind for first, kind in PICTURES.items() if content.startswith(first)), None)


def _kind_of_film(content: bytes) -> str | None:
    if content[:4] == b"RIFF" and content[8:12] == b"AVI ":
        return "AVI"
    if content[4:8] in (b"ftyp", b"moov", b"mdat"):
        return "MP4"
    return next((kind for first, kind in FILMS.items() if content.startswith(first)), None)
