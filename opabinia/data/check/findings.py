"""What is wrong with data sets: kinds of findings, and the samples they are of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from opabinia.data.sources import annotation_errors

TRUNCATED = "pictures that are cut off"
SMALL_PICTURE = "pictures with a side of less than 8 pixels"
TINY_BOX = "boxes with a side of less than 2 pixels"
EMPTY = "pictures without things"
NO_SAMPLES = "classes without samples"
SAME_FILE, SAME_PIXELS, NEARLY = "the same file", "the same pixels", "nearly the same"
LEVELS = (SAME_FILE, SAME_PIXELS, NEARLY)
LEAKED = "in training and in validation"
IN_GALLERY = "among the queries and in the gallery"
TWICE = "several times in a set"
OTHER_LABEL = "the same picture under different labels"
NEAR_OTHER_LABEL = "nearly the same picture under different labels"
SAME_IDENTITY = "identities in training and in validation"

NOTES = {SMALL_PICTURE, TINY_BOX, EMPTY, NO_SAMPLES, NEAR_OTHER_LABEL, f"{IN_GALLERY}: {NEARLY}"}
NOTES |= {f"{TWICE}: {level}" for level in LEVELS}
"""What may be meant so; all other findings are wrong."""


@dataclass(frozen=True)
class Member:
    """A sample, or something in it, that a finding is of.

    Attributes:
        set: the data set it is in.
        id: of the sample.
        thing: in it, such as ``annotation 17``; empty where all of it is meant.
        value: what is wrong with it, or what it is; may be empty.
        part: the number of its source among all that were looked at.
        index: its number in there; None where the source has left it out.
        box: left, top, right, bottom of the thing in pixels.
    """

    set: str
    id: str
    thing: str = ""
    value: str = ""
    part: int | None = None
    index: int | None = None
    box: tuple[float, float, float, float] | None = None

    def __str__(self) -> str:
        name = ", ".join(one for one in (self.id, self.thing) if one)
        return f"{name}: {self.value}" if self.value else name


@dataclass
class Finding:
    """One kind of thing that is wrong, or that should be looked at.

    Attributes:
        kind: what it is.
        count: how often.
        cases: of each case the samples it is of, several where they are the same; fewer cases than ``count`` where a
            source tells its first ones only.
    """

    kind: str
    count: int = 0
    cases: list[Sequence[Member]] = field(default_factory=list)

    @property
    def wrong(self) -> bool:
        """Whether it is a mistake; else it may be meant so."""
        return self.kind not in NOTES

    @property
    def sets(self) -> list[str]:
        """The data sets it is found in."""
        return list(dict.fromkeys(member.set for case in self.cases for member in case))


class Findings:
    """Gathers findings by kind."""

    def __init__(self) -> None:
        self._found: dict[str, Finding] = {}

    def add(self, kind: str, members: Sequence[Member], *, count: int = 1) -> None:
        """One more case; or ``count`` cases, of which the first is told."""
        found = self._found.setdefault(kind, Finding(kind))
        found.count += count
        found.cases.append(members)

    def add_faults(self, name: str, part: int, told: Iterable[annotation_errors.Fault]) -> None:
        """What a source of the data set ``name`` had to mend or to leave out."""
        for fault in told:
            for number, case in enumerate(fault.first):
                more = 0 if number else fault.count - len(fault.first)
                member = Member(name, case.picture, case.thing, case.value, part, None, case.box)
                self.add(fault.kind, [member], count=1 + more)

    def all(self) -> list[Finding]:
        """What is wrong first; the first found first."""
        return sorted(self._found.values(), key=lambda one: not one.wrong)
