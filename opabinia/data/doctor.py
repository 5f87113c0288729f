"""The data doctor: what a data set holds, and what is wrong with it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from opabinia.contracts import Film, Indices, Source
from opabinia.data.sources.annotated import Annotated, cut
from opabinia.data.sources.faults import (
    BAD_OUTLINE,
    DAMAGED_FILM,
    OTHER_SIZE,
    UNREADABLE,
    UNREADABLE_FILM,
    Fault,
    Faults,
)
from opabinia.data.sources.headers import sizes_of
from opabinia.data.sources.joined import Chain
from opabinia.data.sources.views_of_films import ViewsOfFilms
from opabinia.data.video import damage
from opabinia.runtime.log import log
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
class FilmSizes:
    """How large and how long the films are that can be read.

    Attributes:
        smallest, largest: height and width of the film with the fewest pixels, and with the most.
        frames, seconds, fps: the least, the median and the largest number of each.
    """

    smallest: tuple[int, int]
    largest: tuple[int, int]
    frames: tuple[float, float, float]
    seconds: tuple[float, float, float]
    fps: tuple[float, float, float]


@dataclass(frozen=True)
class Checkup:
    """What a data set holds.

    Attributes:
        pictures: how many pictures or films there are, without those that the source leaves out as broken.
        of_class: in how many each class is, by its name; empty when there are no classes.
        boxes: counts of things in boxes; None where there are none.
        films: sizes of films; None where there are none.
        problems: what is wrong, by kind.
    """

    pictures: int
    of_class: dict[str, int]
    boxes: Boxes | None = None
    films: FilmSizes | None = None
    problems: list[Fault] = field(default_factory=list)


def check_up(source: Source) -> Checkup:
    """Count what a data set holds and look for what is wrong with it: what the source itself had to mend, and files
    that cannot be read.

    Of pictures with boxes in files every file is opened, and its size compared with what is said of it; run lengths
    are decoded. Of films the first, the middle and the last frame are decoded. Of other sources every sample is read.
    """
    parts = list(_parts(source))
    told = Faults()
    mended: list[Fault] = []
    films: list[_Seen] = []
    for part in parts:
        if isinstance(part, Annotated):
            mended += part.faults
            _compare_sizes(part, told)
            _decode_runs(part, told)
        else:
            films += _seen(part, told)
    things = [part for part in parts if isinstance(part, Annotated)]
    return Checkup(
        pictures=sum(map(len, parts)),
        of_class=pictures_of_classes(source),
        boxes=_boxes(source.classes, things) if things and len(things) == len(parts) else None,
        films=_film_sizes(films) if films else None,
        problems=[*mended, *told.found()],
    )


def _parts(source: Source) -> Iterator[Source]:
    """The sources that a joined one is made of; of films in several views the films."""
    if isinstance(source, Chain):
        for part in source.sources:
            yield from _parts(part)
    elif isinstance(source, ViewsOfFilms):
        yield from _parts(source.source)
    else:
        yield source


def pictures_of_classes(source: Source) -> dict[str, int]:
    """In how many pictures or films each class is, by its name; nothing where a source does not tell."""
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


# --- films ------------------------------------------------------------------------------------------------------------


class _Seen(NamedTuple):
    """What was found out of a film."""

    size: tuple[int, int]
    frames: int
    seconds: float
    fps: float


def _seen(source: Source, told: Faults) -> list[_Seen]:
    """Read every sample; of those that are films what was found. What cannot be read is told."""
    films: list[tuple[int, Film]] = []
    for number in range(len(source)):
        try:
            sample = source[number]
        except (ValueError, OSError) as error:
            told.add(UNREADABLE, "", f"sample {number}", error)
            continue
        if "video" in sample:
            films.append((number, sample["video"]))
    found = []
    log.disabled, before = True, log.disabled  # what is damaged is told below
    try:
        with ThreadPoolExecutor(8) as pool:
            for (number, film), seen in zip(films, pool.map(_looked_at, (film for _, film in films)), strict=True):
                if isinstance(seen, _Seen):
                    found.append(seen)
                else:
                    told.add(UNREADABLE_FILM, "", f"sample {number}", seen)
                what = damage(film.path)
                if what is not None:
                    told.add(DAMAGED_FILM, "", f"sample {number}", f"{film.path} {what}")
    finally:
        log.disabled = before
    return found


def _looked_at(film: Film) -> _Seen | Exception:
    try:
        frames = film.frames
        size = film.read([0, frames // 2, frames - 1]).shape[-2:]
        return _Seen((size[0], size[1]), frames, film.seconds, film.fps)
    except (ValueError, OSError) as error:
        return error


def _film_sizes(films: Sequence[_Seen]) -> FilmSizes:
    order = sorted((film.size for film in films), key=math.prod)
    return FilmSizes(
        smallest=order[0],
        largest=order[-1],
        frames=_spread([film.frames for film in films]),
        seconds=_spread([film.seconds for film in films]),
        fps=_spread([film.fps for film in films]),
    )


def _spread(values: Sequence[float]) -> tuple[float, float, float]:
    return min(values), float(np.median(values)), max(values)
