"""Errors in annotation files: collected by kind, then raised, or logged and fixed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from opabinia.runtime.log import warn_once

Broken = Literal["error", "clip", "drop", "fix"]
"""Handling of broken annotations: see :func:`check_errors`."""

Box = tuple[float, float, float, float]
"""Left, top, right, bottom in pixels."""

MAX_REPORTED = 10
"""Cases of a kind that are kept for messages; more are only counted."""

BAD_BOX = "boxes that are not four finite numbers of at most 2^24"
FLAT_BOX = "boxes without area"
CUT_BOX = "boxes that extend beyond the image"
OUTSIDE_BOX = "boxes outside the image"
OUTSIDE_CENTER = "oriented boxes whose center is outside the image"
BAD_SEGMENTATION = "segmentations that are neither polygons of three or more points nor RLE of the image's size"
CUT_SEGMENTATION = "segmentations that extend beyond the image"
OTHER_SEGMENTATION = "segmentations outside the box"
NO_SEGMENTATION = "objects without a segmentation"
BAD_KEYPOINTS = "keypoint lists that are not x, y and visibility 0, 1 or 2 of each name"
OUTSIDE_KEYPOINT = "visible keypoints outside the image"
BAD_FLAG = "flags that are not 0, 1, true or false"
BAD_AREA = "areas that are not finite or below 0"
BAD_LINE = "lines that are neither a box nor a polygon"
BAD_CORNERS = "lines that are not x1 y1 ... x4 y4 class difficult"
BAD_LABELS = "label files that cannot be read"
UNKNOWN_CLASS = "unknown classes"
UNKNOWN_IMAGE = "unknown images"
DUPLICATE_IMAGE = "images that are listed more than once"
DUPLICATE_ID = "ids that are used more than once"
MISSING = "missing images"
OUTSIDE_ROOT = "images outside root"
MISSING_MAP = "images without a label map"
UNUSED_MAP = "label maps without an image"
BAD_MASK = "masks that are unreadable, empty, of several values, or of another size than their image"
UNUSED_MASK = "masks without an image"
BAD_SEGMENT = "segments whose id is used twice in an image, or not 1 to 16777215"
UNREADABLE = "images that cannot be read"
WRONG_SIZE = "images of another size than annotated"
SCALED_MAP = "label maps of another size than their image, with the same proportions"
UNREADABLE_VIDEO = "videos that cannot be read"
DAMAGED_VIDEO = "damaged videos"

_FIXED_BY_CLIP = {
    *(BAD_BOX, FLAT_BOX, CUT_BOX, OUTSIDE_BOX, OUTSIDE_CENTER),
    *(BAD_SEGMENTATION, CUT_SEGMENTATION, OTHER_SEGMENTATION, NO_SEGMENTATION),
    *(BAD_KEYPOINTS, OUTSIDE_KEYPOINT, BAD_FLAG, BAD_AREA),
}

_CLIPPED = {
    CUT_BOX: "clipped to the image",
    CUT_SEGMENTATION: "clipped to the image, those without area in it dropped",
    OUTSIDE_KEYPOINT: "hidden",
    SCALED_MAP: "scaled to the image",
}
"""What ``broken: clip`` does about errors other than dropping the object."""


@dataclass(frozen=True)
class ErrorCase:
    """One error.

    Attributes:
        image: the file that it is in or belongs to.
        annotation: such as ``annotation 17``; empty if it concerns the whole image.
        value: the faulty value.
        box: left, top, right, bottom of the object in pixels; None if unknown.
    """

    image: str
    annotation: str
    value: str
    box: Box | None = None

    def __str__(self) -> str:
        return f"{', '.join(part for part in (self.image, self.annotation) if part)}: {self.value}"


@dataclass
class ErrorGroup:
    """All errors of a kind.

    Attributes:
        kind: one of the constants above.
        count: number of cases.
        cases: the first ones, at most :data:`MAX_REPORTED`.
    """

    kind: str
    count: int = 0
    cases: list[ErrorCase] = field(default_factory=list)

    def __str__(self) -> str:
        shown = "; ".join(map(str, self.cases[:3])) + ("; ..." if self.count > 3 else "")
        return f"{count_of(self.count, self.kind)} ({shown})"


def count_of(count: int, kind: str) -> str:
    """Return a number with a kind, such as ``1 box that extends beyond the image``."""
    match = re.fullmatch("(.*?)( (?:that|whose|with|without|of|outside) .*)?", kind)
    if count != 1 or match is None:
        return f"{count} {kind}"
    noun, rest = match.groups("")
    return f"1 {re.sub('(?<=x|s)es$|s$', '', noun)}{rest.replace(' are ', ' is ', 1).replace(' extend ', ' extends ')}"


class ErrorCollector:
    """Collects errors by kind."""

    def __init__(self) -> None:
        self._groups: dict[str, ErrorGroup] = {}

    def add(self, kind: str, image: str, annotation: str, value: object) -> None:
        """Add one case."""
        self.add_rows(kind, [0], lambda _: ErrorCase(f"{image:.300}", annotation, f"{value!s:.300}"))

    def add_rows(self, kind: str, rows: Sequence[int], case: Callable[[int], ErrorCase]) -> None:
        """Add a case per row; ``case`` makes it and is called for the first rows only."""
        if rows:
            group = self._groups.setdefault(kind, ErrorGroup(kind))
            group.cases += map(case, rows[: MAX_REPORTED - len(group.cases)])
            group.count += len(rows)

    def groups(self) -> list[ErrorGroup]:
        """Return all errors, one group per kind."""
        return list(self._groups.values())


def check_errors(where: object, groups: Iterable[ErrorGroup], broken: Broken) -> None:
    """Raise errors, or log how they are fixed.

    Args:
        where: the beginning of messages, such as the file.
        groups: the errors.
        broken: ``error`` raises for every kind; ``clip`` for those that clipping cannot fix: unknown classes and
            images, duplicate ids, missing images; ``drop`` and ``fix`` never raise, and ``fix`` clips as ``clip`` does.

    Raises:
        ValueError: with the first ten cases.
    """
    groups = list(groups)
    fatal = [group for group in groups if broken == "error" or (broken == "clip" and group.kind not in _FIXED_BY_CLIP)]
    if fatal:
        counts = ", ".join(count_of(group.count, group.kind) for group in fatal)
        listed = "; ".join([str(case) for group in fatal for case in group.cases][:MAX_REPORTED])
        listed += " ..." if sum(group.count for group in fatal) > MAX_REPORTED else ""
        hint = "broken: drop drops them"
        if all(group.kind in _FIXED_BY_CLIP for group in fatal):
            hint = f"broken: clip clips boxes to their image and drops those without area; {hint}"
        raise ValueError(f"{where}: {counts}: {listed}. {hint}")
    for group in groups:
        clips = broken in ("clip", "fix")
        warn_once("%s: %s: %s", where, group, _CLIPPED.get(group.kind, "dropped") if clips else "dropped")
