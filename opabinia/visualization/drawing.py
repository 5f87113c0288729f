"""Drawing on images: boxes, masks, keypoints, heat maps, contact sheets, scatter plots and line charts."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageChops, ImageDraw, ImageFilter, ImageFont
from torch import Tensor
from torchvision.transforms.v2.functional import resize

from opabinia.runtime.text import one_line

_MARGIN, _LINE = 6, 14
_BACKGROUND, _INK, _FAINT = (250, 250, 248), (30, 30, 30), (222, 222, 218)
_FRAME = 3
FRAME_COLORS = {"right": (30, 150, 60), "wrong": (205, 40, 40), "junk": (150, 150, 150)}
"""Colors of frames by verdict: green, red, gray."""

COLORS = (
    *((0, 114, 178), (230, 159, 0), (0, 158, 115), (213, 94, 0), (204, 121, 167), (86, 180, 233)),
    *((240, 228, 66), (120, 94, 240), (100, 143, 255), (160, 160, 160)),
)
"""Colors of classes, in turn, that most color-blind people can tell apart (after Okabe and Ito 2008)."""


def to_pil(image: Tensor) -> Image.Image:
    """Convert an image (uint8, or float in 0 to 1; C x H x W) to a PIL image in RGB. Images with other channels than 1
    or 3 are shown by their first ones, see :func:`opabinia.visualization.bands.select_bands`."""
    if image.shape[0] not in (1, 3):
        from opabinia.visualization.bands import select_bands  # most images do not need it

        image = select_bands(image)
    if image.is_floating_point():
        image = (image.clamp(0, 1) * 255).round().to(torch.uint8)
    return Image.fromarray(image.expand(3, -1, -1).permute(1, 2, 0).contiguous().numpy())


def _canvas(width: int, height: int) -> tuple[Image.Image, ImageDraw.ImageDraw]:
    image = Image.new("RGB", (width, height), _BACKGROUND)
    return image, ImageDraw.Draw(image)


def text_color(background: tuple[int, int, int]) -> tuple[int, int, int]:
    """Return dark on light colors, white on dark ones."""
    return _INK if sum(background) > 380 else (255, 255, 255)


def contact_sheet(
    images: Sequence[Image.Image],
    captions: Sequence[Sequence[str]],
    *,
    columns: int = 5,
    size: int = 180,
    frames: Sequence[str | None] | None = None,
) -> Image.Image:
    """Draw images fitted into squares of ``size`` pixels, each above the lines of its caption.

    Args:
        images: to show, row by row.
        captions: lines for each image.
        columns: images per row.
        size: side of the squares.
        frames: a key of :data:`FRAME_COLORS` for each image; None for one without a frame.
    """
    lines = max(map(len, captions), default=1)
    columns = max(1, min(columns, len(images)))
    rows = -(-len(images) // columns)
    width, height = size + 2 * _MARGIN, size + _FRAME + 2 * _MARGIN + lines * _LINE
    canvas, draw = _canvas(columns * width, max(1, rows) * height)
    font = ImageFont.load_default(12)
    for number, (image, caption) in enumerate(zip(images, captions, strict=True)):
        left, top = number % columns * width + _MARGIN, number // columns * height + _MARGIN
        scale = min(size / image.width, size / image.height)
        # Tiny images (digits, icons) keep their hard edges.
        method = Image.Resampling.NEAREST if scale >= 4 else Image.Resampling.LANCZOS
        small = image.resize((max(1, round(image.width * scale)), max(1, round(image.height * scale))), method)
        x, y = left + (size - small.width) // 2, top + (size - small.height) // 2
        if frames is not None and (frame := frames[number]) is not None:
            corners = (x - _FRAME, y - _FRAME, x + small.width + _FRAME - 1, y + small.height + _FRAME - 1)
            draw.rectangle(corners, fill=FRAME_COLORS[frame])
        canvas.paste(small, (x, y))
        for row, line in enumerate(caption):
            draw.text(
                (left, top + size + _FRAME + row * _LINE), _truncated(draw, line, size, font), fill=_INK, font=font
            )
    return canvas


@dataclass(frozen=True, eq=False)
class DrawnObject:
    """An object to draw on an image.

    Attributes:
        label: class label; it selects the color.
        text: written at the box.
        box: left, top, right, bottom, in pixels of the image.
        corners: x, y of each corner of an oriented box, which is drawn instead.
        mask: pixels of the object (bool, H x W).
        points: x, y of each visible keypoint.
    """

    label: int
    text: str
    box: Sequence[float]
    mask: NDArray[np.bool_] | None = None
    points: Sequence[tuple[float, float]] = ()
    corners: Sequence[tuple[float, float]] = ()

    @property
    def color(self) -> tuple[int, int, int]:
        """Color of the class."""
        return COLORS[self.label % len(COLORS)]


def draw_objects(image: Tensor, objects: Sequence[DrawnObject], *, side: int = 512, text: int = 11) -> Image.Image:
    """Draw boxes, masks, keypoints and texts on an image, the first objects on top.

    A text that would cover one of an earlier object is omitted, and so are all further ones once texts cover a quarter
    of the image: its box shows the class by its color.

    Args:
        image: uint8, or float in 0 to 1; C x H x W.
        objects: in the image.
        side: small images are enlarged by a whole factor until the longer side has about this many pixels.
        text: minimum height of texts in pixels.
    """
    drawn = to_pil(image)
    ordered = objects[::-1]
    for item in ordered:
        if item.mask is not None:
            drawn = _draw_mask(drawn, item.mask, item.color)
    factor = max(1, side // max(drawn.size))
    drawn = drawn.resize((drawn.width * factor, drawn.height * factor), Image.Resampling.NEAREST)
    width = max(2, round(max(drawn.size) / 320))
    font = ImageFont.load_default(max(text, round(max(drawn.size) / 48)))
    draw = ImageDraw.Draw(drawn)
    for item in ordered:
        left, top, right, bottom = (value * factor for value in item.box)
        if item.corners:
            draw.polygon([(x * factor, y * factor) for x, y in item.corners], outline=item.color, width=width)
        else:  # an image may be one pixel wide, and a predicted box anywhere
            draw.rectangle((left, top, max(left, right), max(top, bottom)), outline=item.color, width=width)
        for x, y in item.points:
            draw.circle((x * factor, y * factor), 1.5 * width, fill=item.color, outline=_BACKGROUND)
    placed, free = list[tuple[float, float, float, float]](), drawn.width * drawn.height / 4
    for item in objects:  # above the box if there is room, else inside, and never cut off
        shown = _truncated(draw, item.text, drawn.width - 4, font)
        _, _, right, bottom = draw.textbbox((0, 0), shown, font=font)
        x, top = max(0, min(item.box[0] * factor, drawn.width - right - 4)), item.box[1] * factor
        y = top - bottom - 3 if top >= bottom + 3 else top
        label = (x, y, x + right + 4, y + bottom + 3)
        free -= (right + 4) * (bottom + 3)
        if placed and (free < 0 or any(_overlap(label, other) for other in placed)):
            continue
        placed.append(label)
        draw.rectangle(label, fill=item.color)
        draw.text((x + 2, y + 1), shown, fill=text_color(item.color), font=font)
    return drawn


def draw_around(
    image: Tensor,
    objects: Sequence[DrawnObject],
    around: Sequence[Sequence[float]],
    *,
    side: int,
    margin: float,
    min_margin: float,
    text: int = 11,
) -> Image.Image:
    """Draw objects on the part of an image around boxes; those outside of the part are omitted.

    Args:
        image: C x H x W.
        objects: boxes in the image with texts, without masks and points.
        around: left, top, right, bottom of at least one box, in pixels; may lie outside of the image.
        side: longer side of the drawing in pixels.
        margin: space around the boxes, relative to the longest of their sides.
        min_margin: the same in pixels, at least.
        text: minimum height of texts in pixels.
    """
    boxes, (height, width) = np.array(around), image.shape[-2:]
    space = max(min_margin, margin * float((boxes[:, 2:] - boxes[:, :2]).max()))
    left, top = np.clip(boxes[:, :2].min(0) - space, 0, (width - 1, height - 1)).astype(int).tolist()
    ends = np.ceil(boxes[:, 2:].max(0) + space)
    right, bottom = np.clip(ends, (left + 1, top + 1), (width, height)).astype(int).tolist()
    part = image.as_subclass(Tensor)[..., top:bottom, left:right]
    scale = min(1.0, side / max(part.shape[-2:]))
    if scale < 1:
        part = resize(part, [max(1, round(length * scale)) for length in part.shape[-2:]], antialias=True)
    origin, (rows, columns) = np.array([left, top, left, top]), part.shape[-2:]
    moved = [replace(item, box=((np.array(item.box) - origin) * scale).tolist()) for item in objects]
    inside = [
        item for item in moved if item.box[0] < columns and item.box[1] < rows and item.box[2] > 0 and item.box[3] > 0
    ]
    return draw_objects(part, inside, side=side, text=text)


def _overlap(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _draw_mask(image: Image.Image, mask: NDArray[np.bool_], color: tuple[int, int, int]) -> Image.Image:
    """Tint a mask, with an opaque edge that separates it from others of its color."""
    whole = Image.fromarray(mask).convert("L")
    inner = whole.filter(ImageFilter.MinFilter(2 * max(1, max(image.size) // 640) + 1))
    full = Image.new("RGB", image.size, color)
    tinted = Image.composite(Image.blend(image, full, 0.4), image, inner)
    return Image.composite(full, tinted, ImageChops.subtract(whole, inner))


def add_legend(image: Image.Image, entries: Sequence[tuple[str, tuple[int, int, int]]], text: int = 11) -> Image.Image:
    """Return an image above the names of colors, in as many lines as they need.

    Args:
        image: image of any size.
        entries: names and their colors.
        text: minimum height of texts in pixels.
    """
    side = max(text, round(max(image.size) / 48))
    font = ImageFont.load_default(side)
    line, left, width = side + _MARGIN, _MARGIN, max(image.width, 12 * side)
    places, row = list[tuple[int, int, str]](), 0
    _, draw = _canvas(1, 1)
    for name, _ in entries:
        shown = _truncated(draw, name, width - side - 3 * _MARGIN, font)
        end = left + side + round(draw.textlength(shown, font=font)) + 2 * _MARGIN
        if end > width and left > _MARGIN:
            end, left, row = end - left + _MARGIN, _MARGIN, row + 1
        places.append((left, image.height + _MARGIN + row * line, shown))
        left = end + _MARGIN
    canvas, draw = _canvas(width, image.height + (row + 1) * line + _MARGIN)
    canvas.paste(image)
    for (_, color), (left, top, shown) in zip(entries, places, strict=True):
        draw.rectangle((left, top, left + side, top + side), fill=color)
        draw.text((left + side + _MARGIN, top + side / 2), shown, fill=_INK, font=font, anchor="lm")
    return canvas


def side_by_side(images: Sequence[Image.Image], titles: Sequence[str]) -> Image.Image:
    """Place images of equal height in a row, each below its title, which is wrapped to the width of the image."""
    font = ImageFont.load_default(14)
    titles = [one_line(title, 400) for title in titles]
    wrapped = [
        textwrap.wrap(title, max(8, int(len(title) * image.width / max(1, font.getlength(title))) - 2))
        if font.getlength(title) > image.width
        else [title]
        for image, title in zip(images, titles, strict=True)
    ]
    title_height = 18 * max(map(len, wrapped))
    width = sum(image.width for image in images) + _MARGIN * (len(images) + 1)
    canvas, draw = _canvas(width, max(image.height for image in images) + 2 * _MARGIN + title_height)
    left = _MARGIN
    for image, lines in zip(images, wrapped, strict=True):
        for row, line in enumerate(lines):
            text = _truncated(draw, line, image.width, font)
            draw.text((left, _MARGIN // 2 + 18 * row), text, fill=_INK, font=font)
        canvas.paste(image, (left, _MARGIN + title_height))
        left += image.width + _MARGIN
    return canvas


def stack_vertically(images: Sequence[Image.Image], titles: Sequence[str]) -> Image.Image:
    """Place images below each other, each below its title, if it has one."""
    font = ImageFont.load_default(16)
    heights = [18 + 2 * _MARGIN if title else 0 for title in titles]
    height = sum(image.height for image in images) + sum(heights)
    width = max(image.width for image in images)
    canvas, draw = _canvas(width, height)
    top = 0
    for image, title, title_height in zip(images, titles, heights, strict=True):
        shown = _truncated(draw, title, width - 4 * _MARGIN, font)
        draw.text((2 * _MARGIN, top + _MARGIN), shown, fill=_INK, font=font)
        canvas.paste(image, (0, top + title_height))
        top += title_height + image.height
    return canvas


def overlay_heatmap(image: Tensor, heat: Tensor) -> Image.Image:
    """Draw an image in gray under a heat map: 0 is transparent, higher values are blue, green, yellow and red.

    Args:
        image: uint8, or float in 0 to 1; C x H x W.
        heat: H x W in 0 to 1.
    """
    shades = torch.tensor(((0.0, 0.0, 0.5), (0.0, 0.3, 1.0), (0.0, 0.8, 0.5), (1.0, 0.9, 0.0), (0.9, 0.1, 0.0)))
    position = heat.clamp(0, 1) * (len(shades) - 1)
    lower = position.long().clamp(max=len(shades) - 2)
    color = torch.lerp(shades[lower], shades[lower + 1], (position - lower).unsqueeze(2)).permute(2, 0, 1)
    gray = (image.float() if image.is_floating_point() else image / 255).mean(0, keepdim=True)
    return to_pil(torch.lerp(gray.expand(3, -1, -1), color, 0.6 * heat.clamp(0, 1).sqrt()))


def _truncated(draw: ImageDraw.ImageDraw, text: str, width: int, font: Any) -> str:
    """Return the text on one line, cut off with dots if it is wider than ``width``."""
    text = one_line(text)
    while text and draw.textlength(text, font=font) > width:
        text = text[:-2] + "…" if len(text) > 1 else ""
    return text


# --- scatter plots ----------------------------------------------------------------------------------------------------

_TINTS = (
    *((31, 119, 180), (240, 140, 20), (30, 140, 70), (205, 40, 45), (125, 75, 190), (75, 200, 225)),
    *((225, 105, 180), (125, 80, 45), (190, 190, 30), (80, 90, 105)),
)
_SHAPES = ((0, 0, 1.0), (4, 0, 1.27), (3, 0, 1.35), (4, 45, 1.27), (3, 180, 1.35))
"""Number of sides (0: a circle), rotation in degrees, and size at which all look equally important."""

MAX_MARKED_CLASSES = len(_TINTS) * len(_SHAPES)
"""Number of different marks: combinations of a color and a shape."""

SCATTER_SIZE = (1080, 720)
"""Width and height of a scatter plot in pixels."""

_SCALE = 3
"""Marks are drawn at this scale and reduced, which smooths their edges."""


def scatter_plot(
    points: NDArray[np.floating[Any]],
    classes: Sequence[int],
    names: Sequence[str],
    *,
    title: str,
) -> Image.Image:
    """Draw points, each with the mark of its class, and a legend.

    Args:
        points: N x 2; both axes have the same scale.
        classes: classes of the points (N): indices into ``names``, -1 for gray points without a class.
        names: names of at most :data:`MAX_MARKED_CLASSES` classes; the legend shows those with points.
        title: above the plot.

    Raises:
        ValueError: there are more names than marks.
    """
    if len(names) > MAX_MARKED_CLASSES:
        raise ValueError(f"{len(names)} classes, but there are {MAX_MARKED_CLASSES} marks")
    canvas, draw = _canvas(*SCATTER_SIZE)
    font = ImageFont.load_default(13)
    draw.text((2 * _MARGIN, _MARGIN + 2), one_line(title), fill=_INK, font=ImageFont.load_default(16))
    legend = sorted(set(classes) - {-1})
    legend += [-1] if legend and -1 in classes else []
    labels = [one_line(names[number]) if number >= 0 else "others" for number in legend]
    top, bottom = 32, SCATTER_SIZE[1] - _MARGIN
    rows = max(1, (bottom - top) // 19)
    columns = -(-len(legend) // rows)
    longest = max((draw.textlength(label, font=font) for label in labels), default=0)
    column = min(180, round(longest) + 36, SCATTER_SIZE[0] // 2 // max(1, columns))
    left, right = 2 * _MARGIN, SCATTER_SIZE[0] - columns * column - _MARGIN
    fine = Image.new("RGB", ((right - left) * _SCALE, (bottom - top) * _SCALE), (255, 255, 255))
    _draw_points(fine, points, classes)
    canvas.paste(fine.resize((right - left, bottom - top), Image.Resampling.LANCZOS), (left, top))
    draw.rectangle((left - 1, top - 1, right, bottom), outline=(205, 205, 200))
    for row, (number, label) in enumerate(zip(legend, labels, strict=True)):
        x, y = right + _MARGIN + row // rows * column, top + row % rows * 19
        mark = Image.new("RGB", (16 * _SCALE, 16 * _SCALE), _BACKGROUND)
        _draw_mark(ImageDraw.Draw(mark), (8 * _SCALE, 8 * _SCALE), number, 6 * _SCALE)
        canvas.paste(mark.resize((16, 16), Image.Resampling.LANCZOS), (x, y))
        draw.text((x + 22, y), _truncated(draw, label, column - 26, font), fill=_INK, font=font)
    return canvas


def _draw_points(canvas: Image.Image, points: NDArray[np.floating[Any]], classes: Sequence[int]) -> None:
    """Draw all points as large as there is room, in random order, so that no class covers the others."""
    radius = _SCALE * min(6.0, max(2.0, 130 / max(1, len(points)) ** 0.5))
    low, high = points.min(0), points.max(0)
    room = np.array(canvas.size) - 4 * radius
    scale = (room / np.maximum(high - low, 1e-12)).min()
    positions = (points - (low + high) / 2) * [scale, -scale] + np.array(canvas.size) / 2
    draw = ImageDraw.Draw(canvas)
    order = np.random.default_rng(0).permutation(len(points))
    for index in sorted(order, key=lambda index: classes[index] >= 0):
        _draw_mark(draw, (positions[index, 0], positions[index, 1]), classes[index], radius)


def _draw_mark(draw: ImageDraw.ImageDraw, center: tuple[float, float], number: int, radius: float) -> None:
    """Draw the mark of a class, with an edge that separates it from others."""
    if number < 0:
        draw.circle(center, 0.7 * radius, fill=(190, 190, 190))
        return
    fill = _TINTS[number % len(_TINTS)]
    edge, width = tuple(round(0.55 * value) for value in fill), max(1, round(radius / 6))
    sides, rotation, size = _SHAPES[number // len(_TINTS)]
    if sides:
        draw.regular_polygon((*center, radius * size), sides, rotation, fill, edge, width)
    else:
        draw.circle(center, radius, fill, edge, width)


# --- line charts ------------------------------------------------------------------------------------------------------


class ChartPanel(NamedTuple):
    """One panel of :func:`line_chart`.

    Attributes:
        name: name of the y-axis.
        lines: points (x, y) of each line, from left to right.
        log: logarithmic y-axis; values below a ten-thousandth of the largest are omitted.
    """

    name: str
    lines: Sequence[Sequence[tuple[float, float]]]
    log: bool = False


_MAX_LABELS, _LABEL_DISTANCE = 5, 12
"""Maximum number of values beside a panel, and their distance in pixels."""


def line_chart(
    panels: Sequence[ChartPanel], *, title: str, across: str, end: float, marks: Sequence[float] = ()
) -> Image.Image:
    """Draw panels above each other over one x-axis, from 0 to ``end``.

    Args:
        panels: from top to bottom.
        title: above them.
        across: name of the x-axis.
        end: end of the x-axis.
        marks: x values with a gray line through all panels, and a number where there is room.
    """
    width = 900
    left, right, height, gap, top = 70, width - 2 * _MARGIN, 110, 26, 50
    canvas, draw = _canvas(width, top + len(panels) * (height + gap) + 2 * _LINE)
    font = ImageFont.load_default(12)
    draw.text((2 * _MARGIN, _MARGIN), title, fill=_INK, font=ImageFont.load_default(16))
    scale = (right - left) / end
    for number, panel in enumerate(panels):
        above = top + number * (height + gap)
        for mark in marks:
            draw.line((left + mark * scale, above, left + mark * scale, above + height), fill=_FAINT)
        _draw_panel(draw, panel, (left, above, right, above + height), scale)
    below = top + len(panels) * (height + gap) - gap + 4
    free = 0.0
    for mark in sorted({0.0, *marks, end}):
        text = f"{mark:g}"
        length = draw.textlength(text, font=font)
        if (x := left + mark * scale - length / 2) >= free:
            draw.text((x, below), text, fill=_INK, font=font)
            free = x + length + 2 * _MARGIN
    draw.text((left, below + _LINE), across, fill=_INK, font=font)
    return canvas


def _draw_panel(
    draw: ImageDraw.ImageDraw, panel: ChartPanel, box: tuple[float, float, float, float], scale: float
) -> None:
    """Draw a panel: name, values beside it, lines, the first on top."""
    left, top, right, bottom = box
    font = ImageFont.load_default(12)
    draw.text((left, top - _LINE - 2), panel.name, fill=_INK, font=font)
    smallest = 1e-4 * max((y for line in panel.lines for _, y in line), default=0) if panel.log else -math.inf
    lines = [[(x, y) for x, y in line if y > smallest] for line in panel.lines]
    values = sorted({y for line in lines for _, y in line})
    if not values:
        return
    transform = math.log if panel.log else float
    low = transform(values[0]) if panel.log else 0.0
    extent = (transform(values[-1]) - low) or 1.0

    def y_of(value: float) -> float:
        return bottom - 4 - (transform(value) - low) / extent * (bottom - top - 8)

    free = math.inf
    for value in values if len(values) <= _MAX_LABELS else (values[0], values[-1]):
        draw.line((left, y_of(value), right, y_of(value)), fill=_FAINT)
        if y_of(value) <= free:
            draw.text((left - 6, y_of(value)), f"{value:.4g}", fill=_INK, font=font, anchor="rm")
            free = y_of(value) - _LABEL_DISTANCE
    for number, line in reversed(list(enumerate(lines))):
        points = [(left + x * scale, y_of(y)) for x, y in line]
        draw.line(points, fill=COLORS[number % len(COLORS)], width=2, joint="curve")
