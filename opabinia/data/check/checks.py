"""Run all checks of datasets."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from opabinia.contracts import Role, Source
from opabinia.contracts.masks import decode_rle
from opabinia.data.check import findings as kinds
from opabinia.data.check import statistics
from opabinia.data.check.datasets import (
    annotated_images,
    count_per_class,
    label_name,
    leaf_sources,
)
from opabinia.data.check.duplicates import ScannedSample, find_duplicates, is_training
from opabinia.data.check.findings import Finding, Findings, SampleRef
from opabinia.data.check.image_hash import NEAR_BITS
from opabinia.data.check.scan import Position, SampleScan, sample_id, scan_samples
from opabinia.data.check.statistics import DatasetStatistics
from opabinia.data.sources import annotation_errors
from opabinia.data.sources.annotation_errors import Box
from opabinia.data.sources.detection_base import AnnotatedImages
from opabinia.runtime.log import silence
from opabinia.runtime.progress import progress_bar

EXAMPLES = 12
"""Samples of a dataset that are shown with their ground truth."""

GAP = 30
"""Frames: tracks that are not annotated in more of them, and then again, are reported."""

SMALL = 8
"""Pixels: images with a shorter side are reported."""


@dataclass(frozen=True)
class DataReport:
    """Result of the checks.

    Attributes:
        datasets: statistics by dataset name.
        findings: errors, then notes.
        sources: the sources that were read.
        examples: some samples of each dataset, to be shown.
        stopped: the check was interrupted before everything was read.
    """

    datasets: dict[str, DatasetStatistics]
    findings: list[Finding]
    sources: Sequence[Source]
    examples: dict[str, list[SampleRef]]
    stopped: bool = False

    @property
    def error_count(self) -> int:
        """Number of errors."""
        return sum(finding.count for finding in self.findings if finding.is_error)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {
            "stopped": self.stopped,
            "error_count": self.error_count,
            "datasets": {name: asdict(dataset) for name, dataset in self.datasets.items()},
            "findings": [
                {
                    "kind": finding.kind,
                    "is_error": finding.is_error,
                    "count": finding.count,
                    "cases": [[_to_json(sample) for sample in case] for case in finding.cases],
                }
                for finding in self.findings
            ],
        }


def _to_json(sample: SampleRef) -> dict[str, Any]:
    return {name: value for name, value in asdict(sample).items() if name not in ("source", "index")}


class _Leaf(NamedTuple):
    """A source, its index among all, and the name of its dataset."""

    dataset: str
    number: int
    source: Source

    def sample(self, index: int, annotation: str = "", value: str = "", box: Box | None = None) -> SampleRef:
        """Return a sample of the source, or an annotation in it."""
        return SampleRef(self.dataset, sample_id(self.source, index), annotation, value, self.number, index, box)


def run_checks(
    sources: Mapping[str, Source],
    *,
    near: int = NEAR_BITS,
    limit: int | None = None,
    seed: int = 0,
    workers: int = 0,
) -> DataReport:
    """Compute statistics of datasets, and find errors in each and between them.

    Every sample is read once: images are decoded, and of videos the first, the middle and the last frame. Errors that
    the sources have fixed are included. Statistics of classes, objects and identities include all samples even with
    ``limit``.

    Args:
        sources: by dataset name; ``train`` (of a task ``NAME/train``) is for training, all others are for validation.
        near: bits that may differ in the hashes of nearly identical images, 0 to 12.
        limit: read only this many samples of each dataset, drawn with ``seed``.
        seed: of that draw.
        workers: processes that read; 0 reads in this one.

    Returns:
        The report; also after Ctrl-C, with ``stopped``.

    Raises:
        WorkerDied: reading has killed a process.
    """
    named = [(name, leaf) for name, source in sources.items() for leaf in leaf_sources(source)]
    leaves = [_Leaf(name, number, leaf) for number, (name, leaf) in enumerate(named)]
    all_positions: dict[str, list[Position]] = {name: [] for name in sources}
    for leaf in leaves:
        all_positions[leaf.dataset] += [(leaf.number, index) for index in range(len(leaf.source))]
    positions = [position for of_dataset in all_positions.values() for position in _draw(of_dataset, limit, seed)]
    scans, stopped = _scan([leaf.source for leaf in leaves], positions, workers)
    annotated = [(leaf, source) for leaf in leaves if (source := annotated_images(leaf.source)) is not None]
    findings = Findings()
    for leaf in leaves:
        findings.add_errors(leaf.dataset, leaf.number, leaf.source.info.errors)
    for leaf, source in annotated:
        indices = [index for number, index in positions if number == leaf.number]
        findings.add_errors(leaf.dataset, leaf.number, _find_broken_rle(source, indices))
    read = zip(positions, scans, strict=False)  # fewer scans after Ctrl-C
    samples = [_check_scan(leaves[number], index, scan, findings) for (number, index), scan in read]
    find_duplicates(samples, near, findings)
    _check_identities(sources, all_positions, leaves, findings)
    _check_videos(leaves, findings)
    for leaf, source in annotated:
        _check_objects(leaf, source, findings)
        _check_gaps(leaf, source, findings)
    datasets = {name: _summarize(name, source, samples) for name, source in sources.items()}
    for name, dataset in datasets.items():
        is_partial = dataset.maps is not None and dataset.read < dataset.samples
        if not sources[name].info.identities and not is_partial:
            for class_name, count in dataset.per_class.items():
                if not count:
                    findings.add(kinds.NO_SAMPLES, [SampleRef(name, class_name)])
    examples = {name: _examples([sample for sample in samples if sample.sample.dataset == name]) for name in sources}
    return DataReport(datasets, findings.sorted(), [leaf.source for leaf in leaves], examples, stopped)


def _examples(samples: Sequence[ScannedSample]) -> list[SampleRef]:
    """Return at most :data:`EXAMPLES` readable samples, drawn with a fixed seed, one of each class in turn."""
    readable = [sample.sample for sample in samples if sample.scan.error is None]
    seen: Counter[str] = Counter()
    turns: list[tuple[int, int, int]] = []
    for place in np.random.default_rng(0).permutation(len(readable)).tolist():
        seen[readable[place].value] += 1
        turns.append((seen[readable[place].value], len(turns), place))
    return [readable[place] for place in sorted(place for _, _, place in sorted(turns)[:EXAMPLES])]


def _draw(positions: list[Position], limit: int | None, seed: int) -> list[Position]:
    """Return the samples of a dataset that are to be read."""
    if limit is None or limit >= len(positions):
        return positions
    chosen = np.random.default_rng(seed).choice(len(positions), limit, replace=False)
    return [positions[i] for i in np.sort(chosen).tolist()]


def _scan(sources: Sequence[Source], positions: Sequence[Position], workers: int) -> tuple[list[SampleScan], bool]:
    """Return the scans, and whether Ctrl-C has interrupted them."""
    scans: list[SampleScan] = []
    try:
        with silence(), progress_bar("read", len(positions)) as bar:  # damage is a finding here, not a warning
            for scan in bar.track(scan_samples(sources, positions, workers)):
                scans.append(scan)
    except KeyboardInterrupt:
        return scans, True
    return scans, False


# --- checks of a sample -----------------------------------------------------------------------------------------------


def _check_scan(leaf: _Leaf, index: int, scan: SampleScan, findings: Findings) -> ScannedSample:
    """Add the errors of a sample that was read, and return the sample."""
    source, label = leaf.source, label_name(leaf.source, index)
    sample = SampleRef(leaf.dataset, scan.id, value=label or "", source=leaf.number, index=index)

    def add(kind: str, value: str) -> None:
        findings.add(kind, [replace(sample, value=value)])

    if scan.error is not None:
        image_kind = kinds.TRUNCATED if scan.truncated else annotation_errors.UNREADABLE
        image_kind = kinds.BAD_MAP if scan.bad_map else image_kind
        add(annotation_errors.UNREADABLE_VIDEO if scan.is_video else image_kind, scan.error)
    if scan.damage is not None:
        add(annotation_errors.DAMAGED_VIDEO, scan.damage)
    if scan.size is not None:
        height, width = scan.size
        if min(scan.size) < SMALL and not scan.is_video:
            add(kinds.SMALL_IMAGE, f"{width} x {height} pixels")
        if isinstance(source, AnnotatedImages) and (file_size := source.ground_truth(index).size) != scan.size:
            file_height, file_width = file_size
            value = f"{width} x {height} pixels, {source.file} says {file_width} x {file_height}"
            add(annotation_errors.WRONG_SIZE, value)
    if scan.pixels is not None and not scan.pixels[: len(source.classes)].any():
        add(kinds.EMPTY_MAP, f"{scan.pixels.sum()} pixels are ignored")
    queries = source.info.queries
    is_query = None if queries is None else bool(queries[index])
    return ScannedSample(scan, sample, is_query, () if label is None else tuple(source.classes))


def _find_broken_rle(source: AnnotatedImages, indices: Sequence[int]) -> list[annotation_errors.ErrorGroup]:
    """Return the segmentations in RLE that cannot be decoded."""
    errors = annotation_errors.ErrorCollector()
    for index in indices if source.info.masks else ():
        ground_truth = source.ground_truth(index)
        for number, segment in zip(ground_truth.ids.tolist(), ground_truth.segments or (), strict=True):
            try:
                if isinstance(segment, dict):
                    decode_rle(segment, ground_truth.size)
            except ValueError as error:
                errors.add(annotation_errors.BAD_SEGMENTATION, source.id(index), f"{source.noun} {number}", error)
    return errors.groups()


# --- checks of a dataset ----------------------------------------------------------------------------------------------


def _summarize(name: str, source: Source, samples: Sequence[ScannedSample]) -> DatasetStatistics:
    scans = [sample.scan for sample in samples if sample.sample.dataset == name]
    leaves = list(leaf_sources(source))
    maps = statistics.map_statistics(source.classes, [scan.pixels for scan in scans if scan.pixels is not None])
    return DatasetStatistics(
        samples=sum(map(len, leaves)),
        read=len(scans),
        is_video=any(scan.is_video for scan in scans),
        per_class=count_per_class(source) if maps is None else maps.images,
        boxes=statistics.box_statistics(source.classes, leaves) if maps is None else None,
        maps=maps,
        lengths=statistics.length_statistics([scan.length for scan in scans if scan.length is not None]),
        identities=statistics.identity_statistics(source),
        sizes=statistics.size_statistics([scan.size for scan in scans if scan.size is not None]),
        channels=statistics.channel_statistics([scan.moments for scan in scans if scan.moments is not None]),
    )


def _check_objects(leaf: _Leaf, source: AnnotatedImages, findings: Findings) -> None:
    """Add tiny boxes, and images without boxes."""
    annotations = source.annotations.take(source.annotations.trainable)
    sides = statistics.box_sides(source)
    for row in np.flatnonzero((sides < statistics.TINY).any(1)).tolist():
        left, top, width, height = annotations.boxes[row].tolist()
        name = f"{source.noun} {annotations.ids[row]}"
        value = f"{source.classes[int(annotations.labels[row])]}, {sides[row, 0]:.4g} x {sides[row, 1]:.4g} pixels"
        box = (left, top, left + width, top + height)
        findings.add(kinds.TINY_BOX, [leaf.sample(int(annotations.image_indices[row]), name, value, box)])
    for index, present in enumerate(source.info.present or ()):
        if not len(present):
            findings.add(kinds.EMPTY, [leaf.sample(index)])


def _check_gaps(leaf: _Leaf, source: AnnotatedImages, findings: Findings) -> None:
    """Add long gaps in tracks, in frames that are read."""
    lengths: Counter[str] = Counter()
    last: dict[tuple[str, int], int] = {}
    for index, frame in enumerate(source.tracks or ()):
        place = lengths[frame.sequence]
        lengths[frame.sequence] += 1
        for track in frame.truth.ids[frame.truth.roles == Role.COUNTED].tolist():
            gap = place - last.get((frame.sequence, track), place - 1) - 1
            if gap > GAP:
                findings.add(kinds.TRACK_GAP, [leaf.sample(index, f"track {track}", f"not in the {gap} frames before")])
            last[frame.sequence, track] = place


def _check_videos(leaves: Sequence[_Leaf], findings: Findings) -> None:
    """Add videos whose frames are in training and validation, each with a frame of both."""
    trained: dict[tuple[bytes, str], SampleRef] = {}
    for is_train in (True, False):
        for leaf in leaves:
            if leaf.source.info.sequences is None or is_training(leaf.dataset) != is_train:
                continue
            for name, index in zip(*np.unique(leaf.source.info.sequences, return_index=True), strict=True):
                folder = b"".join(os.path.dirname(path) for path in leaf.source.paths(int(index))[:1])
                sample = leaf.sample(int(index), value=f"video {name}")
                if is_train:
                    trained.setdefault((folder, str(name)), sample)
                elif (folder, str(name)) in trained:
                    findings.add(kinds.SAME_VIDEO, [trained[folder, str(name)], sample])


def _check_identities(
    sources: Mapping[str, Source], positions: Mapping[str, list[Position]], leaves: Sequence[_Leaf], findings: Findings
) -> None:
    """Add identities that are in training and validation, each with an image of both."""
    trained = {
        identity: positions[name][index]
        for name, source in sources.items()
        if is_training(name) and source.info.identities
        for identity, index in _first_images(source).items()
    }
    for name, source in sources.items():
        # Some datasets number the identities of their test set from 0 again.
        if is_training(name) or not source.info.identities or source.info.reuses_names:
            continue
        for identity, index in _first_images(source).items():
            if identity in trained:
                pair = (trained[identity], positions[name][index])
                samples = [leaves[number].sample(image, value=f"identity {identity}") for number, image in pair]
                findings.add(kinds.SAME_IDENTITY, samples)


def _first_images(source: Source) -> dict[str, int]:
    """Return the index of the first image of each identity with images, by name."""
    labels = source.info.single_labels
    if labels is None:
        return {}
    values, indices = np.unique(labels, return_index=True)
    return {str(source.classes[value]): index for value, index in zip(values.tolist(), indices.tolist(), strict=True)}
