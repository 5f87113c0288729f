"""Made-up images with objects in them and objects found there, and what pycocotools says of them."""

import contextlib
import io
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from opabinia.contracts import Batch, DatasetInfo, Evaluator, GroundTruth, Predictions
from opabinia.evaluation.detection.coco import COCO_KEYPOINTS

HEIGHT, WIDTH = 140, 200
CLASSES = tuple("abcde")
FACTS = DatasetInfo(samples=0, classes=CLASSES, boxes=True, masks=True, keypoints=COCO_KEYPOINTS)

COCO_NAMES = {
    "bbox": ("AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR100", "ARs", "ARm", "ARl"),
    "keypoints": ("AP", "AP50", "AP75", "APm", "APl", "AR", "AR50", "AR75", "ARm", "ARl"),
}
COCO_NAMES["segm"] = COCO_NAMES["bbox"]


class Scene(NamedTuple):
    """An image, and D objects found in it."""

    ground_truth: GroundTruth
    boxes: torch.Tensor
    scores: torch.Tensor
    labels: torch.Tensor
    masks: torch.Tensor
    keypoints: torch.Tensor


def rectangles(count: int, random: np.random.Generator) -> np.ndarray:
    """Left, top, width, height: from a fifth of a pixel to most of the image."""
    sides = np.exp(random.uniform(np.log(0.2), np.log(130), (count, 2)))
    return np.concatenate([random.random((count, 2)) * ([WIDTH, HEIGHT] - sides), sides], 1)


def polygon(box: Sequence[float]) -> list[list[float]]:
    """Two triangles in the box."""
    left, top, width, height = box
    right, bottom = left + width, top + height
    return [[left, top, right, top, right, bottom], [left, top, left + width / 3, bottom, left, bottom]]


def scene(number: int | str, random: np.random.Generator, objects: int, found: int) -> Scene:
    """``objects`` annotated and ``found`` detected, most of these near one of those; scores are tenths, many are equal.

    Every seventh object or so is a crowd, every fifth has no visible point.
    """
    boxes = rectangles(objects, random)
    labels = random.integers(len(CLASSES) - 1, size=objects)  # of the last class there is nothing
    points = boxes[:, None, :2] + random.random((objects, len(COCO_KEYPOINTS), 2)) * boxes[:, None, 2:]
    visible = random.integers(3, size=(objects, len(COCO_KEYPOINTS), 1)) * (random.random((objects, 1, 1)) > 0.2)
    ground_truth = GroundTruth(
        image_id=number,
        size=(HEIGHT, WIDTH),
        ids=np.arange(objects) + 1,
        boxes=boxes,
        labels=labels,
        areas=boxes[:, 2] * boxes[:, 3] * 0.66,
        crowd=random.random(objects) < 0.15,
        segments=[polygon(box) for box in boxes.tolist()],
        keypoints=np.concatenate([points.round(), visible], 2),
    )
    near = random.integers(objects, size=found) if objects else np.zeros(found, np.int64)
    others = rectangles(found, random)
    others[:, 2:] += 1
    if objects:
        lucky = random.random((found, 1)) < 0.8
        noise = random.normal(size=(found, 4)) * boxes[near][:, [2, 3, 2, 3]] * 0.08
        others = np.where(lucky, (boxes[near] + noise).clip(min=0.01), others)
        said = np.where(random.random(found) < 0.8, labels[near], random.integers(len(CLASSES), size=found))
        spots = points[near] + random.normal(size=(found, len(COCO_KEYPOINTS), 2)) * 3
    else:
        said = random.integers(len(CLASSES), size=found)
        spots = others[:, None, :2] + random.random((found, len(COCO_KEYPOINTS), 2)) * others[:, None, 2:]
    corners = np.concatenate([others[:, :2], others[:, :2] + others[:, 2:]], 1)
    scores = np.sort(random.integers(1, 11, size=found) / 10)[::-1].copy()
    marks = np.concatenate([spots, random.random((found, len(COCO_KEYPOINTS), 1))], 2)
    return Scene(
        ground_truth,
        torch.from_numpy(corners).float(),
        torch.from_numpy(scores).float(),
        torch.from_numpy(said),
        torch.from_numpy(random.random((found, 7, 7)) ** 0.4).float(),
        torch.from_numpy(marks).float(),
    )


def batch_of(scenes: Sequence[Scene], kinds: Sequence[str] = ("masks", "keypoints")) -> tuple[Predictions, Batch]:
    """What a task would hand over for these images."""
    most = max(len(one.scores) for one in scenes)
    rows = {name: [getattr(one, name) for one in scenes] for name in ("boxes", "scores", "labels", *kinds)}
    predictions = {
        name: torch.stack(
            [
                torch.cat([one, one.new_full((most - len(one), *one.shape[1:]), -1 if name == "labels" else 0)])
                for one in column
            ]
        )
        for name, column in rows.items()
    }
    names = [f"val/{one.ground_truth.image_id}.jpg" for one in scenes]
    return predictions, {"ground_truth": [one.ground_truth for one in scenes], "id": names}


def seen(evaluator: Evaluator, scenes: Sequence[Scene], size: int = 3, **keys: Any) -> Any:
    """The state of an evaluator after these images, in batches of ``size``."""
    for start in range(0, len(scenes), size):
        evaluator.update(*batch_of(scenes[start : start + size], **keys))
    return evaluator.state()


def coco_file(scenes: Sequence[Scene]) -> dict[str, Any]:
    """What is in the images, in COCO's format; classes are numbered from 1."""
    annotations = []
    for one in scenes:
        ground_truth = one.ground_truth
        for row in range(len(ground_truth.labels)):
            points = ground_truth.keypoints[row]  # type: ignore[index]
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": ground_truth.image_id,
                    "category_id": int(ground_truth.labels[row]) + 1,
                    "bbox": ground_truth.boxes[row].tolist(),
                    "area": float(ground_truth.areas[row]),
                    "iscrowd": int(ground_truth.crowd[row]),
                    "segmentation": ground_truth.segments[row],  # type: ignore[index]
                    "keypoints": points.ravel().tolist(),
                    "num_keypoints": int((points[:, 2] > 0).sum()),
                }
            )
    images = [{"id": one.ground_truth.image_id, "height": HEIGHT, "width": WIDTH} for one in scenes]
    categories = [{"id": number, "name": name} for number, name in enumerate(CLASSES, 1)]
    return {"images": images, "annotations": annotations, "categories": categories}


def pycocotools(
    ground_truth: dict[str, Any], results: list[Any], kind: str, most: Sequence[int] = ()
) -> dict[str, float]:
    """What pycocotools says; what is -1 there is left out."""
    with contextlib.redirect_stdout(io.StringIO()):
        there = COCO()
        there.dataset = json.loads(json.dumps(ground_truth))  # it writes into what it is given
        there.createIndex()
        evaluated = COCOeval(there, there.loadRes(json.loads(json.dumps(results))), kind)
        if most:
            evaluated.params.maxDets = list(most)
        evaluated.evaluate()
        evaluated.accumulate()
        evaluated.summarize()
    stats = zip(COCO_NAMES[kind], evaluated.stats.tolist(), strict=True)
    return {name: value for name, value in stats if value > -1}
