"""Ground truth and detections of images in COCO's format."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, repeat
from typing import Any, Literal

import numpy as np

from opabinia.contracts import DatasetInfo, GroundTruth
from opabinia.evaluation.detection.base import ImageResult

Kind = Literal["bbox", "segm", "keypoints"]
"""pycocotools' ``iouType``."""

Annotations = list[dict[str, Any]]


def coco_ground_truth(images: Sequence[ImageResult], dataset_info: DatasetInfo, kind: Kind) -> dict[str, Annotations]:
    """Return ``images``, ``annotations`` and ``categories``; images are numbered from 1, categories from 0."""
    truths = [image.ground_truth for image in images]
    annotations = [
        {"image_id": number, **annotation}
        for number, truth in enumerate(truths, 1)
        for annotation in _annotations(truth, kind, len(dataset_info.keypoints))
    ]
    sizes = [{"height": truth.size[0], "width": truth.size[1]} for truth in truths]
    return {  # ids begin at 1: the library takes 0 for no annotation
        "images": [{"id": number, **size} for number, size in enumerate(sizes, 1)],
        "annotations": [{"id": number, **annotation} for number, annotation in enumerate(annotations, 1)],
        "categories": [{"id": label, "name": name} for label, name in enumerate(dataset_info.classes)],
    }


def _annotations(truth: GroundTruth, kind: Kind, num_keypoints: int) -> Annotations:
    """Return the objects of an image."""
    columns = (truth.labels, truth.boxes.reshape(-1, 4), truth.areas, truth.crowd.astype(int))
    keys = ("category_id", "bbox", "area", "iscrowd")
    rows = [dict(zip(keys, row, strict=True)) for row in zip(*(column.tolist() for column in columns), strict=True)]
    if kind == "segm":
        for row, counts in zip(rows, truth.segments or (), strict=True):
            row |= {"segmentation": _rle(counts, truth.size)} if counts else _crowd_in(row["bbox"])
    if kind == "keypoints":
        unknown = np.zeros((len(rows), num_keypoints, 3))
        for row, points in zip(rows, unknown if truth.keypoints is None else truth.keypoints, strict=True):
            row |= {"keypoints": points.ravel().tolist(), "num_keypoints": int((points[:, 2] > 0).sum())}
    return rows


def coco_results(
    images: Sequence[ImageResult],
    kind: Kind,
    image_ids: Sequence[int | str] | None = None,
    category_ids: Sequence[int] | None = None,
) -> Annotations:
    """Return the detections: a box, a mask or keypoints each.

    Args:
        images: in the order of the ground truth.
        kind: which of the three.
        image_ids: None numbers images from 1.
        category_ids: id of each class; None numbers them from 0.
    """
    if not images:
        return []
    ids = image_ids or range(1, len(images) + 1)
    labels = np.concatenate([image.labels for image in images]).tolist()
    columns = (
        chain.from_iterable(repeat(number, len(image.labels)) for number, image in zip(ids, images, strict=True)),
        labels if category_ids is None else map(category_ids.__getitem__, labels),
        _geometry(images, kind),
        np.concatenate([image.scores for image in images]).astype(np.float64).tolist(),
    )
    keys = ("image_id", "category_id", "segmentation" if kind == "segm" else kind, "score")
    return [dict(zip(keys, row, strict=True)) for row in zip(*columns, strict=True)]


def _geometry(images: Sequence[ImageResult], kind: Kind) -> list[Any]:
    if kind == "segm":
        return [_rle(counts, image.ground_truth.size) for image in images for counts in image.masks or ()]
    if kind == "keypoints":
        points = np.concatenate([image.keypoints for image in images if image.keypoints is not None]).astype(np.float64)
        points[..., :2] -= 0.5  # from positions to the indices of pixels
        return list(points.reshape(len(points), 3 * points.shape[1]).tolist())
    boxes = np.concatenate([image.boxes for image in images]).astype(np.float64)
    boxes[:, 2:] -= boxes[:, :2]
    return list(boxes.tolist())


def _rle(counts: str, size: tuple[int, int]) -> dict[str, Any]:
    return {"size": list(size), "counts": counts}


def _crowd_in(box: Sequence[float]) -> dict[str, Any]:
    """Return the fields of a crowd that fills the box."""
    left, top, width, height = box
    right, bottom = left + width, top + height
    return {"segmentation": [[left, top, left, bottom, right, bottom, right, top]], "iscrowd": 1}
