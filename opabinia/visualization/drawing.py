"""Pictures with what was found on them. Used by the predict command and the report."""

from __future__ import annotations

import math
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


def draw_objects(image: Tensor, things: Sequence[Thing], *, side: int = 512, text: int = 11) -> Image.Image:
    """A picture with boxes, masks, keypoints and texts, those that come first on top.

    Args:
        image: uint8, or float in 0 to 1; C x H x W of 1 or 3 channels.
        things: in it.
        side: small pictures are enlarged by a whole number of times until the longer side has about so many pixels.
        text: height of texts in pixels, at least.
    """
    picture = to_pil(image)
    for thing in reversed(things):
        if thing.mask is not None:
            picture = _tinted(picture, thing.mask, _colour(thing))
    times = max(1, side // max(picture.size))
    picture = picture.resize((picture.width * times, picture.height * times), Image.Resampling.NEAREST)
    width = max(2, round(max(picture.size) / 320))
    font = ImageFont.load_default(max(text, round(max(picture.size) / 48)))
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


def side_by_side(pictures: Sequence[Image.Image], titles: Sequence[str]) -> Image.Image:
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


def overlay_heatmap(image: Tensor, heat: Tensor, *, strength: float = 0.6) -> Image.Image:
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


# --- points in the plane ----------------------------------------------------------------------------------------------

_TINTS = (
    *((31, 119, 180), (240, 140, 20), (30, 140, 70), (205, 40, 45), (125, 75, 190), (75, 200, 225)),
    *((225, 105, 180), (125, 80, 45), (190, 190, 30), (80, 90, 105)),
)
_SHAPES = ("circle", "square", "triangle", "diamond", "cross")
_OTHERS = (190, 190, 190)
MARKS = len(_TINTS) * len(_SHAPES)
"""So many classes have a mark of their own: a colour and a shape."""

_FINE = 3
"""Marks are drawn so many times as large and made small, which smooths their edges."""


def scatter(
    points: NDArray[np.floating[Any]],
    classes: Sequence[int],
    names: Sequence[str],
    *,
    title: str,
    size: tuple[int, int] = (1080, 720),
) -> Image.Image:
    """A map of points, each with the mark of its class, and a legend.

    Args:
        points: N x 2; one unit is as long across as it is up.
        classes: of the points (N): places in ``names``, -1 for points of none, which are grey.
        names: of at most :data:`MARKS` classes, of which the legend shows those that are there.
        title: above the map.
        size: width and height in pixels.

    Raises:
        ValueError: there are more names than marks.
    """
    if len(names) > MARKS:
        raise ValueError(f"{len(names)} classes, but there are {MARKS} marks")
    paper = Image.new("RGB", size, _PAPER)
    draw, font = ImageDraw.Draw(paper), ImageFont.load_default(13)
    draw.text((2 * _MARGIN, _MARGIN + 2), title, fill=_INK, font=ImageFont.load_default(16))
    met = set(classes)
    there = [number for number in range(len(names)) if number in met]
    others = [-1] if there and -1 in met else []
    top, bottom = 32, size[1] - _MARGIN
    rows = max(1, (bottom - top) // 19)
    columns = -(-len([*there, *others]) // rows)
    longest = max((draw.textlength(names[number], font=font) for number in there), default=0)
    column = min(180, round(longest) + 36, size[0] // 2 // max(1, columns))
    right = size[0] - columns * column - _MARGIN
    fine = Image.new("RGB", ((right - 2 * _MARGIN) * _FINE, (bottom - top) * _FINE), (255, 255, 255))
    _plot(fine, points, classes)
    plot = (2 * _MARGIN, top, right, bottom)
    paper.paste(fine.resize((plot[2] - plot[0], plot[3] - plot[1]), Image.Resampling.LANCZOS), plot[:2])
    draw.rectangle((plot[0] - 1, plot[1] - 1, plot[2], plot[3]), outline=(205, 205, 200))
    for row, number in enumerate([*there, *others]):
        left, y = right + _MARGIN + row // rows * column, top + row % rows * 19
        mark = Image.new("RGB", (16 * _FINE, 16 * _FINE), _PAPER)
        _mark(ImageDraw.Draw(mark), (8 * _FINE, 8 * _FINE), number, 6 * _FINE)
        paper.paste(mark.resize((16, 16), Image.Resampling.LANCZOS), (left, y))
        name = names[number] if number >= 0 else "others"
        draw.text((left + 22, y), _fitted(draw, name, column - 26, font), fill=_INK, font=font)
    return paper


def _plot(paper: Image.Image, points: NDArray[np.floating[Any]], classes: Sequence[int]) -> None:
    """All points, as large as there is room, in an order that puts no class on top of the others."""
    radius = _FINE * min(6.0, max(2.0, 130 / max(1, len(points)) ** 0.5))
    low, high = points.min(0), points.max(0)
    room = np.array(paper.size) - 4 * radius
    scale = (room / np.maximum(high - low, 1e-12)).min()
    places = (points - (low + high) / 2) * [scale, -scale] + np.array(paper.size) / 2
    draw = ImageDraw.Draw(paper)
    order = np.random.default_rng(0).permutation(len(points))
    for number in sorted(order, key=lambda number: classes[number] >= 0):
        _mark(draw, (places[number, 0], places[number, 1]), classes[number], radius)


def _mark(draw: ImageDraw.ImageDraw, place: tuple[float, float], number: int, radius: float) -> None:
    """The mark of a class, with an edge, so that one shows on another."""
    x, y, r = *place, radius
    if number < 0:
        draw.circle(place, 0.7 * r, fill=_OTHERS)
        return
    fill = _TINTS[number % len(_TINTS)]
    edge, width = tuple(round(0.55 * value) for value in fill), max(1, round(r / 6))
    shape = _SHAPES[number // len(_TINTS)]
    if shape == "circle":
        draw.circle(place, r, fill, edge, width)
        return
    # Of about the same area, so that none looks more important.
    corners = {
        "square": ((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
        "triangle": ((0, -1.25), (1.15, 0.85), (-1.15, 0.85)),
        "diamond": ((0, -1.25), (1.25, 0), (0, 1.25), (-1.25, 0)),
        "cross": (
            *((-0.4, -1.2), (0.4, -1.2), (0.4, -0.4), (1.2, -0.4), (1.2, 0.4), (0.4, 0.4)),
            *((0.4, 1.2), (-0.4, 1.2), (-0.4, 0.4), (-1.2, 0.4), (-1.2, -0.4), (-0.4, -0.4)),
        ),
    }[shape]
    draw.polygon([(x + r * across, y + r * down) for across, down in corners], fill, edge, width)


# --- over time --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Panel:
    """One diagram of :func:`line_chart`.

    Attributes:
        name: what goes up.
        lines: places (x, y) of each line, from left to right.
        log: whether equal distances are equal factors; what is below a ten-thousandth of the largest is left out then.
    """

    name: str
    lines: Sequence[Sequence[tuple[float, float]]]
    log: bool = False


_LABELS, _ROOM = 5, 12
"""So many values are written beside a panel at most, and so far apart, in pixels."""


def line_chart(
    panels: Sequence[Panel], *, title: str, across: str, end: float, marks: Sequence[float] = (), width: int = 900
) -> Image.Image:
    """Diagrams above each other over one axis, from 0 to ``end``.

    Args:
        title: above them.
        across: what goes across.
        end: of the axis.
        marks: places on it with a grey line through all panels, and a number where there is room.
        width: in pixels.
    """
    left, right, high, gap, top = 70, width - 2 * _MARGIN, 110, 26, 50
    paper = Image.new("RGB", (width, top + len(panels) * (high + gap) + 2 * _LINE), _PAPER)
    draw, font = ImageDraw.Draw(paper), ImageFont.load_default(12)
    draw.text((2 * _MARGIN, _MARGIN), title, fill=_INK, font=ImageFont.load_default(16))
    scale = (right - left) / end
    for number, panel in enumerate(panels):
        above = top + number * (high + gap)
        for mark in marks:
            draw.line((left + mark * scale, above, left + mark * scale, above + high), fill=_FAINT)
        _diagram(draw, panel, (left, above, right, above + high), scale)
    below = top + len(panels) * (high + gap) - gap + 4
    free = 0.0
    for mark in sorted({0.0, *marks, end}):
        text = f"{mark:g}"
        if (at := left + mark * scale - draw.textlength(text, font=font) / 2) >= free:
            draw.text((at, below), text, fill=_INK, font=font)
            free = at + draw.textlength(text, font=font) + 2 * _MARGIN
    draw.text((left, below + _LINE), across, fill=_INK, font=font)
    return paper


_FAINT = (222, 222, 218)


def _diagram(draw: ImageDraw.ImageDraw, panel: Panel, box: tuple[float, float, float, float], scale: float) -> None:
    """A panel in its box: name, values beside it, lines, the first on top."""
    left, top, right, bottom = box
    font = ImageFont.load_default(12)
    draw.text((left, top - _LINE - 2), panel.name, fill=_INK, font=font)
    least = 1e-4 * max((y for line in panel.lines for _, y in line), default=0) if panel.log else -math.inf
    lines = [[(x, y) for x, y in line if y > least] for line in panel.lines]
    values = sorted({y for line in lines for _, y in line})
    if not values:
        return
    height = math.log if panel.log else float
    low = height(values[0]) if panel.log else 0.0
    reach = (height(values[-1]) - low) or 1.0

    def at(value: float) -> float:
        return bottom - 4 - (height(value) - low) / reach * (bottom - top - 8)

    if len(values) > _LABELS:
        values = [values[0], values[-1]]
    free = math.inf
    for value in values:
        draw.line((left, at(value), right, at(value)), fill=_FAINT)
        if at(value) <= free:
            draw.text((left - 6, at(value)), f"{value:.4g}", fill=_INK, font=font, anchor="rm")
            free = at(value) - _ROOM
    for number, line in reversed(list(enumerate(lines))):
        places = [(left + x * scale, at(y)) for x, y in line]
        draw.line(places, fill=COLOURS[number % len(COLOURS)], width=2, joint="curve")


def stack_vertically(pictures: Sequence[Image.Image], titles: Sequence[str]) -> Image.Image:
    """Pictures below each other, each with a title above; those without are as they are."""
    font, room = ImageFont.load_default(16), 18 + 2 * _MARGIN
    rooms = [room if title else 0 for title in titles]
    height = sum(one.height for one in pictures) + sum(rooms)
    paper = Image.new("RGB", (max(one.width for one in pictures), height), _PAPER)
    draw, top = ImageDraw.Draw(paper), 0
    for picture, title, above in zip(pictures, titles, rooms, strict=True):
        draw.text((2 * _MARGIN, top + _MARGIN), title, fill=_INK, font=font)
        paper.paste(picture, (0, top + above))
        top += above + picture.height
    return paper


def _fitted(draw: ImageDraw.ImageDraw, text: str, width: int, font: Any) -> str:
    """The text, cut off with dots where it would leave its place."""
    while text and draw.textlength(text, font=font) > width:
        text = text[:-2] + "…" if len(text) > 1 else ""
    return text
