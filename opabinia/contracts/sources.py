"""Sources: where samples come from, and what is known about the samples without reading them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from opabinia.contracts.data import Batch, DataFacts, GroundTruth, Indices, Sample
from opabinia.contracts.ranges import Channels


class RaggedArray(Sequence[Indices]):
    """N lists of integers of any lengths in two arrays, whose memory the loader's workers share."""

    def __init__(self, lists: Iterable[Iterable[int]]) -> None:
        arrays = [np.fromiter(values, dtype=np.int64) for values in lists]
        self._values = np.concatenate([np.zeros(0, dtype=np.int64), *arrays])
        self._ends = np.cumsum([len(values) for values in arrays], dtype=np.int64)

    @classmethod
    def group_unique(cls, groups: Indices, values: Indices, count: int) -> RaggedArray:
        """Return the sorted distinct ``values`` of each of ``count`` groups; ``groups`` has the group of each value."""
        result = cls([])
        pairs = np.unique(np.stack([groups, values], 1), axis=0)
        result._values = pairs[:, 1].copy()
        result._ends = np.searchsorted(pairs[:, 0], np.arange(count), "right")
        return result

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> Indices:  # type: ignore[override]  # nobody needs slices
        if not 0 <= index < len(self):
            raise IndexError(f"index {index} of {len(self)}")
        return self._values[self._ends[index - 1] if index else 0 : self._ends[index]]

    def select(self, indices: Indices) -> RaggedArray:
        """Return some of the lists (int64, M), in this order."""
        return RaggedArray(self[index] for index in indices.tolist())

    def tobytes(self) -> bytes:
        """Return the content, for fingerprints."""
        return self._values.tobytes() + self._ends.tobytes()


@dataclass(frozen=True, kw_only=True, eq=False)
class SourceInfo(DataFacts):
    """Facts about N samples of K classes, known without reading a sample. None and empty ones are unknown.

    Attributes:
        channels: channels of images as they are read.
        encoded: :meth:`Source.encoded` returns images that are not decoded yet.
        labels: int64, N; of multi-label data float32 of 0 and 1, N x K.
        partly_labeled: keys that some samples lack, for multi-task training: ``label``, ``boxes`` (and then ``labels``
            and all else of objects, too), ``masks``, ``keypoints`` (and then ``visibility``, too) or ``mask``.
        sizes: height and width of each image (int64, N x 2).
        shards: number of samples in each shard file (int64), if samples lie in files one after the other.
        starts: index of the first sample of each source of a concatenation.
        errors: the errors of the annotations that were fixed (:class:`opabinia.data.sources.annotation_errors`).

        identities: labels are identities, for re-identification and retrieval.
        reuses_names: the test set uses the names of training identities for other ones.
        camera_count, view_count: number of cameras and viewpoints (front, side ...) in the whole dataset.
        cameras, views: of each image, from 0 (int64, N).
        queries: True for a query, False for an image of the gallery (bool, N).

        present: for each image the classes of the objects in it, each once (N arrays of int64).
        sequences: name of the video of each frame, of videos with tracks (N texts): ground truth has them.
    """

    channels: Channels = 3
    encoded: bool = False
    labels: NDArray[Any] | None = None
    partly_labeled: tuple[str, ...] = ()
    sizes: Indices | None = None
    shards: Indices | None = None
    starts: tuple[int, ...] | None = None
    errors: tuple[Any, ...] = ()

    identities: bool = False
    reuses_names: bool = False
    camera_count: int = 0
    view_count: int = 0
    cameras: Indices | None = None
    views: Indices | None = None
    queries: NDArray[Any] | None = None

    present: Sequence[Indices] | None = None
    sequences: NDArray[np.str_] | None = None

    @property
    def single_labels(self) -> Indices | None:
        """The labels if each sample has one (int64, N)."""
        return None if self.labels is None or np.ndim(self.labels) != 1 else np.asarray(self.labels)

    @property
    def columns(self) -> dict[str, NDArray[Any]]:
        """The known ones of ``label``, ``camera``, ``view`` and ``query``, with a row for each sample."""
        columns = {"label": self.labels, "camera": self.cameras, "view": self.views, "query": self.queries}
        return {key: column for key, column in columns.items() if column is not None}

    def labels_of(self, index: int) -> Sample:
        """Return the row of a sample in all :attr:`columns`."""
        return {
            key: column[index].item() if column.ndim == 1 else torch.from_numpy(column[index].copy())
            for key, column in self.columns.items()
        }

    def select(self, indices: Indices) -> SourceInfo:
        """Return the facts about some of the samples (int64, M), in this order."""
        names = ("labels", "sizes", "cameras", "views", "queries", "sequences")
        columns = {name: column[indices] for name in names if (column := getattr(self, name)) is not None}
        present = None if self.present is None else RaggedArray(self.present[index] for index in indices.tolist())
        return replace(self, shards=None, starts=None, present=present, **columns)

    def relabel(self, classes: Sequence[str], new_labels: Indices) -> SourceInfo:
        """Return the facts about the same samples with other classes.

        Args:
            classes: their names.
            new_labels: the new label of each old one (int64, K).
        """
        things = np.unique(new_labels[list(self.thing_labels)]).tolist()
        return replace(
            self,
            classes=tuple(classes),
            labels=None if self.labels is None else convert_labels(self.labels, new_labels, len(classes)),
            category_ids=tuple(range(1, len(classes) + 1)) if self.category_ids else (),
            present=None if self.present is None else RaggedArray(np.unique(new_labels[own]) for own in self.present),
            thing_labels=tuple(things),
            frequencies=(),
            colors=(),
        )

    @staticmethod
    def concat(infos: Sequence[SourceInfo]) -> SourceInfo:
        """Return the facts about sources with the same channels and classes, one after the other; without those about
        identities, which may differ in meaning. What one of them does not know is unknown."""
        if not infos:
            raise ValueError("sources: at least one is needed")
        first, videos = infos[0], [info.sequences for info in infos if info.sequences is not None]

        def join(name: str) -> Any:
            columns = [getattr(info, name) for info in infos]
            return None if any(column is None for column in columns) else np.concatenate(columns)

        present = [info.present for info in infos if info.present is not None]
        facts = first.facts() | {"channels": first.channels} | {"maps": all(info.maps for info in infos), "colors": ()}
        facts["thing_labels"] = tuple(sorted({label for info in infos for label in info.thing_labels}))
        if not all(info.boxes for info in infos):
            facts |= {name: getattr(SourceInfo(), name) for name in _OBJECT_FACTS}
        return SourceInfo(
            **facts,
            encoded=all(info.encoded for info in infos),
            labels=join("labels"),
            partly_labeled=tuple(dict.fromkeys(chain.from_iterable(info.partly_labeled for info in infos))),
            sizes=join("sizes"),
            present=RaggedArray(chain.from_iterable(present)) if len(present) == len(infos) else None,
            sequences=np.array([f"{number}/{name}" for number, names in enumerate(videos) for name in names.tolist()])
            if len(videos) == len(infos)
            else None,
        )


_OBJECT_FACTS = ("boxes", "masks", "oriented", "keypoints", "category_ids", "frequencies")


def convert_labels(labels: NDArray[Any], new_labels: Indices, classes: int) -> NDArray[Any]:
    """Return other labels for labels (integers, any shape) or for columns of 0 and 1 for each class (float, ... x K).

    Args:
        labels: of samples.
        new_labels: the new label of each old one (int64, K).
        classes: number of new classes.
    """
    if labels.dtype.kind in "iu":
        converted: NDArray[Any] = new_labels[labels]
        return converted
    columns = np.zeros((*labels.shape[:-1], classes), dtype=labels.dtype)
    for old, new in enumerate(new_labels.tolist()):
        columns[..., new] = np.maximum(columns[..., new], labels[..., old])
    return columns


class Source:
    """Samples by index. Reading one must not depend on any other having been read.

    A source sets ``info`` and defines ``__len__`` and ``__getitem__``; the other methods have defaults.

    Attributes:
        info: what is known without reading a sample; it holds the classes.
    """

    info: SourceInfo

    @property
    def channels(self) -> Channels:
        """Channels of images as they are read: 1 (gray), 3 (color), or others."""
        return self.info.channels

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names; the index is the label."""
        return self.info.classes

    def __len__(self) -> int:
        raise NotImplementedError

    def __getitem__(self, index: int) -> Sample:
        raise NotImplementedError

    def encoded(self, index: int) -> Sample:
        """Return a sample without boxes or masks whose image is not decoded yet (``opabinia.data.decoding.images``).
        Sources that do this have ``encoded`` in their info; others return the sample."""
        return self[index]

    def batch(self, indices: Indices) -> Batch | None:
        """Return the collated samples of ``indices`` (int64, B), such as those of arrays in memory; None: they must be
        read one by one."""
        return None

    def id(self, index: int) -> str:
        """Return the ``id`` of a sample. By default this reads the sample."""
        return str(self.encoded(index)["id"])

    def split_keys(self) -> Iterable[str]:
        """Return a text for each sample that names it in split files, without reading samples. By default these are the
        ids; samples with the same one are in the same split."""
        return map(self.id, range(len(self)))

    def ground_truth(self, index: int) -> GroundTruth | None:
        """Return the ``ground_truth`` of a sample without reading its image; None: only the sample has it, or there is
        none."""
        return None

    def paths(self, index: int) -> Sequence[bytes]:
        """Return the files that are read with a sample (images, maps, videos). Those of a batch are fetched from remote
        storage together."""
        return ()

    def fingerprint(self) -> str:
        """Return a text that changes with the samples and their order, to compare it with that of an earlier run."""
        return f"{len(self)} samples, {len(self.classes)} classes"

    def relabeled(self, classes: tuple[str, ...], new_labels: Indices) -> Source | None:
        """Return the same samples with other classes; ``new_labels`` (int64, K) has the new label of each of its own.
        None: the labels and maps of its samples are converted one by one."""
        return None

    def select(self, indices: Indices) -> Source | None:
        """Return a source of some of the samples (int64, ascending). None: a wrapper of the source selects them."""
        return None
