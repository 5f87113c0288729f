"""Several sources, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import MinLen

from opabinia.config import register
from opabinia.contracts import (
    Batch,
    BatchSource,
    EncodedSource,
    FingerprintedSource,
    Indices,
    LabeledSource,
    MultiLabelSource,
    QuerySource,
    Sample,
    Source,
    SourcePart,
)
from opabinia.data.sources.file_names import short_digest


class ConcatBase:
    """Sources one after the other; ids begin with the index of the source, ``0/cat/1.jpg``.

    Attributes:
        sources: the sources.
        starts: index of the first sample of each.

    Args:
        sources: at least one; all have the channels of the first one.

    Raises:
        ValueError: there is no source.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        if not sources:
            raise ValueError("sources: at least one is needed")
        self.sources = sources
        self.channels = sources[0].channels
        self._ends = np.cumsum([len(source) for source in sources])
        self.starts = [0, *self._ends[:-1].tolist()]

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> Sample:
        number, own_index = self._locate(index)
        sample = self.sources[number][own_index]
        return {**sample, "id": f"{number}/{sample['id']}"}

    def _locate(self, index: int) -> tuple[int, int]:
        """Return the number of the source of a sample, and the index in that source."""
        if not 0 <= index < len(self):
            raise IndexError(f"index {index} of {len(self)} samples")
        number = int(np.searchsorted(self._ends, index, "right"))
        return number, index - self.starts[number]

    def fingerprint(self) -> str:
        """Return a text that changes with each source and their order."""
        texts = [
            source.fingerprint() if isinstance(source, FingerprintedSource) else str(len(source))
            for source in self.sources
        ]
        return f"{len(self)} samples, {short_digest('; '.join(texts).encode())}"


@register.source(aliases=("joined",))
class Concat(ConcatBase):
    """Sources one after the other. They have the same classes in the same order, or none.

    Ids begin with the index of the source, ``0/cat/1.jpg``. The sampler ``mixed`` draws given shares from each.

    Args:
        sources: at least one.

    Raises:
        ValueError: the sources differ in channels, classes or kind of labels.
    """

    def __init__(self, *, sources: Annotated[list[SourcePart], MinLen(1)]) -> None:
        super().__init__(sources)
        for number, source in enumerate(sources):
            _check_same_kind(sources[0], source, number)
        self.classes = tuple(sources[0].classes)
        self.multi_label = _is_multi_label(sources[0])
        labels = [np.asarray(source.labels) for source in sources if isinstance(source, LabeledSource)]
        if len(labels) == len(sources):
            self.labels = np.concatenate(labels)
        if all(isinstance(source, BatchSource) for source in sources):
            self.batch = self._batch
        if all(isinstance(source, EncodedSource) for source in sources):
            self.encoded = self._encoded

    def _encoded(self, index: int) -> Sample:
        number, own_index = self._locate(index)
        source: Any = self.sources[number]  # an EncodedSource, checked above
        sample = source.encoded(own_index)
        return {**sample, "id": f"{number}/{sample['id']}"}

    def _batch(self, indices: Indices) -> Batch:
        indices = np.asarray(indices)
        numbers = np.searchsorted(self._ends, indices, "right")
        batches: list[Batch] = []
        ids: list[str] = []
        for number in np.unique(numbers).tolist():
            source: Any = self.sources[number]  # a BatchSource, checked above
            batches.append(source.batch(indices[numbers == number] - self.starts[number]))
            ids += [f"{number}/{sample_id}" for sample_id in batches[-1]["id"]]
        back = np.argsort(np.argsort(numbers, kind="stable"))  # from the order by source to that of the batch
        keys = [key for key in ("image", "label") if key in batches[0]]
        tensors: Batch = {key: torch.cat([batch[key] for batch in batches])[torch.from_numpy(back)] for key in keys}
        return {**tensors, "id": [ids[i] for i in back.tolist()]}


@register.source(aliases=("joined_identities",))
class ConcatIdentities(ConcatBase):
    """Identity datasets one after the other, to train on all of them: no identity is in two of them.

    An identity is called ``<index of its source>/<name>``. Cameras of different sources are different cameras; views
    (front, side) have the same meaning in all. Both are known if every source knows them. The samplers of identities
    draw given shares from each source. Several test sets need no concatenation: list them under ``data.val``.

    Example: for Market-1501 and MSMT17, ``classes`` are ``0/0002`` to ``0/1500`` and ``1/0000`` to ``1/1040``; cameras
    0 to 5 are those of the first, 6 to 20 those of the second.

    Args:
        sources: at least one, with one label per sample.

    Attributes:
        sources: the sources.
        starts: index of the first sample of each.
        labels, cameras, views: of each sample (int64, N); the latter two None if unknown.
        camera_count, view_count: number of cameras and views; 0 if unknown.

    Raises:
        ValueError: a source has no labels or several per sample, other channels than the first one, or queries.
    """

    queries = None

    def __init__(self, *, sources: Annotated[list[SourcePart], MinLen(1)]) -> None:
        super().__init__(sources)
        for number, source in enumerate(sources):
            if source.channels != self.channels:
                raise ValueError(f"sources.{number} has {source.channels} channels, the first one {self.channels}")
            if not isinstance(source, LabeledSource) or np.ndim(source.labels) != 1:
                raise ValueError(f"sources.{number} has no identities: it does not have one label per sample")
            if isinstance(source, QuerySource):
                raise ValueError(
                    f"sources.{number} has queries: it is a test set, not a training set; list several test sets under "
                    "data.val, or train on everything with split: all"
                )
        sizes = [len(source.classes) for source in sources]
        self.classes = tuple(f"{number}/{name}" for number, source in enumerate(sources) for name in source.classes)
        self.labels: Indices = np.concatenate(self._shifted("labels", sizes))
        cameras = [int(getattr(source, "camera_count", 0)) for source in sources]
        views = [int(getattr(source, "view_count", 0)) for source in sources]
        self.cameras = np.concatenate(self._shifted("cameras", cameras)) if all(cameras) else None
        self.views = np.concatenate(self._shifted("views", [0] * len(sources))) if all(views) else None
        self.camera_count = sum(cameras) if all(cameras) else 0
        self.view_count = max(views) if all(views) else 0

    def __getitem__(self, index: int) -> Sample:
        sample = super().__getitem__(index)
        columns = {"label": self.labels, "camera": self.cameras, "view": self.views}
        others = {key: value for key, value in sample.items() if key not in columns}
        return others | {key: int(column[index]) for key, column in columns.items() if column is not None}

    def _shifted(self, name: str, sizes: Sequence[int]) -> list[Indices]:
        """Return the arrays ``name`` of the sources, each shifted by the ``sizes`` of the sources before it."""
        pairs = zip(self.sources, np.cumsum([0, *sizes[:-1]]), strict=True)
        return [np.asarray(getattr(source, name)) + offset for source, offset in pairs]


def _check_same_kind(first: Source, other: Source, number: int) -> None:
    """Raise ValueError with all differences at once."""
    differences = []
    if first.channels != other.channels:
        differences.append(f"has {other.channels} channels, the first one {first.channels}")
    if tuple(first.classes) != tuple(other.classes):
        missing = [name for name in first.classes if name not in other.classes]
        new = [name for name in other.classes if name not in first.classes]
        differences.append(
            f"has other classes than the first one (missing: {_shorten(missing)}; new: {_shorten(new)}; the order "
            "counts); unlabeled around each source takes the images alone"
        )
    if _is_multi_label(first) != _is_multi_label(other):
        differences.append("has another kind of labels (one or several) than the first one")
    if differences:
        raise ValueError(f"sources.{number} " + "; it ".join(differences))


def _is_multi_label(source: Source) -> bool:
    return isinstance(source, MultiLabelSource) and source.multi_label


def _shorten(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more or "none"
