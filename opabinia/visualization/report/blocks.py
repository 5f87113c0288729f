"""The content of a report section as plain data: tables, charts, matrices, timelines and images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Line:
    """A line in a chart.

    Attributes:
        name: name of the values.
        y: values; None leaves a gap.
        x: positions; or positions by the name of an axis (``step``, ``epoch`` ...).
        run: index of its run.
        style: index of its dash pattern.
    """

    name: str
    y: Sequence[float | None]
    x: Sequence[float] | Mapping[str, Sequence[float]]
    run: int = 0
    style: int = 0


@dataclass(frozen=True)
class Chart:
    """Lines over one axis.

    Attributes:
        title: name of the y-axis.
        lines: lines of the chart.
        across: name of the x-axis; empty if the reader selects it.
        bounds: lowest and highest value shown; None: those of the lines.
    """

    title: str
    lines: Sequence[Line]
    across: str = ""
    bounds: tuple[float, float] | None = None
    kind: str = "chart"


@dataclass(frozen=True)
class Table:
    """Rows of values.

    Attributes:
        title: above it.
        columns: their names.
        rows: a value for each column; None is shown as an empty cell.
        shares: indices of columns of numbers from 0 to 1 that are also drawn as bars.
        note: for the reader.
        max_rows: longer tables scroll.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    shares: frozenset[int] = frozenset()
    note: str = ""
    max_rows: int = 12
    kind: str = "table"


@dataclass(frozen=True)
class Matrix:
    """A confusion matrix.

    Attributes:
        title: above it.
        down, across: names of rows (true classes) and columns (predicted classes).
        counts: counts of each row and column.
        note: for the reader.
    """

    title: str
    down: Sequence[str]
    across: Sequence[str]
    counts: Sequence[Sequence[int]]
    note: str = ""
    kind: str = "matrix"

    def share(self, row: int, column: int) -> float:
        """Return the cell's share of the row."""
        return self.counts[row][column] / max(1, sum(self.counts[row]))


@dataclass(frozen=True)
class TimelineRow:
    """The events of a sequence.

    Attributes:
        name: its name.
        first, last: its first and last frame.
        frames: frames of the events.
    """

    name: str
    first: int
    last: int
    frames: Sequence[int]


@dataclass(frozen=True)
class Timeline:
    """Events in sequences of frames, a line for each.

    Attributes:
        title: above it.
        event: name of the events.
        rows: the sequences.
        note: for the reader.
        max_rows: longer ones scroll.
    """

    title: str
    event: str
    rows: Sequence[TimelineRow]
    note: str = ""
    max_rows: int = 16
    kind: str = "timeline"

    def position(self, row: TimelineRow, frame: int) -> float:
        """Return where a frame is, in thousandths of the width; the longest sequence takes all of it."""
        longest = max(other.last - other.first for other in self.rows)
        return 1000 * (frame - row.first) / max(1, longest)


@dataclass(frozen=True)
class ReportImage:
    """An image with a caption.

    Attributes:
        content: a data URI.
        text: below it.
        size: width and height in pixels.
        verdict: ``right``, ``wrong``, ``junk``, ``drawn`` (on white; its colors follow the page), or empty.
    """

    content: str
    text: str
    size: tuple[int, int]
    verdict: str = ""


@dataclass(frozen=True)
class ImageRow:
    """Images beside each other."""

    title: str
    images: Sequence[ReportImage]


@dataclass(frozen=True)
class Gallery:
    """Rows of images.

    Attributes:
        title: above them.
        note: for the reader.
        rows: rows of images.
        of_data: whether the images show the data, not predictions.
    """

    title: str
    note: str
    rows: Sequence[ImageRow]
    of_data: bool = False
    kind: str = "gallery"


Block = Chart | Table | Matrix | Timeline | Gallery


@dataclass(frozen=True)
class Section:
    """Blocks under a heading."""

    title: str
    blocks: Sequence[Block] = ()
