"""Pictures with what was found on them. Used by the predict command and the report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

_MARGIN, _LINE = 6, 14
_PAPER, _INK = (250, 250, 248), (30, 30, 30)


def to_pil(image: Tensor) -> Image.Image:
    """A picture (uint8, or float in 0 to 1; C x H x W of 1 or 3 channels) as a PIL image in colour."""
    if image.is_floating_point():
        image = (image.clamp(0, 1) * 255).round().to(torch.uint8)
    return Image.fromarray(image.expand(3, -1, -1).permute(1, 2, 0).contiguous().numpy())


def sheet(
    pictures: Sequence[Image.Image], captions: Sequence[str], *, columns: int = 5, size: int = 180
) -> Image.Image:
    """A contact sheet: pictures fitted into squares of ``size`` pixels, each with its caption (lines) below."""
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
        paper.paste(small, (left + (size - small.width) // 2, top + (size - small.height) // 2))
        for at, line in enumerate(caption.split("\n")):
            draw.text((left, top + size + at * _LINE), _fitted(draw, line, size, font), fill=_INK, font=font)
    return paper


def _fitted(draw: ImageDraw.ImageDraw, text: str, width: int, font: Any) -> str:
    """The text, cut off with dots where it would leave its place."""
    while text and draw.textlength(text, font=font) > width:
        text = text[:-2] + "…" if len(text) > 1 else ""
    return text
