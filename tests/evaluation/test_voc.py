"""VOC's numbers, by hand and beside a plain loop after the development kit."""

import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from opabinia.evaluation.detection.base import ImageResult, sorted_images
from opabinia.evaluation.detection.voc import Voc, area_under_curve, eleven_point_average
from tests.evaluation.scenes import FACTS, Scene, scene, seen
from tests.evaluation.test_detection_errors import CAT, DOG, ELSEWHERE, HERE, THERE, Row, image

PLAIN = replace(FACTS, masks=False, keypoints=())


def scenes_of(seed: int) -> list[Scene]:
    random = np.random.default_rng(seed)
    return [scene(number, random, int(random.integers(0, 8)), int(random.integers(0, 30))) for number in range(9)]


def by_the_kit(images: Sequence[ImageResult], label: int, threshold: float, year: int) -> float | None:
    """Boxes are numbers of pixels from 1, the last one included; areas count pixels."""
    there = {one.name: np.flatnonzero(one.ground_truth.labels == label).tolist() for one in images}
    truths = {one.name: one.ground_truth for one in images}
    objects = sum(not truths[name].crowd[row] for name, rows in there.items() for row in rows)
    if not objects:
        return None
    found = [
        (one.scores[row], one.name, one.boxes[row] + np.array([1.0, 1, 0, 0]))
        for one in images
        for row in np.flatnonzero(one.labels == label)
    ]
    found.sort(key=lambda one: -one[0])
    taken, marks = set(), []
    for _, name, box in found:
        best, row_of_best = -1.0, -1
        for row in there[name]:
            left, top, width, height = truths[name].boxes[row]
            other = np.array([left + 1, top + 1, left + width, top + height])
            starts, ends = np.maximum(box[:2], other[:2]), np.minimum(box[2:], other[2:])
            shared = np.maximum(ends - starts + 1, 0).prod()
            share = shared / ((box[2:] - box[:2] + 1).prod() + (other[2:] - other[:2] + 1).prod() - shared)
            if share > best:
                best, row_of_best = share, row
        if best > threshold and truths[name].crowd[row_of_best]:
            continue
        marks.append(best > threshold and (name, row_of_best) not in taken)
        if best > threshold:
            taken.add((name, row_of_best))
    right = np.array(marks, float)
    recall, precision = right.cumsum() / objects, right.cumsum() / np.arange(1, len(right) + 1)
    if year == 2007:
        return float(np.mean([precision[recall >= tenth / 10].max(initial=0.0) for tenth in range(11)]))
    edges, heights = np.array([0, *recall, 1]), np.array([0, *precision, 0])
    for place in range(len(heights) - 2, -1, -1):
        heights[place] = max(heights[place], heights[place + 1])
    return float((np.diff(edges) * heights[1:]).sum())


@pytest.mark.parametrize("year", [2007, 2012])
@pytest.mark.parametrize("seed", range(5))
def test_beside_the_kit(seed: int, year: int) -> None:
    evaluator = Voc(PLAIN, year=year)
    states = [seen(evaluator, scenes_of(seed), kinds=())]
    images = sorted_images(states)
    table = [
        [by_the_kit(images, label, threshold / 100, year) for label in range(5)] for threshold in range(50, 100, 5)
    ]
    means = [np.mean([value for value in row if value is not None]) for row in table]
    wanted = {"AP50": means[0], "AP75": means[5], "AP": np.mean(means)}
    assert evaluator.compute(states) == pytest.approx(wanted, rel=0, abs=1e-9)
    rows = evaluator.details(states)["per_class"]
    assert [row["AP50"] for row in rows] == pytest.approx(table[0], abs=1e-9)


def scores_of(images: Sequence[ImageResult], year: int = 2012) -> dict[str, float]:
    return Voc(PLAIN, year=year).compute([list(images)])  # type: ignore[arg-type]


def test_ious_below_a_half() -> None:
    evaluator, plain = Voc(PLAIN, ious=[0.3, 0.125]), Voc(PLAIN)
    scenes = scenes_of(3)
    states = [seen(evaluator, scenes, kinds=())]
    scores = evaluator.compute(states)
    assert list(evaluator.better) == ["AP50", "AP75", "AP30", "AP12.5", "AP"]
    assert plain.compute([seen(plain, scenes, kinds=())]).items() < scores.items()
    expected = [by_the_kit(sorted_images(states), label, 0.3, 2012) for label in range(5)]
    assert scores["AP30"] == pytest.approx(np.mean([value for value in expected if value is not None]))
    row = evaluator.details(states)["per_class"][0]
    assert list(row) == ["class", "objects", *evaluator.better]


def test_averages_by_hand() -> None:
    right = np.array([1, 0, 1])
    assert area_under_curve(right, 2) == pytest.approx((1 + 2 / 3) / 2)
    assert eleven_point_average(right, 2) == pytest.approx((6 + 5 * 2 / 3) / 11)
    assert area_under_curve(right[:0], 2) == eleven_point_average(right[:0], 2) == 0
    assert eleven_point_average(np.array([1, 1, 1]), 10) == pytest.approx(4 / 11), "3 of 10 is a recall of 0.3"


def test_an_overlap_of_just_a_half_is_too_little() -> None:
    assert scores_of([image([(CAT, HERE)], [(CAT, [0, 0, 10, 5], 0.9)])])["AP50"] == 0
    assert scores_of([image([(CAT, HERE)], [(CAT, [0, 0, 10, 5.1], 0.9)])])["AP50"] == 1


def test_difficult_objects() -> None:
    """What is found there is neither right nor false, and they need not be found."""
    difficult: list[Row] = [(CAT, THERE), (DOG, HERE)]
    one = image([(CAT, HERE)], [(CAT, THERE, 0.9), (CAT, THERE, 0.8), (CAT, HERE, 0.7)], difficult)
    assert scores_of([one]) == {"AP50": 1, "AP75": 1, "AP": 1}


def test_a_object_found_twice_is_false_once() -> None:
    one = image([(CAT, HERE), (CAT, THERE)], [(CAT, HERE, 0.9), (CAT, HERE, 0.8), (CAT, THERE, 0.7)])
    assert scores_of([one])["AP50"] == pytest.approx((1 + 2 / 3) / 2)


def test_images_without_objects_count() -> None:
    there, empty = image([(CAT, HERE)], [(CAT, HERE, 0.5)]), image([], [(CAT, ELSEWHERE, 0.9)], name="q")
    assert scores_of([there])["AP50"] == 1
    assert scores_of([there, empty])["AP50"] == 0.5
    assert scores_of([empty]) == scores_of([]) == {}
    assert Voc(PLAIN).details([[]]) == {}


def test_nothing_found_gives_zeros() -> None:
    one = image([(CAT, HERE)], [])
    assert scores_of([one]) == {"AP50": 0, "AP75": 0, "AP": 0}
    json.dumps(Voc(PLAIN).details([[one]]), allow_nan=False)


@pytest.mark.parametrize("world", [2, 3])
def test_any_number_of_processes_finds_the_same(world: int) -> None:
    whole = [seen(Voc(PLAIN), scenes_of(2), kinds=())]
    parts = [seen(Voc(PLAIN), scenes_of(2)[rank::world], kinds=()) for rank in range(world)]
    assert Voc(PLAIN).compute(parts) == Voc(PLAIN).compute(whole)
    assert Voc(PLAIN).details(parts) == Voc(PLAIN).details(whole)
