"""Calibration of detection scores to precisions."""

from typing import Any

import numpy as np
import pytest
import torch

from opabinia.contracts import DatasetInfo, GroundTruth
from opabinia.evaluation.detection.base import ImageResult
from opabinia.evaluation.detection.score_calibration import (
    FILE,
    ScoreCalibration,
    calibrate,
    calibration_error,
    fit_scores,
)
from opabinia.tasks.detection.score_calibration import ScoreMaps

CLASSES = ("cat", "dog", "cow")


def images_of(count: int) -> list[ImageResult]:
    """Return images with a cat or a dog in each of 20 cells, and a single cow. The precision of detections with score s
    is its square (cats) or its root (dogs)."""
    random = np.random.default_rng(0)
    results = []
    for number in range(count):
        scores, labels = random.uniform(0.02, 0.98, 21), np.append(random.integers(0, 2, 20), 2)
        is_correct = random.random(21) < np.where(labels == 0, scores**2, scores**0.5)
        corners = np.array([[20.0 * cell, 0, 20.0 * cell + 10, 10] for cell in range(21)])
        ground_truth = GroundTruth(
            image_id=number,
            size=(10, 420),
            ids=np.arange(is_correct.sum()),
            boxes=np.concatenate([corners[:, :2], corners[:, 2:] - corners[:, :2]], 1)[is_correct],
            labels=labels[is_correct],
            areas=np.full(is_correct.sum(), 100.0),
            crowd=np.zeros(is_correct.sum(), bool),
        )
        count = 21 if number == 0 else 20
        detections = corners[:count], scores[:count], labels[:count]
        results.append(ImageResult(str(number), ground_truth, *detections, None, None))
    return results


def test_scores_become_precisions() -> None:
    evaluator = ScoreCalibration(DatasetInfo(samples=1, classes=CLASSES, boxes=True))
    states = images_of(120)
    scores = evaluator.compute([states])
    assert scores["d_ece"] > 0.15 and scores["d_ece_calibrated"] < 0.07
    assert list(evaluator.better) == list(reversed(scores))
    merging = ScoreCalibration(DatasetInfo(samples=1, classes=CLASSES, boxes=True))
    assert merging.compute([states[1::2], states[::2]]) == scores, "on two processes"
    rows = evaluator.details([states])["score_calibration"]
    assert [row["class"] for row in rows] == list(CLASSES) and rows[2]["d_ece"] is None
    assert all(row["d_ece_calibrated"] < row["d_ece"] for row in rows[:2])

    maps: Any = evaluator.files([states])[FILE]
    assert maps.keys() == {"cat", "dog"}, "too few cows"
    for name, power in (("cat", 2), ("dog", 0.5)):
        assert calibrate(np.array([0.3, 0.8]), *maps[name]) == pytest.approx(np.array([0.3, 0.8]) ** power, abs=0.07)
    empty = ScoreCalibration(DatasetInfo(samples=1, classes=CLASSES, boxes=True), min_score=1.0)
    assert empty.compute([states]) == {} and empty.files([states]) == {FILE: {}}


def test_maps_are_applied_to_tensors() -> None:
    maps = {"cat": (2.0, -1.0), "cow": (0.5, 0.25)}
    scores, labels = torch.tensor([[0.0, 0.25, 0.5, 1.0, 0.0]]), torch.tensor([[0, 0, 1, 2, -1]])
    calibrated = ScoreMaps(maps, CLASSES)(scores, labels)
    expected = [*calibrate(np.array([0.0, 0.25]), 2, -1), 0.5, *calibrate(np.array([1.0]), 0.5, 0.25), 0]
    assert calibrated[0].tolist() == pytest.approx(expected, abs=1e-5)
    assert ScoreMaps(maps, CLASSES).state_dict() == {}
    for invalid_maps, message in (({"pig": (1.0, 0.0)}, "no class 'pig'"), ({"cat": (0.0, 0.0)}, "it must be above 0")):
        with pytest.raises(ValueError, match=message):
            ScoreMaps(invalid_maps, CLASSES)


def test_fits_and_errors() -> None:
    assert calibration_error(np.array([0.9, 0.9, 0.2]), np.array([1, 0, 0]), 10) == pytest.approx(1 / 3)
    scores = np.linspace(0.1, 0.9, 40)
    assert fit_scores(scores, (scores < 0.5).astype(np.int64)) is None
    separable_fit = fit_scores(scores, (scores > 0.2).astype(np.int64))
    assert separable_fit is not None and separable_fit[0] < 10, "the map of separable classes is finite"
