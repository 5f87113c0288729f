"""Image sizes from the headers of files, and which files exist."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from opabinia.data.decoding.images import read_size
from opabinia.data.sources.annotation_errors import UNREADABLE, ErrorCollector


def read_sizes(root: Path, names: Sequence[bytes], errors: ErrorCollector) -> NDArray[np.int64]:
    """Return height and width of each image (N x 2), zeros for missing and unreadable ones; the latter are added to
    ``errors``. Threads hide the latency of slow disks."""

    def read(name: bytes) -> tuple[int, int]:
        path = os.path.join(os.fsencode(root), name)
        return read_size(path) if os.path.exists(path) else (0, 0)

    sizes = np.zeros((len(names), 2), dtype=np.int64)
    with ThreadPoolExecutor(8) as pool:
        for index, size in enumerate([pool.submit(read, name) for name in names]):
            try:
                sizes[index] = size.result()
            except (OSError, ValueError) as error:
                errors.add(UNREADABLE, os.fsdecode(names[index]), "", error)
    return sizes


def files_exist(root: Path, names: Sequence[bytes]) -> NDArray[np.bool_]:
    """Return which of the files below ``root`` exist (bool, N). Each folder is listed once."""
    folders: dict[bytes, list[int]] = defaultdict(list)
    for index, name in enumerate(names):
        folders[os.path.dirname(name)].append(index)
    exist = np.zeros(len(names), dtype=bool)
    for folder, indices in folders.items():
        path = os.path.join(os.fsencode(root), folder)
        entries = set(os.listdir(path)) if os.path.isdir(path) else set()
        exist[indices] = [os.path.basename(names[index]) in entries for index in indices]
    return exist
