"""Several sources, one after the other."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import MinLen

from opabinia.config import register
from opabinia.contracts import Batch, GroundTruth, Indices, Sample, Source, SourceInfo, SourcePart
from opabinia.data.sample_keys import GROUND_TRUTH_KEYS
from opabinia.data.sources.file_names import short_digest
from opabinia.data.sources.labels import check_class
from opabinia.data.sources.wrapper import relabel, select_samples
from opabinia.runtime.text import first_of


class ConcatBase(Source):
    """Sources one after the other; ids begin with the index of the source, ``0/cat/1.jpg``.

    Args:
        sources: at least one; all have the channels of the first one.
        info: the facts about all samples.

    Attributes:
        sources: as given.
    """

    def __init__(self, sources: Sequence[Source], info: SourceInfo) -> None:
        self.sources = sources
        self._ends = np.cumsum([len(source) for source in sources])
        self._starts = [0, *self._ends[:-1].tolist()]
        self.info = replace(info, starts=tuple(self._starts))

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> Sample:
        number, own_index = self._locate(index)
        return self._convert(self.sources[number][own_index], number, index)

    def encoded(self, index: int) -> Sample:
        number, own_index = self._locate(index)
        return self._convert(self.sources[number].encoded(own_index), number, index)

    def _convert(self, sample: Sample, number: int, index: int) -> Sample:
        """Return the sample of a source with ids that are unique in all."""
        converted = {**sample, "id": f"{number}/{sample['id']}"}
        for key in GROUND_TRUTH_KEYS & sample.keys():
            converted[key] = _in_source(sample[key], number)
        return converted

    def ground_truth(self, index: int) -> GroundTruth | None:
        number, own_index = self._locate(index)
        ground_truth = self.sources[number].ground_truth(own_index)
        return None if ground_truth is None else _in_source(ground_truth, number)

    def id(self, index: int) -> str:
        number, own_index = self._locate(index)
        return f"{number}/{self.sources[number].id(own_index)}"

    def split_keys(self) -> Iterable[str]:
        return (f"{number}/{key}" for number, source in enumerate(self.sources) for key in source.split_keys())

    def paths(self, index: int) -> Sequence[bytes]:
        number, own_index = self._locate(index)
        return self.sources[number].paths(own_index)

    def _locate(self, index: int) -> tuple[int, int]:
        """Return the number of the source of a sample, and the index in that source."""
        if not 0 <= index < len(self):
            raise IndexError(f"index {index} of {len(self)} samples")
        number = int(np.searchsorted(self._ends, index, "right"))
        return number, index - self._starts[number]

    def fingerprint(self) -> str:
        """Return a text that changes with each source and their order."""
        texts = [source.fingerprint() for source in self.sources]
        return f"{len(self)} samples, {short_digest('; '.join(texts).encode())}"

    def select(self, indices: Indices) -> ConcatBase:
        """Return a concatenation of some samples of each source; one may keep none of its own."""
        ends = np.searchsorted(indices, self._ends)
        chosen = np.split(indices, ends[:-1])
        sources = [
            select_samples(source, own - start)
            for source, own, start in zip(self.sources, chosen, self._starts, strict=True)
        ]
        result = copy.copy(self)
        ConcatBase.__init__(result, sources, self.info.select(indices))
        return result


def _in_source(ground_truth: Any, number: int) -> Any:
    """Return ground truth (of objects, or a map) with names of the image and the video that are unique in all
    sources."""
    track = getattr(ground_truth, "track", None)
    named = {} if track is None else {"track": track._replace(sequence=f"{number}/{track.sequence}")}
    return replace(ground_truth, image_id=f"{number}/{ground_truth.image_id}", **named)


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
        relabeled = [relabel(source, united, class_map) for source in sources]
        info = SourceInfo.concat([source.info for source in relabeled])
        super().__init__(relabeled, replace(info, colors=_united_colors(sources, class_map, united)))

    def batch(self, indices: Indices) -> Batch | None:
        indices = np.asarray(indices)
        numbers = np.searchsorted(self._ends, indices, "right")
        batches: list[Batch] = []
        ids: list[str] = []
        for number in np.unique(numbers).tolist():
            batch = self.sources[number].batch(indices[numbers == number] - self._starts[number])
            if batch is None:
                return None
            batches.append(batch)
            ids += [f"{number}/{sample_id}" for sample_id in batch["id"]]
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

    Raises:
        ValueError: a source has no labels or several per sample, other channels than the first one, or queries.
    """

    def __init__(self, *, sources: Annotated[list[SourcePart], MinLen(1)], shared_identities: bool = False) -> None:
        infos = [source.info for source in sources]
        for number, info in enumerate(infos):
            if info.channels != infos[0].channels:
                raise ValueError(f"sources.{number} has {info.channels} channels, the first one {infos[0].channels}")
            if info.single_labels is None:
                raise ValueError(f"sources.{number} has no identities: it does not have one label per sample")
            if info.queries is not None:
                raise ValueError(
                    f"sources.{number} has queries: it is a test set, not a training set; list several test sets under "
                    "data.val, or train on everything with split: all"
                )
        names = [
            [name if shared_identities else f"{number}/{name}" for name in info.classes]
            for number, info in enumerate(infos)
        ]
        classes = tuple(dict.fromkeys(chain.from_iterable(names)))
        label_of = {name: label for label, name in enumerate(classes)}
        new_labels = [np.array([label_of[name] for name in own]) for own in names]
        united = [info.relabel(classes, own) for info, own in zip(infos, new_labels, strict=True)]
        cameras, views = [info.camera_count for info in infos], [info.view_count for info in infos]
        joined = replace(
            SourceInfo.concat(united),
            identities=True,
            cameras=_join([info.cameras for info in infos], cameras),
            camera_count=sum(cameras) if all(cameras) else 0,
            views=_join([info.views for info in infos], [0] * len(infos)),
            view_count=max(views) if all(views) else 0,
        )
        super().__init__(sources, joined)

    def _convert(self, sample: Sample, number: int, index: int) -> Sample:
        others = {key: value for key, value in sample.items() if key not in ("label", "camera", "view")}
        return super()._convert(others, number, index) | self.info.labels_of(index)


def _join(columns: Sequence[Indices | None], counts: Sequence[int]) -> Indices | None:
    """Return the columns of the sources as one, each shifted by the ``counts`` of the sources before it; None if one is
    unknown."""
    known = [
        column + offset
        for column, offset in zip(columns, np.cumsum([0, *counts[:-1]]), strict=True)
        if column is not None
    ]
    return np.concatenate(known) if len(known) == len(columns) else None


def _united_colors(
    sources: Sequence[Source], class_map: Mapping[str, str], united: Sequence[str]
) -> tuple[tuple[int, int, int], ...]:
    """Return the color of each united class in the first source that has it; empty if one has none."""
    colors: dict[str, tuple[int, int, int]] = {}
    for source in sources:
        for name, color in zip(source.classes, source.info.colors, strict=False):  # a source may have none
            colors.setdefault(class_map.get(name, name), color)
    return tuple(colors[name] for name in united) if colors.keys() >= set(united) else ()


_KINDS = ("boxes", "masks", "maps", "oriented", "keypoints")
"""Facts that all sources have in common."""


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
            f"has other classes than expected (missing: {first_of(missing) or 'none'}; new: {first_of(new) or 'none'}; "
            "the order counts); classes: union unites them by name, class_map renames them, unlabeled around each "
            "source takes the images alone"
        )
    if first.info.multi_label != other.info.multi_label:
        differences.append("has another kind of labels (one or several) than the first one")
    for name in _KINDS:
        wanted, own = getattr(first.info, name), getattr(other.info, name)
        if own != wanted:
            differences.append(f"has {name}: {own}, the first one {wanted}")
    if differences:
        raise ValueError(f"sources.{number} " + "; it ".join(differences))
