"""COCO scores equal those of pycocotools, on any number of processes."""

import gzip
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from opabinia.contracts import DataMismatch, GroundTruth
from opabinia.evaluation.detection.coco import PREFIXES, Coco, ProposalRecall, evaluate_files
from tests.evaluation.scenes import (
    DATASET_INFO,
    HEIGHT,
    WIDTH,
    Scene,
    coco_file,
    make_scene,
    pycocotools_scores,
    state_after,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "detection" / "coco"
EXPECTED: dict[str, Any] = json.loads((GOLDEN / "expected.json").read_text())
close = {"rel": 0, "abs": 1e-9}


def golden(name: str) -> Any:
    return json.loads(gzip.decompress((GOLDEN / f"{name}.gz").read_bytes()))


# --- files in COCO's format -------------------------------------------------------------------------------------------


def test_published_scores_of_data_with_ignored_boxes() -> None:
    case = EXPECTED["fce_ignore"]
    results = [result for result in golden(case["dt"]) if result["score"] >= case["min_score"]]
    names = {"AP_all": "AP", "AP_50": "AP50", "AP_75": "AP75", "AP_medium": "APm", "AR_medium": "ARm"}
    names |= {"AR_all": "AR1", "AR_second": "AR10", "AR_third": "AR100"}
    expected = {short: case["stats"][name] for name, short in names.items()}
    assert evaluate_files(golden(case["gt"]), results, "bbox") == pytest.approx(expected, **close)


def test_two_objects_by_hand() -> None:
    """A medium object detected with an IoU of 0.82, a small one detected exactly, and a false positive scored between:
    detectron2's [63.4983, 83.4983, 83.4983, 50, 70, nan, 35, 85, 85, 100, 70, nan]."""
    boxes = [[10, 10, 50, 50], [100, 100, 20, 20]]
    ground_truth = {
        "images": [{"id": 1, "height": 300, "width": 300}],
        "categories": [{"id": 1, "name": "object"}],
        "annotations": [
            {"id": n, "image_id": 1, "category_id": 1, "bbox": box, "area": box[2] * box[3], "iscrowd": 0}
            for n, box in enumerate(boxes, 1)
        ],
    }
    detections = [([10, 10, 50, 41], 0.9), ([200, 200, 20, 20], 0.8), ([100, 100, 20, 20], 0.7)]
    results = [{"image_id": 1, "category_id": 1, "bbox": box, "score": score} for box, score in detections]
    expected = {"AP": (7 * (51 + 50 * 2 / 3) + 3 * (51 / 3)) / 1010, "AP50": 0.834983, "AP75": 0.834983}
    expected |= {"APs": 0.5, "APm": 0.7, "AR1": 0.35, "AR10": 0.85, "AR100": 0.85, "ARs": 1.0, "ARm": 0.7}
    assert evaluate_files(ground_truth, results) == pytest.approx(expected, abs=1e-6)


def test_files_are_read_and_lists_are_not_modified(tmp_path: Path) -> None:
    case = EXPECTED["fce_ignore"]
    ground_truth, results = golden(case["gt"]), golden(case["dt"])
    scores = evaluate_files(ground_truth, results)
    assert (ground_truth, results) == (golden(case["gt"]), golden(case["dt"]))
    for name, content in (("ground_truth", ground_truth), ("results", results)):
        (tmp_path / name).write_text(json.dumps(content))
    assert evaluate_files(tmp_path / "ground_truth", str(tmp_path / "results")) == scores


def test_ids_may_be_strings(tmp_path: Path) -> None:
    case = EXPECTED["val2014_100/bbox"]
    ground_truth, results = golden(case["gt"]), golden(case["dt"])
    for rows, keys in (
        (ground_truth["images"], ("id",)),
        (ground_truth["categories"], ("id",)),
        (ground_truth["annotations"], ("id", "image_id", "category_id")),
        (results, ("image_id", "category_id")),
    ):
        for row in rows:
            row |= {key: f"no {row[key]:012d}" for key in keys}
    results.append({**results[0], "category_id": "unknown", "score": 1.0})
    assert evaluate_files(ground_truth, results) == pytest.approx(case["stats"], **close)


UNKNOWN_IMAGE = {"image_id": 7, "category_id": 1, "bbox": [0, 0, 1, 1], "score": 1}
FILE = coco_file([make_scene(1, np.random.default_rng(0), 2, 0)])
NO_AREA = {**FILE, "annotations": [{"id": 9, "image_id": 1, "category_id": 1}, *FILE["annotations"]]}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((NO_AREA, []), "1 of 3 annotations have no area, by which objects are small, medium"),
        ((FILE, [UNKNOWN_IMAGE]), "not in the ground truth, such as 7"),
        (([], FILE), "an object with images, annotations, categories; results are the second"),
        ((FILE, FILE), "results must be a list of detections; ground_truth is the first"),
        ((FILE, [], "boxes"), "kind 'boxes': expected one of bbox, segm, keypoints"),
        ((Path(__file__), []), r"test_coco\.py is no JSON: "),
    ],
)
def test_files_that_cannot_be_evaluated_are_reported(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        evaluate_files(*arguments)


# --- the evaluator against pycocotools --------------------------------------------------------------------------------


def scenes_of(seed: int, max_detections: int = 12) -> list[Scene]:
    """Return scenes; some have no objects, some no detections."""
    random = np.random.default_rng(seed)
    counts = random.integers(0, (6, max_detections + 1), size=(7, 2))
    return [make_scene(3 * number + 5, random, *map(int, row)) for number, row in enumerate(counts)]


def results_by_kind(files: dict[str, Any]) -> dict[str, list[Any]]:
    """Return results by kind, as read from a file."""
    return {kind: json.loads(json.dumps(files[f"coco_{prefix}results.json"])) for kind, prefix in PREFIXES.items()}


def expected_scores(
    scenes: Sequence[Scene], files: dict[str, Any], library: tuple[Any, Any] = (COCO, COCOeval)
) -> dict[str, float]:
    ground_truth = coco_file(scenes)
    return {
        PREFIXES[kind] + name: score
        for kind, results in results_by_kind(files).items()
        for name, score in pycocotools_scores(ground_truth, results, kind, library=library).items()
    }


def check_scores(scenes: Sequence[Scene]) -> None:
    evaluator = Coco(DATASET_INFO)
    states = [state_after(evaluator, scenes)]
    assert evaluator.compute(states) == pytest.approx(expected_scores(scenes, evaluator.files(states)), **close)


@given(st.integers(0, 2**31))
@settings(max_examples=25, deadline=None)
def test_scores_equal_pycocotools(seed: int) -> None:
    scenes = scenes_of(seed)
    if any(len(scene.scores) for scene in scenes):  # pycocotools takes no empty results; see below
        check_scores(scenes)


def test_scores_equal_pycocotools_with_more_than_a_hundred_detections() -> None:
    random = np.random.default_rng(4)
    check_scores([make_scene(number, random, 30, 260) for number in range(1, 4)])


def test_scores_with_other_max_detections() -> None:
    scenes = scenes_of(1, 30)
    evaluator = Coco(replace(DATASET_INFO, masks=False, keypoints=()), max_detections=(2, 5, 9))
    states = [state_after(evaluator, scenes, kinds=())]
    scores = evaluator.compute(states)
    results = evaluator.files(states)["coco_results.json"]
    expected = pycocotools_scores(coco_file(scenes), results, "bbox", (2, 5, 9))
    renamed = {"AR1": "AR2", "AR10": "AR5", "AR100": "AR9", "AR": "AR"}
    expected = {renamed.get(name, name): value for name, value in expected.items()}
    del scores["AP"]  # pycocotools computes it only for 100 detections
    assert scores == pytest.approx({name: value for name, value in expected.items() if name != "AP"}, **close)
    assert evaluate_files(coco_file(scenes), results, max_detections=(9, 5, 2)).items() >= scores.items()


def test_results_files_list_the_detections() -> None:
    scenes = scenes_of(2)
    evaluator = Coco(replace(DATASET_INFO, category_ids=(1, 2, 3, 4, 90)))
    boxes, _, points = results_by_kind(evaluator.files([state_after(evaluator, scenes)])).values()
    row = 0
    for scene in scenes:
        for number, box in enumerate(scene.boxes.double().tolist()):
            left, top, right, bottom = box
            assert boxes[row]["image_id"] == scene.ground_truth.image_id
            assert boxes[row]["category_id"] == (1, 2, 3, 4, 90)[scene.labels[number]]
            assert boxes[row]["bbox"] == [left, top, right - left, bottom - top]
            assert boxes[row]["score"] == float(scene.scores[number])
            shifted = scene.keypoints[number].double() - torch.tensor([0.5, 0.5, 0])
            assert points[row]["keypoints"] == shifted.ravel().tolist()
            row += 1
    assert len(boxes) == len(points) == row


def test_keypoints_are_half_a_pixel_from_those_in_the_file() -> None:
    """A keypoint at the centre of the pixel in the file is exact. Annotated ones count that are not visible (1)."""
    scene = make_scene(1, np.random.default_rng(5), 1, 1)
    points = torch.from_numpy(scene.ground_truth.keypoints)  # type: ignore[arg-type]
    points[..., 2] = 1
    ground_truth = replace(
        scene.ground_truth, keypoints=points.numpy(), crowd=np.array([False]), areas=np.array([4000.0])
    )
    keypoints = torch.cat([points[..., :2] + 0.5, points[..., 2:]], 2).float()
    exact = scene._replace(ground_truth=ground_truth, keypoints=keypoints, labels=torch.from_numpy(ground_truth.labels))
    evaluator = Coco(DATASET_INFO)
    assert evaluator.compute([state_after(evaluator, [exact])])["keypoint_AP"] == pytest.approx(1)


# --- missing data -----------------------------------------------------------------------------------------------------


def test_no_detections_give_zeros() -> None:
    random = np.random.default_rng(3)
    scenes = [make_scene(number, random, 6, 0) for number in range(8)]
    evaluator = Coco(DATASET_INFO)
    states = [state_after(evaluator, scenes)]
    scores = evaluator.compute(states)
    assert set(scores.values()) == {0.0}
    assert {"AP", "AR1", "mask_AP", "keypoint_AP"} <= scores.keys()
    assert evaluator.files(states)["coco_results.json"] == []
    json.dumps(evaluator.details(states), allow_nan=False)


def test_false_positives_in_images_without_objects_count() -> None:
    random = np.random.default_rng(3)
    full, empty = make_scene(1, random, 5, 12), make_scene(2, random, 0, 12)
    evaluator = Coco(DATASET_INFO)
    assert evaluator.compute([state_after(evaluator, [empty])]) == {}
    without_empty, with_empty = ([state_after(Coco(DATASET_INFO), scenes)] for scenes in ([full], [full, empty]))
    assert evaluator.compute(with_empty)["AP"] < evaluator.compute(without_empty)["AP"]


def test_only_kinds_that_data_and_detector_both_have_are_evaluated() -> None:
    scenes = scenes_of(2)
    boxes = Coco(replace(DATASET_INFO, masks=False, keypoints=()))
    assert boxes.better.keys() == {name for name in Coco(DATASET_INFO).better if "_" not in name}
    expected = boxes.compute([state_after(boxes, scenes)])
    evaluator = Coco(DATASET_INFO)
    assert evaluator.compute([state_after(evaluator, scenes, kinds=())]) == expected
    masks = Coco(DATASET_INFO).compute([state_after(Coco(DATASET_INFO), scenes, kinds=("masks",))])
    assert {name.split("_")[0] for name in masks if "_" in name} == {"mask"}


def test_an_object_without_mask_is_a_crowd_in_its_box() -> None:
    scene = make_scene(1, np.random.default_rng(1), 4, 9)
    has_mask = np.array([True, True, False, False])
    original = zip(scene.ground_truth.segments, has_mask, strict=True)  # type: ignore[arg-type]
    segments = [segment if present else [] for segment, present in original]
    without_masks = scene._replace(ground_truth=replace(scene.ground_truth, segments=segments))
    left, top, width, height = scene.ground_truth.boxes.T
    filled = np.stack([left, top, left, top + height, left + width, top + height, left + width, top], 1).tolist()
    boxes = [segment if present else [box] for segment, present, box in zip(segments, has_mask, filled, strict=True)]
    with_crowds = scene._replace(
        ground_truth=replace(scene.ground_truth, segments=boxes, crowd=scene.ground_truth.crowd | ~has_mask)
    )
    scores, expected = (
        Coco(DATASET_INFO).compute([state_after(Coco(DATASET_INFO), [variant])])
        for variant in (without_masks, with_crowds)
    )
    masks = {name: value for name, value in scores.items() if name.startswith("mask")}
    assert masks == {name: value for name, value in expected.items() if name.startswith("mask")} != {}
    bare = scene._replace(ground_truth=replace(scene.ground_truth, segments=None))
    assert "AP" in Coco(DATASET_INFO).compute([state_after(Coco(DATASET_INFO), [bare])])


@pytest.mark.parametrize("name", ["boxes", "scores", "keypoints"])
def test_non_finite_predictions_are_reported(name: str) -> None:
    scene = make_scene(1, np.random.default_rng(1), 4, 9)
    values = getattr(scene, name).clone()
    values.view(-1)[3] = float("nan")
    evaluator = Coco(DATASET_INFO)
    with pytest.raises(DataMismatch, match=r"val/1\.jpg .*not finite"):
        evaluator.compute([state_after(evaluator, [scene._replace(**{name: values})])])


def test_sigmas_of_custom_keypoints() -> None:
    """Twice the sigma at twice the distance gives the same OKS."""
    dataset_info = replace(DATASET_INFO, masks=False, keypoints=("tip",))
    ground_truth = GroundTruth(
        image_id=1,
        size=(HEIGHT, WIDTH),
        ids=np.array([1]),
        boxes=np.array([[0.0, 0, 100, 100]]),
        labels=np.array([0]),
        areas=np.array([10000.0]),
        crowd=np.array([False]),
        keypoints=np.array([[[50.0, 50, 2]]]),
    )
    scores = []
    for factor in (1, 2):
        point = torch.tensor([[[50.5 + 6 * factor, 50.5, 1]]])
        box = torch.tensor([[0.0, 0, 100, 100]])
        scene = Scene(ground_truth, box, torch.ones(1), torch.zeros(1, dtype=torch.long), torch.zeros(1), point)
        evaluator = Coco(dataset_info, sigmas=[0.05 * factor])
        scores.append(evaluator.compute([state_after(evaluator, [scene], kinds=("keypoints",))])["keypoint_AP"])
    # exp(-36 / (2 * (2 * 0.05)^2 * 10000)) = 0.835: detected at seven of ten thresholds
    assert scores == pytest.approx([0.7, 0.7])


# --- tables -----------------------------------------------------------------------------------------------------------


def test_tables() -> None:
    scenes = scenes_of(11, 20)
    evaluator = Coco(DATASET_INFO)
    states = [state_after(evaluator, scenes)]
    scores, tables = evaluator.compute(states), evaluator.details(states)
    json.dumps(tables, allow_nan=False)
    rows = tables["per_class"]
    assert [row["class"] for row in rows] == list(DATASET_INFO.classes)
    for name in ("AP", "AP50", "mask_AP", "keypoint_AP"):
        assert np.mean([row[name] for row in rows if row[name] is not None]) == pytest.approx(scores[name])
    assert np.mean([row["AR"] for row in rows if row["AR"] is not None]) == pytest.approx(scores["AR100"])
    assert rows[-1] == {"class": "e", "objects": 0} | dict.fromkeys(
        ("AP", "AP50", "AR", "mask_AP", "keypoint_AP"), None
    )
    curves = tables["precision_recall"]
    assert np.mean(curves["0.5"]) == pytest.approx(scores["AP50"])
    assert np.mean(curves["0.75"]) == pytest.approx(scores["AP75"])
    assert np.mean(curves["0.5:0.95"]) == pytest.approx(scores["AP"])
    assert len(curves["recall"]) == len(curves["0.5"]) == 101


def test_the_recall_of_proposals_ignores_classes() -> None:
    """One of two objects matches the best proposal (IoU 1), the other the 150th; all proposals have label 0."""
    boxes = [[0.0, 0, 40, 40], [100, 100, 40, 39]]
    areas, ids = np.array([1600.0, 1560]), np.arange(2)
    ground_truth = GroundTruth("a", (150, 200), ids, np.array(boxes), np.array([1, 2]), areas, np.zeros(2, bool))
    proposals = torch.zeros(1, 151, 4)
    proposals[0, :, 2:] = 1
    proposals[0, 0], proposals[0, 149] = torch.tensor([0.0, 0, 40, 40]), torch.tensor([100.0, 100, 140, 139])
    evaluator = ProposalRecall(DATASET_INFO)
    predictions = {
        "boxes": proposals,
        "scores": torch.linspace(1, 0.1, 151)[None],
        "labels": torch.zeros(1, 151, dtype=torch.int64),
    }
    evaluator.update(predictions, {"id": ["a"], "ground_truth": [ground_truth]})
    scores = evaluator.compute([evaluator.state()])
    assert (scores["AR1000"], scores["AR100"]) == (1, 0.5) and next(iter(evaluator.better)) == "AR1000"
