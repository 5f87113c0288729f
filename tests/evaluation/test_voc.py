"""VOC scores, by hand and against a loop that follows the development kit."""

import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from opabinia.evaluation.detection.base import ImageResult, sorted_images
from opabinia.evaluation.detection.voc import Voc, area_under_curve, eleven_point_average
from tests.evaluation.scenes import DATASET_INFO, Scene, make_scene, state_after
from tests.evaluation.test_detection_errors import CAT, DOG, ELSEWHERE, HERE, THERE, Row, image_result

BOXES_ONLY = replace(DATASET_INFO, masks=False, keypoints=())


def scenes_of(seed: int) -> list[Scene]:
    random = np.random.default_rng(seed)
    return [make_scene(number, random, int(random.integers(0, 8)), int(random.integers(0, 30))) for number in range(9)]


def reference_ap(images: Sequence[ImageResult], label: int, threshold: float, year: int) -> float | None:
    """Return a class's AP; box coordinates are pixel numbers from 1, inclusive, and areas count pixels."""
    rows_by_image = {image.name: np.flatnonzero(image.ground_truth.labels == label).tolist() for image in images}
    ground_truths = {image.name: image.ground_truth for image in images}
    num_objects = sum(not ground_truths[name].crowd[row] for name, rows in rows_by_image.items() for row in rows)
    if not num_objects:
        return None
    detections = [
        (image.scores[row], image.name, image.boxes[row] + np.array([1.0, 1, 0, 0]))
        for image in images
        for row in np.flatnonzero(image.labels == label)
    ]
    detections.sort(key=lambda detection: -detection[0])
    matched, is_correct = set(), []
    for _, name, box in detections:
        best, best_row = -1.0, -1
        for row in rows_by_image[name]:
            left, top, width, height = ground_truths[name].boxes[row]
            truth_box = np.array([left + 1, top + 1, left + width, top + height])
            starts, ends = np.maximum(box[:2], truth_box[:2]), np.minimum(box[2:], truth_box[2:])
            shared = np.maximum(ends - starts + 1, 0).prod()
            iou = shared / ((box[2:] - box[:2] + 1).prod() + (truth_box[2:] - truth_box[:2] + 1).prod() - shared)
            if iou > best:
                best, best_row = iou, row
        if best > threshold and ground_truths[name].crowd[best_row]:
            continue
        is_correct.append(best > threshold and (name, best_row) not in matched)
        if best > threshold:
            matched.add((name, best_row))
    correct = np.array(is_correct, float)
    recall, precision = correct.cumsum() / num_objects, correct.cumsum() / np.arange(1, len(correct) + 1)
    if year == 2007:
        return float(np.mean([precision[recall >= tenth / 10].max(initial=0.0) for tenth in range(11)]))
    edges, heights = np.array([0, *recall, 1]), np.array([0, *precision, 0])
    for position in range(len(heights) - 2, -1, -1):
        heights[position] = max(heights[position], heights[position + 1])
    return float((np.diff(edges) * heights[1:]).sum())


@pytest.mark.parametrize("year", [2007, 2012])
@pytest.mark.parametrize("seed", range(5))
def test_scores_equal_the_reference(seed: int, year: int) -> None:
    evaluator = Voc(BOXES_ONLY, year=year)
    states = [state_after(evaluator, scenes_of(seed), kinds=())]
    images = sorted_images(states)
    table = [
        [reference_ap(images, label, threshold / 100, year) for label in range(5)] for threshold in range(50, 100, 5)
    ]
    means = [np.mean([value for value in row if value is not None]) for row in table]
    expected = {"AP50": means[0], "AP75": means[5], "AP": np.mean(means)}
    assert evaluator.compute(states) == pytest.approx(expected, rel=0, abs=1e-9)
    rows = evaluator.details(states)["per_class"]
    assert [row["AP50"] for row in rows] == pytest.approx(table[0], abs=1e-9)


def voc_scores(images: Sequence[ImageResult], year: int = 2012) -> dict[str, float]:
    return Voc(BOXES_ONLY, year=year).compute([list(images)])  # type: ignore[arg-type]


def test_scores_at_ious_below_a_half() -> None:
    evaluator, default_evaluator = Voc(BOXES_ONLY, ious=[0.3, 0.125]), Voc(BOXES_ONLY)
    scenes = scenes_of(3)
    states = [state_after(evaluator, scenes, kinds=())]
    scores = evaluator.compute(states)
    assert list(evaluator.better) == ["AP50", "AP75", "AP30", "AP12.5", "AP"]
    assert default_evaluator.compute([state_after(default_evaluator, scenes, kinds=())]).items() < scores.items()
    expected = [reference_ap(sorted_images(states), label, 0.3, 2012) for label in range(5)]
    assert scores["AP30"] == pytest.approx(np.mean([value for value in expected if value is not None]))
    row = evaluator.details(states)["per_class"][0]
    assert list(row) == ["class", "objects", *evaluator.better]


def test_averages_by_hand() -> None:
    correct = np.array([1, 0, 1])
    assert area_under_curve(correct, 2) == pytest.approx((1 + 2 / 3) / 2)
    assert eleven_point_average(correct, 2) == pytest.approx((6 + 5 * 2 / 3) / 11)
    assert area_under_curve(correct[:0], 2) == eleven_point_average(correct[:0], 2) == 0
    assert eleven_point_average(np.array([1, 1, 1]), 10) == pytest.approx(4 / 11), "3 of 10 is a recall of 0.3"


def test_an_iou_of_exactly_a_half_is_no_match() -> None:
    assert voc_scores([image_result([(CAT, HERE)], [(CAT, [0, 0, 10, 5], 0.9)])])["AP50"] == 0
    assert voc_scores([image_result([(CAT, HERE)], [(CAT, [0, 0, 10, 5.1], 0.9)])])["AP50"] == 1


def test_difficult_objects_are_ignored() -> None:
    """Detections of difficult objects are ignored, and missed ones do not count."""
    difficult: list[Row] = [(CAT, THERE), (DOG, HERE)]
    result = image_result([(CAT, HERE)], [(CAT, THERE, 0.9), (CAT, THERE, 0.8), (CAT, HERE, 0.7)], difficult)
    assert voc_scores([result]) == {"AP50": 1, "AP75": 1, "AP": 1}


def test_a_duplicate_detection_is_a_false_positive() -> None:
    result = image_result([(CAT, HERE), (CAT, THERE)], [(CAT, HERE, 0.9), (CAT, HERE, 0.8), (CAT, THERE, 0.7)])
    assert voc_scores([result])["AP50"] == pytest.approx((1 + 2 / 3) / 2)


def test_false_positives_in_images_without_objects_count() -> None:
    with_object, empty = (
        image_result([(CAT, HERE)], [(CAT, HERE, 0.5)]),
        image_result([], [(CAT, ELSEWHERE, 0.9)], name="q"),
    )
    assert voc_scores([with_object])["AP50"] == 1
    assert voc_scores([with_object, empty])["AP50"] == 0.5
    assert voc_scores([empty]) == voc_scores([]) == {}
    assert Voc(BOXES_ONLY).details([[]]) == {}


def test_no_detections_give_zeros() -> None:
    result = image_result([(CAT, HERE)], [])
    assert voc_scores([result]) == {"AP50": 0, "AP75": 0, "AP": 0}
    json.dumps(Voc(BOXES_ONLY).details([[result]]), allow_nan=False)
