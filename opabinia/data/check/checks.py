"""The data doctor: what data sets hold, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from opabinia.contracts import Source
from opabinia.contracts.masks import decoded
from opabinia.data.check import findings as kinds
from opabinia.data.check.counts import TINY, Holding, boxes_of, lengths_of, people_of, sides_of, sizes_of
from opabinia.data.check.datasets import id_of, is_of_identities, label_of, labels_of, parts_of, pictures_of_classes
from opabinia.data.check.duplicates import TRAIN, Entry, first_of_labels, tell_duplicates
from opabinia.data.check.findings import Finding, Findings, Member
from opabinia.data.check.scan import Look, Place, look_at
from opabinia.data.sources import annotation_errors
from opabinia.data.sources.detection_base import Annotated
from opabinia.runtime.log import log

NEAR = 4
"""Bits that may differ in the hashes of pictures that are nearly the same."""

SMALL = 8
"""Pixels: a picture with a shorter side is told."""


@dataclass(frozen=True)
class DataReport:
    """What was found.

    Attributes:
        sets: what each data set holds, by its name.
        findings: what is wrong, and after it what may be.
        parts: the sources that were looked at.
        stopped: it was stopped before everything was read.
    """

    sets: dict[str, Holding]
    findings: list[Finding]
    parts: Sequence[Source]
    stopped: bool = False

    @property
    def wrong(self) -> int:
        """How many things are wrong."""
        return sum(one.count for one in self.findings if one.wrong)

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "stopped": self.stopped,
            "wrong": self.wrong,
            "sets": {name: asdict(one) for name, one in self.sets.items()},
            "findings": [
                {
                    "kind": one.kind,
                    "wrong": one.wrong,
                    "count": one.count,
                    "cases": [[_plain(member) for member in case] for case in one.cases],
                }
                for one in self.findings
            ],
        }


def _plain(member: Member) -> dict[str, Any]:
    return {name: value for name, value in asdict(member).items() if name not in ("part", "index")}


class _Part(NamedTuple):
    """A source, the data set it belongs to, and the first of its samples in there."""

    set: str
    source: Source
    start: int


def run_checks(
    sources: Mapping[str, Source],
    *,
    near: int = NEAR,
    limit: int | None = None,
    seed: int = 0,
    workers: int = 0,
    tell: Callable[[int, int], None] = lambda done, of: None,
) -> DataReport:
    """Count what data sets hold, and look for what is wrong with them, each by itself and all together.

    Every sample is read once: pictures are decoded in full, of films the first, the middle and the last frame. What the
    sources had to mend is told, too. Counts of classes, things and identities are of all samples, also with ``limit``.

    Args:
        sources: by the name of the data set; the one called ``train`` is trained on, all others are to measure.
        near: bits that may differ in the hashes of pictures that are nearly the same, 0 to 12.
        limit: read only so many samples of each data set, drawn by ``seed``.
        seed: of that draw.
        workers: processes that read; 0 reads in this one.
        tell: is told how many samples were read, and of how many.

    Returns:
        What was found; also after Ctrl-C, with ``stopped``.

    Raises:
        Crashed: reading has ended a process.
    """
    parts = list(_parts(sources))
    places = [place for name in sources for place in _drawn(parts, name, limit, seed)]
    looks, stopped = _looks([one.source for one in parts], places, workers, tell)
    entries = [_entry(parts, place, look) for place, look in zip(places, looks, strict=False)]
    findings = Findings()
    for number, part in enumerate(parts):
        if isinstance(part.source, Annotated):
            findings.add_faults(part.set, number, part.source.faults)
            own = [index for of, index in places if of == number]
            findings.add_faults(part.set, number, _broken_runs(part.source, own))
    for entry in entries:
        _tell_look(parts, entry, findings)
    tell_duplicates(entries, near, findings)
    _tell_identities(sources, parts, findings)
    for number, part in enumerate(parts):
        if isinstance(part.source, Annotated):
            _tell_things(part.set, number, part.source, findings)
    held = {name: _holding(name, source, entries) for name, source in sources.items()}
    for name, holding in held.items():
        _tell_classes(name, sources[name], holding, findings)
    return DataReport(held, findings.all(), [one.source for one in parts], stopped)


def _parts(sources: Mapping[str, Source]) -> Iterator[_Part]:
    for name, source in sources.items():
        start = 0
        for part in parts_of(source):
            yield _Part(name, part, start)
            start += len(part)


def _drawn(parts: Sequence[_Part], name: str, limit: int | None, seed: int) -> list[Place]:
    """The samples of a data set that are to be read."""
    own = [
        (number, index) for number, part in enumerate(parts) if part.set == name for index in range(len(part.source))
    ]
    if limit is None or limit >= len(own):
        return own
    chosen = np.random.default_rng(seed).choice(len(own), limit, replace=False)
    return [own[place] for place in np.sort(chosen).tolist()]


def _looks(
    sources: Sequence[Source], places: Sequence[Place], workers: int, tell: Callable[[int, int], None]
) -> tuple[list[Look], bool]:
    """What was seen, and whether Ctrl-C has ended it."""
    looks: list[Look] = []
    log.disabled, before = True, log.disabled  # damage is a finding here
    try:
        for look in look_at(sources, places, workers):
            looks.append(look)
            tell(len(looks), len(places))
    except KeyboardInterrupt:
        return looks, True
    finally:
        log.disabled = before
    return looks, False


def _entry(parts: Sequence[_Part], place: Place, look: Look) -> Entry:
    number, index = place
    part = parts[number]
    queries = getattr(part.source, "queries", None)
    label = label_of(part.source, index)
    return Entry(
        look,
        Member(part.set, look.id, value=label or "", part=number, index=index),
        None if queries is None else bool(queries[index]),
        () if label is None else tuple(part.source.classes),
    )


# --- of one sample ----------------------------------------------------------------------------------------------------


def _tell_look(parts: Sequence[_Part], entry: Entry, findings: Findings) -> None:
    look, member = entry.look, entry.member

    def tell(kind: str, value: str) -> None:
        findings.add(kind, [Member(member.set, member.id, "", value, member.part, member.index)])

    if look.error is not None:
        readable = kinds.TRUNCATED if look.cut else annotation_errors.UNREADABLE
        tell(annotation_errors.UNREADABLE_FILM if look.is_film else readable, look.error)
    if look.damage is not None:
        tell(annotation_errors.DAMAGED_FILM, look.damage)
    if look.size is None or member.part is None or member.index is None:
        return
    height, width = look.size
    if min(look.size) < SMALL and not look.is_film:
        tell(kinds.SMALL_PICTURE, f"{width} x {height} pixels")
    source = parts[member.part].source
    if isinstance(source, Annotated) and tuple(source.sizes[member.index].tolist()) != look.size:
        said_height, said_width = source.sizes[member.index].tolist()
        tell(
            annotation_errors.OTHER_SIZE, f"{width} x {height} pixels, {source.file} says {said_width} x {said_height}"
        )


def _broken_runs(source: Annotated, indices: Sequence[int]) -> list[annotation_errors.Fault]:
    """Outlines that are run lengths and cannot be decoded."""
    told = annotation_errors.Faults()
    for index in indices if source.has_masks else ():
        ground_truth = source.ground_truth(index)
        for thing, segment in zip(ground_truth.ids.tolist(), ground_truth.segments or (), strict=True):
            try:
                if isinstance(segment, dict):
                    decoded(segment, ground_truth.size)
            except ValueError as error:
                told.add(annotation_errors.BAD_OUTLINE, source.id(index), f"{source.word} {thing}", error)
    return told.found()


# --- of a data set ----------------------------------------------------------------------------------------------------


def _holding(name: str, source: Source, entries: Sequence[Entry]) -> Holding:
    looks = [one.look for one in entries if one.member.set == name]
    parts = list(parts_of(source))
    return Holding(
        samples=sum(map(len, parts)),
        read=len(looks),
        films=any(look.is_film for look in looks),
        of_class=pictures_of_classes(source),
        boxes=boxes_of(source.classes, parts),
        lengths=lengths_of([look.length for look in looks if look.length is not None]),
        people=people_of(source),
        sizes=sizes_of([look.size for look in looks if look.size is not None]),
    )


def _tell_things(name: str, part: int, source: Annotated, findings: Findings) -> None:
    """Tiny boxes, and pictures without any."""
    things = source.things.take(source.things.learnt)
    sides = sides_of(source)
    for row in np.flatnonzero((sides < TINY).any(1)).tolist():
        index = int(things.pictures[row])
        left, top, width, height = things.boxes[row].tolist()
        thing = f"{source.word} {things.ids[row]}"
        value = f"{source.classes[int(things.labels[row])]}, {sides[row, 0]:.4g} x {sides[row, 1]:.4g} pixels"
        box = (left, top, left + width, top + height)
        findings.add(kinds.TINY_BOX, [Member(name, source.id(index), thing, value, part, index, box)])
    for index in range(len(source)):
        if not len(source.present[index]):
            findings.add(kinds.EMPTY, [Member(name, source.id(index), part=part, index=index)])


def _tell_classes(name: str, source: Source, holding: Holding, findings: Findings) -> None:
    if not is_of_identities(source):
        for of_class, count in holding.of_class.items():
            if not count:
                findings.add(kinds.NO_SAMPLES, [Member(name, of_class)])


def _tell_identities(sources: Mapping[str, Source], parts: Sequence[_Part], findings: Findings) -> None:
    """Identities that are trained and measured on, each with a picture of either."""
    train = sources.get(TRAIN)
    if train is None or not is_of_identities(train):
        return
    trained = _first_pictures(train)
    for name, source in sources.items():
        # Some data sets number the people of their test set from 0 again.
        if name == TRAIN or not is_of_identities(source) or getattr(source, "numbered_anew", False):
            continue
        for identity, index in _first_pictures(source).items():
            if identity in trained:
                found = ((TRAIN, trained[identity]), (name, index))
                findings.add(
                    kinds.SAME_IDENTITY, [_member(parts, of, place, f"identity {identity}") for of, place in found]
                )


def _first_pictures(source: Source) -> dict[str, int]:
    """The first sample of each identity that there are any of, by its name."""
    labels = labels_of(source)
    firsts = {} if labels is None else first_of_labels(labels)
    return {str(source.classes[label]): index for label, index in firsts.items()}


def _member(parts: Sequence[_Part], name: str, index: int, value: str) -> Member:
    """A sample by its number in its data set."""
    number, part = next(
        (number, part)
        for number, part in enumerate(parts)
        if part.set == name and part.start <= index < part.start + len(part.source)
    )
    own = index - part.start
    return Member(name, id_of(part.source, own), "", value, number, own)
