"""Several training datasets for a multi-task run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
from annotated_types import MinLen

from opabinia.config import register
from opabinia.contracts import (
    CombiningTransform,
    Fraction,
    MixPart,
    Positive,
    Sample,
    SamplerPart,
    Source,
    SourceInfo,
    SourcePart,
    TransformPart,
)
from opabinia.data.missing_labels import MarkMissingLabels
from opabinia.data.sampling.mixing import stream_shares
from opabinia.data.sources.file_names import short_digest
from opabinia.runtime.text import plural


@register.section(name="mixed_stream")
@dataclass(frozen=True, kw_only=True)
class MixedStream:
    """A training dataset of a multi-task run, with its own order, transforms and epochs.

    Args:
        source: of the samples.
        transforms: applied to each sample, in order.
        share: of the batch or, where streams alternate, of the steps; null: by the number of samples.
        shuffle: a new order for each epoch.
        sampler: the samples of an epoch; null takes each sample once.
        mix: applied to the samples of the stream in a batch, in order.
    """

    source: SourcePart
    transforms: Sequence[TransformPart] = ()
    share: Fraction | None = None
    shuffle: bool = True
    sampler: SamplerPart | None = None
    mix: Sequence[MixPart] = ()


def _with_missing_labels(name: str, stream: MixedStream) -> MixedStream:
    """Return a stream with the transform that marks missing labels, if some samples lack labels.

    Raises:
        ValueError: its samples are mixed or combined.
    """
    if not stream.source.info.partly_labeled:
        return stream
    if stream.mix:
        raise ValueError(f"streams.{name}.mix: samples that may lack labels cannot be mixed")
    for number, transform in enumerate(stream.transforms):
        if isinstance(transform, CombiningTransform):
            message = "samples that may lack labels cannot be combined"
            raise ValueError(f"streams.{name}.transforms.{number}: {message}")
    return replace(stream, transforms=[*stream.transforms, MarkMissingLabels(stream.source.info)])


@register.source
class Mixture(Source):
    """The training datasets ("streams") of a multi-task run; for ``data.train.source`` alone.

    Each stream keeps its own order, sampler, transforms and epoch length: its samples are those of a run on it alone
    with its share of the batch and ``drop_last``. An epoch of the mixture has as many samples as all streams together.
    Sample ids begin with the name of the stream.

    Args:
        streams: by name.
        mixing: ``batch``: each batch has samples of every stream, in the proportion of their shares; ``steps``: each
            batch has samples of one stream, and streams take turns in the proportion of their shares.
        temperature: for shares by size: proportional to ``samples ** (1 / temperature)``, see
            :func:`opabinia.data.sampling.mixing.stream_shares`.

    Attributes:
        shares: of the streams; they sum to 1.

    Raises:
        ValueError: the streams differ in channels, one has no samples, or the shares do not sum to 1.
    """

    def __init__(
        self,
        *,
        streams: Annotated[dict[str, MixedStream], MinLen(1)],
        mixing: Literal["batch", "steps"] = "batch",
        temperature: Positive = 1.0,
    ) -> None:
        sources = [stream.source for stream in streams.values()]
        for name, source in zip(streams, sources, strict=True):
            if not len(source):
                raise ValueError(f"streams.{name}: it has no samples")
            if source.channels != sources[0].channels:
                expected = f"those of {next(iter(streams))} {sources[0].channels}"
                message = f"its images have {plural(source.channels, 'channel')}, {expected}; they share a backbone"
                raise ValueError(f"streams.{name}: {message}")
        self.streams = {name: _with_missing_labels(name, stream) for name, stream in streams.items()}
        self.mixing, self.info = mixing, SourceInfo(channels=sources[0].channels)
        sizes = {name: len(stream.source) for name, stream in streams.items()}
        self.shares = stream_shares(sizes, {name: stream.share for name, stream in streams.items()}, temperature)
        self._ends = np.cumsum(list(sizes.values()))

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> Sample:
        name, own_index = self._locate(index)
        sample = self.streams[name].source[own_index]
        return {**sample, "id": f"{name}/{sample['id']}"}

    def id(self, index: int) -> str:
        """Return the id of a sample."""
        name, own_index = self._locate(index)
        return f"{name}/{self.streams[name].source.id(own_index)}"

    def _locate(self, index: int) -> tuple[str, int]:
        """Return the stream of a sample, and the index in its source."""
        if not 0 <= index < len(self):
            raise IndexError(f"index {index} of {len(self)} samples")
        number = int(np.searchsorted(self._ends, index, "right"))
        return list(self.streams)[number], index - int(self._ends[number - 1] if number else 0)

    def fingerprint(self) -> str:
        """Return a text that changes with the streams, their order and their shares."""
        texts = []
        for name, stream in self.streams.items():
            texts.append(f"{name} {self.shares[name]:.6f} {stream.source.fingerprint()}")
        return f"{len(self)} samples, {short_digest('; '.join([self.mixing, *texts]).encode())}"
