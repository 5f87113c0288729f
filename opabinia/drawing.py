"""Pictures with what was found on them. Used by the predict command and the report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image, ImageDraw, ImageFont
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
