"""Columns of lists that hold bounding boxes, by their names and by the numbers in them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from opabinia.data.sources.box_lists import Corners

_CORNERS = (
    *("xmin ymin xmax ymax", "x1 y1 x2 y2", "x0 y0 x1 y1", "left top right bottom", "xleft ytop xright ybottom"),
    *("xtl ytl xbr ybr", "minx miny maxx maxy", "startx starty endx endy", "xstart ystart xend yend"),
)
_CORNER_SIZES = (
    *("x y width height", "x y w h", "left top width height", "xmin ymin width height", "xmin ymin w h"),
    *("x1 y1 w h", "x1 y1 width height", "left top w h"),
)
_CENTER_SIZES = (
    *("xcenter ycenter width height", "xcenter ycenter w h", "centerx centery width height", "xc yc width height"),
    *("xc yc w h", "cx cy w h"),
)
UNNAMED = ("number1", "number2", "number3", "number4")
"""Names for columns of a list that has none."""
_MARK = re.compile(r"^(bbox|bndbox|boundingbox|box|bb|roi)|(bbox|box)$")
"""Beginnings and ends of names of columns of boxes."""
_SINGLE = ("bbox", "box", "boundingbox", "bboxes", "bndbox")
_MOST = 0.98
"""Share of boxes that must be possible: some may be broken."""


class BoxColumns(NamedTuple):
    """Columns with the numbers of boxes.

    Attributes:
        names: four columns, or one that has all numbers.
        format: the meaning of the numbers; None if their names do not say it.
    """

    names: Sequence[str]
    format: Corners | None


def box_columns(header: Sequence[str]) -> BoxColumns | None:
    """Return the columns of boxes among those of a list; None if it has none."""
    plain = {re.sub(r"[^a-z0-9]", "", name.lower()): name for name in header}
    marked = {_MARK.sub("", name): column for name, column in plain.items() if _MARK.search(name)}
    columns = plain | {name: column for name, column in marked.items() if name}  # bbox_width counts before width
    kinds: tuple[tuple[Sequence[str], Corners | None], ...] = (
        (_CORNERS, "corners"),
        (_CORNER_SIZES, "corner_size"),
        (_CENTER_SIZES, "center_size"),
        ([" ".join(UNNAMED)], None),
    )
    for choices, format in kinds:
        for choice in choices:
            if all(name in columns for name in choice.split()):
                return BoxColumns([columns[name] for name in choice.split()], format)
    single = next((plain[name] for name in _SINGLE if name in plain), None)
    return None if single is None else BoxColumns([single], None)


def guess_format(boxes: Sequence[Sequence[float]], sizes: Sequence[Sequence[int]]) -> Corners | None:
    """Return what the numbers of boxes are, ``corners`` or ``corner_size``, by what lies in their images; None if both
    or neither is possible.

    Args:
        boxes: four numbers each.
        sizes: width and height of the image of each; 1 and 1 for fractions.
    """
    if not boxes:
        return None
    values, limits = np.array(boxes, dtype=np.float64), np.array(sizes, dtype=np.float64) * 1.01
    limits += limits > 2  # pixels may be rounded
    first, second = values[:, :2], values[:, 2:]
    corners = ((first < second) & (second <= limits)).all(1).mean() > _MOST
    corner_sizes = (first + second <= limits).all(1).mean() > _MOST
    if corners == corner_sizes:
        return None
    return "corners" if corners else "corner_size"
