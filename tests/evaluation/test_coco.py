"""COCO's numbers are pycocotools' numbers, on any number of processes."""

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

from opabinia.contracts import DataMismatch, DatasetInfo, GroundTruth
from opabinia.evaluation.detection.coco import PREFIXES, Coco, ProposalRecall, evaluate_files
from tests.evaluation.scenes import FACTS, HEIGHT, WIDTH, Scene, coco_file, pycocotools, scene, seen

GOLDEN = Path(__file__).parents[1] / "golden" / "detection" / "coco"
EXPECTED: dict[str, Any] = json.loads((GOLDEN / "expected.json").read_text())
close = {"rel": 0, "abs": 1e-9}


def golden(name: str) -> Any:
    return json.loads(gzip.decompress((GOLDEN / f"{name}.gz").read_bytes()))


# --- files in COCO's format -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["val2014_100/bbox", "val2014_100/segm", "fce_keypoints"])
def test_published_scores(name: str) -> None:
    case = EXPECTED[name]
    found = evaluate_files(golden(case["gt"]), golden(case["dt"]), case["iou_type"])
    assert found == pytest.approx(case["stats"], **close)


def test_published_scores_of_data_with_ignored_boxes() -> None:
    case = EXPECTED["fce_ignore"]
    results = [one for one in golden(case["dt"]) if one["score"] >= case["min_score"]]
    names = {"AP_all": "AP", "AP_50": "AP50", "AP_75": "AP75", "AP_medium": "APm", "AR_medium": "ARm"}
    names |= {"AR_all": "AR1", "AR_second": "AR10", "AR_third": "AR100"}
    expected = {short: case["stats"][name] for name, short in names.items()}
    assert evaluate_files(golden(case["gt"]), results, "bbox") == pytest.approx(expected, **close)


def test_the_toy_by_hand() -> None:
    """A medium object found with an overlap of 0.82, a small one found exactly, and between them a false small one:
    detectron2's [63.4983, 83.4983, 83.4983, 50, 70, nothing, 35, 85, 85, 100, 70, nothing]."""
    boxes = [[10, 10, 50, 50], [100, 100, 20, 20]]
    ground_truth = {
        "images": [{"id": 1, "height": 300, "width": 300}],
        "categories": [{"id": 1, "name": "object"}],
        "annotations": [
            {"id": n, "image_id": 1, "category_id": 1, "bbox": box, "area": box[2] * box[3], "iscrowd": 0}
            for n, box in enumerate(boxes, 1)
        ],
    }
    found = [([10, 10, 50, 41], 0.9), ([200, 200, 20, 20], 0.8), ([100, 100, 20, 20], 0.7)]
    results = [{"image_id": 1, "category_id": 1, "bbox": box, "score": score} for box, score in found]
    expected = {"AP": (7 * (51 + 50 * 2 / 3) + 3 * (51 / 3)) / 1010, "AP50": 0.834983, "AP75": 0.834983}
    expected |= {"APs": 0.5, "APm": 0.7, "AR1": 0.35, "AR10": 0.85, "AR100": 0.85, "ARs": 1.0, "ARm": 0.7}
    assert evaluate_files(ground_truth, results) == pytest.approx(expected, abs=1e-6)


def test_files_are_read_and_lists_left_alone(tmp_path: Path) -> None:
    case = EXPECTED["fce_ignore"]
    ground_truth, results = golden(case["gt"]), golden(case["dt"])
    found = evaluate_files(ground_truth, results)
    assert (ground_truth, results) == (golden(case["gt"]), golden(case["dt"]))
    for name, content in (("ground_truth", ground_truth), ("results", results)):
        (tmp_path / name).write_text(json.dumps(content))
    assert evaluate_files(tmp_path / "ground_truth", str(tmp_path / "results")) == found


def test_ids_may_be_text(tmp_path: Path) -> None:
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


def test_objects_without_an_area_have_no_size() -> None:
    ground_truth = coco_file([scene(1, np.random.default_rng(0), 2, 0)])
    del ground_truth["annotations"][0]["area"]
    with pytest.raises(ValueError, match="1 of 2 annotations have no area, by which objects are small, medium"):
        evaluate_files(ground_truth, [])


def test_results_of_an_image_that_is_not_there() -> None:
    ground_truth = coco_file([scene(1, np.random.default_rng(0), 2, 0)])
    with pytest.raises(ValueError, match="not in the ground truth, such as 7"):
        evaluate_files(ground_truth, [{"image_id": 7, "category_id": 1, "bbox": [0, 0, 1, 1], "score": 1}])


def test_what_cannot_be_evaluated_is_reported(tmp_path: Path) -> None:
    ground_truth = coco_file([scene(1, np.random.default_rng(0), 2, 0)])
    (tmp_path / "cut.json").write_text(json.dumps(ground_truth)[:30])
    with pytest.raises(ValueError, match=r"cut\.json is no JSON: "):
        evaluate_files(tmp_path / "cut.json", [])
    with pytest.raises(ValueError, match="an object with images, annotations, categories; results are the second"):
        evaluate_files([], ground_truth)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="results must be a list of detections; ground_truth is the first"):
        evaluate_files(ground_truth, ground_truth)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="kind 'boxes': expected one of bbox, segm, keypoints"):
        evaluate_files(ground_truth, [], "boxes")  # type: ignore[arg-type]


# --- the evaluator, beside pycocotools --------------------------------------------------------------------------------


def scenes_of(seed: int, most: int = 12) -> list[Scene]:
    """Some without objects, some where nothing is found."""
    random = np.random.default_rng(seed)
    counts = random.integers(0, (6, most + 1), size=(7, 2))
    return [scene(3 * number + 5, random, *map(int, row)) for number, row in enumerate(counts)]


def results_of(files: dict[str, Any]) -> dict[str, list[Any]]:
    """Results by kind, as they come back from a file."""
    return {kind: json.loads(json.dumps(files[f"coco_{prefix}results.json"])) for kind, prefix in PREFIXES.items()}


def expected_of(scenes: Sequence[Scene], files: dict[str, Any]) -> dict[str, float]:
    ground_truth = coco_file(scenes)
    return {
        PREFIXES[kind] + name: score
        for kind, results in results_of(files).items()
        for name, score in pycocotools(ground_truth, results, kind).items()
    }


@given(st.integers(0, 2**31))
@settings(max_examples=25, deadline=None)
def test_beside_pycocotools(seed: int) -> None:
    scenes = scenes_of(seed)
    if not any(len(one.scores) for one in scenes):
        return  # pycocotools takes no empty results; see below
    evaluator = Coco(FACTS)
    states = [seen(evaluator, scenes)]
    scores = evaluator.compute(states)
    assert scores == pytest.approx(expected_of(scenes, evaluator.files(states)), **close)
    assert scores.keys() <= evaluator.better.keys()


def test_beside_pycocotools_with_more_than_a_hundred_objects_found() -> None:
    random = np.random.default_rng(4)
    scenes = [scene(number, random, 30, 260) for number in range(1, 4)]
    evaluator = Coco(FACTS)
    states = [seen(evaluator, scenes)]
    assert evaluator.compute(states) == pytest.approx(expected_of(scenes, evaluator.files(states)), **close)


def test_other_numbers_of_detections() -> None:
    scenes = scenes_of(1, 30)
    evaluator = Coco(replace(FACTS, masks=False, keypoints=()), max_detections=(2, 5, 9))
    states = [seen(evaluator, scenes, kinds=())]
    found = evaluator.compute(states)
    results = evaluator.files(states)["coco_results.json"]
    expected = pycocotools(coco_file(scenes), results, "bbox", (2, 5, 9))
    renamed = {"AR1": "AR2", "AR10": "AR5", "AR100": "AR9", "AR": "AR"}
    expected = {renamed.get(name, name): value for name, value in expected.items()}
    del found["AP"]  # pycocotools only knows it of 100
    assert found == pytest.approx({k: v for k, v in expected.items() if k != "AP"}, **close)
    assert evaluate_files(coco_file(scenes), results, max_detections=(9, 5, 2)).items() >= found.items()


def test_results_tell_what_was_found() -> None:
    scenes = scenes_of(2)
    evaluator = Coco(replace(FACTS, category_ids=(1, 2, 3, 4, 90)))
    boxes, _, points = results_of(evaluator.files([seen(evaluator, scenes)])).values()
    row = 0
    for one in scenes:
        for number, box in enumerate(one.boxes.double().tolist()):
            left, top, right, bottom = box
            assert boxes[row]["image_id"] == one.ground_truth.image_id
            assert boxes[row]["category_id"] == (1, 2, 3, 4, 90)[one.labels[number]]
            assert boxes[row]["bbox"] == [left, top, right - left, bottom - top]
            assert boxes[row]["score"] == float(one.scores[number])
            shifted = one.keypoints[number].double() - torch.tensor([0.5, 0.5, 0])
            assert points[row]["keypoints"] == shifted.ravel().tolist()
            row += 1
    assert len(boxes) == len(points) == row


def test_points_are_half_a_pixel_from_the_file() -> None:
    """A point in the middle of the pixel that the file names is exact."""
    one = scene(1, np.random.default_rng(5), 1, 1)
    points = torch.from_numpy(one.ground_truth.keypoints)  # type: ignore[arg-type]
    points[..., 2] = 2
    ground_truth = replace(
        one.ground_truth, keypoints=points.numpy(), crowd=np.array([False]), areas=np.array([4000.0])
    )
    found = torch.cat([points[..., :2] + 0.5, points[..., 2:]], 2).float()
    exact = one._replace(ground_truth=ground_truth, keypoints=found, labels=torch.from_numpy(ground_truth.labels))
    evaluator = Coco(FACTS)
    assert evaluator.compute([seen(evaluator, [exact])])["keypoint_AP"] == pytest.approx(1)


# --- any number of processes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("names", ["numbers", "texts"])
def test_any_number_of_processes_finds_the_same(world: int, names: str) -> None:
    scenes = scenes_of(9, 20)
    if names == "texts":
        scenes = [
            one._replace(ground_truth=replace(one.ground_truth, image_id=f"p{one.ground_truth.image_id}"))
            for one in scenes
        ]
    alone = Coco(FACTS)
    whole = [seen(alone, scenes)]
    evaluators = [Coco(FACTS) for _ in range(world)]
    parts = [seen(one, scenes[rank::world], size=2) for rank, one in enumerate(evaluators)]
    for states in (parts, parts[::-1]):
        other = Coco(FACTS)
        assert other.compute(states) == alone.compute(whole)
        assert other.details(states) == alone.details(whole)
        assert other.files(states) == alone.files(whole)


def test_a_process_without_images() -> None:
    scenes = scenes_of(9)
    evaluator = Coco(FACTS)
    state = seen(evaluator, scenes)
    assert evaluator.compute([state, []]) == evaluator.compute([[], state])


# --- what may be missing ----------------------------------------------------------------------------------------------


def test_no_images_give_no_scores() -> None:
    evaluator = Coco(FACTS)
    assert evaluator.compute([evaluator.state()]) == {}
    assert evaluator.details([evaluator.state()]) == {}


def test_nothing_found_gives_zeros() -> None:
    random = np.random.default_rng(3)
    scenes = [scene(number, random, 6, 0) for number in range(8)]
    evaluator = Coco(FACTS)
    states = [seen(evaluator, scenes)]
    scores = evaluator.compute(states)
    assert set(scores.values()) == {0.0}
    assert {"AP", "AR1", "mask_AP", "keypoint_AP"} <= scores.keys()
    assert evaluator.files(states)["coco_results.json"] == []
    json.dumps(evaluator.details(states), allow_nan=False)


def test_images_without_objects_give_no_scores_but_count() -> None:
    random = np.random.default_rng(3)
    full, empty = scene(1, random, 5, 12), scene(2, random, 0, 12)
    evaluator = Coco(FACTS)
    assert evaluator.compute([seen(evaluator, [empty])]) == {}
    without, with_it = ([seen(Coco(FACTS), scenes)] for scenes in ([full], [full, empty]))
    assert evaluator.compute(with_it)["AP"] < evaluator.compute(without)["AP"]


def test_only_what_data_and_detector_both_have_is_judged() -> None:
    scenes = scenes_of(2)
    boxes = Coco(replace(FACTS, masks=False, keypoints=()))
    assert boxes.better.keys() == {name for name in Coco(FACTS).better if "_" not in name}
    expected = boxes.compute([seen(boxes, scenes)])
    plain = Coco(FACTS)
    assert plain.compute([seen(plain, scenes, kinds=())]) == expected
    masks = Coco(FACTS).compute([seen(Coco(FACTS), scenes, kinds=("masks",))])
    assert {name.split("_")[0] for name in masks if "_" in name} == {"mask"}


def test_a_object_without_mask_is_a_crowd_in_its_box() -> None:
    one = scene(1, np.random.default_rng(1), 4, 9)
    kept = np.array([True, True, False, False])
    segments = [segment if there else [] for segment, there in zip(one.ground_truth.segments, kept, strict=True)]  # type: ignore[arg-type]
    unknown = one._replace(ground_truth=replace(one.ground_truth, segments=segments))
    left, top, width, height = one.ground_truth.boxes.T
    filled = np.stack([left, top, left, top + height, left + width, top + height, left + width, top], 1).tolist()
    boxes = [segment if there else [box] for segment, there, box in zip(segments, kept, filled, strict=True)]
    crowds = one._replace(ground_truth=replace(one.ground_truth, segments=boxes, crowd=one.ground_truth.crowd | ~kept))
    found, expected = (Coco(FACTS).compute([seen(Coco(FACTS), [each])]) for each in (unknown, crowds))
    masks = {name: value for name, value in found.items() if name.startswith("mask")}
    assert masks == {name: value for name, value in expected.items() if name.startswith("mask")} != {}
    bare = one._replace(ground_truth=replace(one.ground_truth, segments=None))
    assert "AP" in Coco(FACTS).compute([seen(Coco(FACTS), [bare])])


@pytest.mark.parametrize("name", ["boxes", "scores", "keypoints"])
def test_what_is_not_finite_is_reported(name: str) -> None:
    one = scene(1, np.random.default_rng(1), 4, 9)
    values = getattr(one, name).clone()
    values.view(-1)[3] = float("nan")
    evaluator = Coco(FACTS)
    with pytest.raises(DataMismatch, match=r"val/1\.jpg .*not finite"):
        evaluator.compute([seen(evaluator, [one._replace(**{name: values})])])


@pytest.mark.parametrize(
    ("dataset_info", "keys", "match"),
    [
        (replace(FACTS, keypoints=("tip", "base")), {}, "sigmas: the data has 2 keypoints"),
        (replace(FACTS, keypoints=("tip", "base")), {"sigmas": [0.1]}, "sigmas: 1 numbers for 2 keypoints"),
        (FACTS, {"max_detections": []}, "max_detections"),
        (FACTS, {"max_detections": [10, 10]}, "max_detections"),
    ],
)
def test_keys_that_do_not_fit(dataset_info: DatasetInfo, keys: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        Coco(dataset_info, **keys)


def test_sigmas_of_other_points() -> None:
    """Twice the sigma, twice the distance: the same likeness."""
    dataset_info = replace(FACTS, masks=False, keypoints=("tip",))
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
        one = Scene(ground_truth, box, torch.ones(1), torch.zeros(1, dtype=torch.long), torch.zeros(1), point)
        evaluator = Coco(dataset_info, sigmas=[0.05 * factor])
        scores.append(evaluator.compute([seen(evaluator, [one], kinds=("keypoints",))])["keypoint_AP"])
    # exp(-36 / (2 * (2 * 0.05)^2 * 10000)) = 0.835: found at seven of ten thresholds
    assert scores == pytest.approx([0.7, 0.7])


# --- tables -----------------------------------------------------------------------------------------------------------


def test_tables() -> None:
    scenes = scenes_of(11, 20)
    evaluator = Coco(FACTS)
    states = [seen(evaluator, scenes)]
    scores, tables = evaluator.compute(states), evaluator.details(states)
    json.dumps(tables, allow_nan=False)
    rows = tables["per_class"]
    assert [row["class"] for row in rows] == list(FACTS.classes)
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
    """Of two objects one is found by the best proposal (IoU 1), the other by the 150th; all proposals have label 0."""
    boxes = [[0.0, 0, 40, 40], [100, 100, 40, 39]]
    areas, ids = np.array([1600.0, 1560]), np.arange(2)
    truth = GroundTruth("a", (150, 200), ids, np.array(boxes), np.array([1, 2]), areas, np.zeros(2, bool))
    proposals = torch.zeros(1, 151, 4)
    proposals[0, :, 2:] = 1
    proposals[0, 0], proposals[0, 149] = torch.tensor([0.0, 0, 40, 40]), torch.tensor([100.0, 100, 140, 139])
    evaluator = ProposalRecall(FACTS)
    predictions = {
        "boxes": proposals,
        "scores": torch.linspace(1, 0.1, 151)[None],
        "labels": torch.zeros(1, 151, dtype=torch.int64),
    }
    evaluator.update(predictions, {"id": ["a"], "ground_truth": [truth]})
    scores = evaluator.compute([evaluator.state()])
    assert (scores["AR1000"], scores["AR100"]) == (1, 0.5) and next(iter(evaluator.better)) == "AR1000"
