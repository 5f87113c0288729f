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


class Chain:
    """Sources one after the other; ids begin with the number of the source, ``0/cat/1.jpg``.

    Attributes:
        sources: the sources.
        starts: the index of the first sample of each.

    Args:
        sources: at least one; the first one's channels are those of all.

    Raises:
        ValueError: there is none.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        if not sources:
            raise ValueError("sources: at least one is to be joined")
        self.sources = sources
        self.channels = sources[0].channels
        lengths = [len(source) for source in sources]
        self.starts = [sum(lengths[:number]) for number in range(len(sources))]
        self._ends = np.cumsum(lengths)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> Sample:
        number = self._source_of(index)
        sample = self.sources[number][index - self.starts[number]]
        return {**sample, "id": f"{number}/{sample['id']}"}

    def _source_of(self, index: int) -> int:
        if not 0 <= index < len(self):
            raise IndexError(f"index {index} of {len(self)} samples")
        return int(np.searchsorted(self._ends, index, "right"))

    def fingerprint(self) -> str:
        """Changes with each source and their order."""
        own = [getattr(source, "fingerprint", None) for source in self.sources]
        texts = [
            str(tell()) if callable(tell) else str(len(source)) for tell, source in zip(own, self.sources, strict=True)
        ]
        return f"{len(self)} samples, {blake2b('; '.join(texts).encode(), digest_size=8).hexdigest()}"


@register.source
class Joined(Chain):
    """Sources one after the other. They have the same classes in the same order, or none.

    Ids begin with the number of the source, ``0/cat/1.jpg``. The sampler ``mixed`` takes given shares of each. Whole
    batches are handed over if each source does so.

    Args:
        sources: at least one.

    Raises:
        ValueError: their channels, classes or kinds of labels differ.
    """

    def __init__(self, *, sources: Annotated[list[SourcePart], MinLen(1)]) -> None:
        super().__init__(sources)
        for number, other in enumerate(sources):
            _check_alike(sources[0], other, number)
        self.classes = tuple(sources[0].classes)
        self.multi_label = bool(getattr(sources[0], "multi_label", False))
        if all(hasattr(source, "labels") for source in sources):
            self.labels = np.concatenate([np.asarray(source.labels) for source in sources])  # type: ignore[attr-defined]
        if all(hasattr(source, "batch") for source in sources):
            self.batch = self._batch
        if all(hasattr(source, "encoded") for source in sources):
            self.encoded = self._encoded

    def _encoded(self, index: int) -> Sample:
        """The sample with its picture not decoded yet."""
        number = self._source_of(index)
        sample = self.sources[number].encoded(index - self.starts[number])  # type: ignore[attr-defined]
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
            key: torch.cat([batch[key] for batch in batches])[torch.from_numpy(back)]
            for key in ("image", "label")
            if key in batches[0]
        }
        flat = [one for part in ids for one in part]
        return {**joined, "id": [flat[place] for place in back.tolist()]}


@register.source
class JoinedIdentities(Chain):
    """Data sets of identities one after the other, to be trained together: no one is in two of them.

    An identity is called ``<number of its set>/<name>``. Cameras of different sets are different ones, and numbered on;
    views (front, side) mean the same in all of them. Either is told if each set tells it. The samplers of identities
    take given shares of each set. Several sets to search need no joining: list them under ``data.val``.

    Example: of Market-1501 and MSMT17, ``classes`` are ``0/0002`` to ``0/1500`` and ``1/0000`` to ``1/1040``; cameras 0
    to 5 are those of the first, 6 to 20 those of the second.

    Args:
        sources: at least one; what they tell of a sample is one label.

    Attributes:
        sources: the sources.
        starts: the index of the first sample of each.
        labels, cameras, views: of each sample (int64, N); the latter two None where not every set tells them.
        camera_count, view_count: how many there are; 0 where not every set tells them.

    Raises:
        ValueError: a set does not tell its labels, has several a sample, has other channels than the first one, or is
            one to be searched.
    """

    queries = None

    def __init__(self, *, sources: Annotated[list[SourcePart], MinLen(1)]) -> None:
        super().__init__(sources)
        for number, source in enumerate(sources):
            _check_trainable(sources[0], source, number)
        sizes = [len(source.classes) for source in sources]
        self.classes = tuple(f"{number}/{name}" for number, source in enumerate(sources) for name in source.classes)
        self.labels: Indices = np.concatenate(self._shifted("labels", sizes))
        cameras, views = ([int(getattr(one, f"{name}_count", 0)) for one in sources] for name in ("camera", "view"))
        self.cameras = np.concatenate(self._shifted("cameras", cameras)) if all(cameras) else None
        self.views = np.concatenate(self._shifted("views", [0] * len(sources))) if all(views) else None
        self.camera_count = sum(cameras) if all(cameras) else 0
        self.view_count = max(views) if all(views) else 0

    def __getitem__(self, index: int) -> Sample:
        sample = super().__getitem__(index)
        told = {"label": self.labels, "camera": self.cameras, "view": self.views}
        own = {key: value for key, value in sample.items() if key not in told}
        return own | {key: int(column[index]) for key, column in told.items() if column is not None}

    def _shifted(self, name: str, sizes: Sequence[int]) -> list[Indices]:
        """What each source tells under ``name``, numbered on behind the ``sizes`` of the sources before."""
        firsts = np.cumsum([0, *sizes[:-1]])
        return [np.asarray(getattr(one, name)) + first for one, first in zip(self.sources, firsts, strict=True)]


def _check_trainable(first: Source, other: Source, number: int) -> None:
    if other.channels != first.channels:
        raise ValueError(f"sources.{number} has {other.channels} channels, the first one {first.channels}")
    labels = getattr(other, "labels", None)
    if labels is None or np.ndim(labels) != 1:
        raise ValueError(f"sources.{number} does not tell one label for each of its samples: it has no identities")
    if getattr(other, "queries", None) is not None:
        raise ValueError(
            f"sources.{number} is to be searched, not trained (it has queries); several such sets are listed under "
            "data.val, and split: all is everything there is to train on"
        )


def _check_alike(first: Source, other: Source, number: int) -> None:
    """Whatever differs is told at once."""
    differences = []
    if first.channels != other.channels:
        differences.append(f"has {other.channels} channels, the first one {first.channels}")
    if tuple(first.classes) != tuple(other.classes):
        missing = [name for name in first.classes if name not in other.classes]
        new = [name for name in other.classes if name not in first.classes]
        differences.append(
            f"has other classes than the first one (missing: {_listed(missing)}; new: {_listed(new)}; the order "
            "counts); without_labels around each of them takes the pictures alone"
        )
    if bool(getattr(first, "multi_label", False)) != bool(getattr(other, "multi_label", False)):
        differences.append("has another kind of labels (one or several) than the first one")
    if differences:
        raise ValueError(f"sources.{number} " + "; it ".join(differences))


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more or "none"
