"""Pictures with what was found on them. Used by the predict command and the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageChops, ImageDraw, ImageFilter, ImageFont
from torch import Tensor

_MARGIN, _LINE = 6, 14
_PAPER, _INK = (250, 250, 248), (30, 30, 30)
_FRAME = 3
FRAMES = {"right": (30, 150, 60), "wrong": (205, 40, 40), "junk": (150, 150, 150)}
"""Colours of frames by what they say: green, red, grey."""


def to_pil(image: Tensor) -> Image.Image:
    """A picture (uint8, or float in 0 to 1; C x H x W of 1 or 3 channels) as a PIL image in colour."""
    if image.is_floating_point():
        image = (image.clamp(0, 1) * 255).round().to(torch.uint8)
    return Image.fromarray(image.expand(3, -1, -1).permute(1, 2, 0).contiguous().numpy())


def sheet(
    pictures: Sequence[Image.Image],
    captions: Sequence[str],
    *,
    columns: int = 5,
    size: int = 180,
    frames: Sequence[str | None] | None = None,
) -> Image.Image:
    """A contact sheet: pictures fitted into squares of ``size`` pixels, each with its caption (lines) below.

    Args:
        columns: pictures in a row.
        frames: a key of :data:`FRAMES` for each picture; None for one without.
    """
    lines = max((caption.count("\n") + 1 for caption in captions), default=1)
    columns = max(1, min(columns, len(pictures)))
    rows = -(-len(pictures) // columns)
    width, height = size + 2 * _MARGIN, size + 2 * _MARGIN + lines * _LINE
    paper = Image.new("RGB", (columns * width, max(1, rows) * height), _PAPER)
    draw = ImageDraw.Draw(paper)
    font = ImageFont.load_default(12)
    for number, (picture, caption) in enumerate(zip(pictures, captions, strict=True)):
        left, top = number % columns * width + _MARGIN, number // columns * height + _MARGIN
        scale = min(size / picture.width, size / picture.height)
        # Tiny pictures (digits, icons) keep their hard edges.
        method = Image.Resampling.NEAREST if scale >= 4 else Image.Resampling.LANCZOS
        small = picture.resize((max(1, round(picture.width * scale)), max(1, round(picture.height * scale))), method)
        x, y = left + (size - small.width) // 2, top + (size - small.height) // 2
        if frames is not None and (frame := frames[number]) is not None:
            corners = (x - _FRAME, y - _FRAME, x + small.width + _FRAME - 1, y + small.height + _FRAME - 1)
            draw.rectangle(corners, fill=FRAMES[frame])
        paper.paste(small, (x, y))
        for at, line in enumerate(caption.split("\n")):
            draw.text((left, top + size + at * _LINE), _fitted(draw, line, size, font), fill=_INK, font=font)
    return paper


COLOURS = (
    *((0, 114, 178), (230, 159, 0), (0, 158, 115), (213, 94, 0), (204, 121, 167), (86, 180, 233)),
    *((240, 228, 66), (120, 94, 240), (100, 143, 255), (160, 160, 160)),
)
"""Colours of classes, in turn, that can be told apart by most people who see few colours (after Okabe and Ito 2008)."""


@dataclass(frozen=True, eq=False)
class Thing:
    """Something in a picture.

    Attributes:
        label: class number; it chooses the colour.
        text: what is written at its box.
        box: left, top, right, bottom, in pixels of the picture.
        mask: which pixels of the picture belong to it (bool, H x W).
        points: x, y of each keypoint that is to be seen.
    """

    label: int
    text: str
    box: Sequence[float]
    mask: NDArray[np.bool_] | None = None
    points: Sequence[tuple[float, float]] = ()


def with_things(image: Tensor, things: Sequence[Thing], *, side: int = 512) -> Image.Image:
    """A picture with boxes, masks, keypoints and texts, those that come first on top.

    Args:
        image: uint8, or float in 0 to 1; C x H x W of 1 or 3 channels.
        things: in it.
        side: small pictures are enlarged by a whole number of times until the longer side has about so many pixels.
    """
    picture = to_pil(image)
    for thing in reversed(things):
        if thing.mask is not None:
            picture = _tinted(picture, thing.mask, _colour(thing))
    times = max(1, side // max(picture.size))
    picture = picture.resize((picture.width * times, picture.height * times), Image.Resampling.NEAREST)
    width = max(2, round(max(picture.size) / 320))
    font = ImageFont.load_default(max(11, round(max(picture.size) / 48)))
    draw = ImageDraw.Draw(picture)
    for thing in reversed(things):
        left, top, right, bottom = (value * times for value in thing.box)
        # A picture may be one pixel wide, and a box, while it is learned, anywhere.
        draw.rectangle((left, top, max(left, right), max(top, bottom)), outline=_colour(thing), width=width)
        for x, y in thing.points:
            draw.circle((x * times, y * times), 1.5 * width, fill=_colour(thing), outline=_PAPER)
    for thing in reversed(things):
        _write(draw, thing, (thing.box[0] * times, thing.box[1] * times), font, picture.width)
    return picture


def _tinted(picture: Image.Image, mask: NDArray[np.bool_], colour: tuple[int, int, int]) -> Image.Image:
    """A picture with a mask in it, whose edge tells it from others of its colour."""
    whole = Image.fromarray(mask).convert("L")
    inner = whole.filter(ImageFilter.MinFilter(2 * max(1, max(picture.size) // 640) + 1))
    full = Image.new("RGB", picture.size, colour)
    tinted = Image.composite(Image.blend(picture, full, 0.4), picture, inner)
    return Image.composite(full, tinted, ImageChops.subtract(whole, inner))


def _colour(thing: Thing) -> tuple[int, int, int]:
    return COLOURS[thing.label % len(COLOURS)]


def _write(draw: ImageDraw.ImageDraw, thing: Thing, place: tuple[float, float], font: Any, width: int) -> None:
    """The text of a thing on its colour, above its box where there is room, else within, and never cut off."""
    _, _, right, bottom = draw.textbbox((0, 0), thing.text, font=font)
    x = max(0, min(place[0], width - right - 4))
    y = place[1] - bottom - 3 if place[1] >= bottom + 3 else place[1]
    draw.rectangle((x, y, x + right + 4, y + bottom + 3), fill=_colour(thing))
    light = sum(_colour(thing)) > 380
    draw.text((x + 2, y + 1), thing.text, fill=_INK if light else (255, 255, 255), font=font)


def beside(pictures: Sequence[Image.Image], titles: Sequence[str]) -> Image.Image:
    """Pictures of one height in a row, each with a title above."""
    font = ImageFont.load_default(14)
    width = sum(one.width for one in pictures) + _MARGIN * (len(pictures) + 1)
    paper = Image.new("RGB", (width, max(one.height for one in pictures) + 2 * _MARGIN + 18), _PAPER)
    draw = ImageDraw.Draw(paper)
    left = _MARGIN
    for picture, title in zip(pictures, titles, strict=True):
        draw.text((left, _MARGIN // 2), _fitted(draw, title, picture.width, font), fill=_INK, font=font)
        paper.paste(picture, (left, _MARGIN + 18))
        left += picture.width + _MARGIN
    return paper


def heated(image: Tensor, heat: Tensor, *, strength: float = 0.6) -> Image.Image:
    """A picture under a heat map: grey and untouched where it is 0, then blue, green, yellow and red.

    Args:
        image: uint8, or float in 0 to 1; C x H x W of 1 or 3 channels.
        heat: H x W in 0 to 1.
        strength: the share of colour where it is hottest.
    """
    shades = torch.tensor(_HEAT)
    place = heat.clamp(0, 1) * (len(shades) - 1)
    lower = place.long().clamp(max=len(shades) - 2)
    colour = torch.lerp(shades[lower], shades[lower + 1], (place - lower).unsqueeze(2)).permute(2, 0, 1)
    floats = image.float() if image.is_floating_point() else image / 255
    grey = floats.mean(0, keepdim=True)
    return to_pil(torch.lerp(grey.expand(3, -1, -1), colour, strength * heat.clamp(0, 1).sqrt()))


_HEAT = ((0.0, 0.0, 0.5), (0.0, 0.3, 1.0), (0.0, 0.8, 0.5), (1.0, 0.9, 0.0), (0.9, 0.1, 0.0))


def _fitted(draw: ImageDraw.ImageDraw, text: str, width: int, font: Any) -> str:
    """The text, cut off with dots where it would leave its place."""
    while text and draw.textlength(text, font=font) > width:
        text = text[:-2] + "…" if len(text) > 1 else ""
    return text
