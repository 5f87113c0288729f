"""Several sources as one."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Annotated

import numpy as np
import torch
from annotated_types import MinLen

from opabinia.config import register
from opabinia.contracts import Batch, Indices, Sample, Source, SourcePart


@register.source
class Joined:
    """Sources one after the other. They have the same classes in the same order.

    Ids begin with the number of the source, ``0/cat/1.jpg``. The sampler ``mixed`` takes given shares of each. Whole
    batches are handed over if each source does so.

    Attributes:
        sources: the sources.
        starts: the index of the first sample of each.

    Args:
        sources: at least one.

    Raises:
        ValueError: their channels, classes or kinds of labels differ.
    """

    def __init__(self, *, sources: Annotated[list[SourcePart], MinLen(1)]) -> None:
        if not sources:
            raise ValueError("sources: at least one is to be joined")
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
        if all(hasattr(source, "batch") for source in sources):
            self.batch = self._batch

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < len(self):
            raise IndexError(f"index {index} of {len(self)} samples")
        number = int(np.searchsorted(self._ends, index, "right"))
        sample = self.sources[number][index - self.starts[number]]
        return {**sample, "id": f"{number}/{sample['id']}"}

    def _batch(self, indices: Indices) -> Batch:
        """Samples by their indices (int64, B), as a whole batch."""
        indices = np.asarray(indices)
        numbers = np.searchsorted(self._ends, indices, "right")
        places = [np.flatnonzero(numbers == number) for number in range(len(self.sources))]
        taken = [number for number, place in enumerate(places) if len(place)]
        batches: list[Batch] = [
            self.sources[number].batch(indices[places[number]] - self.starts[number])  # type: ignore[attr-defined]
            for number in taken
        ]
        ids = [[f"{number}/{one}" for one in batch["id"]] for number, batch in zip(taken, batches, strict=True)]
        back = np.argsort(np.concatenate([places[number] for number in taken]))
        joined: Batch = {
            key: torch.cat([batch[key] for batch in batches])[torch.from_numpy(back)] for key in ("image", "label")
        }
        flat = [one for part in ids for one in part]
        return {**joined, "id": [flat[place] for place in back.tolist()]}

    def fingerprint(self) -> str:
        """Changes with each source and their order."""
        own = [getattr(source, "fingerprint", None) for source in self.sources]
        texts = [
            str(tell()) if callable(tell) else str(len(source)) for tell, source in zip(own, self.sources, strict=True)
        ]
        return f"{len(self)} samples, {blake2b('; '.join(texts).encode(), digest_size=8).hexdigest()}"


def _check_alike(first: Source, other: Source, number: int) -> None:
    """Whatever differs is told at once."""
    differences = []
    if first.channels != other.channels:
        differences.append(f"has {other.channels} channels, the first one {first.channels}")
    if tuple(first.classes) != tuple(other.classes):
        missing = [name for name in first.classes if name not in other.classes]
        new = [name for name in other.classes if name not in first.classes]
        differences.append(
            f"has other classes than the first one (missing: {_listed(missing)}; new: {_listed(new)}; the order counts)"
        )
    if bool(getattr(first, "multi_label", False)) != bool(getattr(other, "multi_label", False)):
        differences.append("has another kind of labels (one or several) than the first one")
    if differences:
        raise ValueError(f"sources.{number} " + "; it ".join(differences))


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more or "none"
