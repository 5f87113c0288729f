"""Detections and annotations of images as objects to draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from opabinia.contracts import Detections, GroundTruth
from opabinia.contracts.masks import decode_rle
from opabinia.contracts.rotated_boxes import box_corners, upright_boxes
from opabinia.evaluation.detection.rle import paste_masks
from opabinia.visualization.drawing import DrawnObject


def predicted_objects(
    prediction: Mapping[str, Tensor], classes: Sequence[str], size: tuple[int, int], min_score: float = 0.5
) -> list[DrawnObject]:
    """Return the detections in an image, best first.

    Args:
        prediction: a row of each tensor (see :data:`opabinia.contracts.Predictions`), on the CPU.
        classes: their names.
        size: height and width of the image.
        min_score: minimum score of the detections shown.
    """
    shown = ((prediction["labels"] >= 0) & (prediction["scores"] >= min_score)).nonzero().flatten()
    rows = {name: values[shown] for name, values in prediction.items() if name in Detections._fields}
    masks = paste_masks(rows["masks"].numpy(), rows["boxes"].numpy(), size) if "masks" in rows else [None] * len(shown)
    points = rows["keypoints"][..., :2].tolist() if "keypoints" in rows else [()] * len(shown)
    boxes = rows["boxes"]
    corners = box_corners(boxes).tolist() if boxes.shape[1] == 5 else [()] * len(shown)
    columns = rows["labels"].tolist(), rows["scores"].tolist(), upright_boxes(boxes).tolist(), masks, points, corners
    return [
        DrawnObject(
            label=label,
            text=f"{classes[label]}: {score:.2f}",
            box=box,
            mask=None if counts is None else decode_rle({"size": list(size), "counts": counts}, size).astype(bool),
            points=keypoints,
            corners=polygon,
        )
        for label, score, box, counts, keypoints, polygon in zip(*columns, strict=True)
    ]


def annotated_objects(ground_truth: GroundTruth, classes: Sequence[str]) -> list[DrawnObject]:
    """Return the annotated objects of an image, crowds included."""
    segments = ground_truth.segments or [None] * len(ground_truth.labels)
    keypoints = np.zeros((len(segments), 0, 3)) if ground_truth.keypoints is None else ground_truth.keypoints
    corners = [()] * len(segments) if ground_truth.corners is None else ground_truth.corners.tolist()
    boxes = ground_truth.boxes.tolist()
    columns = ground_truth.labels.tolist(), ground_truth.crowd, boxes, segments, keypoints, corners
    return [
        DrawnObject(
            label=label,
            text=classes[label] + (" (crowd)" if crowd else ""),
            box=(left, top, left + width, top + height),
            mask=decode_rle(segment, ground_truth.size).astype(bool) if segment else None,
            points=[(x + 0.5, y + 0.5) for x, y, visible in points if visible],  # annotations count pixels
            corners=polygon,
        )
        for label, crowd, (left, top, width, height), segment, points, polygon in zip(*columns, strict=True)
    ]
