"""What is there and what was found in pictures, as lists in COCO's format."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, repeat
from typing import Any, Literal

import numpy as np

from opabinia.contracts import DatasetInfo
from opabinia.evaluation.detection.base import Floats, Picture

Kind = Literal["bbox", "segm", "keypoints"]
"""What is compared, in pycocotools' words."""

Annotations = list[dict[str, Any]]


def truth_of(pictures: Sequence[Picture], dataset_info: DatasetInfo, kind: Kind) -> dict[str, Annotations]:
    """What is there, in COCO's format. Pictures are numbered from 1, classes from 0."""
    images = [
        {"id": number, "height": picture.ground_truth.size[0], "width": picture.ground_truth.size[1]}
        for number, picture in enumerate(pictures, 1)
    ]
    truths = [picture.ground_truth for picture in pictures]
    columns = (
        np.repeat(np.arange(1, len(truths) + 1), [len(ground_truth.labels) for ground_truth in truths]),
        np.concatenate([ground_truth.labels for ground_truth in truths]),
        np.concatenate([ground_truth.boxes.reshape(-1, 4) for ground_truth in truths]),
        np.concatenate([ground_truth.areas for ground_truth in truths]),
        np.concatenate([ground_truth.crowd for ground_truth in truths]).astype(int),
    )
    keys = ("id", "image_id", "category_id", "bbox", "area", "iscrowd")
    # The library takes 0 for no annotation.
    rows = enumerate(zip(*(column.tolist() for column in columns), strict=True), 1)
    things = [dict(zip(keys, (number, *row), strict=True)) for number, row in rows]
    if kind == "segm":
        runs = ((segment, ground_truth.size) for ground_truth in truths for segment in ground_truth.segments or ())
        for thing, (counts, size) in zip(things, runs, strict=True):
            thing |= {"segmentation": _rle(counts, size)} if counts else _crowd_in(thing["bbox"])
    if kind == "keypoints":
        points = (
            row
            for ground_truth in truths
            for row in _points(ground_truth.keypoints, len(ground_truth.labels), len(dataset_info.keypoints))
        )
        for thing, row in zip(things, points, strict=True):
            thing |= {"keypoints": row.ravel().tolist(), "num_keypoints": int((row[:, 2] > 0).sum())}
    categories = [{"id": number, "name": name} for number, name in enumerate(dataset_info.classes)]
    return {"images": images, "annotations": things, "categories": categories}


def results_of(
    pictures: Sequence[Picture],
    kind: Kind,
    images: Sequence[int | str] | None = None,
    categories: Sequence[int] | None = None,
) -> Annotations:
    """What was found, in COCO's format: a box, a mask or keypoints each.

    Args:
        pictures: in order.
        kind: which of the three.
        images: numbers of the pictures; None numbers them from 1.
        categories: numbers of the classes; None numbers them from 0.
    """
    if not pictures:
        return []
    numbers = images or range(1, len(pictures) + 1)
    labels = np.concatenate([picture.labels for picture in pictures]).tolist()
    columns = (
        chain.from_iterable(repeat(number, len(one.labels)) for number, one in zip(numbers, pictures, strict=True)),
        labels if categories is None else map(categories.__getitem__, labels),
        _what(pictures, kind),
        np.concatenate([picture.scores for picture in pictures]).astype(np.float64).tolist(),
    )
    keys = ("image_id", "category_id", "segmentation" if kind == "segm" else kind, "score")
    return [dict(zip(keys, row, strict=True)) for row in zip(*columns, strict=True)]


def _what(pictures: Sequence[Picture], kind: Kind) -> list[Any]:
    if kind == "segm":
        return [_rle(runs, picture.ground_truth.size) for picture in pictures for runs in picture.masks or ()]
    if kind == "keypoints":
        points = np.concatenate([one.keypoints for one in pictures if one.keypoints is not None]).astype(np.float64)
        points[..., :2] -= 0.5
        rows: list[Any] = points.reshape(len(points), 3 * points.shape[1]).tolist()
        return rows
    boxes = np.concatenate([picture.boxes for picture in pictures]).astype(np.float64)
    boxes[:, 2:] -= boxes[:, :2]
    rows = boxes.tolist()
    return rows


def _rle(counts: str, size: tuple[int, int]) -> dict[str, Any]:
    return {"size": list(size), "counts": counts}


def _crowd_in(box: Sequence[float]) -> dict[str, Any]:
    left, top, width, height = box
    right, bottom = left + width, top + height
    return {"segmentation": [[left, top, left, bottom, right, bottom, right, top]], "iscrowd": 1}


def _points(points: Floats | None, things: int, count: int) -> Floats:
    return np.zeros((things, count, 3)) if points is None else points
