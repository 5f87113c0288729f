"""Several sources as one."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Annotated

import numpy as np
from annotated_types import MinLen

from opabinia.config import register
from opabinia.contracts import Sample, Source, SourcePart


@register.source
class Joined:
    """Sources one after the other. They have the same classes in the same order.

    Ids begin with the number of the source, ``0/cat/1.jpg``. The sampler ``mixed`` takes given shares of each.

    Args:
        sources: at least one.

    Raises:
        ValueError: their channels, classes or kinds of labels differ.
    """

    def __init__(self, *, sources: Annotated[list[SourcePart], MinLen(1)]) -> None:
        first = sources[0]
        for number, other in enumerate(sources):
            _check_alike(first, other, number)
        self.sources: Sequence[Source] = sources
        self.channels, self.classes = first.channels, tuple(first.classes)
        self.multi_label = bool(getattr(first, "multi_label", False))
        lengths = [len(source) for source in sources]
        self.starts = [sum(lengths[:number]) for number in range(len(sources))]
        self._ends = np.cumsum(lengths)
        if all(hasattr(source, "labels") for source in sources):
            self.labels = np.concatenate([np.asarray(source.labels) for source in sources])  # type: ignore[attr-defined]

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < len(self):
            raise IndexError(f"index {index} of {len(self)} samples")
        number = int(np.searchsorted(self._ends, index, "right"))
        sample = self.sources[number][index - self.starts[number]]
        return {**sample, "id": f"{number}/{sample['id']}"}

    def fingerprint(self) -> str:
        """Changes with each source and their order."""
        own = [getattr(source, "fingerprint", None) for source in self.sources]
        texts = [
            str(tell()) if callable(tell) else str(len(source)) for tell, source in zip(own, self.sources, strict=True)
        ]
        return f"{len(self)} samples, {blake2b('; '.join(texts).encode(), digest_size=8).hexdigest()}"


def _check_alike(first: Source, other: Source, number: int) -> None:
    if first.channels != other.channels:
        raise ValueError(f"sources.{number} has {other.channels} channels, the first one {first.channels}")
    if tuple(first.classes) != tuple(other.classes):
        missing = [name for name in first.classes if name not in other.classes]
        new = [name for name in other.classes if name not in first.classes]
        raise ValueError(
            f"sources.{number} has other classes than the first one (missing: {', '.join(missing) or 'none'}; "
            f"new: {', '.join(new) or 'none'}; the order counts)"
        )
    if bool(getattr(first, "multi_label", False)) != bool(getattr(other, "multi_label", False)):
        raise ValueError(f"sources.{number} has another kind of labels (one or several) than the first one")
