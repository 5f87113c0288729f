"""LVIS scores against a small reference implementation of the rules of lvis-api."""

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
from tests.evaluation.scenes import DATASET_INFO, Scene, make_scene, state_after

LVIS = replace(DATASET_INFO, masks=False, keypoints=(), frequencies=tuple("rccff"))
AREAS = {"": (0, 1e10), "s": (0, 32**2), "m": (32**2, 96**2), "l": (96**2, 1e10)}


def scenes_of(seed: int, images: int = 6, num_detections: int = 30) -> list[Scene]:
    """Return scenes where a class may be present, known to be absent, not exhaustively annotated, or unknown."""
    random = np.random.default_rng(seed)
    scenes = []
    for number in range(1, images + 1):
        scene = make_scene(number, random, int(random.integers(0, 8)), num_detections)
        present = set(scene.ground_truth.labels.tolist())
        absent = tuple(label for label in range(5) if label not in present and random.random() < 0.5)
        not_exhaustive = tuple(label for label in present if random.random() < 0.3)
        no_crowds = np.zeros(len(scene.ground_truth.crowd), dtype=bool)
        scenes.append(
            scene._replace(
                ground_truth=replace(scene.ground_truth, absent=absent, not_exhaustive=not_exhaustive, crowd=no_crowds)
            )
        )
    return scenes


def iou(box: Sequence[float], other_box: Sequence[float]) -> float:
    left, top = max(box[0], other_box[0]), max(box[1], other_box[1])
    right, bottom = min(box[2], other_box[2]), min(box[3], other_box[3])
    shared = max(0.0, right - left) * max(0.0, bottom - top)
    total_area = (box[2] - box[0]) * (box[3] - box[1]) + (other_box[2] - other_box[0]) * (other_box[3] - other_box[1])
    return shared / (total_area - shared)


def scored_detections(
    ground_truth: GroundTruth, image: ImageResult, label: int, threshold: float, area: str
) -> Iterator[tuple[float, bool]]:
    """Yield the score of each detection that counts, and whether it is a true positive."""
    low, high = AREAS[area]
    rows = [row for row in range(len(ground_truth.labels)) if ground_truth.labels[row] == label]
    ignored = {row: not low <= ground_truth.areas[row] <= high for row in rows}
    rows.sort(key=lambda row: ignored[row])
    matched: set[int] = set()
    for row in sorted(np.flatnonzero(image.labels == label), key=lambda row: -image.scores[row]):
        box = image.boxes[row].astype(float)
        best, match = min(threshold, 1 - 1e-10), -1
        for candidate in rows:
            if candidate in matched:
                continue
            if match >= 0 and not ignored[match] and ignored[candidate]:
                break
            left, top, width, height = ground_truth.boxes[candidate]
            overlap = iou(box, (left, top, left + width, top + height))
            if overlap >= best:
                best, match = overlap, candidate
        if match >= 0:
            matched.add(match)
            if not ignored[match]:
                yield float(image.scores[row]), True
            continue
        area_of_box = (box[2] - box[0]) * (box[3] - box[1])
        if low <= area_of_box <= high and label not in ground_truth.not_exhaustive:
            yield float(image.scores[row]), False


def precision(images: Sequence[ImageResult], label: int, threshold: float, area: str) -> float | None:
    """Return the AP of a class over 101 recall thresholds, or None without objects."""
    low, high = AREAS[area]
    num_objects = sum(
        int(
            (
                (image.ground_truth.labels == label)
                & (image.ground_truth.areas >= low)
                & (image.ground_truth.areas <= high)
            ).sum()
        )
        for image in images
    )
    if not num_objects:
        return None
    detections = [
        detection
        for image in images
        for detection in scored_detections(image.ground_truth, image, label, threshold, area)
    ]
    correct = np.array([is_correct for _, is_correct in sorted(detections, key=lambda row: -row[0])], float)
    recalls, precisions = correct.cumsum() / num_objects, correct.cumsum() / np.arange(1, len(correct) + 1)
    best = [precisions[recalls >= recall].max(initial=0.0) for recall in np.linspace(0, 1, 101)]
    return float(np.mean(best))


def expected_scores(images: Sequence[ImageResult]) -> dict[str, float]:
    thresholds = np.linspace(0.5, 0.95, 10)

    def mean(labels: Sequence[int], ious: Sequence[float], area: str = "") -> float:
        values = [precision(images, label, threshold, area) for label in labels for threshold in ious]
        present = [value for value in values if value is not None]
        return float(np.mean(present)) if present else -1

    all_labels = range(5)
    scores = {
        "AP": mean(all_labels, thresholds),
        "AP50": mean(all_labels, thresholds[:1]),
        "AP75": mean(all_labels, thresholds[5:6]),
    }
    scores |= {f"AP{area}": mean(all_labels, thresholds, area) for area in "sml"}
    scores |= {"APr": mean([0], thresholds), "APc": mean([1, 2], thresholds), "APf": mean([3, 4], thresholds)}
    return {name: value for name, value in scores.items() if value >= 0}


@pytest.mark.parametrize("seed", range(6))
def test_scores_equal_the_reference(seed: int) -> None:
    evaluator = Lvis(replace(LVIS, masks=True))
    states = [state_after(evaluator, scenes_of(seed), kinds=("masks",))]
    scores = evaluator.compute(states)
    assert {"mask_AP", "mask_APf"} <= scores.keys()
    images = [evaluated_classes(image) for image in sorted_images(states)]
    assert any(
        len(image.labels) < len(original.labels) for image, original in zip(images, sorted_images(states), strict=True)
    )
    expected = expected_scores(images)
    assert {name: value for name, value in scores.items() if name.startswith("AP")} == pytest.approx(
        expected, rel=0, abs=1e-9
    )
    assert scores.keys() <= evaluator.better.keys()


def test_max_detections_limits_all_classes_together() -> None:
    """Only the three detections with the highest scores of an image's twenty count, whatever their classes."""
    scenes = scenes_of(3, images=4, num_detections=20)
    limited, states = Lvis(LVIS, max_detections=3), [state_after(Lvis(LVIS), scenes, kinds=())]
    best_detections = [
        scene._replace(boxes=scene.boxes[:3], scores=scene.scores[:3], labels=scene.labels[:3])  # sorted by score
        for scene in scenes
    ]
    unlimited = Lvis(LVIS)
    expected = unlimited.compute([state_after(unlimited, best_detections, kinds=())])
    scores = limited.compute(states)
    assert scores.pop("AR3") == expected.pop("AR300")
    assert scores == expected


def test_detections_of_unverified_classes_change_no_score() -> None:
    """An unverified class is neither present in an image nor known to be absent."""
    scenes = scenes_of(1)
    for number, scene in enumerate(scenes):
        verified = {*scene.ground_truth.labels.tolist(), *scene.ground_truth.absent}
        rows = [number for number, label in enumerate(scene.labels.tolist()) if label in verified]
        scenes[number] = scene._replace(boxes=scene.boxes[rows], scores=scene.scores[rows], labels=scene.labels[rows])
    evaluator, filtered_evaluator = Lvis(LVIS), Lvis(LVIS)
    scores = evaluator.compute([state_after(evaluator, scenes_of(1), kinds=())])
    assert scores == filtered_evaluator.compute([state_after(filtered_evaluator, scenes, kinds=())])


def test_tables() -> None:
    evaluator = Lvis(LVIS)
    states = [state_after(evaluator, scenes_of(5), kinds=())]
    rows = evaluator.details(states)["per_class"]
    assert [row["frequency"] for row in rows] == list("rccff")
    rare = [row["AP"] for row in rows if row["frequency"] == "r"]
    assert rare == [pytest.approx(evaluator.compute(states)["APr"])]


@pytest.mark.parametrize("kind", ["bbox", "segm", "keypoints"])
@pytest.mark.parametrize("cells", [1, 13])
def test_classes_in_blocks(kind: Any, cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many pairs of images and classes are evaluated in blocks, with the same result."""
    scenes = scenes_of(7)
    images = [
        evaluated_classes(image) for image in sorted_images([state_after(coco_module.Coco(DATASET_INFO), scenes)])
    ]
    federated = kind != "keypoints"

    def evaluate() -> coco_module.PrecisionRecall:
        ground_truth = coco_ground_truth(images, DATASET_INFO, kind)
        for entry, image in zip(ground_truth["images"], images, strict=True):
            entry["neg_category_ids"] = list(image.ground_truth.absent)
            entry["not_exhaustive_category_ids"] = list(image.ground_truth.not_exhaustive)
        for category in ground_truth["categories"]:
            category["frequency"] = "f"
        results = coco_results(images, kind)
        return coco_module.precision_recall(ground_truth, results, kind, [20], federated=federated)

    expected = evaluate()
    monkeypatch.setattr(coco_module, "_CELLS", cells)
    blocks = evaluate()
    assert expected.categories == blocks.categories
    assert np.array_equal(expected.precision, blocks.precision) and np.array_equal(expected.recall, blocks.recall)
