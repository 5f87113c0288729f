"""Duplicate images: within a dataset, and in training and validation."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from opabinia.data.check import findings as kinds
from opabinia.data.check.findings import Findings, SampleRef
from opabinia.data.check.image_hash import connected_groups, find_near_pairs
from opabinia.data.check.scan import SampleScan

TRAIN = "train"


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

    Among samples that are duplicates at one level only one of each dataset is compared at the next level.

    Args:
        samples: all samples that were read.
        max_bits: bits that may differ in the hashes of nearly identical images.
        findings: get the duplicates.
    """
    rest = list(range(len(samples)))
    for level, name in ((kinds.SAME_FILE, "file_digest"), (kinds.SAME_PIXELS, "pixel_digest")):
        groups: dict[Hashable, list[int]] = {}
        for index in rest:
            digest = getattr(samples[index].scan, name)
            if digest is not None:
                groups.setdefault(digest, []).append(index)
        repeated = [group for group in groups.values() if len(group) > 1]
        _add_groups(samples, repeated, level, findings)
        rest = _drop_repeats(samples, rest, repeated)
    for is_video in (False, True):
        indices = [index for index in rest if samples[index].scan.is_video == is_video]
        _add_groups(samples, _group_near(samples, indices, max_bits), kinds.NEAR_DUPLICATE, findings)


def _group_near(samples: Sequence[ScannedSample], indices: Sequence[int], max_bits: int) -> list[list[int]]:
    """Return groups of samples that look alike."""
    hashed = [(index, value) for index in indices if (value := samples[index].scan.image_hash) is not None]
    pairs = find_near_pairs([value for _, value in hashed], max_bits)
    return [[hashed[i][0] for i in group] for group in connected_groups(pairs, len(hashed))]


def _drop_repeats(samples: Sequence[ScannedSample], rest: Sequence[int], groups: Sequence[Sequence[int]]) -> list[int]:
    """Keep the first sample of each group for each dataset, and for queries and gallery."""
    dropped = set()
    for group in groups:
        seen = set()
        for index in group:
            role = samples[index].sample.dataset, samples[index].is_query
            if role in seen:
                dropped.add(index)
            seen.add(role)
    return [index for index in rest if index not in dropped]


def _add_groups(
    samples: Sequence[ScannedSample], groups: Sequence[Sequence[int]], level: str, findings: Findings
) -> None:
    for indices in groups:
        group = [samples[index] for index in indices]
        if _labels_differ(group):
            kind = kinds.NEAR_OTHER_LABEL if level == kinds.NEAR_DUPLICATE else kinds.OTHER_LABEL
            findings.add(kind, [duplicate.sample for duplicate in group])
        datasets = list(dict.fromkeys(duplicate.sample.dataset for duplicate in group))
        if TRAIN in datasets and len(datasets) > 1:
            _add_new(group, kinds.LEAKED, level, findings)
            continue
        for name in datasets:
            own = [duplicate for duplicate in group if duplicate.sample.dataset == name]
            roles = {duplicate.is_query for duplicate in own}
            _add_new(own, kinds.IN_GALLERY if len(roles) > 1 else kinds.REPEATED, level, findings)


def _add_new(group: Sequence[ScannedSample], kind: str, level: str, findings: Findings) -> None:
    """Add duplicates of this level, unless all of them are duplicates of a stricter level."""
    stricter = {kinds.SAME_FILE: None, kinds.SAME_PIXELS: "file_digest", kinds.NEAR_DUPLICATE: "pixel_digest"}[level]
    digests = {
        number if stricter is None else getattr(duplicate.scan, stricter) or number
        for number, duplicate in enumerate(group)
    }
    if len(digests) > 1:
        findings.add(f"{kind}: {level}", [duplicate.sample for duplicate in group])


def _labels_differ(group: Sequence[ScannedSample]) -> bool:
    """Return whether labels from the same list of classes differ."""
    first: dict[tuple[str, ...], str] = {}
    return any(
        duplicate.classes and first.setdefault(duplicate.classes, duplicate.sample.value) != duplicate.sample.value
        for duplicate in group
    )
