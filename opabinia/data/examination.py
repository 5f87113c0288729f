"""Examination of a dataset: some of its files, drawn by a seed, are read as the data check reads all of them."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from opabinia.contracts import Indices, Source
from opabinia.data.check.image_hash import ImageHash, find_near_pairs
from opabinia.data.check.scan import SampleScan, scan_samples
from opabinia.runtime.local_copies import fetch_all
from opabinia.runtime.log import silence
from opabinia.runtime.progress import progress_bar
from opabinia.runtime.resources import cores

LIMIT = 5000
"""Images and videos that are read of a dataset: shares are then known to about 1 %."""

PIXELS = 1e9
"""Pixels that are decoded of a dataset, about 20 s of two cores; large images are fewer than :data:`LIMIT`."""

SECONDS = 60.0
"""The examination stops after this time: of slow disks and remote storage it knows less."""

_FIRST = 64
"""Samples whose size decides how many are read."""

_BLOCK = 250
"""Samples that are read together; those of remote storage are fetched together."""

_VIDEO_FRAMES = 20
"""Cost of a video, in frames: three are decoded, with those before them."""


@dataclass(frozen=True, eq=False)
class Examination:
    """Samples of a dataset that were read.

    Attributes:
        indices: of the samples, ascending (int64, M).
        scans: results of reading them.
        is_complete: all samples of the dataset were read.
    """

    indices: Indices
    scans: Sequence[SampleScan]
    is_complete: bool

    def select(self, indices: Indices) -> Examination:
        """Return the examination of some of the samples (int64, ascending), numbered from 0."""
        chosen = np.flatnonzero(np.isin(self.indices, indices))
        new_indices = np.searchsorted(indices, self.indices[chosen])
        return Examination(new_indices, [self.scans[row] for row in chosen.tolist()], self.is_complete)

    @property
    def hashes(self) -> tuple[Indices, list[ImageHash]]:
        """The samples (int64, H) whose images, or three frames, have a hash, and these."""
        rows = [row for row, scan in enumerate(self.scans) if scan.image_hash is not None]
        return self.indices[rows], [value for scan in self.scans if (value := scan.image_hash) is not None]

    def near_duplicates(self) -> NDArray[np.int64]:
        """Return index pairs of images that look alike, by their hashes (P x 2)."""
        return self.indices[find_near_pairs([scan.image_hash for scan in self.scans])]

    def identical(self) -> NDArray[np.int64]:
        """Return index pairs of samples with the same file or the same pixels (P x 2)."""
        pairs = [np.zeros((0, 2), dtype=np.int64)]
        for name in ("file_digest", "pixel_digest"):
            first: dict[bytes, int] = {}
            for index, scan in zip(self.indices.tolist(), self.scans, strict=True):
                digest = getattr(scan, name)
                if digest is not None and first.setdefault(digest, index) != index:
                    pairs.append(np.array([[first[digest], index]]))
        return np.concatenate(pairs)


def examine(
    source: Source, *, seed: int = 0, limit: int = LIMIT, seconds: float = SECONDS, workers: int | None = None
) -> Examination:
    """Read samples of a source: all, or pairs of consecutive ones that are drawn with ``seed``.

    The number depends on the size of the first ones, not on the time, unless ``seconds`` are over. So the same seed
    gives the same result. Damaged files are results, too.

    Args:
        source: of images or videos.
        seed: of the draw.
        limit: number of samples to read.
        seconds: stop after this time.
        workers: processes that read; 0 reads in this one; None: the number of cores.

    Raises:
        WorkerDied: reading has killed a process.
        StorageError: remote storage does not answer.
    """
    order = _draw(len(source), limit, seed)
    processes = cores() if workers is None else workers
    end = time.monotonic() + seconds
    with silence():  # damage is a result here, not a warning
        scans = _read(source, order[:_FIRST], 0 if len(order) <= _FIRST else processes, end)
        rest = order[len(scans) : _affordable(scans, len(order))]
        if len(rest) and time.monotonic() < end:
            with progress_bar("look at the data", len(rest)) as bar:
                for start in range(0, len(rest), _BLOCK):
                    block = _read(source, rest[start : start + _BLOCK], processes, end)
                    scans += block
                    bar.advance(len(block))
                    if time.monotonic() > end:
                        break
    read = order[: len(scans)]
    rows = np.argsort(read)
    return Examination(read[rows], [scans[row] for row in rows.tolist()], len(scans) == len(source))


def _read(source: Source, indices: Indices, workers: int, end: float) -> list[SampleScan]:
    """Read samples in this order, until ``end`` of ``time.monotonic``, and at least one."""
    fetch_all(path for index in indices.tolist() for path in source.paths(index))
    scans = []
    # A single worker is no faster than none.
    for scan in scan_samples([source], [(0, index) for index in indices.tolist()], workers if workers > 1 else 0):
        scans.append(scan)
        if time.monotonic() > end:
            break
    return scans


def _affordable(scans: Sequence[SampleScan], count: int) -> int:
    """Return how many of ``count`` samples may be read, by the sizes of the first ones."""
    sizes = [math.prod(scan.size) * (_VIDEO_FRAMES if scan.is_video else 1) for scan in scans if scan.size is not None]
    return min(count, max(int(PIXELS * len(sizes) / max(sum(sizes), 1)), len(scans))) if sizes else count


def _draw(count: int, limit: int, seed: int) -> Indices:
    """Return the samples to read, in the order of reading: consecutive ones in pairs, to find frames of a video."""
    firsts = 2 * np.random.default_rng(seed).permutation((count + 1) // 2)
    pairs = np.stack([firsts, firsts + 1], 1).ravel()
    return pairs[pairs < count][:limit]
