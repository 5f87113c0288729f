"""Splits: validation samples of a dataset without any, folds for cross-validation, and leaks between given splits."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from opabinia.contracts import Indices, RaggedArray, Source, SourceInfo
from opabinia.data.check.image_hash import connect, members_of
from opabinia.data.examination import LIMIT, Examination, examine
from opabinia.data.layouts.layout import TaskName
from opabinia.data.sample_groups import (
    chain_equal,
    equal_codes,
    find_groups,
    group_codes,
    name_of_original,
    recordings_of,
    same_files,
    scopes_of,
)
from opabinia.data.sampling.samplers import apportion
from opabinia.data.sources.subset import write_split
from opabinia.runtime.log import log
from opabinia.runtime.text import plural

_SHARE, _SMALL_SHARE = 0.1, 0.2
_MIN_SIZE, _MAX_SIZE = 1000, 5000
_MIN_PER_CLASS = 2
_MIN_IDENTITIES = 20

_EXAMPLES = 3
"""Samples that a leak names, or classes that a warning does."""


def validation_size(samples: int) -> int:
    """Return the number of validation samples of a dataset: 20 %, above 5,000 samples 1,000, above 10,000 samples 10 %,
    above 50,000 samples 5,000.

    The standard error of a share such as the accuracy is at most 50 % by the square root of this number: 5 points with
    100 validation samples, 1.6 with 1,000, 0.7 with 5,000, which is less than differences that matter. More would only
    cost training samples and time. A small dataset gives 20 %, as is common.
    """
    return min(max(round(_SHARE * samples), min(round(_SMALL_SHARE * samples), _MIN_SIZE), 1), _MAX_SIZE)


def class_quotas(counts: Sequence[int], total: int) -> Indices:
    """Return the number of validation samples of each class.

    They are in proportion to the samples of the class, and at least 2, or a third of the class: of one or two samples
    none is held out. Where this would take more than twice ``total``, or nothing, the proportion alone decides.

    Args:
        counts: samples of each class.
        total: number of validation samples.
    """
    sizes = np.asarray(counts, dtype=np.int64)
    quotas = np.array(apportion(total, counts)) if sizes.any() else sizes
    minima = np.minimum(_MIN_PER_CLASS, sizes // 3)
    with_minima: Indices = np.where(sizes < 3, 0, np.maximum(quotas, minima))
    return with_minima if 0 < with_minima.sum() <= 2 * total else quotas


def split_dataset(
    source: Source, file: Path, *, task: TaskName, seed: int = 0, limit: int = LIMIT
) -> tuple[Examination, Examination]:
    """Choose validation samples of a dataset without any, and write them to a file for the source ``subset``.

    Args:
        source: all samples.
        file: the split file.
        task: for ``reid`` whole identities are chosen.
        seed: of the choice and of the samples that are read.
        limit: number of samples whose files are read to find near-duplicates and recordings.

    Returns:
        The examinations of the training and of the validation samples.

    Raises:
        ValueError: the samples cannot be divided, see :func:`choose_validation` and :func:`choose_identities`.
        DiskError: the file cannot be written.
    """
    examination = examine(source, seed=seed, limit=limit)
    groups = find_groups(source, examination)
    if task == "reid":
        chosen = choose_identities(source, groups, seed=seed)
    else:
        chosen = choose_validation(source, groups, seed=seed, present=_present_in_maps(source, examination))
        chosen = _readable(chosen, examination)
    keys = list(source.split_keys())
    write_split(file, [keys[index] for index in chosen.tolist()])
    others = np.setdiff1d(np.arange(len(source)), chosen)
    return examination.select(others), examination.select(chosen)


def split_into_folds(
    source: Source,
    files: Sequence[Path],
    *,
    group_by: str | None = None,
    identities: bool = False,
    seed: int = 0,
    limit: int = LIMIT,
) -> Indices:
    """Divide a dataset into folds for cross-validation, and write a file for the source ``subset`` for each: the
    samples of a fold are the validation samples of its file, so each sample is held out once.

    Samples that cannot be read are in no fold.

    Args:
        source: all samples.
        files: the split files, as many as folds.
        group_by: samples that are equal in this stay together, too
            (:func:`opabinia.data.sample_groups.group_codes`).
        identities: labels are identities, each of which is in one fold, also if the source reads them as classes.
        seed: of the choice and of the samples that are read.
        limit: number of samples whose files are read to find near-duplicates and recordings.

    Returns:
        The number of the group of each sample (int64, N).

    Raises:
        ValueError: the samples cannot be divided, see :func:`choose_folds`, or they have no such field.
        DiskError: a file cannot be written.
    """
    fields = [] if group_by is None else [group_codes(source, group_by)]
    examination = examine(source, seed=seed, limit=limit)
    keys = list(source.split_keys())
    codes = [*fields, find_groups(source, examination), equal_codes(keys)]
    codes += [] if source.info.sequences is None else [equal_codes(source.info.sequences.tolist())]
    identities |= source.info.identities
    codes += [source.info.single_labels] if identities and source.info.single_labels is not None else []
    groups = connect(np.concatenate([chain_equal(code) for code in codes]), len(source))
    if identities:
        classes = RaggedArray(_searchable(source.info)[:, None])
    else:
        present = _present_in_maps(source, examination)
        classes = _classes_of(source.info, len(source)) if present is None else present
    folds = choose_folds(groups, classes, len(files), seed=seed)
    if not identities:
        _warn_of_classes(folds, classes, source.classes)
    for fold, file in enumerate(files):
        file.parent.mkdir(parents=True, exist_ok=True)
        chosen = _readable(np.flatnonzero(folds == fold), examination)
        write_split(file, [keys[index] for index in chosen.tolist()])
    return groups


def _searchable(info: SourceInfo) -> Indices:
    """Return for each sample of identities whether its identity can be searched: 1 if it has two images at least, by
    two cameras where cameras are known."""
    labels, cameras = info.single_labels, info.cameras
    if labels is None:
        raise ValueError("the samples have no identities: each needs one label")
    sides = np.unique(np.stack([labels, np.arange(len(labels)) if cameras is None else cameras], 1), axis=0)
    return (np.bincount(sides[:, 0])[labels] > 1).astype(np.int64)


def choose_folds(groups: Indices, classes: RaggedArray, count: int, *, seed: int) -> Indices:
    """Divide samples into folds of about the same size, in each of which a class has about the same share.

    Samples of a group stay together. A sample with several classes counts for the rarest of them. The same arguments
    give the same folds.

    Args:
        groups: the number of the group of each sample (int64, N).
        classes: of each sample.
        count: number of folds.
        seed: of the order in which groups are dealt.

    Returns:
        The fold of each sample, from 0 (int64, N).

    Raises:
        ValueError: there are fewer samples, or groups of them, than folds.
    """
    found = len(np.unique(groups))
    if found < count:
        belonging = "" if found == len(groups) else f" in {plural(found, 'group')} that belong together"
        raise ValueError(f"{plural(len(groups), 'sample')}{belonging} cannot be divided into {count} folds")
    return _Draw(groups, classes, seed).deal(count)


def _warn_of_classes(folds: Indices, classes: RaggedArray, names: Sequence[str]) -> None:
    """Log a warning of classes all of whose samples are in one fold, so that its run cannot learn them."""
    rows = np.repeat(folds, [len(own) for own in classes])
    pairs = np.unique(np.stack([np.concatenate(list(classes)), rows], 1), axis=0)
    labels, counts = np.unique(pairs[:, 0], return_counts=True)
    alone = [names[label] for label in labels[counts == 1].tolist() if label < len(names)]
    if alone and len(labels) > 1:
        shown = ", ".join(alone[:_EXAMPLES]) + (" ..." if len(alone) > _EXAMPLES else "")
        log.warning("classes all of whose samples are in one fold, so that its run cannot learn them: %s", shown)


def _readable(chosen: Indices, examination: Examination) -> Indices:
    """Return the chosen samples without those that cannot be read, which can be skipped in training, not in an
    evaluation; all of them if none can be."""
    unreadable = [index for index, scan in zip(examination.indices, examination.scans, strict=True) if scan.error]
    readable = np.setdiff1d(chosen, unreadable)
    return readable if len(readable) else chosen


def _present_in_maps(source: Source, examination: Examination) -> RaggedArray | None:
    """Return the classes in the segmentation map of each sample, none if it was not read; None without maps."""
    if source.info.present is not None or not any(scan.pixels is not None for scan in examination.scans):
        return None
    present: list[Sequence[int]] = [()] * len(source)
    for index, scan in zip(examination.indices.tolist(), examination.scans, strict=True):
        if scan.pixels is not None:
            present[index] = np.flatnonzero(scan.pixels[: len(source.classes)]).tolist()
    return RaggedArray(present)


def choose_validation(source: Source, groups: Indices, *, seed: int, present: RaggedArray | None = None) -> Indices:
    """Choose validation samples of a dataset: :func:`validation_size` many, of each class its share.

    A sample with several classes, or with objects of several, counts for the rarest of them. Samples of a group stay
    together; at most half of the samples of a class are chosen, and none of a class with one sample. The same arguments
    give the same samples.

    Args:
        source: all samples.
        groups: the number of the group of each sample (int64, N), see
            :func:`opabinia.data.sample_groups.find_groups`.
        seed: of the draw.
        present: classes of each sample, if the source does not know them (segmentation maps).

    Returns:
        Indices, ascending (int64).

    Raises:
        ValueError: there is one sample only, or every class has one only.
    """
    count = len(source)
    if count < 2:
        raise ValueError(f"{plural(count, 'sample')} cannot be split into training and validation")
    classes = _classes_of(source.info, count) if present is None else present
    draw = _Draw(groups, classes, seed)
    if not (draw.class_counts > 1).any():
        raise ValueError(
            f"each of the {len(draw.class_counts)} classes has one sample: none can be held out for validation"
        )
    chosen = draw.choose(validation_size(count))
    if not chosen.any():
        log.warning("validation: the samples belong together (frames of one recording?); the last of them are held out")
        chosen = draw.choose_last(validation_size(count))
    return np.flatnonzero(chosen)


def choose_identities(source: Source, groups: Indices, *, seed: int) -> Indices:
    """Choose some identities for validation: no identity is in both parts.

    They are drawn among those whose images can be searched: they have two images at least, by two cameras where cameras
    are known. :func:`validation_size` images are chosen, of at least a fifth of the identities or 20 of them, because
    few identities are easily distinguished, and of at most half.

    Args:
        source: each sample has one label, the identity.
        groups: the number of the group of each sample (int64, N); identities with samples of one group stay together.
        seed: of the draw.

    Returns:
        Indices, ascending (int64).

    Raises:
        ValueError: samples have no identities, or none of these can be held out.
    """
    searchable_samples, labels = _searchable(source.info), np.asarray(source.info.single_labels)
    searchable = np.zeros(len(source.classes), dtype=bool)
    searchable[labels[searchable_samples > 0]] = True
    units = connect(np.concatenate([chain_equal(labels), chain_equal(groups)]), len(labels))
    members = members_of(units)
    chosen = np.zeros(len(source.classes), dtype=bool)
    count = len(np.unique(labels))
    missing, allowed = validation_size(len(labels)), count // 2
    fewest = max(2, min(_MIN_IDENTITIES, round(_SMALL_SHARE * count)))
    for unit in np.random.default_rng(seed).permutation(len(members)).tolist():
        own = np.unique(labels[members[unit]])
        if (missing > 0 or chosen.sum() < fewest) and searchable[own].all() and len(own) <= allowed:
            chosen[own] = True
            missing, allowed = missing - len(members[unit]), allowed - len(own)
    if chosen.sum() < 2:
        seen = "two images" if source.info.cameras is None else "images by two cameras"
        raise ValueError(f"{searchable.sum()} of {count} identities have {seen}: two and at most half can be held out")
    return np.flatnonzero(chosen[labels])


def _classes_of(info: SourceInfo, count: int) -> RaggedArray:
    """Return the classes of each of ``count`` samples, each once; class 0 of all if they are unknown."""
    rows = np.arange(count)
    if info.labels is not None and info.single_labels is None:
        samples, labels = np.nonzero(info.labels)
        return RaggedArray.group_unique(samples, labels, count)
    if info.labels is None and info.present is not None:
        return RaggedArray(info.present)
    known = info.single_labels
    return RaggedArray.group_unique(rows, np.zeros(count, dtype=np.int64) if known is None else known, count)


class _Draw:
    """Draws groups of samples.

    Args:
        groups: the number of the group of each sample (int64, N).
        classes: of each sample.
        seed: of the order in which groups are drawn.

    Attributes:
        class_counts: samples of each class that has any (int64).
    """

    def __init__(self, groups: Indices, classes: RaggedArray, seed: int) -> None:
        values = np.concatenate([np.zeros(0, dtype=np.int64), *(classes[index] for index in range(len(classes)))])
        self._classes, self._totals = classes, np.bincount(values)
        self.class_counts = self._totals[self._totals > 0]
        nothing = len(self._totals)  # the stratum of samples without any class
        rarest = [own[np.argmin(self._totals[own])] if len(own) else nothing for own in classes]
        self._strata = np.array(rarest, dtype=np.int64)
        self._sizes = np.bincount(self._strata, minlength=nothing + 1)
        self._members = np.argsort(groups, kind="stable")
        self._starts = np.append(np.flatnonzero(np.diff(groups[self._members], prepend=-1)), len(groups))
        self._shuffled = np.random.default_rng(seed).permutation(len(self._starts) - 1)
        self._chosen = np.zeros(len(groups), dtype=bool)
        self._counts, self._taken = np.zeros_like(self._sizes), np.zeros_like(self._totals)

    def _groups_by_stratum(self) -> Iterator[tuple[int, Indices]]:
        """Yield each stratum, the rarest first, and the groups that belong to it, shuffled: those in which it is the
        rarest."""
        by_size = np.argsort(self._sizes, kind="stable")
        ranks = np.argsort(by_size)[self._strata]
        homes = np.minimum.reduceat(ranks[self._members], self._starts[:-1])[self._shuffled]
        by_home = np.argsort(homes, kind="stable")
        ends = np.searchsorted(homes[by_home], np.arange(len(by_size)), "right")
        yield from zip(by_size.tolist(), np.split(self._shuffled[by_home], ends[:-1]), strict=True)

    def deal(self, count: int) -> Indices:
        """Return the fold of each sample (int64, N).

        Groups are dealt by stratum, large ones first, each to the fold with the fewest samples of the stratum, and
        among these with the fewest samples.
        """
        folds = np.zeros_like(self._strata)
        taken, totals = [[0] * len(self._sizes) for _ in range(count)], [0] * count
        lengths = np.diff(self._starts)
        for stratum, groups in self._groups_by_stratum():
            for group in groups[np.argsort(-lengths[groups], kind="stable")].tolist():
                members = self._members[self._starts[group] : self._starts[group + 1]]
                fold = min((taken[fold][stratum], totals[fold], fold) for fold in range(count))[2]
                folds[members] = fold
                totals[fold] += len(members)
                for member_stratum in self._strata[members].tolist():
                    taken[fold][member_stratum] += 1
        return folds

    def choose(self, total: int) -> NDArray[np.bool_]:
        """Return which samples are chosen (bool, N): about ``total``."""
        quotas = class_quotas(self._sizes.tolist(), total)
        for stratum, own in self._groups_by_stratum():
            self._take(own, [stratum], int(quotas[stratum]))
        # Rare classes have no quota. If there are many of them, any samples are taken that their classes can spare.
        self._take(self._shuffled, slice(None), total)
        return self._chosen

    def choose_last(self, total: int) -> NDArray[np.bool_]:
        """Return the last samples of each stratum (bool, N), whatever their groups are."""
        chosen = np.zeros_like(self._chosen)
        quotas = class_quotas(self._sizes.tolist(), total)
        for stratum in np.flatnonzero(quotas).tolist():
            chosen[np.flatnonzero(self._strata == stratum)[-quotas[stratum] :]] = True
        return chosen

    def _take(self, groups: Indices, strata: list[int] | slice, quota: int) -> None:
        """Choose groups until ``quota`` samples of some strata are chosen: rather too few than too many, and never more
        than half of a class."""
        for group in groups.tolist():
            missing = quota - self._counts[strata].sum()
            if missing <= 0:
                return
            members = self._members[self._starts[group] : self._starts[group + 1]]
            sizes = np.bincount(self._strata[members], minlength=len(self._counts))
            labels = np.concatenate([self._classes[index] for index in members.tolist()])
            after = self._taken + np.bincount(labels, minlength=len(self._taken))
            fits = sizes[strata].sum() < max(2 * missing, 2) and (after <= self._totals // 2)[labels].all()
            if fits and not self._chosen[members[0]]:
                self._chosen[members] = True
                self._counts, self._taken = self._counts + sizes, after


# --- leaks ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Leak:
    """Samples of a split that another split has, too.

    Attributes:
        kind: ``identical``, ``nearly identical``, ``augmented copies of one original`` or ``frames of one recording``.
        splits: names of both.
        count: number of samples of the second one.
        examples: pairs of samples, one of each split.
    """

    kind: str
    splits: tuple[str, str]
    count: int
    examples: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        first, second = self.splits
        pairs = ", ".join(f"{own} and {other}" for own, other in self.examples)
        more = " ..." if self.count > len(self.examples) else ""
        return f"{self.kind} in {first} and {second}: {plural(self.count, 'sample')} of {second} ({pairs}{more})"


def find_leaks(splits: Mapping[str, tuple[Source, Examination]]) -> list[Leak]:
    """Find samples that two splits have in common: identical files, and copies and frames by their names, among all;
    identical pixels and near-duplicates among those that were examined.

    Args:
        splits: sources and their examinations by name, the training data first.
    """
    leaks: list[Leak] = []
    for first, second in combinations(splits, 2):
        (source, examined), (other, other_examined) = splits[first], splits[second]
        keys = list(source.split_keys()), list(other.split_keys())
        found: dict[str, dict[str, str]] = {
            "identical": _identical((source, other), keys) | _same_pixels(examined, other_examined, keys),
            "nearly identical": _near(examined, other_examined, keys),
            "augmented copies of one original": _copies(keys),
            "frames of one recording": _same_recordings(keys, (source.info, other.info)),
        }
        known: set[str] = set()
        for kind, pairs in found.items():
            new = [(own, name) for name, own in pairs.items() if name not in known]
            known.update(name for _, name in new)
            if new:
                leaks.append(Leak(kind, (first, second), len(new), tuple(new[:_EXAMPLES])))
    return leaks


_Keys = tuple[list[str], list[str]]
"""Names of the samples of two splits. Functions below return that of the first split for samples of the second one."""


def _identical(sources: tuple[Source, Source], keys: _Keys) -> dict[str, str]:
    codes = same_files(sources)
    own, other = codes[: len(keys[0])].tolist(), codes[len(keys[0]) :].tolist()
    first = {code: key for code, key in zip(own, keys[0], strict=True) if code >= 0}
    return {key: first[code] for code, key in zip(other, keys[1], strict=True) if code in first}


def _same_pixels(first: Examination, second: Examination, keys: _Keys) -> dict[str, str]:
    rows = zip(first.indices.tolist(), first.scans, strict=True)
    digests = {scan.pixel_digest: keys[0][index] for index, scan in rows if scan.pixel_digest is not None}
    other = zip(second.indices.tolist(), second.scans, strict=True)
    return {keys[1][index]: digests[scan.pixel_digest] for index, scan in other if scan.pixel_digest in digests}


def _near(first: Examination, second: Examination, keys: _Keys) -> dict[str, str]:
    offset = len(keys[0])
    indices = np.concatenate([first.indices, second.indices + offset])
    pairs = Examination(indices, [*first.scans, *second.scans], is_complete=False).near_duplicates()
    across = pairs[(pairs[:, 0] < offset) & (pairs[:, 1] >= offset)]
    return {keys[1][b - offset]: keys[0][a] for a, b in across.tolist()}


def _copies(keys: _Keys) -> dict[str, str]:
    originals: dict[str, str] = {}
    for key in keys[0]:
        original, is_augmented = name_of_original(os.path.basename(key))
        if is_augmented:
            originals[original] = key
    matches = {key: originals.get(name_of_original(os.path.basename(key))[0]) for key in keys[1]}
    return {key: own for key, own in matches.items() if own is not None}


def _same_recordings(keys: _Keys, infos: tuple[SourceInfo, SourceInfo]) -> dict[str, str]:
    """Frames whose numbers continue each other: where both splits have a number of a recording, its name is used for
    two."""
    scopes = np.concatenate([scopes_of(info, len(own)) for info, own in zip(infos, keys, strict=True)])
    recordings = recordings_of([os.path.basename(key) for own in keys for key in own], scopes)
    of_splits = recordings[: len(keys[0])], recordings[len(keys[0]) :]
    frames: tuple[dict[str, dict[int, str]], ...] = ({}, {})
    for own_frames, own_keys, own_recordings in zip(frames, keys, of_splits, strict=True):
        for key, recording in zip(own_keys, own_recordings, strict=True):
            if recording is not None:
                own_frames.setdefault(recording[0], {})[recording[1]] = key
    first, second = frames
    return {
        key: next(iter(first[name].values()))
        for name, numbered in second.items()
        if name in first and first[name].keys().isdisjoint(numbered)
        for key in numbered.values()
    }
