"""Duplicate images: within a dataset, and in training and validation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from opabinia.data.check import findings as kinds
from opabinia.data.check.findings import Findings, SampleRef
from opabinia.data.check.image_hash import connected_groups, find_near_pairs
from opabinia.data.check.scan import SampleScan

TRAIN = "train"


def is_training(dataset: str) -> bool:
    """Return whether a dataset is trained on: ``train``, or ``NAME/train`` of a multi-task run."""
    return dataset.rpartition("/")[2] == TRAIN


@dataclass(frozen=True)
class ScannedSample:
    """A sample that was read.

    Attributes:
        scan: the result of reading it.
        sample: the sample; its value is its label.
        is_query: whether it is a query; None if its dataset has no query set.
        classes: the list of classes that its label is from; empty if it has no label.
    """

    scan: SampleScan
    sample: SampleRef
    is_query: bool | None
    classes: tuple[str, ...]


def find_duplicates(samples: Sequence[ScannedSample], max_bits: int, findings: Findings) -> None:
    """Find duplicate samples by the bytes of their file, by their pixels, and nearly identical ones by their hash.

    Among samples that are duplicates at one level only the first of each dataset, and of its queries and gallery, is
    compared at the next level.

    Args:
        samples: all samples that were read.
        max_bits: bits that may differ in the hashes of nearly identical images.
        findings: get the duplicates.
    """
    rest = list(samples)
    for level, name in ((kinds.SAME_FILE, "file_digest"), (kinds.SAME_PIXELS, "pixel_digest")):
        groups: dict[Hashable, list[ScannedSample]] = defaultdict(list)
        kept: dict[Hashable, ScannedSample] = {}
        for number, sample in enumerate(rest):
            digest = getattr(sample.scan, name) or number
            groups[digest].append(sample)
            kept.setdefault((digest, sample.sample.dataset, sample.is_query), sample)
        _add_groups([group for group in groups.values() if len(group) > 1], level, findings)
        rest = list(kept.values())
    for is_video in (False, True):
        compared = [sample for sample in rest if sample.scan.is_video == is_video]
        pairs = find_near_pairs([sample.scan.image_hash for sample in compared], max_bits)
        near = [[compared[i] for i in group] for group in connected_groups(pairs, len(compared))]
        _add_groups(near, kinds.NEAR_DUPLICATE, findings)


def _add_groups(groups: Sequence[Sequence[ScannedSample]], level: str, findings: Findings) -> None:
    for group in groups:
        # Labels can only be compared if they are from the same list of classes.
        labels = {(duplicate.classes, duplicate.sample.value) for duplicate in group if duplicate.classes}
        differ = len(labels) > len({classes for classes, _ in labels})
        if differ:
            kind = kinds.NEAR_OTHER_LABEL if level == kinds.NEAR_DUPLICATE else kinds.OTHER_LABEL
            findings.add(kind, [duplicate.sample for duplicate in group])
        datasets = list(dict.fromkeys(duplicate.sample.dataset for duplicate in group))
        if len({is_training(name) for name in datasets}) > 1:
            _add_new(group, kinds.LEAKED, level, findings)
            continue
        for name in datasets:
            in_dataset = [duplicate for duplicate in group if duplicate.sample.dataset == name]
            if len({duplicate.is_query for duplicate in in_dataset}) > 1:
                _add_new(in_dataset, kinds.IN_GALLERY, level, findings)
            elif not differ:  # they are listed already
                _add_new(in_dataset, kinds.REPEATED, level, findings)


def _add_new(group: Sequence[ScannedSample], kind: str, level: str, findings: Findings) -> None:
    """Add duplicates of this level, unless all of them are duplicates of a stricter level."""
    stricter = {kinds.SAME_PIXELS: "file_digest", kinds.NEAR_DUPLICATE: "pixel_digest"}.get(level)
    digests = {(stricter and getattr(duplicate.scan, stricter)) or number for number, duplicate in enumerate(group)}
    if len(digests) > 1:
        findings.add(f"{kind}: {level}", [duplicate.sample for duplicate in group])
