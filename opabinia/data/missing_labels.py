"""Samples that lack some labels of their dataset, in multi-task training."""

from __future__ import annotations

import torch
from torchvision import tv_tensors

from opabinia.contracts import IGNORE_LABEL, MultiLabelSource, PartlyLabeledSource, Sample


class MarkMissingLabels:
    """List the labels that a sample lacks in its key ``missing`` (text), and add empty ones, with which it can be
    collated. Tasks skip samples without their labels, so empty labels are never learned.

    Args:
        source: of the samples.

    Raises:
        ValueError: a key of ``partly_labeled`` is none of ``label``, ``boxes`` and ``mask``.
    """

    def __init__(self, source: PartlyLabeledSource) -> None:
        self._keys = tuple(source.partly_labeled)
        if unknown := set(self._keys) - {"label", "boxes", "mask"}:
            raise ValueError(f"partly_labeled: {min(unknown)!r} is none of label, boxes and mask")
        multi_label = isinstance(source, MultiLabelSource) and source.multi_label
        self._label = torch.zeros(len(source.classes)) if multi_label else 0

    def __call__(self, sample: Sample) -> Sample:
        """Return the sample with ``missing`` and all labels."""
        height, width = sample["image"].shape[-2:] if "image" in sample else (0, 0)  # views have neither boxes nor maps
        boxes = tv_tensors.BoundingBoxes(torch.zeros(0, 4), format="XYXY", canvas_size=(height, width))
        empty = {
            "label": {"label": self._label},
            "boxes": {"boxes": boxes, "labels": torch.zeros(0, dtype=torch.int64)},
            "mask": {"mask": tv_tensors.Mask(torch.full((height, width), IGNORE_LABEL, dtype=torch.uint8))},
        }
        missing = [key for key in self._keys if key not in sample]
        added = {name: value for key in missing for name, value in empty[key].items()}
        return {**sample, **added, "missing": " ".join(missing)}
