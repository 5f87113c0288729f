"""The same picture several times: within a set, and in training and validation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from opabinia.data.check.findings import (
    IN_GALLERY,
    LEAKED,
    NEAR_OTHER_LABEL,
    NEARLY,
    OTHER_LABEL,
    SAME_FILE,
    SAME_PIXELS,
    TWICE,
    Findings,
    Member,
)
from opabinia.data.check.image_hash import groups_of, near_pairs
from opabinia.data.check.scan import Look

TRAIN = "train"


@dataclass(frozen=True)
class Entry:
    """A sample that was read.

    Attributes:
        look: what was seen of it.
        member: which one it is; its value is its label.
        query: whether it is looked for among the others of its set; None where none is.
        labels: from which list of classes its label is; empty: it has none.
    """

    look: Look
    member: Member
    query: bool | None
    labels: tuple[str, ...]


def tell_duplicates(entries: Sequence[Entry], near: int, findings: Findings) -> None:
    """Tell samples that are the same: by the bytes of their file, by their pixels, or nearly, by their look.

    Of those that are the same in one way only one of each set is compared in the next.

    Args:
        entries: all samples that were read.
        near: bits that may differ in the hashes of nearly equal pictures.
        findings: get what is found.
    """
    rest = list(range(len(entries)))
    same_file = _same([entries[number].look.content for number in rest])
    _tell(entries, same_file, SAME_FILE, findings)
    rest = _without_repeats(entries, rest, same_file)
    same_pixels = [[rest[place] for place in group] for group in _same([entries[n].look.pixels for n in rest])]
    _tell(entries, same_pixels, SAME_PIXELS, findings)
    rest = _without_repeats(entries, rest, same_pixels)
    for films in (False, True):
        _tell(entries, _near(entries, [n for n in rest if entries[n].look.is_film == films], near), NEARLY, findings)


def _same(digests: Sequence[bytes | None]) -> list[list[int]]:
    """Places of equal digests."""
    places: dict[bytes, list[int]] = {}
    for place, digest in enumerate(digests):
        if digest is not None:
            places.setdefault(digest, []).append(place)
    return [one for one in places.values() if len(one) > 1]


def _near(entries: Sequence[Entry], numbers: Sequence[int], most: int) -> list[list[int]]:
    """Numbers of entries that look alike, in groups; those with the same pixels are no pair."""
    kept = [number for number in numbers if entries[number].look.sketch is not None]
    pairs = near_pairs([sketch for number in kept if (sketch := entries[number].look.sketch) is not None], most)
    return [[kept[place] for place in group] for group in groups_of(pairs, len(kept))]


def _without_repeats(entries: Sequence[Entry], rest: Sequence[int], groups: Sequence[Sequence[int]]) -> list[int]:
    """Of each group only the first sample of each role; a role is a data set, or the queries or the gallery of one."""
    left_out = set()
    for group in groups:
        met = set()
        for number in group:
            role = entries[number].member.set, entries[number].query
            if role in met:
                left_out.add(number)
            met.add(role)
    return [number for number in rest if number not in left_out]


def _tell(entries: Sequence[Entry], groups: Sequence[Sequence[int]], level: str, findings: Findings) -> None:
    for group in groups:
        found = [entries[number] for number in group]
        if _contradicts(found):
            findings.add(NEAR_OTHER_LABEL if level == NEARLY else OTHER_LABEL, [one.member for one in found])
        sets = list(dict.fromkeys(one.member.set for one in found))
        if TRAIN in sets and len(sets) > 1:
            _tell_new(found, LEAKED, level, findings)
            continue
        for name in sets:
            own = [one for one in found if one.member.set == name]
            roles = {one.query for one in own}
            _tell_new(own, IN_GALLERY if len(roles) > 1 else TWICE, level, findings)


def _tell_new(found: Sequence[Entry], what: str, level: str, findings: Findings) -> None:
    """Tell samples that are the same in this way, unless they all are the same in a stricter one."""
    stricter = {SAME_FILE: None, SAME_PIXELS: "content", NEARLY: "pixels"}[level]
    digests = [
        number if stricter is None else getattr(one.look, stricter) or number for number, one in enumerate(found)
    ]
    if len(set(digests)) > 1:
        findings.add(f"{what}: {level}", [one.member for one in found])


def _contradicts(found: Sequence[Entry]) -> bool:
    """Whether labels differ that are of one list of classes."""
    first: dict[tuple[str, ...], str] = {}
    return any(one.labels and first.setdefault(one.labels, one.member.value) != one.member.value for one in found)


def first_of_labels(labels: NDArray[np.int64]) -> dict[int, int]:
    """The first sample of each label."""
    values, places = np.unique(labels, return_index=True)
    return dict(zip(values.tolist(), places.tolist(), strict=True))
