"""Pseudo-labels of detection: the boxes of which the teacher is sure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torchvision.ops import box_iou

from opabinia.config import register
from opabinia.contracts import Batch, Fraction, Predictions, PseudoLabeler, PseudoLabels, Source, Task
from opabinia.runtime.device import true_indices
from opabinia.tasks.detection.task import Detection

_MATCH_IOU = 0.5


@register.pseudo_labels(name="boxes")
class BoxLabels(PseudoLabeler):
    """Pseudo-labels of detection: the detections with a high enough score (Liu et al. 2021, Unbiased Teacher, section
    3.2). Masks and keypoints of these objects are unknown. Everything else is background.

    A pseudo-box counts as right in ``pseudo/precision`` if it overlaps with an object of its class by an IoU of at
    least 0.5. The host waits for the device once for the boxes, as in every detector's suppression.

    Args:
        threshold: least score; scores of different detectors differ, and those of FCOS are lower than those of Faster
            R-CNN, for which the paper takes 0.7.

    Raises:
        ValueError: the task is no detection.
    """

    keeps_positions = True

    def __init__(self, task: Task, unlabeled: Source, /, *, threshold: Fraction = 0.7) -> None:
        super().__init__()
        if not isinstance(task, Detection):
            raise ValueError(f"boxes are labels of detection; the task is {type(task).__name__}")
        self.threshold = threshold
        self._masks, self._oriented = task.detector.masks, task.detector.oriented
        self._keypoints = len(task.dataset_info.keypoints) if task.detector.keypoints else 0

    def forward(self, predictions: Predictions, batch: Batch) -> PseudoLabels:
        """Return ``boxes`` and ``labels`` of each image (lists of B)."""
        found = predictions["labels"] >= 0
        sides = predictions["boxes"][..., 2:4] - (0 if self._oriented else predictions["boxes"][..., :2])
        kept = found & (predictions["scores"] >= self.threshold) & (sides > 0).all(-1)
        rows = true_indices(list(kept))
        boxes, labels = (
            [values[index] for values, index in zip(predictions[name], rows, strict=True)]
            for name in ("boxes", "labels")
        )
        precision = None
        if "boxes" in batch and not self._oriented:
            right = [_count_right(*image) for image in zip(boxes, labels, batch["boxes"], batch["labels"], strict=True)]
            precision = torch.stack(right).sum() / kept.sum().clamp(min=1)
        share = kept.sum() / found.sum().clamp(min=1)
        return PseudoLabels({"boxes": boxes, "labels": labels, **self._unknown(boxes, batch)}, share, precision)

    def _unknown(self, boxes: Sequence[Tensor], batch: Batch) -> dict[str, Any]:
        """Return empty masks, and keypoints that are not visible, of the objects, if the detector learns them."""
        unknown: dict[str, Any] = {}
        if self._masks:
            runs = torch.zeros(0, 0, 2, dtype=torch.int32, device=batch["image"].device)
            unknown["masks"] = [runs] * len(boxes)
        if self._keypoints:
            points = [rows.new_zeros(len(rows), self._keypoints, 2) for rows in boxes]
            unknown |= {"keypoints": points, "visibility": [rows[..., 0].long() for rows in points]}
        return unknown


def _count_right(boxes: Tensor, labels: Tensor, true_boxes: Tensor, true_labels: Tensor) -> Tensor:
    """Return the number of boxes (N x 4) that overlap enough with a true one of their class (0-d)."""
    matches = (box_iou(boxes, true_boxes) >= _MATCH_IOU) & (labels[:, None] == true_labels)
    count: Tensor = matches.any(1).sum()
    return count
