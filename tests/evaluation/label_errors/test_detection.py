"""Suspicious boxes: cases computed by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from opabinia.contracts import DataMismatch, GroundTruth
from opabinia.evaluation.label_errors.detection import (
    MISPLACED,
    OTHER_CLASS,
    OVERLOOKED,
    TWICE,
    DetectionCheck,
    annotated_twice,
    badly_located,
    box_iou,
    class_scores,
    nearest_predictions,
    of_other_class,
    overlooked,
    strongest,
)

IOU = np.array([[0.8, 0.0], [0.1, 0.3], [0.0, 0.0]])
"""Of three predictions with two objects."""
SAME = np.array([[True, False], [True, True], [True, False]])
CONFIDENCE = np.array([1.0, 0.5, 0.9])


def test_typical_scores_of_right_predictions() -> None:
    scores, labels = np.array([0.9, 0.7, 0.2, 0.6]), np.array([0, 0, 0, 1])
    right = np.array([True, True, False, True])
    assert class_scores(scores, labels, right, 3).tolist() == pytest.approx([0.8, 0.6, 2.2 / 3])
    assert class_scores(scores, labels, np.zeros(4, dtype=bool), 2).tolist() == [1, 1]
    assert class_scores(scores[:0], labels[:0], right[:0], 2).tolist() == [1, 1]


def test_the_prediction_of_an_object_is_of_its_class_and_confident() -> None:
    assert nearest_predictions(IOU, SAME, CONFIDENCE).tolist() == [0, 1]
    assert nearest_predictions(IOU, ~SAME, CONFIDENCE).tolist() == [-1, -1]
    assert nearest_predictions(np.zeros((0, 2)), np.zeros((0, 2), dtype=bool), np.zeros(0)).tolist() == [-1, -1]
    weak = np.array([[0.7], [0.4]])
    assert nearest_predictions(weak, weak > 0, np.array([0.1, 1.0])).tolist() == [1]


def test_overlooked_objects_are_predictions_that_belong_to_no_box() -> None:
    assert overlooked(IOU, np.array([0, 1]), CONFIDENCE).tolist() == pytest.approx([0, 0, 0.9])
    nothing = np.zeros(0, dtype=np.int64)
    assert overlooked(np.zeros((2, 0)), nothing, np.array([1.0, 0.5])).tolist() == [1, 0.5]


def test_an_overlooked_object_is_listed_once() -> None:
    iou = np.array([[1, 0.3, 0.1], [0.3, 1, 0.9], [0.1, 0.9, 1]])
    assert strongest(np.array([0.5, 0.9, 0.8]), iou).tolist() == [0, 0.9, 0]
    assert strongest(np.array([0.9, 0.5, 0.8]), iou).tolist() == [0.9, 0, 0.8]


def test_badly_located_boxes_have_their_prediction_elsewhere() -> None:
    assert badly_located(IOU, np.array([0, 1]), CONFIDENCE).tolist() == pytest.approx([0.2, 0.35])
    assert badly_located(IOU, np.array([-1, -1]), CONFIDENCE).tolist() == [0, 0]


def test_other_classes() -> None:
    iou, same = np.array([[0.9], [0.5]]), np.array([[False], [True]])
    assert of_other_class(iou, same, np.array([1.0, 0.4])).tolist() == pytest.approx([0.9 * 0.8])
    assert of_other_class(iou, ~same, np.array([1.0, 0.4])).tolist() == pytest.approx([0.2 * 0.1])
    assert of_other_class(np.zeros((0, 1)), np.zeros((0, 1), dtype=bool), np.zeros(0)).tolist() == [0]


def test_of_two_boxes_the_worse_is_the_duplicate() -> None:
    boxes = np.array([[0.0, 0, 10, 10], [0, 0, 10, 9], [0, 0, 10, 10], [20, 20, 30, 30]])
    labels, support = np.array([0, 0, 1, 0]), np.array([0.8, 0.95, 0.9, 0.9])
    iou = box_iou(boxes)
    assert iou[0].tolist() == pytest.approx([1, 0.9, 1, 0])
    assert annotated_twice(iou, labels, support).tolist() == pytest.approx([0.9, 0, 0, 0])
    assert annotated_twice(iou, labels, np.ones(4)).tolist() == pytest.approx([0, 0.9, 0, 0])  # equal ones: the later
    assert annotated_twice(np.zeros((0, 0)), labels[:0], support[:0]).tolist() == []


# --- the check --------------------------------------------------------------------------------------------------------


def check_of(annotated: list[tuple[int, list[float]]], predicted: list[tuple[int, float, list[float]]], **fields: Any):  # type: ignore[no-untyped-def]
    """The check of one image; boxes are left, top, right, bottom."""
    boxes = np.array([box for _, box in annotated], dtype=np.float64).reshape(-1, 4)
    boxes[:, 2:] -= boxes[:, :2]
    count = len(annotated)
    truth = {
        "image_id": 1,
        "size": (100, 100),
        "ids": np.arange(count),
        "boxes": boxes,
        "labels": np.array([label for label, _ in annotated], dtype=np.int64),
        "areas": boxes[:, 2:].prod(1),
        "crowd": np.zeros(count, dtype=bool),
    }
    check = DetectionCheck()
    predictions = {
        "boxes": torch.tensor([[box for _, _, box in predicted] + [[0.0] * 4]]),
        "scores": torch.tensor([[score for _, score, _ in predicted] + [0.0]]),
        "labels": torch.tensor([[label for label, _, _ in predicted] + [-1]]),
    }
    check.update(predictions, {"id": ["a.png"], "ground_truth": [GroundTruth(**{**truth, **fields})]})
    return check


CLASSES = ["cat", "dog"]
PLACES = [[0.0, 0, 20, 20], [30.0, 0, 50, 20], [0.0, 30, 20, 50], [30.0, 30, 50, 50], [60.0, 60, 80, 80]]
RIGHT = [(number % 2, 0.8, place) for number, place in enumerate(PLACES)]
ANNOTATED = [(label, place) for label, _, place in RIGHT]


def issues_of(check: DetectionCheck) -> list[tuple[str, str, str]]:
    return [(s.issue, s.label, s.predicted) for s in DetectionCheck.find([check], CLASSES).suspects]


def test_agreement_is_not_suspicious() -> None:
    assert issues_of(check_of(ANNOTATED, RIGHT)) == []


def test_each_damage_is_one_suspect() -> None:
    removed = check_of(ANNOTATED[1:], RIGHT)
    assert issues_of(removed) == [(OVERLOOKED, "", "cat")]
    (suspect,) = DetectionCheck.find([removed], CLASSES).suspects
    assert suspect.box is None and suspect.place == suspect.predicted_box == (0, 0, 20, 20)
    assert suspect.score == pytest.approx(1) and "cat is predicted with score 0.80, typical" in suspect.reason

    moved = check_of([(0, [10.0, 0, 30, 20]), *ANNOTATED[1:]], RIGHT)
    assert issues_of(moved) == [(MISPLACED, "cat", "cat")]
    (suspect,) = DetectionCheck.find([moved], CLASSES).suspects
    assert suspect.score == pytest.approx(2 / 3) and suspect.place == (10, 0, 30, 20)
    assert suspect.reason == "the predicted cat has score 0.80 and IoU 0.33"

    changed = check_of([(1, PLACES[0]), *ANNOTATED[1:]], RIGHT)
    assert issues_of(changed) == [(OTHER_CLASS, "dog", "cat")]
    (suspect,) = DetectionCheck.find([changed], CLASSES).suspects
    assert suspect.reason == "cat is predicted with score 0.80 and IoU 1.00, dog with IoU 0.00"

    twice = check_of([*ANNOTATED, (0, [0.0, 0, 20, 18])], RIGHT)
    assert issues_of(twice) == [(TWICE, "cat", "cat")]
    facts = DetectionCheck.find([twice], CLASSES).facts
    assert facts["annotated objects"] == "6" and facts[f"issue {TWICE}"] == "1" and facts[f"issue {OVERLOOKED}"] == "0"


def test_predictions_in_crowds_and_of_classes_that_are_not_exhaustively_annotated_are_not_overlooked() -> None:
    crowd = np.array([True, False, False, False, False])
    inside = (0, 0.8, [5.0, 5, 15, 15])
    assert issues_of(check_of(ANNOTATED, [inside, *RIGHT[1:]], crowd=crowd)) == []
    assert issues_of(check_of(ANNOTATED[1:], RIGHT, not_exhaustive=(0,))) == []


def test_images_without_predictions_or_objects() -> None:
    assert issues_of(check_of(ANNOTATED, [])) == []
    assert issues_of(check_of([], RIGHT[:1])) == [(OVERLOOKED, "", "cat")]
    assert issues_of(check_of([], [])) == []


def test_predictions_that_are_not_finite_are_an_error() -> None:
    check = check_of(ANNOTATED, [(0, float("nan"), PLACES[0])])
    with pytest.raises(DataMismatch, match=r"a\.png has a box, score or keypoint that is not finite"):
        DetectionCheck.find([check], CLASSES)
