"""LVIS' numbers, beside a small evaluation of our own after the rules of lvis-api."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from opabinia.contracts import GroundTruth
from opabinia.evaluation.detection import coco as coco_module
from opabinia.evaluation.detection.base import ImageResult, sorted_images
from opabinia.evaluation.detection.coco_format import coco_ground_truth, coco_results
from opabinia.evaluation.detection.lvis import Lvis, evaluated_classes
from tests.evaluation.scenes import FACTS, Scene, scene, seen

LVIS = replace(FACTS, masks=False, keypoints=(), frequencies=tuple("rccff"))
AREAS = {"": (0, 1e10), "s": (0, 32**2), "m": (32**2, 96**2), "l": (96**2, 1e10)}


def scenes_of(seed: int, images: int = 6, found: int = 30) -> list[Scene]:
    """Nothing is known of some classes in an image, of others that they are not there, of others not all objects."""
    random = np.random.default_rng(seed)
    result = []
    for number in range(1, images + 1):
        one = scene(number, random, int(random.integers(0, 8)), found)
        there = set(one.ground_truth.labels.tolist())
        absent = tuple(label for label in range(5) if label not in there and random.random() < 0.5)
        partly = tuple(label for label in there if random.random() < 0.3)
        none = np.zeros(len(one.ground_truth.crowd), dtype=bool)
        result.append(
            one._replace(ground_truth=replace(one.ground_truth, absent=absent, not_exhaustive=partly, crowd=none))
        )
    return result


def union_share(one: Sequence[float], other: Sequence[float]) -> float:
    left, top = max(one[0], other[0]), max(one[1], other[1])
    right, bottom = min(one[2], other[2]), min(one[3], other[3])
    shared = max(0.0, right - left) * max(0.0, bottom - top)
    size = (one[2] - one[0]) * (one[3] - one[1]) + (other[2] - other[0]) * (other[3] - other[1])
    return shared / (size - shared)


def marks(
    ground_truth: GroundTruth, image: ImageResult, label: int, threshold: float, area: str
) -> Iterator[tuple[float, bool]]:
    """Score of each object found that counts, and whether it is right."""
    low, high = AREAS[area]
    there = [row for row in range(len(ground_truth.labels)) if ground_truth.labels[row] == label]
    left_out = {row: not low <= ground_truth.areas[row] <= high for row in there}
    there.sort(key=lambda row: left_out[row])
    taken: set[int] = set()
    for row in sorted(np.flatnonzero(image.labels == label), key=lambda row: -image.scores[row]):
        box = image.boxes[row].astype(float)
        best, partner = min(threshold, 1 - 1e-10), -1
        for other in there:
            if other in taken:
                continue
            if partner >= 0 and not left_out[partner] and left_out[other]:
                break
            left, top, width, height = ground_truth.boxes[other]
            share = union_share(box, (left, top, left + width, top + height))
            if share >= best:
                best, partner = share, other
        if partner >= 0:
            taken.add(partner)
            if not left_out[partner]:
                yield float(image.scores[row]), True
            continue
        size = (box[2] - box[0]) * (box[3] - box[1])
        if low <= size <= high and label not in ground_truth.not_exhaustive:
            yield float(image.scores[row]), False


def precision(images: Sequence[ImageResult], label: int, threshold: float, area: str) -> float | None:
    """AP by 101 recalls."""
    low, high = AREAS[area]
    objects = sum(
        int(
            (
                (one.ground_truth.labels == label) & (one.ground_truth.areas >= low) & (one.ground_truth.areas <= high)
            ).sum()
        )
        for one in images
    )
    if not objects:
        return None
    rows = [mark for one in images for mark in marks(one.ground_truth, one, label, threshold, area)]
    right = np.array([hit for _, hit in sorted(rows, key=lambda row: -row[0])], float)
    recalls, shares = right.cumsum() / objects, right.cumsum() / np.arange(1, len(right) + 1)
    best = [shares[recalls >= recall].max(initial=0.0) for recall in np.linspace(0, 1, 101)]
    return float(np.mean(best))


def expected(images: Sequence[ImageResult]) -> dict[str, float]:
    thresholds = np.linspace(0.5, 0.95, 10)

    def mean(labels: Sequence[int], chosen: Sequence[float], area: str = "") -> float:
        values = [precision(images, label, threshold, area) for label in labels for threshold in chosen]
        there = [value for value in values if value is not None]
        return float(np.mean(there)) if there else -1

    every = range(5)
    found = {"AP": mean(every, thresholds), "AP50": mean(every, thresholds[:1]), "AP75": mean(every, thresholds[5:6])}
    found |= {f"AP{area}": mean(every, thresholds, area) for area in "sml"}
    found |= {"APr": mean([0], thresholds), "APc": mean([1, 2], thresholds), "APf": mean([3, 4], thresholds)}
    return {name: value for name, value in found.items() if value >= 0}


@pytest.mark.parametrize("seed", range(6))
def test_beside_the_rules(seed: int) -> None:
    evaluator = Lvis(LVIS)
    states = [seen(evaluator, scenes_of(seed), kinds=())]
    found = evaluator.compute(states)
    images = [evaluated_classes(one) for one in sorted_images(states)]
    assert any(len(one.labels) < len(other.labels) for one, other in zip(images, sorted_images(states), strict=True))
    wanted = expected(images)
    assert {name: value for name, value in found.items() if "AP" in name} == pytest.approx(wanted, rel=0, abs=1e-9)
    assert found.keys() <= evaluator.better.keys()


def test_the_best_of_all_classes_together() -> None:
    """Three objects of a class are left of an image's twenty, when these have the highest scores."""
    scenes = scenes_of(3, images=4, found=20)
    few, states = Lvis(LVIS, max_detections=3), [seen(Lvis(LVIS), scenes, kinds=())]
    cut = [
        one._replace(boxes=one.boxes[:3], scores=one.scores[:3], labels=one.labels[:3])  # they come best first
        for one in scenes
    ]
    whole = Lvis(LVIS)
    wanted = whole.compute([seen(whole, cut, kinds=())])
    found = few.compute(states)
    assert found.pop("AR3") == wanted.pop("AR300")
    assert found == wanted


def test_what_is_not_evaluated_changes_nothing() -> None:
    """A class that is neither in an image nor known to be absent."""
    scenes = scenes_of(1)
    for number, one in enumerate(scenes):
        known = {*one.ground_truth.labels.tolist(), *one.ground_truth.absent}
        kept = [number for number, label in enumerate(one.labels.tolist()) if label in known]
        scenes[number] = one._replace(boxes=one.boxes[kept], scores=one.scores[kept], labels=one.labels[kept])
    with_them, without = Lvis(LVIS), Lvis(LVIS)
    found = with_them.compute([seen(with_them, scenes_of(1), kinds=())])
    assert found == without.compute([seen(without, scenes, kinds=())])


def test_masks() -> None:
    evaluator = Lvis(replace(LVIS, masks=True))
    found = evaluator.compute([seen(evaluator, scenes_of(2), kinds=("masks",))])
    assert {"mask_AP", "mask_APr", "mask_APf"} <= found.keys()
    plain = Lvis(LVIS)
    boxes = plain.compute([seen(plain, scenes_of(2), kinds=())])
    assert boxes.items() <= found.items()


@pytest.mark.parametrize("world", [2, 3])
def test_any_number_of_processes_finds_the_same(world: int) -> None:
    scenes = scenes_of(5, images=8)
    alone, other = Lvis(LVIS), Lvis(LVIS)
    whole = [seen(alone, scenes, kinds=())]
    parts = [seen(Lvis(LVIS), scenes[rank::world], kinds=()) for rank in range(world)]
    assert other.compute(parts) == alone.compute(whole)
    assert other.details(parts) == alone.details(whole)


def test_tables() -> None:
    evaluator = Lvis(LVIS)
    states = [seen(evaluator, scenes_of(5), kinds=())]
    rows = evaluator.details(states)["per_class"]
    assert [row["frequency"] for row in rows] == list("rccff")
    rare = [row["AP"] for row in rows if row["frequency"] == "r"]
    assert rare == [pytest.approx(evaluator.compute(states)["APr"])]


def test_nothing_seen() -> None:
    evaluator = Lvis(LVIS)
    assert evaluator.compute([[]]) == evaluator.details([[]]) == {}


def test_data_that_does_not_tell_frequencies() -> None:
    with pytest.raises(ValueError, match="rare, common or frequent"):
        Lvis(replace(LVIS, frequencies=()))


@pytest.mark.parametrize("kind", ["bbox", "segm", "keypoints"])
@pytest.mark.parametrize("cells", [1, 13])
def test_classes_in_blocks(kind: Any, cells: int) -> None:
    """Too many pairs of images and classes are evaluated one part after the other."""
    scenes = scenes_of(7)
    images = [evaluated_classes(one) for one in sorted_images([seen(coco_module.Coco(FACTS), scenes)])]
    federated = kind != "keypoints"

    def found(cells: int) -> coco_module.PrecisionRecall:
        ground_truth = coco_ground_truth(images, FACTS, kind)
        for entry, image in zip(ground_truth["images"], images, strict=True):
            entry["neg_category_ids"] = list(image.ground_truth.absent)
            entry["not_exhaustive_category_ids"] = list(image.ground_truth.not_exhaustive)
        for category in ground_truth["categories"]:
            category["frequency"] = "f"
        results = coco_results(images, kind)
        return coco_module.precision_recall(ground_truth, results, kind, [20], federated=federated, cells=cells)

    whole, parts = found(10**6), found(cells)
    assert whole.categories == parts.categories
    assert np.array_equal(whole.precision, parts.precision) and np.array_equal(whole.recall, parts.recall)
