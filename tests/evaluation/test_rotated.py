"""DOTA's mAP against a plain loop after its development kit, with polygons clipped by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from opabinia.contracts import DatasetInfo, GroundTruth
from opabinia.contracts.rotated_boxes import box_corners
from opabinia.evaluation.detection.base import ImageResult
from opabinia.evaluation.detection.coco import Coco
from opabinia.evaluation.detection.rotated import DotaMap
from opabinia.evaluation.detection.voc import area_under_curve, eleven_point_average
from tests.models.test_rotated_boxes import clipped_iou, random_boxes

INFO = DatasetInfo(samples=0, classes=("ship", "storage/tank", "plane"), boxes=True, oriented=True)


def image_of(number: int) -> ImageResult:
    """Five objects, one of them difficult, and twelve detections near them, some of other classes."""
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


def by_the_kit(label: int, threshold: float, year: int) -> float:
    """In order of their scores; of objects of the class the one with the largest IoU counts."""
    rows = [(float(image.scores[row]), image, row) for image in IMAGES for row in np.flatnonzero(image.labels == label)]
    taken, marks = set(), []
    for _, image, row in sorted(rows, key=lambda row: -row[0]):
        own = np.flatnonzero(image.ground_truth.labels == label)
        objects = random_boxes(5, seed=int(image.name))
        ious = [clipped_iou(objects[index], torch.from_numpy(image.boxes[row])) for index in own]
        best = own[int(np.argmax(ious))] if len(own) else -1
        if not len(own) or max(ious) <= threshold:
            marks.append(0)
        elif not image.ground_truth.crowd[best]:
            marks.append(int((image.name, best) not in taken))
            taken.add((image.name, best))
    count = sum(int(((image.ground_truth.labels == label) & ~image.ground_truth.crowd).sum()) for image in IMAGES)
    return (eleven_point_average if year == 2007 else area_under_curve)(np.array(marks), count)


def test_scores_of_the_development_kit() -> None:
    for year in (2007, 2012):
        scores = DotaMap(INFO, year=year).compute([IMAGES])  # type: ignore[arg-type]
        for name, threshold in (("AP50", 0.5), ("AP75", 0.75)):
            expected = np.mean([by_the_kit(label, threshold, year) for label in (0, 1)])
            assert 0.05 < scores[name] == pytest.approx(expected, abs=1e-9)
    assert list(DotaMap(INFO).better) == ["AP50", "AP75", "AP"]


def test_any_number_of_processes_and_the_files() -> None:
    whole, parts = DotaMap(INFO), DotaMap(INFO)
    states, shares = [IMAGES], [IMAGES[rank::3] for rank in range(3)]
    assert whole.compute(states) == parts.compute(shares)
    assert whole.details(states) == parts.details(shares)
    assert {row["class"] for row in whole.details(states)["per_class"] if row["AP50"] is None} == {"plane"}
    files = whole.files(states)
    assert files == parts.files(shares) and list(files) == [
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


def test_a_batch_and_the_wrong_data() -> None:
    image = IMAGES[0]
    boxes, scores, labels = (torch.from_numpy(np.ascontiguousarray(rows))[None] for rows in image[2:5])
    predictions = {"boxes": boxes.float(), "scores": scores, "labels": labels}
    batch = {
        "id": ["a"],
        "ground_truth": [image.ground_truth],
        "image_sizes": [(50, 50)],
        "original_size": [(100, 100)],
    }
    half = random_boxes(5) * torch.tensor([0.5, 0.5, 0.5, 0.5, 1])
    evaluator = DotaMap(INFO)
    evaluator.update(predictions, {**batch, "boxes": [half[[0, 1, 2, 4]].float()]})
    assert evaluator.compute([evaluator.state()])["AP50"] == pytest.approx(DotaMap(INFO).compute([[image]])["AP50"])
    with pytest.raises(ValueError, match="boxes of the data are oriented: take dota_map"):
        Coco(INFO)
    with pytest.raises(ValueError, match="boxes of the data are upright: take coco or voc"):
        DotaMap(replace(INFO, oriented=False))
