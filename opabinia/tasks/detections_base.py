"""Detections as batches: training targets, pixels of the original images, and rows of equal length."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torchvision.ops import clip_boxes_to_image

from opabinia.contracts import Batch, Detections, InstanceMasks, Target
from opabinia.contracts.rotated_boxes import scale_boxes
from opabinia.runtime.device import move_tensor


def targets_from(batch: Batch) -> list[Target]:
    """Return the training targets of each image of a batch."""
    absent = [None] * len(batch["boxes"])
    masks: Sequence[InstanceMasks | None] = absent
    if "masks" in batch:
        masks = [InstanceMasks(runs, batch["image"].shape[-2:]) for runs in batch["masks"]]
    keypoints: Sequence[Tensor | None] = absent
    if "keypoints" in batch:
        pairs = zip(batch["keypoints"], batch["visibility"], strict=True)
        keypoints = [torch.cat([points, visibility.to(points.dtype).unsqueeze(-1)], -1) for points, visibility in pairs]
    return [Target(*row) for row in zip(batch["boxes"], batch["labels"], masks, keypoints, strict=True)]


def scale_to_original(detections: Detections, size: tuple[int, int], original: tuple[int, int]) -> Detections:
    """Convert detections in an image of ``size`` (height, width) to pixels of the original that it was resized from.

    Upright boxes are clipped to the image.
    """
    boxes, (height, width), (original_height, original_width) = detections.boxes, size, original
    sides = torch.tensor([original_width / width, original_height / height], dtype=boxes.dtype)
    factors = move_tensor(sides, boxes.device)
    boxes = scale_boxes(boxes, factors)
    if boxes.shape[1] == 4:
        boxes = clip_boxes_to_image(boxes, original)
    points = detections.keypoints
    if points is not None:
        points = torch.cat([points[..., :2] * factors, points[..., 2:]], -1)
    return detections._replace(boxes=boxes, keypoints=points)


def stack_detections(detections: Sequence[Detections], count: int) -> dict[str, Tensor]:
    """Return detections of B images as tensors with a row per image, padded to ``count`` objects with label -1."""

    def padded(values: Tensor, fill: int) -> Tensor:
        return torch.cat([values, values.new_full((count - len(values), *values.shape[1:]), fill)])

    return {
        name: torch.stack([padded(rows, -1 if name == "labels" else 0) for rows in values])
        for name, values in zip(Detections._fields, zip(*detections, strict=True), strict=True)
        if values[0] is not None
    }
