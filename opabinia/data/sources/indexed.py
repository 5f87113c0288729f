"""Samples with their index in the source."""

from __future__ import annotations

from typing import Any

from opabinia.config import register
from opabinia.contracts import EncodedSource, Sample, SourcePart


@register.source
class Indexed:
    """A source whose samples have their ``index`` (int, from 0), for methods that keep a memory entry per image.

    It must be the outermost source, so that indices are unique: ``{name: indexed, source: {name: concat, sources:
    [...]}}``.

    Args:
        source: the source of the samples.
    """

    def __init__(self, *, source: SourcePart) -> None:
        self._source: Any = source
        self.channels, self.classes = source.channels, source.classes
        if isinstance(source, EncodedSource):
            self.encoded = self._encoded

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Sample:
        return {**self._source[index], "index": index}

    def _encoded(self, index: int) -> Sample:
        return {**self._source.encoded(index), "index": index}

    def __getattr__(self, name: str) -> Any:
        # Forwards the source's other abilities (labels, fingerprint ...) except whole batches, which have no indices.
        if name.startswith("_") or name in ("batch", "encoded"):
            raise AttributeError(name)
        return getattr(self._source, name)
