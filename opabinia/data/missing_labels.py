"""Samples that lack some labels of their dataset, in multi-task training."""

from __future__ import annotations

import torch
from torchvision import tv_tensors

from opabinia.contracts import IGNORE_LABEL, Sample, SourceInfo

KEYS = ("label", "boxes", "masks", "keypoints", "mask")
"""Keys of samples that some of them may lack."""


class MarkMissingLabels:
    """List the labels that a sample lacks in its key ``missing`` (text), and add empty ones, with which it can be
    collated. Tasks skip samples without their labels, so empty labels are never learned.

    Args:
        info: of the source.

    Raises:
        ValueError: a key of ``partly_labeled`` is none of :data:`KEYS`.
    """

    def __init__(self, info: SourceInfo) -> None:
        self._keys = info.partly_labeled
        if unknown := set(self._keys) - set(KEYS):
            raise ValueError(f"partly_labeled: {min(unknown)!r} is none of {', '.join(KEYS)}")
        self._with_masks, self._points = info.masks, len(info.keypoints)
        self._label = torch.zeros(len(info.classes)) if info.multi_label else 0

    def __call__(self, sample: Sample) -> Sample:
        """Return the sample with ``missing`` and all labels."""
        height, width = sample["image"].shape[-2:] if "image" in sample else (0, 0)  # views have neither boxes nor maps
        boxes = tv_tensors.BoundingBoxes(torch.zeros(0, 4), format="XYXY", canvas_size=(height, width))
        points = torch.zeros(len(sample.get("boxes", ())), self._points, 2)
        empty = {
            "label": {"label": self._label},
            "boxes": {"boxes": boxes, "labels": torch.zeros(0, dtype=torch.int64)},
            # Objects without masks, and invisible keypoints.
            "masks": {"masks": tv_tensors.Mask(torch.zeros(0, height, width, dtype=torch.uint8))},
            "keypoints": {
                "keypoints": tv_tensors.KeyPoints(points, canvas_size=(height, width)),
                "visibility": points[..., 0].long(),
            },
            "mask": {"mask": tv_tensors.Mask(torch.full((height, width), IGNORE_LABEL, dtype=torch.uint8))},
        }
        missing = [key for key in self._keys if key not in sample]
        of_boxes = {"masks": self._with_masks, "keypoints": self._points} if "boxes" in missing else {}
        added = {
            name: value
            for key in (*missing, *(key for key, given in of_boxes.items() if given and key not in sample))
            for name, value in empty[key].items()
        }
        return {**sample, **added, "missing": " ".join(missing)}
