"""What a section of the report consists of: tables, charts, matrices and pictures, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Line:
    """A line in a chart.

    Attributes:
        name: of what it shows.
        y: its values; None leaves a gap.
        x: places of them; or by the name of an axis (``step``, ``epoch`` ...) such places.
        run: number of the run that it is of.
        style: number of its dashes.
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
        title: what goes up.
        lines: of it.
        across: what goes across; empty where the reader chooses.
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
        rows: a value for each column; None shows nothing.
        shares: columns of numbers from 0 to 1 that are drawn as bars, too.
        note: what a reader should know.
        most: so many rows are seen at once.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    shares: frozenset[int] = frozenset()
    note: str = ""
    most: int = 12
    kind: str = "table"


@dataclass(frozen=True)
class Matrix:
    """Which class was taken for which.

    Attributes:
        title: above it.
        across, down: names of columns and rows.
        counts: of each row and column.
    """

    title: str
    down: Sequence[str]
    across: Sequence[str]
    counts: Sequence[Sequence[int]]
    kind: str = "matrix"

    def share(self, row: int, column: int) -> float:
        """Of the row's samples."""
        return self.counts[row][column] / max(1, sum(self.counts[row]))


@dataclass(frozen=True)
class Picture:
    """A picture with words.

    Attributes:
        content: a data URI.
        text: below it.
        size: width and height in pixels.
        verdict: ``right``, ``wrong``, ``junk``, or empty.
    """

    content: str
    text: str
    size: tuple[int, int]
    verdict: str = ""


@dataclass(frozen=True)
class PictureRow:
    """Pictures beside each other."""

    title: str
    pictures: Sequence[Picture]


@dataclass(frozen=True)
class Gallery:
    """Rows of pictures.

    Attributes:
        title: above them.
        note: what a reader should know.
        rows: of pictures.
        of_data: of the data itself, not of what a model makes of it.
    """

    title: str
    note: str
    rows: Sequence[PictureRow]
    of_data: bool = False
    kind: str = "gallery"


Block = Chart | Table | Matrix | Gallery


@dataclass(frozen=True)
class Section:
    """Blocks under a heading."""

    title: str
    blocks: Sequence[Block] = field(default_factory=tuple)
