"""File names in compact arrays, their sort order, and fingerprints of what a source holds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from hashlib import blake2b

import numpy as np


class FileNames:
    """File names as one byte array, whose memory the loader's workers share. A list of strings would be copied into
    every worker, because reading an object writes its reference count.

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
            raise IndexError(f"index {index} of {len(self)} images")
        start = self._ends[index - 1] if index else 0
        return self._bytes[start : self._ends[index]].tobytes()

    def tobytes(self) -> bytes:
        """Return the content; equal for the same names in the same order."""
        return self._bytes.tobytes() + self._ends.tobytes()


def decode_name(name: bytes) -> str:
    """Return a file name as text that can be written anywhere, whatever its bytes are."""
    return name.decode("utf-8", "backslashreplace")


def printable(name: str) -> str:
    """Return a name as text that can be written anywhere: JSON may hold halves of characters."""
    return decode_name(name.encode("utf-8", "surrogatepass"))


def sort_names(names: Iterable[str]) -> list[str]:
    """Sort names; by value if all are integers."""
    names = list(names)
    integers = all(re.fullmatch(r"-?\d+", name) for name in names)
    return sorted(names, key=lambda name: (int(name), name)) if integers else sorted(names)


def short_digest(*contents: bytes) -> str:
    """Return a checksum of 16 hexadecimal digits, for ``fingerprint()``.

    Fingerprints are compared with those in checkpoints and caches, so neither their wording nor their content may
    change between versions.
    """
    return blake2b(b"".join(contents), digest_size=8).hexdigest()
