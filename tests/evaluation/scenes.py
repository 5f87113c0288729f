"""Synthetic images with annotations and detections, and their scores by pycocotools."""

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
DATASET_INFO = DatasetInfo(samples=0, classes=CLASSES, boxes=True, masks=True, keypoints=COCO_KEYPOINTS)

COCO_NAMES = {
    "bbox": ("AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR100", "ARs", "ARm", "ARl"),
    "keypoints": ("AP", "AP50", "AP75", "APm", "APl", "AR", "AR50", "AR75", "ARm", "ARl"),
}
COCO_NAMES["segm"] = COCO_NAMES["bbox"]


class Scene(NamedTuple):
    """An image's ground truth and D detections."""

    ground_truth: GroundTruth
    boxes: torch.Tensor
    scores: torch.Tensor
    labels: torch.Tensor
    masks: torch.Tensor
    keypoints: torch.Tensor


def rectangles(count: int, random: np.random.Generator) -> np.ndarray:
    """Return boxes (left, top, width, height) from a fifth of a pixel to most of the image."""
    sides = np.exp(random.uniform(np.log(0.2), np.log(130), (count, 2)))
    return np.concatenate([random.random((count, 2)) * ([WIDTH, HEIGHT] - sides), sides], 1)


def polygon(box: Sequence[float]) -> list[list[float]]:
    """Return a polygon of two triangles in the box."""
    left, top, width, height = box
    right, bottom = left + width, top + height
    return [[left, top, right, top, right, bottom], [left, top, left + width / 3, bottom, left, bottom]]


def make_scene(number: int | str, random: np.random.Generator, num_objects: int, num_detections: int) -> Scene:
    """Return random annotations and detections; most detections are near an annotation. Scores are tenths: many tie.

    About every seventh object is a crowd, every fifth has no visible keypoint.
    """
    boxes = rectangles(num_objects, random)
    labels = random.integers(len(CLASSES) - 1, size=num_objects)  # the last class has no objects
    points = boxes[:, None, :2] + random.random((num_objects, len(COCO_KEYPOINTS), 2)) * boxes[:, None, 2:]
    visible = random.integers(3, size=(num_objects, len(COCO_KEYPOINTS), 1)) * (
        random.random((num_objects, 1, 1)) > 0.2
    )
    ground_truth = GroundTruth(
        image_id=number,
        size=(HEIGHT, WIDTH),
        ids=np.arange(num_objects) + 1,
        boxes=boxes,
        labels=labels,
        areas=boxes[:, 2] * boxes[:, 3] * 0.66,
        crowd=random.random(num_objects) < 0.15,
        segments=[polygon(box) for box in boxes.tolist()],
        keypoints=np.concatenate([points.round(), visible], 2),
    )
    near = random.integers(num_objects, size=num_detections) if num_objects else np.zeros(num_detections, np.int64)
    detected = rectangles(num_detections, random)
    detected[:, 2:] += 1
    if num_objects:
        overlaps = random.random((num_detections, 1)) < 0.8
        noise = random.normal(size=(num_detections, 4)) * boxes[near][:, [2, 3, 2, 3]] * 0.08
        detected = np.where(overlaps, (boxes[near] + noise).clip(min=0.01), detected)
        detected_labels = np.where(
            random.random(num_detections) < 0.8, labels[near], random.integers(len(CLASSES), size=num_detections)
        )
        detected_points = points[near] + random.normal(size=(num_detections, len(COCO_KEYPOINTS), 2)) * 3
    else:
        detected_labels = random.integers(len(CLASSES), size=num_detections)
        detected_points = (
            detected[:, None, :2] + random.random((num_detections, len(COCO_KEYPOINTS), 2)) * detected[:, None, 2:]
        )
    corners = np.concatenate([detected[:, :2], detected[:, :2] + detected[:, 2:]], 1)
    scores = np.sort(random.integers(1, 11, size=num_detections) / 10)[::-1].copy()
    keypoints = np.concatenate([detected_points, random.random((num_detections, len(COCO_KEYPOINTS), 1))], 2)
    return Scene(
        ground_truth,
        torch.from_numpy(corners).float(),
        torch.from_numpy(scores).float(),
        torch.from_numpy(detected_labels),
        torch.from_numpy(random.random((num_detections, 7, 7)) ** 0.4).float(),
        torch.from_numpy(keypoints).float(),
    )


def batch_of(scenes: Sequence[Scene], kinds: Sequence[str] = ("masks", "keypoints")) -> tuple[Predictions, Batch]:
    """Return predictions and batch as a task returns them for these images."""
    max_detections = max(len(scene.scores) for scene in scenes)
    rows = {name: [getattr(scene, name) for scene in scenes] for name in ("boxes", "scores", "labels", *kinds)}
    predictions = {
        name: torch.stack(
            [
                torch.cat(
                    [
                        value,
                        value.new_full((max_detections - len(value), *value.shape[1:]), -1 if name == "labels" else 0),
                    ]
                )
                for value in column
            ]
        )
        for name, column in rows.items()
    }
    names = [f"val/{scene.ground_truth.image_id}.jpg" for scene in scenes]
    return predictions, {"ground_truth": [scene.ground_truth for scene in scenes], "id": names}


def state_after(evaluator: Evaluator, scenes: Sequence[Scene], size: int = 3, **keys: Any) -> Any:
    """Update an evaluator with these images, in batches of ``size``; return its state."""
    for start in range(0, len(scenes), size):
        evaluator.update(*batch_of(scenes[start : start + size], **keys))
    return evaluator.state()


def coco_file(scenes: Sequence[Scene]) -> dict[str, Any]:
    """Return the annotations in COCO's format; category ids start at 1."""
    annotations = []
    for scene in scenes:
        ground_truth = scene.ground_truth
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
    images = [{"id": scene.ground_truth.image_id, "height": HEIGHT, "width": WIDTH} for scene in scenes]
    categories = [{"id": number, "name": name} for number, name in enumerate(CLASSES, 1)]
    return {"images": images, "annotations": annotations, "categories": categories}


def pycocotools_scores(
    ground_truth: dict[str, Any],
    results: list[Any],
    kind: str,
    max_detections: Sequence[int] = (),
    library: tuple[Any, Any] = (COCO, COCOeval),
) -> dict[str, float]:
    """Return the scores of pycocotools, or of other classes like its own, without those that are -1."""
    make_coco, make_evaluation = library
    with contextlib.redirect_stdout(io.StringIO()):
        coco = make_coco()
        coco.dataset = json.loads(json.dumps(ground_truth))  # it modifies its argument
        coco.createIndex()
        evaluation = make_evaluation(coco, coco.loadRes(json.loads(json.dumps(results))), kind)
        if max_detections:
            evaluation.params.maxDets = list(max_detections)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    stats = zip(COCO_NAMES[kind], evaluation.stats.tolist(), strict=True)
    return {name: value for name, value in stats if value > -1}
