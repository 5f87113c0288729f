"""The best threshold of each class, and predictions at these thresholds."""

import json
from typing import Any

import numpy as np
import pytest
import torch

from opabinia.contracts import DatasetInfo, GroundTruth
from opabinia.evaluation.class_thresholds import FILE, best_threshold, class_thresholds
from opabinia.evaluation.detection.base import ImageResult
from opabinia.inference.class_thresholds import apply_thresholds
from opabinia.inference.export import predict_script
from opabinia.visualization.presenters.classes import ClassPresenter
from opabinia.visualization.presenters.detections import DetectionPresenter

CLASSES = ("cat", "dog", "cow")
BOXES = DatasetInfo(samples=1, classes=CLASSES, boxes=True)


def test_the_threshold_is_midway_below_the_scores_with_the_highest_f1() -> None:
    scores, right = np.array([0.6, 0.9, 0.7, 0.8]), np.array([False, True, True, False])
    found = best_threshold(scores, right, positives=2)
    assert found is not None
    assert found == pytest.approx((0.65, 2 / 3, 1.0, 0.8))


def test_equal_scores_are_admitted_together() -> None:
    # F1 at 0.9 is 2/4; at 0.8 with one wrong and one right 4/6; the right one alone would be 1.
    found = best_threshold(np.array([0.9, 0.8, 0.8]), np.array([True, False, True]), positives=3)
    assert found is not None and found == pytest.approx((0.8, 2 / 3, 2 / 3, 4 / 6))


def test_youden_weighs_both_kinds_of_samples_alike() -> None:
    """One positive sample in ten: F1 takes the first sample alone, Youden's J admits a wrong one for the other."""
    scores = np.array([0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05])
    right = np.isin(np.arange(10), (0, 5))
    by_f1, by_youden = best_threshold(scores, right, 2), best_threshold(scores, right, 2, "youden")
    assert by_f1 is not None and by_f1.threshold == pytest.approx(0.85)
    assert by_youden is not None and by_youden.threshold == pytest.approx(0.85)  # J: 1/2 at 0.9 and 1 - 4/8 at 0.4
    later = best_threshold(scores, np.isin(np.arange(10), (0, 4)), 2, "youden")
    assert later is not None and later.threshold == pytest.approx(0.45)  # J: 1 - 3/8


def test_a_class_that_is_never_right_has_no_threshold() -> None:
    assert best_threshold(np.array([0.9]), np.array([False]), positives=3) is None
    assert best_threshold(np.zeros(0), np.zeros(0, bool), positives=0) is None


def image(number: int, boxes: list[tuple[float, str, bool]]) -> ImageResult:
    """Return detections of 10 x 10 pixels side by side: score, class, and whether there is such an object."""
    corners = np.array([[20.0 * cell, 0, 20.0 * cell + 10, 10] for cell in range(len(boxes))]).reshape(-1, 4)
    scores = np.array([score for score, _, _ in boxes])
    labels = np.array([CLASSES.index(name) for _, name, _ in boxes], dtype=np.int64)
    true = np.array([is_right for _, _, is_right in boxes], dtype=bool)
    ground_truth = GroundTruth(
        image_id=number,
        size=(10, 400),
        ids=np.arange(true.sum()),
        boxes=np.concatenate([corners[:, :2], corners[:, 2:] - corners[:, :2]], 1)[true],
        labels=labels[true],
        areas=np.full(true.sum(), 100.0),
        crowd=np.zeros(true.sum(), bool),
    )
    return ImageResult(str(number), ground_truth, corners, scores, labels, None, None)


IMAGES = [
    image(0, [(0.9, "cat", True), (0.3, "cat", False), (0.4, "dog", True)]),
    image(1, [(0.6, "cat", True), (0.2, "dog", True), (0.1, "dog", False), (0.8, "cow", False)]),
]


def test_each_class_of_a_detector_has_its_own_on_any_number_of_processes() -> None:
    evaluator, merging = class_thresholds(BOXES), class_thresholds(BOXES)
    thresholds = evaluator.files([IMAGES])[FILE]  # type: ignore[attr-defined]
    assert thresholds == pytest.approx({"cat": 0.45, "dog": 0.15})
    assert evaluator.compute([IMAGES]) == {"f1_at_thresholds": 1.0}
    assert merging.files([IMAGES[1:], IMAGES[:1]])[FILE] == thresholds  # type: ignore[attr-defined]
    rows = evaluator.details([IMAGES])["class_thresholds"]
    assert [row["class"] for row in rows] == ["cat", "dog"]
    json.dumps(evaluator.details([IMAGES]))


def labeled(evaluator: Any, probabilities: list[list[float]], labels: Any) -> Any:
    evaluator.update({"probabilities": torch.tensor(probabilities)}, {"label": torch.tensor(labels)})
    return evaluator.state()


def test_labels_of_multi_label_data_have_a_threshold_each() -> None:
    info = DatasetInfo(samples=1, classes=CLASSES, multi_label=True)
    probabilities = [[0.9, 0.1, 0.5], [0.8, 0.3, 0.6], [0.2, 0.05, 0.7]]
    labels = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]]
    state = labeled(class_thresholds(info), probabilities, labels)
    found = class_thresholds(info).files([state])[FILE]  # type: ignore[attr-defined]
    assert found == pytest.approx({"cat": 0.85, "dog": 0.2})
    parts = [labeled(class_thresholds(info), probabilities[i : i + 1], labels[i : i + 1]) for i in (2, 0, 1)]
    assert class_thresholds(info).files(parts)[FILE] == found  # type: ignore[attr-defined]
    assert class_thresholds(info).compute([class_thresholds(info).state()]) == {}


def test_of_two_classes_the_second_is_the_positive_one() -> None:
    info = DatasetInfo(samples=1, classes=("healthy", "sick"))
    probabilities = [[0.9, 0.1], [0.7, 0.3], [0.6, 0.4]]
    state = labeled(class_thresholds(info), probabilities, [0, 1, 1])
    found = class_thresholds(info).files([state])[FILE]  # type: ignore[attr-defined]
    assert found == pytest.approx({"healthy": 0.8, "sick": 0.2})
    prediction = {"probabilities": torch.tensor([0.7, 0.3])}
    readable = ClassPresenter(info).readable(apply_thresholds(prediction, found, info.classes))
    assert readable["classes"] == ["sick"] and readable["top"][0]["class"] == "healthy"
    assert ClassPresenter(info).caption(readable) == ["sick"]


@pytest.mark.parametrize(
    ("info", "options", "message"),
    [
        (DatasetInfo(samples=1, classes=CLASSES), {}, "for detection, for several labels per sample"),
        (BOXES, {"criterion": "youden"}, "criterion: detections have no negative samples"),
    ],
)
def test_other_data_is_refused(info: DatasetInfo, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        class_thresholds(info, **options)


DETECTIONS = {
    "boxes": torch.arange(16.0).view(4, 4),
    "scores": torch.tensor([0.8, 0.45, 0.4, 0.0]),
    "labels": torch.tensor([2, 1, 0, -1]),
}


def test_detections_below_the_threshold_of_their_class_become_padding() -> None:
    kept = apply_thresholds(DETECTIONS, {"cat": 0.3, "cow": 0.9}, CLASSES)
    assert kept["labels"].tolist() == [0, -1, -1, -1], "dogs have none: 0.5"
    assert kept["boxes"][0].tolist() == [8, 9, 10, 11]
    rows = DetectionPresenter(BOXES).readable(kept)["detections"]
    assert [(row["class"], row["score"]) for row in rows] == [("cat", 0.4)]


def test_the_script_of_an_export_decides_as_the_library() -> None:
    described = DetectionPresenter(BOXES).readable(DETECTIONS)
    kept = predict_script.at_thresholds(described, {}, list(CLASSES), {"cat": 0.3, "cow": 0.9}, 0.5)
    assert [row["class"] for row in kept["detections"]] == ["cat"]
    several = predict_script.at_thresholds(
        {"class": "cat", "probability": 0.7},
        {"probabilities": np.array([0.7, 0.6, 0.2])},
        list(CLASSES),
        {"cow": 0.1},
        0.65,
    )
    assert several["classes"] == ["cat", "cow"]
