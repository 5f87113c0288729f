"""Sources that change the samples of another one, and their base class."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import compress
from typing import Any

import numpy as np
import torch
from torchvision import tv_tensors

from opabinia.config import register
from opabinia.contracts import IGNORE_LABEL, Batch, GroundTruth, Indices, Sample, Source, SourceInfo, SourcePart
from opabinia.contracts.sources import convert_labels
from opabinia.data.sources.file_names import short_digest
from opabinia.data.sources.labels import multi_hot


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

    def split_keys(self) -> Iterable[str]:
        return self.source.split_keys()

    def paths(self, index: int) -> Sequence[bytes]:
        return self.source.paths(index)

    def fingerprint(self) -> str:
        return self.source.fingerprint()


def relabel(source: Source, classes: Sequence[str], class_map: Mapping[str, str]) -> Source:
    """Return a source with these classes; the source itself if it has them already.

    Args:
        source: any.
        classes: names in the order of the new labels.
        class_map: new names of its own classes; others keep theirs. Every new name is in ``classes``.

    Raises:
        ValueError: it has annotated objects without segmentation maps, and no ``relabeled``.
    """
    if tuple(source.classes) == tuple(classes) and not any(name in class_map for name in classes):
        return source
    label_of = {name: label for label, name in enumerate(classes)}
    new_labels = np.array([label_of[class_map.get(name, name)] for name in source.classes], dtype=np.int64)
    relabeled = source.relabeled(tuple(classes), new_labels)
    if relabeled is None and source.info.boxes and not source.info.maps:
        raise ValueError(f"the classes of {type(source).__name__} cannot be changed; give all sources its classes")
    return relabeled or _Relabeled(source, tuple(classes), new_labels)


class _Relabeled(Wrapper):
    """Images or videos with other labels, or images with other labels in their maps; all else is that of the source."""

    def __init__(self, source: Source, classes: tuple[str, ...], new_labels: Indices) -> None:
        super().__init__(source, source.info.relabel(classes, new_labels))
        self._new_labels = new_labels

    def batch(self, indices: Indices) -> Batch | None:
        batch = self.source.batch(indices)
        return batch if batch is None or "label" not in batch else {**batch, "label": self._convert(batch["label"])}

    def convert(self, sample: Sample, index: int) -> Sample:
        if "ground_truth_map" in sample:
            return self._with_map(sample)
        if "label" not in sample:
            return sample
        label = self._convert(torch.as_tensor(sample["label"]))
        return {**sample, "label": label if label.ndim else int(label)}

    def _with_map(self, sample: Sample) -> Sample:
        new_labels, ground_truth = self._new_labels, sample["ground_truth_map"]
        table = np.full(256, IGNORE_LABEL, dtype=np.uint8)
        table[: len(new_labels)] = new_labels
        labels, segments = table[ground_truth.labels], ground_truth.segment_labels
        result = {
            **sample,
            "mask": tv_tensors.Mask(torch.from_numpy(labels.copy())),
            "ground_truth_map": replace(
                ground_truth, labels=labels, segment_labels=None if segments is None else new_labels[segments]
            ),
        }
        if "ground_truth" in sample:
            objects = sample["ground_truth"]
            result |= {"labels": torch.from_numpy(new_labels)[sample["labels"]]}
            result |= {"ground_truth": replace(objects, labels=new_labels[objects.labels])}
        return result

    def _convert(self, labels: torch.Tensor) -> torch.Tensor:
        converted: Any = convert_labels(labels.numpy(), self._new_labels, len(self.classes))
        return torch.as_tensor(converted)

    def fingerprint(self) -> str:
        """Return the source's, with the new labels."""
        digest = short_digest(chr(0).join(self.classes).encode(), self._new_labels.tobytes())
        return f"{self.source.fingerprint()}, {digest}"


def find_ids(source: Source, names: Iterable[str], suffixes: Sequence[str] = ("",)) -> dict[str, int]:
    """Return the index of each of these samples that a source has, named by the id and one of the suffixes."""
    missing, indices = dict.fromkeys(names), dict[str, int]()
    for index in range(len(source)):
        if not missing:
            break
        sample_id = source.id(index)
        name = next((f"{sample_id}{suffix}" for suffix in suffixes if f"{sample_id}{suffix}" in missing), None)
        if name is not None:
            del missing[name]
            indices[name] = index
    return indices


def select_samples(source: Source, indices: Indices) -> Source:
    """Return a source of some samples of another one (int64, ascending)."""
    return source.select(indices) or _Selected(source, indices)


class _Selected(Wrapper):
    """Some samples of a source."""

    def __init__(self, source: Source, indices: Indices) -> None:
        info = source.info.select(indices)
        if source.info.shards is not None:
            numbers = np.searchsorted(np.cumsum(source.info.shards), indices, "right")
            info = replace(info, shards=np.bincount(numbers, minlength=len(source.info.shards)))
        super().__init__(source, info)
        self._indices = indices

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, index: int) -> Sample:
        return self.source[int(self._indices[index])]

    def encoded(self, index: int) -> Sample:
        return self.source.encoded(int(self._indices[index]))

    def batch(self, indices: Indices) -> Batch | None:
        return self.source.batch(self._indices[indices])

    def id(self, index: int) -> str:
        return self.source.id(int(self._indices[index]))

    def ground_truth(self, index: int) -> GroundTruth | None:
        return self.source.ground_truth(int(self._indices[index]))

    def split_keys(self) -> Iterable[str]:
        selected = np.zeros(len(self.source), dtype=bool)
        selected[self._indices] = True
        return compress(self.source.split_keys(), selected.tolist())

    def paths(self, index: int) -> Sequence[bytes]:
        return self.source.paths(int(self._indices[index]))

    def fingerprint(self) -> str:
        """Return the source's, with the selected samples."""
        return f"{len(self)} of {self.source.fingerprint()}, {short_digest(self._indices.tobytes())}"

    def relabeled(self, classes: tuple[str, ...], new_labels: Indices) -> Source | None:
        relabeled = self.source.relabeled(classes, new_labels)
        return None if relabeled is None else select_samples(relabeled, self._indices)


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


@register.source
class Unlabeled(Wrapper):
    """The images of any source without their annotations: no classes, identities or boxes.

    This way sources with different classes, or without any, can be combined by ``concat``.

    Args:
        source: the source of the images.

    Example::

        source:
          name: concat
          sources:
            - {name: images, root: photos}
            - {name: unlabeled, source: {name: coco, root: coco/train2017, file: coco/instances_train2017.json}}
        sampler: {name: mixed, weights: [3, 1]}
    """

    def __init__(self, *, source: SourcePart) -> None:
        info, names = source.info, ("channels", "encoded", "sizes", "shards", "starts")
        super().__init__(source, SourceInfo(**{name: getattr(info, name) for name in names}))

    def convert(self, sample: Sample, index: int) -> Sample:
        return _without_label(sample)

    def batch(self, indices: Indices) -> Batch | None:
        batch = self.source.batch(indices)
        return None if batch is None else _without_label(batch)


def _without_label(sample: Sample) -> Sample:
    return {"image": sample["image"], "id": sample["id"]}


@register.source
class ImageLabels(Wrapper):
    """Detection or panoptic data whose images also have image-level labels: the classes of the objects in them.

    Tasks of a multi-task run can then learn boxes, maps and the classes of an image from the same images.

    Args:
        source: of images with annotated objects that knows the classes in each image (``present``).
        objects: samples keep their objects and maps; false: they have the image and its labels only, for multi-label
            classification by itself.

    Raises:
        ValueError: the source has no objects, or does not know the classes of each image.
    """

    def __init__(self, *, source: SourcePart, objects: bool = True) -> None:
        info = source.info
        if not info.boxes or info.present is None:
            raise ValueError(f"source: {type(source).__name__} does not know which objects are in an image")
        labels = multi_hot(info.present, len(info.classes))
        if not objects:
            info = SourceInfo(channels=info.channels, classes=info.classes, sizes=info.sizes)
        super().__init__(source, replace(info, labels=labels, multi_label=True, encoded=False))
        self._objects = objects

    def convert(self, sample: Sample, index: int) -> Sample:
        if not self._objects:
            sample = {key: sample[key] for key in ("image", "id")}
        return {**sample, **self.info.labels_of(index)}


_OBJECT_KEYS = ("boxes", "labels", "masks", "ground_truth")


@register.source
class StuffMaps(Wrapper):
    """Semantic segmentation of stuff: label 0 is any countable object, the others are the classes without such, in the
    order of the source (detectron2's ``panoptic_stuffonly``).

    Args:
        source: panoptic data, such as ``coco_panoptic``.
        things: name of the class of all objects.

    Raises:
        ValueError: the source is not panoptic, or has a class of that name.
    """

    def __init__(self, *, source: SourcePart, things: str = "things") -> None:
        info = source.info
        if not info.maps or not info.thing_labels:
            raise ValueError(f"source: {type(source).__name__} is not panoptic; take coco_panoptic")
        objects = [info.classes[label] for label in info.thing_labels]
        stuff = [name for name in info.classes if name not in objects]
        if things in stuff:
            raise ValueError(f"things: {things!r} is a class of the source; take another name")
        changed = relabel(source, (things, *stuff), dict.fromkeys(objects, things))
        super().__init__(changed, replace(changed.info, boxes=False, masks=False, thing_labels=(), present=None))

    def convert(self, sample: Sample, index: int) -> Sample:
        ground_truth = replace(sample["ground_truth_map"], segments=None, segment_labels=None, crowd=None)
        kept = {key: value for key, value in sample.items() if key not in _OBJECT_KEYS}
        return {**kept, "ground_truth_map": ground_truth}
