"""Which objects are found, missed, or taken for others."""

from collections.abc import Sequence

import numpy as np
import pytest

from opabinia.contracts import GroundTruth
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


def image(
    there: list[Row], found: list[tuple[int, list[float], float]], crowds: Sequence[Row] = (), name: str = "p"
) -> ImageResult:
    rows = [*there, *crowds]
    corners = np.array([box for _, box in rows], float).reshape(-1, 4)
    ground_truth = GroundTruth(
        image_id=name,
        size=(100, 100),
        ids=np.arange(len(rows)),
        boxes=np.concatenate([corners[:, :2], corners[:, 2:] - corners[:, :2]], 1),
        labels=np.array([label for label, _ in rows], np.int64),
        areas=np.zeros(len(rows)),
        crowd=np.arange(len(rows)) >= len(there),
    )
    labels, boxes, scores = ([row[part] for row in found] for part in range(3))
    box_array = np.array(boxes, np.float32).reshape(-1, 4)
    return ImageResult(
        name, ground_truth, box_array, np.array(scores, np.float32), np.array(labels, np.int64), None, None
    )


def test_each_object_in_one_pair() -> None:
    found = match_detections(
        image([(CAT, HERE), (DOG, THERE)], [(CAT, HERE, 0.9), (CAT, HERE, 0.8), (CAT, THERE, 0.9)]), 0.25
    )
    assert found == ([CAT], [(DOG, CAT)], [], [CAT])


def test_what_is_found_with_little_confidence_is_not_found() -> None:
    one = image([(CAT, HERE)], [(CAT, HERE, 0.3)])
    assert match_detections(one, 0.5) == ([], [], [CAT], [])
    assert match_detections(one, 0.25) == ([CAT], [], [], [])


def test_overlap_of_a_half_is_enough() -> None:
    assert match_detections(image([(CAT, HERE)], [(CAT, [0, 0, 10, 5], 0.9)]), 0.25).right == [CAT]
    assert match_detections(image([(CAT, HERE)], [(CAT, [0, 0, 10, 4.9], 0.9)]), 0.25) == ([], [], [CAT], [CAT])


def test_the_same_class_comes_before_more_overlap() -> None:
    found = match_detections(image([(CAT, HERE)], [(DOG, HERE, 0.9), (CAT, [0, 0, 10, 8], 0.5)]), 0.25)
    assert found == ([CAT], [], [], [DOG])


def test_more_overlap_comes_first_within_a_class() -> None:
    """The second box fits both; taken by the first object, it would leave the second one missed."""
    there: list[Row] = [(CAT, [0.0, 0, 10, 10]), (CAT, [3.0, 0, 13, 10])]
    found = match_detections(image(there, [(CAT, [2, 0, 12, 10], 0.9), (CAT, [0, 0, 10, 10], 0.8)]), 0.25)
    assert found == ([CAT, CAT], [], [], [])


def test_crowds_are_neither_missed_nor_false() -> None:
    crowds: list[Row] = [(COW, [0.0, 0, 100, 100])]
    assert match_detections(image([], [(COW, HERE, 0.9), (CAT, HERE, 0.9)], crowds), 0.25) == ([], [], [], [CAT])


def test_empty_images() -> None:
    assert match_detections(image([], []), 0.25) == ([], [], [], [])
    assert match_detections(image([], [(CAT, HERE, 0.9)]), 0.25) == ([], [], [], [CAT])


def test_confusion_with_background() -> None:
    images = [
        image([(CAT, HERE), (DOG, THERE), (COW, ELSEWHERE)], [(CAT, HERE, 0.9), (CAT, THERE, 0.9)]),
        image([(CAT, HERE), (DOG, THERE)], [(CAT, HERE, 0.9), (CAT, THERE, 0.9), (DOG, ELSEWHERE, 0.9)]),
    ]
    matches = [match_detections(one, 0.25) for one in images]
    assert confusion(matches, 3) == [[DOG, CAT, 2], [COW, 3, 1], [3, DOG, 1], [CAT, CAT, 2]]


def test_worst_images() -> None:
    images = [
        image([(CAT, HERE)], [(CAT, HERE, 0.9)], name="right"),
        image([(CAT, HERE), (DOG, THERE)], [(CAT, HERE, 0.9)], name="one of two"),
        image([(DOG, THERE)], [], name="one of one"),
        image([(DOG, THERE)], [(CAT, THERE, 0.9)], name="another"),
    ]
    rows = worst_images(images, [match_detections(one, 0.25) for one in images], 100)
    assert [(row["id"], row["right"], row["missed"], row["false"]) for row in rows] == [
        ("another", 0, 1, 1),
        ("one of one", 0, 1, 0),
        ("one of two", 1, 1, 0),
    ]
    assert rows[0]["image_id"] == "another"
    assert len(worst_images(images, [match_detections(one, 0.25) for one in images], 1)) == 1


def test_the_error_tables_count_detections_from_the_score_with_the_best_f1() -> None:
    """A detector that gives 98 detections of 0.3 in each image: they are not 98 false ones."""
    noise = [(CAT, [60.0, 60, 61 + number, 70], 0.3) for number in range(98)]
    images = [image([(CAT, HERE), (DOG, THERE)], [(CAT, HERE, 0.9), (DOG, THERE, 0.8), *noise]) for _ in range(3)]
    tables = error_tables(images, 3, None)
    assert tables["counted"] == {
        "min_score": pytest.approx(0.8),
        "min_iou": 0.5,
        "selected_by": "highest F1",
        "F1": 1.0,
    }
    assert not tables["worst"]
    given = error_tables(images, 3, 0.25)
    assert (given["counted"]["selected_by"], given["worst"][0]["false"]) == ("confidence", 98)


def test_the_score_with_the_best_f1_by_hand() -> None:
    """F1 of the 1, 2 and 3 best of three objects: 2/4, 2/5 and 4/6; the fourth has the third's score and is wrong."""
    found = [(CAT, HERE, 0.9), (CAT, HERE, 0.8), (DOG, THERE, 0.7)]
    there: list[Row] = [(CAT, HERE), (DOG, THERE), (COW, ELSEWHERE)]
    assert best_min_score([image(there, found)]) == pytest.approx(0.7)
    wrong = [(COW, HERE, 0.7)] * 3
    assert best_min_score([image(there, [*found, *wrong])]) == pytest.approx(0.9)
    assert best_min_score([image(there, [(COW, HERE, 0.9)])]) == 0.5
    assert best_min_score([image(there, [])]) == 0.5


def test_a_detection_in_a_crowd_does_not_lower_the_best_score() -> None:
    one = image([(CAT, HERE)], [(COW, ELSEWHERE, 0.9), (CAT, HERE, 0.8)], [(COW, [40.0, 40, 90, 90])])
    assert error_tables([one], 3, None)["counted"]["F1"] == 1.0


def test_overlaps_by_hand() -> None:
    there: list[Row] = [(CAT, [5.0, 0, 15, 10]), (CAT, ELSEWHERE), (CAT, [5, 5, 5, 5])]
    found = image_iou(image(there, [(CAT, HERE, 0.9), (CAT, [5, 0, 5, 10], 0.9)]))
    assert found == pytest.approx(np.array([[1 / 3, 0, 0], [0, 0, 0]]))


def test_the_order_of_truth_and_of_what_is_found_changes_nothing() -> None:
    random = np.random.default_rng(0)
    corners = random.random((40, 2)) * 60
    boxes = np.concatenate([corners, corners + 5 + random.random((40, 2)) * 30], 1)
    labels = random.integers(3, size=40)
    there = [(int(label), box.tolist()) for label, box in zip(labels[:15], boxes[:15], strict=True)]
    found = [(int(label), box.tolist(), 0.9) for label, box in zip(labels[15:], boxes[15:], strict=True)]
    one = match_detections(image(there, found), 0.25)
    other = match_detections(image(there[::-1], found[::-1]), 0.25)
    assert [sorted(part) for part in one] == [sorted(part) for part in other]
