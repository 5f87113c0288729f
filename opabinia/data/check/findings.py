"""Findings about datasets, by kind, and the samples that they concern."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from opabinia.data.sources import annotation_errors

TRUNCATED = "truncated images"
SMALL_IMAGE = "images with a side of less than 8 pixels"
TINY_BOX = "boxes with a side of less than 2 pixels"
EMPTY = "images without objects"
BAD_MAP = "label maps that cannot be read, or with values of no class"
EMPTY_MAP = "label maps without a labeled pixel"
NO_SAMPLES = "classes without samples"
SAME_FILE, SAME_PIXELS, NEAR_DUPLICATE = "identical file", "identical pixels", "nearly identical"
LEVELS = (SAME_FILE, SAME_PIXELS, NEAR_DUPLICATE)
LEAKED = "in training and validation"
IN_GALLERY = "in query and gallery"
REPEATED = "repeated in a dataset"
OTHER_LABEL = "identical images with different labels"
NEAR_OTHER_LABEL = "nearly identical images with different labels"
SAME_IDENTITY = "identities in training and validation"
SAME_VIDEO = "videos in training and validation"
TRACK_GAP = "tracks that are not annotated for more than 30 frames"

NOTES = {SMALL_IMAGE, TINY_BOX, EMPTY, EMPTY_MAP, NO_SAMPLES, NEAR_OTHER_LABEL, f"{IN_GALLERY}: {NEAR_DUPLICATE}"}
NOTES |= {annotation_errors.UNUSED_MAP, TRACK_GAP}
NOTES |= {f"{REPEATED}: {level}" for level in LEVELS}
"""Findings that may be intended; all others are errors."""


@dataclass(frozen=True)
class SampleRef:
    """A sample, or an annotation in it, that a finding concerns.

    Attributes:
        dataset: name of its dataset.
        id: of the sample.
        annotation: such as ``annotation 17``; empty if the whole sample is meant.
        value: the faulty value, or the label; may be empty.
        source: the index of its source among all that were read.
        index: its index in that source; None if the source has dropped it.
        box: left, top, right, bottom of the object in pixels.
    """

    dataset: str
    id: str
    annotation: str = ""
    value: str = ""
    source: int | None = None
    index: int | None = None
    box: annotation_errors.Box | None = None

    def __str__(self) -> str:
        name = ", ".join(part for part in (self.id, self.annotation) if part)
        return f"{name}: {self.value}" if self.value else name


@dataclass
class Finding:
    """One kind of error or note.

    Attributes:
        kind: one of the constants above or in ``annotation_errors``, perhaps with a level.
        count: number of cases.
        cases: the samples of each case, several if they are duplicates; fewer than ``count`` if a source only keeps
            its first errors.
    """

    kind: str
    count: int = 0
    cases: list[Sequence[SampleRef]] = field(default_factory=list)

    @property
    def is_error(self) -> bool:
        """Whether it is an error; else it may be intended."""
        return self.kind not in NOTES

    @property
    def title(self) -> str:
        """The kind, marked if it is an error."""
        return f"error: {self.kind}" if self.is_error else self.kind

    @property
    def datasets(self) -> list[str]:
        """The datasets that it occurs in."""
        return list(dict.fromkeys(sample.dataset for case in self.cases for sample in case))


class Findings:
    """Collects findings by kind."""

    def __init__(self) -> None:
        self._by_kind: dict[str, Finding] = {}

    def add(self, kind: str, samples: Sequence[SampleRef], *, count: int = 1) -> None:
        """Add a case; or ``count`` cases, of which the first is given."""
        finding = self._by_kind.setdefault(kind, Finding(kind))
        finding.count += count
        finding.cases.append(samples)

    def add_errors(self, dataset: str, source: int, groups: Iterable[annotation_errors.ErrorGroup]) -> None:
        """Add the annotation errors of a source."""
        for group in groups:
            for number, case in enumerate(group.cases):
                count = 1 if number else 1 + group.count - len(group.cases)
                sample = SampleRef(dataset, case.image, case.annotation, case.value, source, None, case.box)
                self.add(group.kind, [sample], count=count)

    def sorted(self) -> list[Finding]:
        """Return errors, then notes, each in the order of their first case."""
        return sorted(self._by_kind.values(), key=lambda finding: not finding.is_error)
