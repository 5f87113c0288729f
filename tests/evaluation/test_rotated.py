"""DOTA's mAP against a loop that follows its development kit, with polygons clipped by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from opabinia.contracts import DatasetInfo, GroundTruth
from opabinia.contracts.rotated_boxes import box_corners
from opabinia.evaluation.detection.base import ImageResult
from opabinia.evaluation.detection.rotated import DotaMap
from opabinia.evaluation.detection.voc import area_under_curve, eleven_point_average
from tests.models.test_rotated_boxes import clipped_iou, random_boxes

INFO = DatasetInfo(samples=0, classes=("ship", "storage/tank", "plane"), boxes=True, oriented=True)


def image_of(number: int) -> ImageResult:
    """Return five objects, one of them difficult, and twelve detections near them, some of other classes."""
    random = np.random.default_rng(number)
    objects = random_boxes(5, seed=number)
    near = objects[random.integers(5, size=12)]
    boxes = near + torch.from_numpy(random.normal(size=(12, 5)) * [3, 3, 3, 3, 5])
    boxes[:, 2:4] = boxes[:, 2:4].clamp(min=1)
    corners, labels = box_corners(objects).numpy(), random.integers(2, size=5)
    ground_truth = GroundTruth(
        image_id=f"P{number:04d}",
        size=(100, 100),
        ids=np.arange(5),
        boxes=np.concatenate([corners.min(1), np.ptp(corners, 1)], 1),
        labels=labels,
        areas=np.ones(5),
        crowd=np.arange(5) == 3,
        corners=corners,
    )
    scores = np.sort(random.random(12))[::-1].astype(np.float32)
    return ImageResult(str(number), ground_truth, boxes.numpy(), scores, random.integers(2, size=12), None, None)


IMAGES = [image_of(number) for number in range(5)]


def reference_ap(label: int, threshold: float, year: int) -> float:
    """Match detections in score order, each to the object of its class with the largest IoU; return the AP."""
    rows = [(float(image.scores[row]), image, row) for image in IMAGES for row in np.flatnonzero(image.labels == label)]
    matched, is_correct = set(), []
    for _, image, row in sorted(rows, key=lambda row: -row[0]):
        candidates = np.flatnonzero(image.ground_truth.labels == label)
        objects = random_boxes(5, seed=int(image.name))
        ious = [clipped_iou(objects[index], torch.from_numpy(image.boxes[row])) for index in candidates]
        best = candidates[int(np.argmax(ious))] if len(candidates) else -1
        if not len(candidates) or max(ious) <= threshold:
            is_correct.append(0)
        elif not image.ground_truth.crowd[best]:
            is_correct.append(int((image.name, best) not in matched))
            matched.add((image.name, best))
    count = sum(int(((image.ground_truth.labels == label) & ~image.ground_truth.crowd).sum()) for image in IMAGES)
    return (eleven_point_average if year == 2007 else area_under_curve)(np.array(is_correct), count)


def test_scores_equal_those_of_the_development_kit() -> None:
    for year in (2007, 2012):
        scores = DotaMap(INFO, year=year).compute([IMAGES])  # type: ignore[arg-type]
        for name, threshold in (("AP50", 0.5), ("AP75", 0.75)):
            expected = np.mean([reference_ap(label, threshold, year) for label in (0, 1)])
            assert 0.05 < scores[name] == pytest.approx(expected, abs=1e-9)
    assert list(DotaMap(INFO).better) == ["AP50", "AP75", "AP"]


def test_resized_batches_are_evaluated_and_upright_data_are_refused() -> None:
    image = IMAGES[0]
    boxes, scores, labels = (torch.from_numpy(np.ascontiguousarray(rows))[None] for rows in image[2:5])
    predictions = {"boxes": boxes.float(), "scores": scores, "labels": labels}
    sizes = {"image_sizes": [(50, 50)], "original_size": [(100, 100)]}
    half = random_boxes(5) * torch.tensor([0.5, 0.5, 0.5, 0.5, 1])
    evaluator = DotaMap(INFO)
    objects = {"boxes": [half[[0, 1, 2, 4]].float()], "ground_truth": [image.ground_truth]}
    evaluator.update(predictions, {"id": ["a"], **sizes, **objects})
    assert evaluator.compute([evaluator.state()])["AP50"] == pytest.approx(DotaMap(INFO).compute([[image]])["AP50"])
    with pytest.raises(ValueError, match="boxes of the data are upright: take coco or voc"):
        DotaMap(replace(INFO, oriented=False))


def test_any_number_of_processes_gives_the_same_scores_and_files() -> None:
    single_process, multi_process = DotaMap(INFO), DotaMap(INFO)
    states, rank_states = [IMAGES], [IMAGES[rank::3] for rank in range(3)]
    assert single_process.compute(states) == multi_process.compute(rank_states)
    assert single_process.details(states) == multi_process.details(rank_states)
    assert {row["class"] for row in single_process.details(states)["per_class"] if row["AP50"] is None} == {"plane"}
    files = single_process.files(states)
    assert files == multi_process.files(rank_states) and list(files) == [
        "Task1_ship.txt",
        "Task1_storage_tank.txt",
        "Task1_plane.txt",
    ]
    lines = [line.split() for text in files.values() for line in text.splitlines()]
    assert len(lines) == 5 * 12 and {len(line) for line in lines} == {10}
    first = next(line for line in lines if line[0] == "P0000")
    row = [f"{score:.6f}" for score in IMAGES[0].scores].index(first[1])
    corners = box_corners(torch.from_numpy(IMAGES[0].boxes[row])).flatten()
    assert [float(value) for value in first[2:]] == pytest.approx(corners.tolist(), abs=0.006)
