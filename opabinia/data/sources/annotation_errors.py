"""What is wrong with a data set: gathered by kind, then told, mended or refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from opabinia.runtime.log import log

Broken = Literal["error", "clip", "drop"]
"""What is done about things that are broken: see :func:`judge`."""

TOLD = 10
"""How many cases of a kind are told; the others are only counted."""

BAD_BOX = "boxes that are not four numbers"
FLAT_BOX = "boxes without area"
CUT_BOX = "boxes that reach out of the picture"
LOST_BOX = "boxes outside of the picture"
BAD_OUTLINE = "outlines that are no polygons of three points and no run lengths of the picture"
CUT_OUTLINE = "outlines that reach out of the picture"
NO_OUTLINE = "things without an outline"
BAD_KEYPOINTS = "keypoints of a wrong length"
BAD_LINE = "lines that are no box and no polygon"
BAD_LABELS = "label files that cannot be read"
UNKNOWN_CLASS = "classes that are not in the list"
UNKNOWN_PICTURE = "pictures that are not in the list"
TWICE = "pictures that are listed twice"
NUMBER_TWICE = "numbers that are used twice"
MISSING = "pictures that are not there"
UNREADABLE = "pictures that cannot be read"
OTHER_SIZE = "pictures of another size"
UNREADABLE_FILM = "films that cannot be read"
DAMAGED_FILM = "films that are damaged"

_CLIPPED = {BAD_BOX, FLAT_BOX, CUT_BOX, LOST_BOX, BAD_OUTLINE, CUT_OUTLINE, NO_OUTLINE, BAD_KEYPOINTS}
"""What ``clip`` takes care of."""


@dataclass(frozen=True)
class Case:
    """One broken thing.

    Attributes:
        picture: the file it is in or belongs to.
        thing: which one it is, such as ``annotation 17``; empty for the picture itself.
        value: what it says there.
        box: left, top, right, bottom of the thing in pixels; None where nobody knows.
    """

    picture: str
    thing: str
    value: str
    box: tuple[float, float, float, float] | None = None

    def __str__(self) -> str:
        return f"{', '.join(part for part in (self.picture, self.thing) if part)}: {self.value}"


@dataclass
class Fault:
    """One kind of mistake.

    Attributes:
        kind: what is wrong.
        count: how often.
        first: the first cases, at most :data:`TOLD`.
    """

    kind: str
    count: int = 0
    first: list[Case] = field(default_factory=list)

    def __str__(self) -> str:
        shown = "; ".join(map(str, self.first[:3])) + ("; ..." if self.count > 3 else "")
        return f"{self.count} {self.kind} ({shown})"


class Faults:
    """Gathers mistakes by kind."""

    def __init__(self) -> None:
        self._found: dict[str, Fault] = {}

    def add(self, kind: str, picture: str, thing: str, value: object) -> None:
        """One more."""
        fault = self._found.setdefault(kind, Fault(kind))
        fault.count += 1
        if len(fault.first) < TOLD:
            fault.first.append(Case(picture, thing, f"{value}"))

    def add_all(self, kind: str, rows: Sequence[int], case: Callable[[int], Case]) -> None:
        """Many at once; ``case`` describes the one in a row, and is asked for the first ones only."""
        if rows:
            fault = self._found.setdefault(kind, Fault(kind))
            fault.first += map(case, rows[: TOLD - len(fault.first)])
            fault.count += len(rows)

    def found(self) -> list[Fault]:
        """What there is, by kind."""
        return list(self._found.values())


def judge(where: object, faults: Iterable[Fault], broken: Broken) -> None:
    """Refuse what is broken, or tell what is done about it.

    Args:
        where: what messages name, such as the file.
        faults: what was found.
        broken: ``error`` refuses all; ``clip`` what cutting does not mend: unknown classes and pictures, numbers used
            twice, missing pictures; ``drop`` refuses nothing.

    Raises:
        ValueError: some are refused; the first ten are told.
    """
    faults = list(faults)
    refused = [one for one in faults if broken == "error" or (broken == "clip" and one.kind not in _CLIPPED)]
    if refused:
        counts = ", ".join(f"{one.count} {one.kind}" for one in refused)
        cases = [str(case) for one in refused for case in one.first]
        listed = "; ".join(cases[:TOLD]) + (" ..." if sum(one.count for one in refused) > TOLD else "")
        raise ValueError(f"{where}: {counts}: {listed}. {_remedy(refused)}")
    done = "cut to the picture, or left out" if broken == "clip" else "left out"
    for fault in faults:
        log.warning("%s: %s: %s", where, fault, done)


def _remedy(refused: Iterable[Fault]) -> str:
    drop = "broken: drop leaves out what is broken"
    if all(one.kind in _CLIPPED for one in refused):
        return f"broken: clip cuts boxes to their picture and leaves out what is not left of them; {drop}"
    return drop
