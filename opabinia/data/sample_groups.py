"""Samples that belong together: near-duplicates, frames of one recording, crops and augmented copies of one original.

A split must not divide them: a model that was trained on one of them has all but seen the others.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from opabinia.contracts import Indices, Source, SourceInfo
from opabinia.data.check.image_hash import connect
from opabinia.data.examination import Examination
from opabinia.runtime.local_copies import is_placeholder

_AUGMENTED = re.compile(r"(.+)\.rf\.[0-9a-zA-Z]{8,}")
"""Name of an image that Roboflow has exported, perhaps one of several augmented copies of an original."""

_CROP = re.compile(
    r"(.*[^-_ .])[-_ .]+(?:crop|tile|patch|chip|aug|augmented|flip|flipped|rotated|copy)[-_ ]?\d*(?:[-_]\d+)*"
    r"|(.+?)__\d+(?:\.\d+)?__\d+_+\d+",
    re.IGNORECASE,
)
"""Name of a crop or copy: ``street_crop1``, ``street_tile_0_512``; ``P01__1__824___0`` of DOTA's development kit."""

_NUMBERED = re.compile(r"(.*?)(\d{1,18})(?:_(?:jpe?g|png))?", re.DOTALL)
"""Beginning and running number of a name; Roboflow writes the extension of an original as ``_jpg``."""

_WORDS = "video|clip|seq|sequence|scene|patient|subject|sub|person|case|study|scan|volume|session|drive|trip"

_CLIP = re.compile(
    r"(?:.*[^a-z])?(?:mp4|avi|mov|mkv|webm|video|clip|seq|sequence|scene)(?:[^a-z].*)?[-_. ]"  # clip3_, street_mp4-
    rf"|(?:.*[^a-z])?(?:{_WORDS})[-_ ]?\d+[^\d].*"  # patient07_, scan_12_slice
    r"|.*[-_. 0-9](?:frame|frm)[-_. ]*"  # street_frame
    r"|.*[-_]g\d+[-_]c",  # UCF101's v_Archery_g01_c02
    re.IGNORECASE,
)
"""Beginning, before a running number, of the name of a frame, clip or slice of a recording."""

_FOLDER = re.compile(rf"(?:.*[^a-z])?(?:{_WORDS})[-_ ]?\d+|.*\.(?:mp4|avi|mov|mkv|webm)", re.IGNORECASE)
"""Name of a folder with the frames or slices of a recording."""

_FRAME = re.compile(r".*fra?me?[-_. ]*", re.IGNORECASE)
"""Beginning that ends with what it counts."""

_MIN_PREFIX, _MIN_DIGITS = 8, 5
"""Characters, and digits among them, of any other beginning that names a recording: ``2011_09_26_drive_0005_``."""

_FEW = 1000
"""Numbers below it count samples of one subject or moment, whose name is long, also if some are missing."""

_MAX_SHARE = 0.5
"""Share of a class that has a name in common above which it is no name of an original or a recording."""

_MIN_SIMILARITY, _CHANCE = 0.8, 0.99
"""Images are alike if their thumbnails correlate more than this, and than this share of random pairs."""

_MIN_ALIKE = 0.3
"""Share of alike pairs in recordings; chance is 1 %."""

_MIN_PAIRS, _MAX_PAIRS = 10, 4000
"""Pairs that are compared."""

_MAX_FILES, _MAX_COMPARED = 200_000, 50_000
"""Files whose sizes are compared, and those of equal size whose content is, the largest first."""

_BYTES, _PLACES = 4096, 64
"""Bytes that are compared at the end of files of equal size; and, where these are the same, at so many places in them:
uncompressed images may all end with the same background."""

_BLOCKS = 20
"""A recording that is most of a run, because no scene ends in it, is cut into this many blocks."""


class _Names(NamedTuple):
    """Parts of N names as numbers (int64, N): equal numbers are equal texts.

    Attributes:
        originals: folder and name of the original image.
        are_augmented: it is an augmented copy (bool, N).
        runs: folder, and name before the running number; -1 without such a number.
        numbers: the running number, 0 without.
        clips: those of ``runs`` that name a recording, else -1.
        series: those of other ``runs`` that are long, with numbers that count on or are few, else -1.
    """

    originals: Indices
    are_augmented: NDArray[np.bool_]
    runs: Indices
    numbers: Indices
    clips: Indices
    series: Indices


def find_groups(source: Source, examination: Examination) -> Indices:
    """Return the number of the group of each sample, from 0 (int64, N).

    Names and images decide:

    - Near-duplicates among the examined samples are one group.
    - Crops and augmented copies of one original, by their names, are one group.
    - Names that differ in a running number are frames of one recording if the rest of the name says so
      (``clip3_frame0001``, ``patient07/012``, or long with many digits, and numbers that count on or are below 1,000);
      if images of such names look alike, and those of different ones do not; or, one by one, if consecutive ones are
      more alike than others of the same name are. ``img_0001`` to ``img_9999`` of unrelated images are no group.

    A name that more than half of a class has in common is ignored, because it is no name of an original; and so is that
    more than half of a class are near-duplicates, because parts before the same camera are not one part.

    Args:
        source: of the samples.
        examination: of them.
    """
    names = _parse(source.split_keys())
    scopes = scopes_of(source.info, len(source))
    originals = np.where(names.are_augmented, names.originals, _without_large(names.originals, scopes))
    clips = _without_large(np.where(names.clips < 0, names.series, names.clips), scopes)
    likeness = _Likeness(examination)
    if likeness.runs_are_recordings(names.runs):
        clips = np.where(clips < 0, _without_large(names.runs, scopes), clips)
    runs = np.where(clips < 0, names.runs, -1)
    near = _near_duplicates(examination, scopes)
    pairs = [examination.identical(), near, chain_equal(originals), chain_equal(clips)]
    if not examination.is_complete:
        pairs.append(chain_equal(same_files([source])))
    return connect(np.concatenate([*pairs, likeness.frames(runs, names.numbers)]), len(source))


def name_of_original(name: str) -> tuple[str, bool]:
    """Return the path of a file without extension, without the part of its name that numbers crops and augmented
    copies of an original; and whether it is certain that it is such a copy.

    Example: ``a/IMG_1_jpg.rf.0a1b2c3d.jpg`` is an augmented copy of ``a/IMG_1_jpg``.
    """
    folder, base = os.path.split(name)
    stem = os.path.splitext(base)[0]
    augmented = _AUGMENTED.fullmatch(stem)
    stem = augmented[1] if augmented else stem
    crop = _CROP.fullmatch(stem)
    return os.path.join(folder, (crop[1] or crop[2]) if crop else stem), augmented is not None


def recordings_of(names: Sequence[str], scopes: Indices) -> list[tuple[str, int] | None]:
    """Return the recording of each sample, by the name of its file without folder, and the running number in it; None
    of other names.

    Args:
        names: of N files.
        scopes: the class of each (int64, N): a long name that more than half of a class has in common is no recording.
    """
    parsed = _parse(names)
    codes = np.where(parsed.clips < 0, _without_large(parsed.series, scopes), parsed.clips)
    matches = [_NUMBERED.fullmatch(name_of_original(name)[0]) for name in names]
    return [
        (match[1], int(match[2])) if code >= 0 and match and _names_one(match[1]) else None
        for code, match in zip(codes.tolist(), matches, strict=True)
    ]


def _names_one(beginning: str) -> bool:
    """Return whether names with this beginning are of one recording: video_1 and video_2 are two."""
    return any(character.isdigit() for character in beginning) or _FRAME.fullmatch(beginning) is not None


def same_files(sources: Sequence[Source]) -> Indices:
    """Return a number for each sample of all sources, equal for those whose files are the same; -1 for files that no
    other one equals, that are in remote storage, or that were not compared because there are too many."""
    count = sum(map(len, sources))
    if count > _MAX_FILES:
        return np.full(count, -1, dtype=np.int64)
    paths = [next(iter(source.paths(index)), None) for source in sources for index in range(len(source))]
    sizes = np.array([_local_size(path) for path in paths], dtype=np.int64)
    _, inverse, counts = np.unique(sizes, return_inverse=True, return_counts=True)
    candidates = np.flatnonzero((counts[inverse] > 1) & (sizes > 0))
    candidates = candidates[np.argsort(-sizes[candidates], kind="stable")][:_MAX_COMPARED]
    same_end = _equal_parts(paths, sizes, candidates, lambda size: [max(0, size - _BYTES)])
    return _equal_parts(
        paths, sizes, np.flatnonzero(same_end >= 0), lambda size: range(0, size, max(_BYTES, size // _PLACES))
    )


def _equal_parts(
    paths: Sequence[bytes | None], sizes: Indices, chosen: Indices, places: Callable[[int], Iterable[int]]
) -> Indices:
    """Return a number for each file (int64, N), equal for chosen ones of equal size with equal bytes at the places that
    their size gives; -1 for those that no other one equals."""
    digests: list[Hashable | None] = [None] * len(paths)
    for index in chosen.tolist():
        size, path, checksum = int(sizes[index]), paths[index], blake2b(digest_size=16)
        assert path is not None
        with suppress(OSError), open(path, "rb") as file:
            for place in places(size):
                file.seek(place)
                checksum.update(file.read(_BYTES))
            digests[index] = size, checksum.digest()
    codes = equal_codes(digests)
    repeated = np.bincount(codes + 1, minlength=1)[codes + 1] > 1
    return np.where(repeated, codes, -1)


def _local_size(path: bytes | None) -> int:
    """Return the size of a file; 0 if it is not on this machine."""
    if path is None:
        return 0
    try:
        return 0 if is_placeholder(path) else os.stat(path).st_size
    except OSError:
        return 0


def _parse(names: Iterable[str]) -> _Names:
    originals: list[str] = []
    augmented: list[bool] = []
    runs: list[str | None] = []
    numbers: list[int] = []
    for name in names:
        original, is_augmented = name_of_original(name)
        match = _NUMBERED.fullmatch(original)
        originals.append(original)
        augmented.append(is_augmented)
        runs.append(match[1] if match else None)
        numbers.append(int(match[2]) if match else 0)
    codes, counted = equal_codes(runs), np.array(numbers, dtype=np.int64)
    beginnings = {run: os.path.split(run) for run in runs if run is not None}
    named = {
        run
        for run, (folder, beginning) in beginnings.items()
        if _CLIP.fullmatch(beginning) or _FOLDER.fullmatch(os.path.basename(folder))
    }
    long = {run for run, (_, beginning) in beginnings.items() if _is_long(beginning)}
    is_named, is_long = (np.array([run in chosen for run in runs], dtype=bool) for chosen in (named, long))
    clips = np.where(is_named, codes, -1)
    series = np.where(~is_named & is_long & (_count_on(codes, counted) | _are_few(codes, counted)), codes, -1)
    return _Names(equal_codes(originals), np.array(augmented), codes, counted, clips, series)


def _is_long(prefix: str) -> bool:
    return len(prefix) >= _MIN_PREFIX and sum(character.isdigit() for character in prefix) >= _MIN_DIGITS


def _count_on(runs: Indices, numbers: Indices) -> NDArray[np.bool_]:
    """Return which samples are of a run whose numbers increase by the same step in most cases (bool, N)."""
    order = np.lexsort((numbers, runs))
    same = np.diff(runs[order]) == 0
    own, steps = runs[order[1:]][same], np.diff(numbers[order])[same]
    distinct, counts = np.unique(np.stack([own, steps], 1), axis=0, return_counts=True)
    most = np.zeros(runs.max(initial=-1) + 2, dtype=np.int64)
    np.maximum.at(most, distinct[:, 0] + 1, counts)
    regular: NDArray[np.bool_] = 2 * most > np.bincount(own + 1, minlength=len(most))
    return regular[runs + 1]


def _are_few(runs: Indices, numbers: Indices) -> NDArray[np.bool_]:
    """Return which samples are of a run whose numbers are all below :data:`_FEW` (bool, N)."""
    largest = np.zeros(runs.max(initial=-1) + 2, dtype=np.int64)
    np.maximum.at(largest, runs + 1, numbers)
    few: NDArray[np.bool_] = largest[runs + 1] < _FEW
    return few


def scopes_of(info: SourceInfo, count: int) -> Indices:
    """Return the class of each sample (int64, N), 0 if it does not have one class."""
    return np.zeros(count, dtype=np.int64) if info.single_labels is None else np.asarray(info.single_labels)


def _without_large(codes: Indices, scopes: Indices) -> Indices:
    """Return the codes of groups, -1 of those that are more than :data:`_MAX_SHARE` of the class of a sample."""
    distinct, rows, sizes = np.unique(codes, return_index=True, return_counts=True)
    limits = _MAX_SHARE * np.bincount(scopes)[scopes[rows]] if len(scopes) else sizes
    return np.where(np.isin(codes, distinct[(sizes > limits) & (sizes > 1)]), -1, codes)


def _near_duplicates(examination: Examination, scopes: Indices) -> NDArray[np.int64]:
    """Return index pairs (P x 2) that connect near-duplicates, without those that are most of the images of a class."""
    read = examination.indices
    pairs = np.searchsorted(read, examination.near_duplicates())
    groups = _without_large(connect(pairs, len(read)), scopes[read])
    return read[chain_equal(groups)]


def chain_equal(codes: Indices) -> NDArray[np.int64]:
    """Return pairs (P x 2) that connect the samples with the same code, from 0."""
    order = np.argsort(codes, kind="stable")
    same = (codes[order[1:]] == codes[order[:-1]]) & (codes[order[1:]] >= 0)
    return np.stack([order[:-1][same], order[1:][same]], 1)


def equal_codes(texts: Sequence[Hashable | None]) -> Indices:
    """Return a number for each distinct text, -1 for None."""
    numbers: dict[Hashable | None, int] = {None: -1}
    return np.array([numbers.setdefault(text, len(numbers) - 1) for text in texts], dtype=np.int64)


_FIELDS = ("folder", "sequence", "camera", "view")


def group_codes(source: Source, field: str) -> Indices:
    """Return a number for each sample, equal for those that are equal in a field (int64, N).

    Args:
        source: of the samples.
        field: ``folder`` (the path of the file's folder), ``sequence``, ``camera`` or ``view`` where the source knows
            them, or a regular expression with a group that is found in the names of the samples, the entries of
            split files: ``(patient[0-9]+)``.

    Raises:
        ValueError: the samples have no such field, it is no regular expression with a group, or names do not match.
    """
    columns = {"sequence": source.info.sequences, "camera": source.info.cameras, "view": source.info.views}
    if field == "folder":
        return equal_codes([os.path.dirname(key) for key in source.split_keys()])
    if field in columns:
        column = columns[field]
        if column is None:
            raise ValueError(f"the samples have no {field}; a regular expression finds groups in their names")
        return equal_codes(column.tolist())
    try:
        pattern = re.compile(field)
    except re.error as error:
        raise ValueError(f"{field!r} is no regular expression: {error}") from error
    if not pattern.groups:
        known = ", ".join(_FIELDS)
        raise ValueError(f"{field!r} is neither a field ({known}) nor a regular expression with a group in ()")
    keys = list(source.split_keys())
    found = [pattern.search(key) for key in keys]
    if missing := [key for key, match in zip(keys, found, strict=True) if match is None]:
        raise ValueError(f"{field!r} is not in {len(missing)} of {len(keys)} names of samples, such as {missing[0]!r}")
    return equal_codes([match.groups() for match in found if match is not None])


class _Likeness:
    """Similarity of examined images by their thumbnails."""

    def __init__(self, examination: Examination) -> None:
        self._indices, hashes = examination.hashes
        middle = [image.thumbnails[len(image.thumbnails) // 2] for image in hashes]
        images = np.stack(middle).astype(np.float32) if middle else np.zeros((0, 1), dtype=np.float32)
        images -= images.mean(1, keepdims=True)
        self._images = images / np.maximum(np.linalg.norm(images, axis=1, keepdims=True), 1e-6)
        self._is_complete = examination.is_complete
        self._random = np.random.default_rng(0)

    def _alike(self, pairs: NDArray[np.int64], others: NDArray[np.int64]) -> NDArray[np.bool_] | None:
        """Return which pairs of examined images (P x 2) are more alike than nearly all ``others`` are; None if they are
        too few to be sure, or few of them."""
        if min(len(pairs), len(others)) < _MIN_PAIRS:
            return None
        usual, own = ((self._images[a] * self._images[b]).sum(1) for a, b in (others.T, pairs.T))
        alike: NDArray[np.bool_] = own > max(_MIN_SIMILARITY, float(np.quantile(usual, _CHANCE)))
        return alike if float(alike.mean()) >= _MIN_ALIKE else None

    def runs_are_recordings(self, runs: Indices) -> bool:
        """Return whether images of the same run are alike, and those of different runs are not."""
        own = runs[self._indices]
        order = np.flatnonzero(own >= 0)[np.argsort(own[own >= 0], kind="stable")]
        same = own[order[1:]] == own[order[:-1]]
        pairs = np.stack([order[:-1], order[1:]], 1)[same]
        shuffled = self._random.permutation(order)
        others = np.stack([order, shuffled], 1)[own[order] != own[shuffled]]
        return self._alike(pairs[:_MAX_PAIRS], others[:_MAX_PAIRS]) is not None

    def frames(self, runs: Indices, numbers: Indices) -> NDArray[np.int64]:
        """Return pairs (P x 2) of consecutive samples of a run that are alike, if many are: more than others of the
        run. Of a scene that is most of the run, and if not all samples were examined, blocks are connected."""
        order = np.lexsort((numbers, runs))
        order = order[runs[order] >= 0]
        place = np.full(len(runs), -1)
        place[self._indices] = np.arange(len(self._indices))
        same = runs[order[1:]] == runs[order[:-1]]
        pairs = np.stack([order[:-1], order[1:]], 1)[same]
        known = (place[pairs] >= 0).all(1)
        lengths = np.bincount(runs[order]) if len(order) else np.zeros(0, dtype=np.int64)
        far = order[(np.arange(len(order)) + np.maximum(lengths[runs[order]] // 3, 2)) % max(len(order), 1)]
        others = np.stack([order, far], 1)
        others = others[(runs[order] == runs[far]) & (place[others] >= 0).all(1)]
        alike = self._alike(place[pairs[known]], place[others])
        if alike is None:
            return np.zeros((0, 2), dtype=np.int64)
        connected = np.ones(len(pairs), dtype=bool)
        if self._is_complete:
            connected[known] = alike
        scenes = connect(pairs[connected], len(runs))
        own_lengths = lengths[runs[pairs[:, 0]]]
        is_long = np.bincount(scenes)[scenes[pairs[:, 0]]] > _MAX_SHARE * own_lengths
        cut = np.arange(len(pairs)) % np.maximum(own_lengths // _BLOCKS, 2) == 0
        kept: NDArray[np.int64] = pairs[connected & ~(is_long & cut)]
        return kept
