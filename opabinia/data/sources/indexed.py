"""Samples with their index in the source."""

from __future__ import annotations

from opabinia.config import register
from opabinia.contracts import Sample, SourcePart
from opabinia.data.sources.wrapper import Wrapper


@register.source
class Indexed(Wrapper):
    """A source whose samples have their ``index`` (int, from 0), for methods that keep a memory entry per image.

    It must be the outermost source, so that indices are unique: ``{name: indexed, source: {name: concat, sources:
    [...]}}``.

    Args:
        source: the source of the samples.
    """

    def __init__(self, *, source: SourcePart) -> None:
        super().__init__(source, source.info)

    def convert(self, sample: Sample, index: int) -> Sample:
        return {**sample, "index": index}
