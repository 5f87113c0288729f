"""A source with other classes: renamed, merged, or with other labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torchvision import tv_tensors

from opabinia.contracts import (
    IGNORE_LABEL,
    Batch,
    BatchSource,
    DetectionSource,
    EncodedSource,
    FingerprintedSource,
    ImageClassesSource,
    Indices,
    LabeledSource,
    RelabelingSource,
    Sample,
    SegmentationSource,
    Source,
)
from opabinia.data.sources.annotation_arrays import RaggedArray
from opabinia.data.sources.file_names import short_digest


def relabel(source: Source, classes: Sequence[str], class_map: Mapping[str, str]) -> Any:
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
    if isinstance(source, RelabelingSource):
        return source.relabeled(tuple(classes), new_labels)
    if isinstance(source, DetectionSource) and not isinstance(source, SegmentationSource):
        raise ValueError(f"the classes of {type(source).__name__} cannot be changed; give all sources its classes")
    return _Relabeled(source, tuple(classes), new_labels)


class _Relabeled:
    """Images or videos with other labels, or images with other labels in their maps; all else is that of the source."""

    def __init__(self, source: Source, classes: tuple[str, ...], new_labels: Indices) -> None:
        self._source: Any = source
        self.classes, self._new_labels = classes, new_labels
        if isinstance(source, LabeledSource):
            self.labels = self._convert(torch.as_tensor(source.labels)).numpy()
        if isinstance(source, SegmentationSource):
            self.thing_labels = tuple(np.unique(new_labels[list(source.thing_labels)]).tolist())
            self.colors = ()  # of other classes
            self.category_ids = tuple(range(1, len(classes) + 1))
        if isinstance(source, ImageClassesSource):
            self.present = RaggedArray(np.unique(new_labels[present]) for present in source.present)
        if isinstance(source, BatchSource):
            self.batch = self._batch
        if isinstance(source, EncodedSource):
            self.encoded = self._encoded

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # also while it is unpickled
            raise AttributeError(name)
        return getattr(self._source, name)

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Sample:
        return self._with_label(self._source[index])

    def _encoded(self, index: int) -> Sample:
        return self._with_label(self._source.encoded(index))

    def _batch(self, indices: Indices) -> Batch:
        batch = self._source.batch(indices)
        return {**batch, "label": self._convert(batch["label"])} if "label" in batch else batch

    def _with_label(self, sample: Sample) -> Sample:
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
        """Convert labels (int64, any shape) or one column per class (float, ... x K)."""
        new_labels = torch.from_numpy(self._new_labels)
        if not labels.is_floating_point():
            return new_labels[labels]
        columns = labels.new_zeros(*labels.shape[:-1], len(self.classes))
        return columns.index_add_(-1, new_labels, labels).clamp_(max=1)

    def fingerprint(self) -> str:
        """Return the source's, with the new labels."""
        source = self._source
        text = source.fingerprint() if isinstance(source, FingerprintedSource) else str(len(source))
        return f"{text}, {short_digest(chr(0).join(self.classes).encode(), self._new_labels.tobytes())}"
