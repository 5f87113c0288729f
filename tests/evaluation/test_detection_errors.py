"""Detection errors: missed objects, false positives and confused classes."""

from collections.abc import Sequence

import numpy as np
import pytest

from opabinia.contracts import GroundTruth
from opabinia.evaluation.detection import detection_errors
from opabinia.evaluation.detection.base import ImageResult
from opabinia.evaluation.detection.detection_errors import (
    best_min_score,
    confusion,
    error_tables,
    image_iou,
    match_detections,
    worst_images,
)

CAT, DOG, COW = range(3)
Row = tuple[int, list[float]]
HERE, THERE, ELSEWHERE = [0.0, 0, 10, 10], [20.0, 0, 30, 10], [50.0, 50, 60, 60]


def image_result(
    objects: list[Row], detections: list[tuple[int, list[float], float]], crowds: Sequence[Row] = (), name: str = "p"
) -> ImageResult:
    rows = [*objects, *crowds]
    corners = np.array([box for _, box in rows], float).reshape(-1, 4)
    ground_truth = GroundTruth(
        image_id=name,
        size=(100, 100),
        ids=np.arange(len(rows)),
        boxes=np.concatenate([corners[:, :2], corners[:, 2:] - corners[:, :2]], 1),
        labels=np.array([label for label, _ in rows], np.int64),
        areas=np.zeros(len(rows)),
        crowd=np.arange(len(rows)) >= len(objects),
    )
    labels, boxes, scores = ([row[part] for row in detections] for part in range(3))
    box_array = np.array(boxes, np.float32).reshape(-1, 4)
    return ImageResult(
        name, ground_truth, box_array, np.array(scores, np.float32), np.array(labels, np.int64), None, None
    )


def test_each_object_matches_at_most_one_detection() -> None:
    matches = match_detections(
        image_result([(CAT, HERE), (DOG, THERE)], [(CAT, HERE, 0.9), (CAT, HERE, 0.8), (CAT, THERE, 0.9)]), 0.25
    )
    assert matches == ([CAT], [(DOG, CAT)], [], [CAT])


def test_detections_below_the_confidence_are_ignored() -> None:
    result = image_result([(CAT, HERE)], [(CAT, HERE, 0.3)])
    assert match_detections(result, 0.5) == ([], [], [CAT], [])
    assert match_detections(result, 0.25) == ([CAT], [], [], [])


def test_an_iou_of_a_half_is_a_match() -> None:
    assert match_detections(image_result([(CAT, HERE)], [(CAT, [0, 0, 10, 5], 0.9)]), 0.25).right == [CAT]
    assert match_detections(image_result([(CAT, HERE)], [(CAT, [0, 0, 10, 4.9], 0.9)]), 0.25) == ([], [], [CAT], [CAT])


def test_the_same_class_takes_precedence_over_a_higher_iou() -> None:
    matches = match_detections(image_result([(CAT, HERE)], [(DOG, HERE, 0.9), (CAT, [0, 0, 10, 8], 0.5)]), 0.25)
    assert matches == ([CAT], [], [], [DOG])


def test_the_highest_iou_takes_precedence_within_a_class() -> None:
    """The second object would be missed if its box were matched to the first object, which it overlaps as well."""
    objects: list[Row] = [(CAT, [0.0, 0, 10, 10]), (CAT, [3.0, 0, 13, 10])]
    matches = match_detections(image_result(objects, [(CAT, [2, 0, 12, 10], 0.9), (CAT, [0, 0, 10, 10], 0.8)]), 0.25)
    assert matches == ([CAT, CAT], [], [], [])


def test_crowds_are_neither_missed_nor_false() -> None:
    crowds: list[Row] = [(COW, [0.0, 0, 100, 100])]
    assert match_detections(image_result([], [(COW, HERE, 0.9), (CAT, HERE, 0.9)], crowds), 0.25) == ([], [], [], [CAT])


def test_images_without_objects_or_detections() -> None:
    assert match_detections(image_result([], []), 0.25) == ([], [], [], [])
    assert match_detections(image_result([], [(CAT, HERE, 0.9)]), 0.25) == ([], [], [], [CAT])


def test_confusion_with_background() -> None:
    images = [
        image_result([(CAT, HERE), (DOG, THERE), (COW, ELSEWHERE)], [(CAT, HERE, 0.9), (CAT, THERE, 0.9)]),
        image_result([(CAT, HERE), (DOG, THERE)], [(CAT, HERE, 0.9), (CAT, THERE, 0.9), (DOG, ELSEWHERE, 0.9)]),
    ]
    matches = [match_detections(result, 0.25) for result in images]
    assert confusion(matches, 3) == [[DOG, CAT, 2], [COW, 3, 1], [3, DOG, 1], [CAT, CAT, 2]]


def test_worst_images_have_most_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    images = [
        image_result([(CAT, HERE)], [(CAT, HERE, 0.9)], name="right"),
        image_result([(CAT, HERE), (DOG, THERE)], [(CAT, HERE, 0.9)], name="one of two"),
        image_result([(DOG, THERE)], [], name="one of one"),
        image_result([(DOG, THERE)], [(CAT, THERE, 0.9)], name="another"),
    ]
    rows = worst_images(images, [match_detections(result, 0.25) for result in images])
    assert [(row["id"], row["right"], row["missed"], row["false"]) for row in rows] == [
        ("another", 0, 1, 1),
        ("one of one", 0, 1, 0),
        ("one of two", 1, 1, 0),
    ]
    assert rows[0]["image_id"] == "another"
    monkeypatch.setattr(detection_errors, "_MAX_IMAGES", 1)
    assert len(worst_images(images, [match_detections(result, 0.25) for result in images])) == 1


def test_the_error_tables_count_detections_above_the_score_of_best_f1() -> None:
    """98 detections with a score of 0.3 in each image do not count as 98 false positives."""
    noise = [(CAT, [60.0, 60, 61 + number, 70], 0.3) for number in range(98)]
    images = [
        image_result([(CAT, HERE), (DOG, THERE)], [(CAT, HERE, 0.9), (DOG, THERE, 0.8), *noise]) for _ in range(3)
    ]
    tables = error_tables(images, 3, None)
    assert tables["counted"] == {
        "min_score": pytest.approx(0.8),
        "min_iou": 0.5,
        "selected_by": "highest F1",
        "F1": 1.0,
    }
    assert not tables["worst"]
    with_min_score = error_tables(images, 3, 0.25)
    assert (with_min_score["counted"]["selected_by"], with_min_score["worst"][0]["false"]) == ("confidence", 98)


def test_the_score_of_best_f1_by_hand() -> None:
    """F1 with the 1, 2 and 3 best detections is 2/4, 2/5 and 4/6; false positives with the third's score lower it."""
    detections = [(CAT, HERE, 0.9), (CAT, HERE, 0.8), (DOG, THERE, 0.7)]
    objects: list[Row] = [(CAT, HERE), (DOG, THERE), (COW, ELSEWHERE)]
    assert best_min_score([image_result(objects, detections)]) == pytest.approx(0.7)
    false_positives = [(COW, HERE, 0.7)] * 3
    assert best_min_score([image_result(objects, [*detections, *false_positives])]) == pytest.approx(0.9)
    assert best_min_score([image_result(objects, [(COW, HERE, 0.9)])]) == 0.5
    assert best_min_score([image_result(objects, [])]) == 0.5


def test_a_detection_in_a_crowd_does_not_lower_the_best_score() -> None:
    result = image_result([(CAT, HERE)], [(COW, ELSEWHERE, 0.9), (CAT, HERE, 0.8)], [(COW, [40.0, 40, 90, 90])])
    assert error_tables([result], 3, None)["counted"]["F1"] == 1.0


def test_ious_by_hand() -> None:
    objects: list[Row] = [(CAT, [5.0, 0, 15, 10]), (CAT, ELSEWHERE), (CAT, [5, 5, 5, 5])]
    ious = image_iou(image_result(objects, [(CAT, HERE, 0.9), (CAT, [5, 0, 5, 10], 0.9)]))
    assert ious == pytest.approx(np.array([[1 / 3, 0, 0], [0, 0, 0]]))


def test_the_order_of_annotations_and_detections_changes_nothing() -> None:
    random = np.random.default_rng(0)
    corners = random.random((40, 2)) * 60
    boxes = np.concatenate([corners, corners + 5 + random.random((40, 2)) * 30], 1)
    labels = random.integers(3, size=40)
    objects = [(int(label), box.tolist()) for label, box in zip(labels[:15], boxes[:15], strict=True)]
    detections = [(int(label), box.tolist(), 0.9) for label, box in zip(labels[15:], boxes[15:], strict=True)]
    matches = match_detections(image_result(objects, detections), 0.25)
    reversed_matches = match_detections(image_result(objects[::-1], detections[::-1]), 0.25)
    assert [sorted(part) for part in matches] == [sorted(part) for part in reversed_matches]
