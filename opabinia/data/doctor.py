"""The data doctor: what a data set holds, and what is wrong with it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from opabinia.contracts import Indices, Source
from opabinia.data.sources.annotated import Annotated, cut
from opabinia.data.sources.faults import BAD_OUTLINE, OTHER_SIZE, UNREADABLE, Fault, Faults
from opabinia.data.sources.headers import sizes_of
from opabinia.data.sources.joined import Chain
from opabinia.segments import decoded

TINY = 2.0
"""Pixels: a box with a shorter side is called tiny."""


@dataclass(frozen=True)
class Boxes:
    """Counts of things in boxes.

    Attributes:
        things: those that are trained on.
        of_class: how many of each class, by its name.
        crowds: things that evaluations pass over.
        empty: pictures without things to learn.
        tiny: things with a side of less than :data:`TINY` pixels in the picture.
        smallest, largest: height and width of the picture with the fewest pixels, and with the most.
    """

    things: int
    of_class: dict[str, int]
    crowds: int
    empty: int
    tiny: int
    smallest: tuple[int, int]
    largest: tuple[int, int]


@dataclass(frozen=True)
class Checkup:
    """What a data set holds.

    Attributes:
        pictures: how many there are, without those that are left out as broken.
        of_class: in how many each class is, by its name; empty when there are no classes.
        boxes: counts of things in boxes; None where there are none.
        problems: what is wrong, by kind.
    """

    pictures: int
    of_class: dict[str, int]
    boxes: Boxes | None = None
    problems: list[Fault] = field(default_factory=list)


def problems(source: Source) -> list[Fault]:
    """What is wrong with a data set, by kind: what the source itself had to mend, and files that cannot be read.

    Of pictures with boxes in files every file is opened, and its size compared with what is said of it; run lengths
    are decoded. Of other sources every sample is read.
    """
    told = Faults()
    mended: list[Fault] = []
    for part in _parts(source):
        if isinstance(part, Annotated):
            mended += part.faults
            _compare_sizes(part, told)
            _decode_runs(part, told)
        else:
            for number in range(len(part)):
                try:
                    part[number]
                except (ValueError, OSError) as error:
                    told.add(UNREADABLE, "", f"sample {number}", error)
    return [*mended, *told.found()]


def check_up(source: Source) -> Checkup:
    """Count what a data set holds and look for what is wrong with it; see :func:`problems`."""
    parts = list(_parts(source))
    things = [part for part in parts if isinstance(part, Annotated)]
    boxes = _boxes(source.classes, things) if things and len(things) == len(parts) else None
    return Checkup(len(source), _pictures_of_classes(source), boxes, problems(source))


def _parts(source: Source) -> Iterator[Source]:
    """The sources that a joined one is made of."""
    if isinstance(source, Chain):
        for part in source.sources:
            yield from _parts(part)
    else:
        yield source


def _pictures_of_classes(source: Source) -> dict[str, int]:
    counts = np.zeros(len(source.classes), dtype=np.int64)
    for part in _parts(source):
        labels, present = getattr(part, "labels", None), getattr(part, "present", None)
        if present is not None:
            counts += np.bincount(_joined(present), minlength=len(counts))
        elif labels is not None:
            labels = np.asarray(labels)
            counts += np.bincount(labels, minlength=len(counts)) if labels.ndim == 1 else labels.sum(0).astype(np.int64)
        else:
            return {}
    return dict(zip(source.classes, counts.tolist(), strict=True))


def _joined(lists: Sequence[Indices]) -> Indices:
    return np.concatenate([np.zeros(0, dtype=np.int64), *lists])


def _boxes(classes: Sequence[str], sources: Sequence[Annotated]) -> Boxes:
    labels = _joined([one.things.labels[one.things.learnt] for one in sources])
    sizes = np.concatenate([one.sizes for one in sources])
    order = np.argsort(sizes.prod(1), kind="stable")
    smallest, largest = sizes[order[[0, -1]]].tolist()
    tiny = 0
    for one in sources:
        things = one.things.take(one.things.learnt)
        corners = cut(things.boxes, one.sizes[things.pictures])
        tiny += int(((corners[:, 2:] - corners[:, :2]).min(1, initial=math.inf) < TINY).sum())
    counts = np.bincount(labels, minlength=len(classes)).tolist()
    return Boxes(
        things=len(labels),
        of_class=dict(zip(classes, counts, strict=True)),
        crowds=sum(int(one.things.crowd.sum()) for one in sources),
        empty=sum(len(present) == 0 for one in sources for present in one.present),
        tiny=tiny,
        smallest=(smallest[0], smallest[1]),
        largest=(largest[0], largest[1]),
    )


def _compare_sizes(source: Annotated, told: Faults) -> None:
    found = sizes_of(source.root, [source.name(number) for number in range(len(source))], told)
    for number in np.flatnonzero((found > 0).all(1) & (found != source.sizes).any(1)).tolist():
        (height, width), (said_height, said_width) = found[number], source.sizes[number]
        value = f"{width} x {height} pixels, {source.file} says {said_width} x {said_height}"
        told.add(OTHER_SIZE, source.id(number), "", value)


def _decode_runs(source: Annotated, told: Faults) -> None:
    for number in range(len(source)) if source.has_masks else ():
        truth = source.truth(number)
        for thing, segment in zip(truth.ids.tolist(), truth.segments or (), strict=True):
            try:
                if isinstance(segment, dict):
                    decoded(segment, truth.size)
            except ValueError as error:
                told.add(BAD_OUTLINE, source.id(number), f"{source.word} {thing}", error)
