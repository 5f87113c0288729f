"""Samples that know their place."""

from __future__ import annotations

from typing import Any

from opabinia.config import register
from opabinia.contracts import Sample, SourcePart


@register.source
class Numbered:
    """A source whose samples tell their number in it, ``index`` (int, from 0), for methods that remember every image.

    It is the outermost one, so that no two samples have the same number: ``{name: numbered, source: {name: joined,
    sources: [...]}}``.

    Args:
        source: where samples come from.
    """

    def __init__(self, *, source: SourcePart) -> None:
        self._source = source
        self.channels, self.classes = source.channels, source.classes
        if hasattr(source, "encoded"):
            self.encoded = self._encoded

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Sample:
        """The sample, with ``index``."""
        return {**self._source[index], "index": index}

    def _encoded(self, index: int) -> Sample:
        """The sample with its picture not decoded yet, and ``index``."""
        return {**self._source.encoded(index), "index": index}  # type: ignore[attr-defined]

    def __getattr__(self, name: str) -> Any:
        # What else the source has (labels, fingerprint ...); whole batches would come without numbers.
        if name.startswith("_") or name in ("batch", "encoded"):
            raise AttributeError(name)
        return getattr(self._source, name)
