"""Many file names in little memory, and names in their order."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np


class Names:
    """File names as bytes and numbers, not as a list of texts: workers share these arrays' memory, while reading an
    object writes its reference count and so copies it into every worker.

    Args:
        names: as the file system has them.
    """

    def __init__(self, names: Sequence[bytes]) -> None:
        self._bytes = np.frombuffer(b"".join(names), dtype=np.uint8)
        self._ends = np.cumsum([len(name) for name in names], dtype=np.int64)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> bytes:
        if not 0 <= index < len(self):
            raise IndexError(f"index {index} of {len(self)} pictures")
        start = self._ends[index - 1] if index else 0
        return self._bytes[start : self._ends[index]].tobytes()

    def content(self) -> bytes:
        """All of it; two of these with the same content hold the same names in the same order."""
        return self._bytes.tobytes() + self._ends.tobytes()


def sorted_names(names: Iterable[str]) -> list[str]:
    """Names in their order: by value where all are whole numbers."""
    found = list(names)
    numbers = all(re.fullmatch(r"-?\d+", name) for name in found)
    return sorted(found, key=lambda name: (int(name), name)) if numbers else sorted(found)
