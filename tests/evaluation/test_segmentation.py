"""Segmentation: scores of detectron2, panopticapi and the authors of Boundary IoU, on any number of processes."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from opabinia.contracts import Batch, DataMismatch, DatasetInfo, GroundTruthMap, Predictions
from opabinia.evaluation.segmentation.panoptic import Panoptic
from opabinia.evaluation.segmentation.semantic import Semantic

GOLDEN = Path(__file__).parents[1] / "golden" / "segmentation"
EXPECTED: dict[str, Any] = json.loads((GOLDEN / "expected.json").read_text())
MAPS = np.load(GOLDEN / "maps.npz")
Row = tuple[GroundTruthMap, dict[str, torch.Tensor]]


def info(classes: int, countable: Sequence[int] = ()) -> DatasetInfo:
    return DatasetInfo(samples=0, classes=tuple(map(str, range(classes))), maps=True, thing_labels=tuple(countable))


def rows_of(case: str) -> list[dict[str, np.ndarray[Any, Any]]]:
    names = [name.removeprefix(f"{case}/") for name in MAPS.files if name.startswith(f"{case}/")]
    numbers = sorted({int(name.split("/")[0]) for name in names})
    keys = sorted({name.split("/")[1] for name in names})
    return [{key: MAPS[f"{case}/{number}/{key}"] for key in keys} for number in numbers]


def semantic_row(number: int, true: Any, predicted: Any) -> Row:
    return GroundTruthMap(number, np.array(true, np.uint8)), {"segmentation": torch.tensor(predicted)}


def semantic_rows(case: str) -> list[Row]:
    return [semantic_row(number, **row) for number, row in enumerate(rows_of(f"semantic/{case}"))]


def panoptic_rows(case: str) -> list[Row]:
    rows = []
    for number, row in enumerate(rows_of(f"panoptic/{case}")):
        segments, labels = row["segments"].astype(np.int32), row["labels"]
        classes = np.array([255, *labels], np.uint8)[segments]
        ground_truth = GroundTruthMap(number, classes, segments, labels, row["crowd"])
        predicted = {"segments": row["predicted"].astype(np.int32), "segment_labels": row["predicted_labels"]}
        rows.append((ground_truth, {name: torch.from_numpy(values) for name, values in predicted.items()}))
    return rows


def batch_of(rows: Sequence[Row]) -> tuple[Predictions, Batch]:
    """Return predictions and batch, padded to the largest image and to the most segments."""
    fills = {"segmentation": 255, "segments": 7, "segment_labels": -1}  # values in the padding do not count
    predictions = {"image_size": torch.tensor([ground_truth.labels.shape for ground_truth, _ in rows])}
    for name in rows[0][1]:
        values = [row[name] for _, row in rows]
        ends = torch.tensor([list(value.shape) for value in values]).amax(0).tolist()
        padded = [value.new_full(ends, fills[name]) for value in values]
        for target, value in zip(padded, values, strict=True):
            target[tuple(map(slice, value.shape))] = value
        predictions[name] = torch.stack(padded)
    return predictions, {
        "ground_truth_map": [ground_truth for ground_truth, _ in rows],
        "id": [str(ground_truth.image_id) for ground_truth, _ in rows],
    }


def evaluate(make: Callable[[], Any], rows: Sequence[Row], cuts: Sequence[int] = ()) -> tuple[dict[str, float], Any]:
    """Return scores and tables of several processes, each with a part of the images, in batches of 2."""
    states = []
    for first, last in pairwise([0, *cuts, len(rows)]):
        evaluator = make()
        for start in range(first, last, 2):
            evaluator.update(*batch_of(rows[start : min(start + 2, last)]))
        states.append(evaluator.state())
    scores, tables = make().compute(states), make().details(states)
    assert set(scores) <= set(make().better)
    json.dumps(tables, allow_nan=False)
    return scores, tables


@pytest.mark.parametrize("case", EXPECTED["semantic"])
def test_the_mean_boundary_iou_is_that_of_classes_with_pixels(case: str) -> None:
    count = len(EXPECTED["semantic"][case]["boundary"])
    scores, tables = evaluate(lambda: Semantic(info(count), boundary=True), semantic_rows(case))
    values = [row["boundary_IoU"] for row in tables["per_class"] if row["pixels"]]
    assert scores["boundary_mIoU"] == pytest.approx(np.mean(values), rel=0, abs=1e-9)


@pytest.mark.parametrize("case", EXPECTED["panoptic"])
def test_classes_without_segments_have_no_panoptic_quality(case: str) -> None:
    expected = EXPECTED["panoptic"][case]
    count = len(expected["per_class"])
    _, tables = evaluate(lambda: Panoptic(info(count, expected["countable"])), panoptic_rows(case))
    matched = [row for row in tables["per_class"] if row["PQ"] is not None]
    assert len(matched) == expected["All"]["n"]


def test_boundary_panoptic_quality_by_hand() -> None:
    """Boundaries are one pixel wide: 26 of 5 x 10 pixels lie on it, 24 of 5 x 9 pixels, and 21 on both."""
    full, cropped = np.ones((10, 10), np.int32), np.ones((10, 10), np.int32)
    full[:, 5:], cropped[:, 5:], cropped[0, :5] = 2, 2, 0
    labels, rows = np.array([0, 1]), []
    for number, (truth_segments, predicted_segments) in enumerate(((full, cropped), (cropped, full))):
        ground_truth = GroundTruthMap(number, np.zeros((10, 10), np.uint8), truth_segments, labels, np.zeros(2, bool))
        rows.append(
            (ground_truth, {"segments": torch.tensor(predicted_segments), "segment_labels": torch.tensor(labels)})
        )
    scores, tables = evaluate(lambda: Panoptic(info(2), boundary=True), rows)
    first = ((21 / 29) + 21 / (24 + 26 - 5 - 21)) / 2  # 5 pixels without a ground-truth segment do not count
    assert scores["PQ"] == pytest.approx((0.95 + 1) / 2) and scores["boundary_RQ"] == 1
    assert [row["boundary_PQ"] for row in tables["per_class"]] == pytest.approx([first, 1])
    assert scores["boundary_PQ"] == scores["boundary_SQ"] == pytest.approx((first + 1) / 2)


def test_crowds_and_unlabeled_pixels_matter_in_the_golden_maps() -> None:
    """Without crowds the golden scores differ, so the golden cases cover the rules about them."""
    rows, expected = panoptic_rows("usual"), EXPECTED["panoptic"]["usual"]["All"]["pq"]
    rows_without_crowds = [
        (replace(ground_truth, image_id=0, crowd=np.zeros_like(ground_truth.crowd)), predictions)
        for ground_truth, predictions in rows
    ]
    assert evaluate(lambda: Panoptic(info(8)), rows_without_crowds)[0]["PQ"] != pytest.approx(expected, abs=1e-3)


def test_worst_images_and_confusions() -> None:
    rows = [semantic_row(1, [[0, 0], [1, 255]], [[0, 1], [1, 1]]), semantic_row(2, [[0, 0]], [[1, 255]])]
    scores, tables = evaluate(lambda: Semantic(info(2)), rows)
    assert tables["worst"] == [
        {"id": "2", "image_id": 2, "mIoU": 0.0, "pACC": 0.0},
        {"id": "1", "image_id": 1, "mIoU": 0.5, "pACC": pytest.approx(2 / 3)},
    ]
    assert tables["confusion"] == [[0, 1, 2], [0, 2, 1], [0, 0, 1], [1, 1, 1]]  # class 2: no predicted class
    assert scores == pytest.approx({"mIoU": (1 / 4 + 1 / 3) / 2, "fwIoU": 4 / 15, "mACC": 5 / 8, "pACC": 2 / 5})


def test_data_without_labels_has_no_scores() -> None:
    rows = [semantic_row(1, [[255, 255]], [[0, 0]])]
    assert evaluate(lambda: Semantic(info(2), boundary=True), rows)[0] == {}
    empty = GroundTruthMap(1, np.full((1, 2), 255, np.uint8), *(np.zeros(shape, int) for shape in ((1, 2), 0, 0)))
    empty_crowd = GroundTruthMap(1, empty.labels, empty.segments, empty.segment_labels, np.zeros(0, bool))
    no_segments = {
        "segments": torch.zeros(1, 2, dtype=torch.int32),
        "segment_labels": torch.zeros(0, dtype=torch.int64),
    }
    assert evaluate(lambda: Panoptic(info(2)), [(empty_crowd, no_segments)])[0] == {}
    assert Semantic(info(2)).compute([]) == {} == Panoptic(info(2)).compute([Panoptic(info(2)).state()])


def test_maps_that_do_not_fit_are_reported() -> None:
    true = np.zeros((2, 3), np.uint8)
    predictions = {"segmentation": torch.zeros(1, 3, 3), "image_size": torch.tensor([[3, 3]])}
    predictions |= {"segments": torch.zeros(1, 2, 3), "segment_labels": torch.zeros(1, 0)}
    batch = {"ground_truth_map": [GroundTruthMap(1, true)], "id": ["a.png"]}
    with pytest.raises(DataMismatch, match=r"a\.png: its map has 2 x 3 pixels, the image 3 x 3"):
        Semantic(info(2)).update(predictions, batch)
    predictions["image_size"] = torch.tensor([[2, 3]])
    with pytest.raises(DataMismatch, match=r"a\.png has a segmentation map without segments"):
        Panoptic(info(2)).update(predictions, batch)
    true[0, 0] = 2
    with pytest.raises(DataMismatch, match=r"a\.png: its map has the label 2; labels are 0 to 1, and 255 for"):
        Semantic(info(2)).update(predictions, batch)
