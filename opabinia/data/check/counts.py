"""What data sets hold: sizes, boxes, films, identities."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from opabinia.contracts import Source
from opabinia.data.check.datasets import is_of_identities, joined, labels_of
from opabinia.data.check.scan import Length
from opabinia.data.sources.detection_base import Annotated, cut

TINY = 2.0
"""Pixels: a box with a shorter side is called tiny."""

SIDES = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
"""Pixels of the shorter side at which bars begin."""

ASPECTS = (1 / 3, 1 / 2, 2 / 3, 4 / 5, 5 / 4, 3 / 2, 2.0, 3.0)
"""Widths by heights between bars."""

_RATIOS = ("1:3", "1:2", "2:3", "4:5", "5:4", "3:2", "2:1", "3:1")


@dataclass(frozen=True)
class Boxes:
    """Counts of things in boxes.

    Attributes:
        things: those that are trained on.
        of_class: how many of each class, by its name.
        crowds: things that evaluations pass over.
        empty: pictures without things to learn.
        tiny: things with a side of less than :data:`TINY` pixels in the picture.
        sides: how many things by the square root of their area in pixels.
    """

    things: int
    of_class: dict[str, int]
    crowds: int
    empty: int
    tiny: int
    sides: dict[str, int]


@dataclass(frozen=True)
class Lengths:
    """How long films are: the least, the median and the largest number of ``frames``, ``seconds``, and frames a second
    (``fps``)."""

    frames: tuple[float, float, float]
    seconds: tuple[float, float, float]
    fps: tuple[float, float, float]


@dataclass(frozen=True)
class Sizes:
    """How large pictures or films are, of those that were read.

    Attributes:
        smallest, largest: height and width of the one with the fewest pixels, and with the most.
        sides: how many, by the shorter side in pixels.
        aspects: how many, by width to height.
    """

    smallest: tuple[int, int]
    largest: tuple[int, int]
    sides: dict[str, int]
    aspects: dict[str, int]


@dataclass(frozen=True)
class People:
    """Counts of identities.

    Attributes:
        identities: how many there are pictures of.
        pictures: the least, the median and the largest number of pictures of one.
        of_camera, of_view: pictures by camera, and by the side that things are seen from; empty when nobody tells.
        one_camera: identities that only one camera has seen.
        queries: pictures that are looked for among the others; None where none is set apart.
    """

    identities: int
    pictures: tuple[float, float, float]
    of_camera: dict[str, int]
    of_view: dict[str, int]
    one_camera: int
    queries: int | None


@dataclass(frozen=True)
class Holding:
    """What a data set holds.

    Attributes:
        samples: how many pictures or films there are, without those that the source leaves out as broken.
        read: how many were looked at.
        films: whether they are films.
        of_class: in how many each class is, by its name; empty when there are no classes.
        boxes, lengths, people, sizes: None where there is nothing of the kind.
    """

    samples: int
    read: int
    films: bool = False
    of_class: dict[str, int] = field(default_factory=dict)
    boxes: Boxes | None = None
    lengths: Lengths | None = None
    people: People | None = None
    sizes: Sizes | None = None


def sizes_of(sizes: Sequence[tuple[int, int]]) -> Sizes | None:
    """Of heights and widths; None of none."""
    if not sizes:
        return None
    order = sorted(sizes, key=math.prod)
    return Sizes(order[0], order[-1], by_side([min(one) for one in sizes]), by_aspect(sizes))


def by_side(values: Sequence[float]) -> dict[str, int]:
    """How many values lie between those of :data:`SIDES`, from the first to the last bar with any."""
    names = [f"{low} to {high - 1}" for low, high in pairwise(SIDES)] + [f"{SIDES[-1]} or more"]
    return _bars(names, np.searchsorted(SIDES, np.asarray(values), "right") - 1)


def by_aspect(sizes: Sequence[tuple[int, int]]) -> dict[str, int]:
    """How many sizes (height, width) lie between those of :data:`ASPECTS`."""
    between = [f"{low} to {high}" for low, high in pairwise(_RATIOS)]
    names = [f"narrower than {_RATIOS[0]}", *between, f"wider than {_RATIOS[-1]}"]
    return _bars(names, np.searchsorted(ASPECTS, [width / height for height, width in sizes], "right"))


def _bars(names: Sequence[str], places: NDArray[np.int64]) -> dict[str, int]:
    counts = np.bincount(np.maximum(places, 0), minlength=len(names))
    there = np.flatnonzero(counts)
    return {names[place]: int(counts[place]) for place in range(there[0], there[-1] + 1)} if len(there) else {}


def lengths_of(lengths: Sequence[Length]) -> Lengths | None:
    """Of films; None of none."""
    if not lengths:
        return None
    return Lengths(*(_spread([getattr(one, name) for one in lengths]) for name in ("frames", "seconds", "fps")))


def boxes_of(classes: Sequence[str], parts: Sequence[Source]) -> Boxes | None:
    """Of data sets in which every picture has things in boxes."""
    sources = [part for part in parts if isinstance(part, Annotated)]
    if not sources or len(sources) < len(parts):
        return None
    labels = joined([one.things.labels[one.things.learnt] for one in sources])
    sides = np.concatenate([sides_of(one) for one in sources])
    counts = np.bincount(labels, minlength=len(classes)).tolist()
    return Boxes(
        things=len(labels),
        of_class=dict(zip(map(str, classes), counts, strict=True)),
        crowds=sum(int(one.things.crowd.sum()) for one in sources),
        empty=sum(len(present) == 0 for one in sources for present in one.present),
        tiny=int((sides.min(1, initial=math.inf) < TINY).sum()),
        sides=by_side(np.sqrt(sides.prod(1)).tolist()),
    )


def sides_of(source: Annotated) -> NDArray[np.float64]:
    """Width and height of each thing to learn, as far as it lies in its picture (M x 2)."""
    things = source.things.take(source.things.learnt)
    corners = cut(things.boxes, source.sizes[things.pictures])
    return np.asarray(corners[:, 2:] - corners[:, :2], dtype=np.float64)


def people_of(source: Source) -> People | None:
    """Of a source of identities; None of others."""
    labels = labels_of(source)
    if labels is None or not is_of_identities(source):
        return None
    cameras, views, queries = (getattr(source, name, None) for name in ("cameras", "views", "queries"))
    _, counts = np.unique(labels, return_counts=True)
    seen = set() if cameras is None else set(zip(labels.tolist(), np.asarray(cameras).tolist(), strict=True))
    return People(
        identities=len(counts),
        pictures=_spread(counts.tolist()) if len(counts) else (0, 0, 0),
        of_camera=_numbered(cameras),
        of_view=_numbered(views),
        one_camera=sum(count == 1 for count in Counter(label for label, _ in seen).values()),
        queries=None if queries is None else int(np.asarray(queries).sum()),
    )


def _numbered(column: NDArray[np.int64] | None) -> dict[str, int]:
    counts = np.zeros(0, dtype=np.int64) if column is None else np.bincount(column)
    return {str(number): int(count) for number, count in enumerate(counts)}


def _spread(values: Sequence[float]) -> tuple[float, float, float]:
    return min(values), float(np.median(values)), max(values)
