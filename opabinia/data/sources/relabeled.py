"""A source with other classes: renamed, merged, or with other labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torchvision import tv_tensors

from opabinia.contracts import IGNORE_LABEL, Batch, Indices, Sample, Source
from opabinia.contracts.sources import convert_labels
from opabinia.data.sources.file_names import short_digest
from opabinia.data.sources.wrapper import Wrapper


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
