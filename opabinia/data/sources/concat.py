"""Several sources, one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import MinLen

from opabinia.config import register
from opabinia.contracts import (
    Batch,
    BatchSource,
    DetectionSource,
    EncodedSource,
    FileSource,
    FingerprintedSource,
    ImageClassesSource,
    Indices,
    LabeledSource,
    MultiLabelSource,
    NamedSource,
    QuerySource,
    Sample,
    SegmentationSource,
    SizedSource,
    Source,
    SourcePart,
)
from opabinia.data.sample_keys import GROUND_TRUTH_KEYS
from opabinia.data.sources.annotation_arrays import RaggedArray
from opabinia.data.sources.file_names import short_digest
from opabinia.data.sources.labels import check_class
from opabinia.data.sources.relabeled import relabel


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
        if all(isinstance(source, NamedSource) for source in sources):
            self.id = self._id

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> Sample:
        number, own_index = self._locate(index)
        sample = {**self.sources[number][own_index]}
        for key in GROUND_TRUTH_KEYS & sample.keys():  # image ids are unique within a source only
            sample[key] = replace(sample[key], image_id=f"{number}/{sample[key].image_id}")
        return {**sample, "id": f"{number}/{sample['id']}"}

    def _id(self, index: int) -> str:
        number, own_index = self._locate(index)
        source: Any = self.sources[number]  # a NamedSource, checked above
        return f"{number}/{source.id(own_index)}"

    def paths(self, index: int) -> Sequence[bytes]:
        """Return the files of a sample, if its source knows them."""
        number, own_index = self._locate(index)
        source = self.sources[number]
        return source.paths(own_index) if isinstance(source, FileSource) else ()

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


@register.source
class Concat(ConcatBase):
    """Sources one after the other: images, videos or annotated objects, with the same classes, united ones, or none.

    Ids, also those of images in results files, begin with the index of the source, ``0/cat/1.jpg``. The sampler
    ``mixed_sources`` draws given shares from each. Identities are concatenated by ``concat_identities``.

    Objects of a class that only some of the sources annotate are background in the images of the others.

    Args:
        sources: at least one; of annotated objects all have boxes, masks and the same keypoints, or none.
        classes: ``same``: all sources have the same classes in the same order; ``union``: by name, in the order in
            which they first occur; or their names in the order of their labels. A single source with a list of names
            is a validation set that has the labels of a united training set.
        class_map: new names of classes, for all sources: ``{tvmonitor: tv}``. Classes with the same new name become
            one.

    Example: the objects of COCO and Pascal VOC (20 classes, all of them in COCO)::

        name: concat
        sources:
          - {name: coco, root: coco/train2017, file: coco/annotations/instances_train2017.json}
          - {name: voc, root: VOCdevkit/VOC2012, split: trainval}
        classes: union
        class_map:
          {aeroplane: airplane, diningtable: dining table, motorbike: motorcycle, pottedplant: potted plant,
           sofa: couch, tvmonitor: tv}

    Raises:
        ValueError: the sources differ in channels, classes or kind of labels, or a name is no class.
    """

    def __init__(
        self,
        *,
        sources: Annotated[list[SourcePart], MinLen(1)],
        classes: Literal["same", "union"] | list[str] = "same",
        class_map: dict[str, str] | None = None,
    ) -> None:
        class_map = class_map or {}
        names = _renamed_classes(sources, class_map)
        if isinstance(classes, list):
            united = classes
        else:
            united = list(dict.fromkeys(chain.from_iterable(names if classes == "union" else names[:1])))
        for number, (source, own) in enumerate(zip(sources, names, strict=True)):
            expected = united if classes == "same" else [name for name in own if name in united]
            _check_same_kind(sources[0], source, number, own, expected)
        super().__init__([relabel(source, united, class_map) for source in sources])
        parts: list[Any] = list(self.sources)  # with the abilities that are asked for
        first = parts[0]
        self.classes = tuple(united)
        self.multi_label = _is_multi_label(first)
        if all(isinstance(source, DetectionSource) for source in parts):
            self.has_boxes, self.has_masks, self.keypoints = first.has_boxes, first.has_masks, first.keypoints
            self.category_ids, self.frequencies = first.category_ids, first.frequencies
            self.oriented = getattr(first, "oriented", False)
        if all(isinstance(source, SegmentationSource) for source in parts):
            self.has_maps = True
            self.thing_labels = tuple(sorted({label for source in parts for label in source.thing_labels}))
            self.colors = _united_colors(sources, class_map, united)
        if all(isinstance(source, LabeledSource) for source in parts):
            self.labels = np.concatenate([np.asarray(source.labels) for source in parts])
        if all(isinstance(source, SizedSource) for source in parts):
            self.sizes = np.concatenate([source.sizes for source in parts])
        if all(isinstance(source, ImageClassesSource) for source in parts):
            self.present = RaggedArray(chain.from_iterable(source.present for source in parts))
        if all(isinstance(source, BatchSource) for source in parts):
            self.batch = self._batch
        if all(isinstance(source, EncodedSource) for source in parts):
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


@register.source
class ConcatIdentities(ConcatBase):
    """Identity datasets one after the other, to train on all of them: by default no identity is in two of them.

    An identity is called ``<index of its source>/<name>``, or by its name if identities are shared. Cameras of
    different sources are different cameras; views (front, side) have the same meaning in all. Both are known if every
    source knows them. The samplers of identities draw given shares from each source. Several test sets need no
    concatenation: list them under ``data.val``.

    Example: for Market-1501 and MSMT17, ``classes`` are ``0/0002`` to ``0/1500`` and ``1/0000`` to ``1/1040``; cameras
    0 to 5 are those of the first, 6 to 20 those of the second.

    Args:
        sources: at least one, with one label per sample.
        shared_identities: identities with the same name are the same, such as those of one dataset in two folders.

    Attributes:
        sources: the sources.
        starts: index of the first sample of each.
        labels, cameras, views: of each sample (int64, N); the latter two None if unknown.
        camera_count, view_count: number of cameras and views; 0 if unknown.

    Raises:
        ValueError: a source has no labels or several per sample, other channels than the first one, or queries.
    """

    queries = None

    def __init__(self, *, sources: Annotated[list[SourcePart], MinLen(1)], shared_identities: bool = False) -> None:
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
        names = [
            [name if shared_identities else f"{number}/{name}" for name in source.classes]
            for number, source in enumerate(sources)
        ]
        self.classes = tuple(dict.fromkeys(chain.from_iterable(names)))
        label_of = {name: label for label, name in enumerate(self.classes)}
        own_labels: list[Any] = [source.labels for source in sources if isinstance(source, LabeledSource)]
        new_labels = [np.array([label_of[name] for name in own]) for own in names]
        self.labels: Indices = np.concatenate(
            [new[np.asarray(own)] for new, own in zip(new_labels, own_labels, strict=True)]
        )
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


def _united_colors(sources: Sequence[Any], class_map: Mapping[str, str], united: Sequence[str]) -> tuple[Any, ...]:
    """Return the color of each united class in the first source that has it; empty if one has none."""
    colors: dict[str, Any] = {}
    for source in sources:
        for name, color in zip(source.classes, source.colors, strict=False):  # a source may have none
            colors.setdefault(class_map.get(name, name), color)
    return tuple(colors[name] for name in united) if colors.keys() >= set(united) else ()


_KINDS = (
    *(("has_boxes", False), ("has_masks", False), ("has_maps", False), ("oriented", False)),
    ("keypoints", ()),
)
"""Attributes that all sources have in common, and their values without such annotations."""


def _renamed_classes(sources: Sequence[Source], class_map: Mapping[str, str]) -> list[list[str]]:
    """Return the classes of each source with their new names, each once.

    Raises:
        ValueError: ``class_map`` names a class that no source has.
    """
    own_names = list(dict.fromkeys(chain.from_iterable(source.classes for source in sources)))
    for name in class_map:
        check_class("class_map: the union of the sources", name, own_names)
    return [list(dict.fromkeys(class_map.get(name, name) for name in source.classes)) for source in sources]


def _check_same_kind(first: Source, other: Source, number: int, names: list[str], expected: list[str]) -> None:
    """Raise ValueError with all differences at once; ``names`` are the classes of the other source."""
    differences = []
    if first.channels != other.channels:
        differences.append(f"has {other.channels} channels, the first one {first.channels}")
    if names != expected:
        missing = [name for name in expected if name not in names]
        new = [name for name in names if name not in expected]
        differences.append(
            f"has other classes than expected (missing: {_shorten(missing)}; new: {_shorten(new)}; the order counts); "
            "classes: union unites them by name, class_map renames them, unlabeled around each source takes the images "
            "alone"
        )
    if _is_multi_label(first) != _is_multi_label(other):
        differences.append("has another kind of labels (one or several) than the first one")
    for name, default in _KINDS:
        wanted, own = getattr(first, name, default), getattr(other, name, default)
        if own != wanted:
            noun = name.removeprefix("has_")
            differences.append(f"has {noun}: {own}, the first one {wanted}")
    if differences:
        raise ValueError(f"sources.{number} " + "; it ".join(differences))


def _is_multi_label(source: Source) -> bool:
    return isinstance(source, MultiLabelSource) and source.multi_label


def _shorten(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more or "none"
