"""The base class of sources that change the samples of another one."""

from __future__ import annotations

from collections.abc import Sequence

from opabinia.contracts import Sample, Source, SourceInfo


class Wrapper(Source):
    """The samples of another source, each changed by ``convert``; ids, files and fingerprint are those of the source.

    Args:
        source: of the samples.
        info: the facts about the changed samples.

    Attributes:
        source: as given.
    """

    def __init__(self, source: Source, info: SourceInfo) -> None:
        self.source, self.info = source, info

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Sample:
        return self.convert(self.source[index], index)

    def encoded(self, index: int) -> Sample:
        return self.convert(self.source.encoded(index), index)

    def convert(self, sample: Sample, index: int) -> Sample:
        """Return the changed sample."""
        return sample

    def id(self, index: int) -> str:
        return self.source.id(index)

    def paths(self, index: int) -> Sequence[bytes]:
        return self.source.paths(index)

    def fingerprint(self) -> str:
        return self.source.fingerprint()
