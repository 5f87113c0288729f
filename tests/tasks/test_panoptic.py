"""The panoptic task with Panoptic FPN and mask classifiers: losses, predictions, export and invalid settings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from opabinia.contracts import (
    Batch,
    Clock,
    DatasetInfo,
    Detections,
    Detector,
    DrawOptions,
    GroundTruth,
    GroundTruthMap,
    InstanceMasks,
    Level,
    MaskTargets,
    SegmentationDecoder,
    Sizes,
    Target,
    Task,
)
from opabinia.inference.export import predict_script
from opabinia.inference.export.exported_task import _original
from opabinia.tasks.segmentation import Panoptic
from opabinia.visualization.presenters.by_keys import presenter_of
from tests.host_waits import HostWaits
from tests.tasks.test_segmentation import Pixels

DATASET_INFO = DatasetInfo(
    samples=4, channels=1, classes=("dot", "sky", "bar"), boxes=True, masks=True, maps=True, thing_labels=(0, 2)
)


class Bars(Detector):
    """A detector that finds a bar of 2 x 2 pixels in the upper left corner of each image."""

    masks = True
    size_multiple = 4
    max_detections = 3

    def __init__(self, levels: Sequence[Level], dataset_info: DatasetInfo) -> None:
        super().__init__()
        self.pyramid_levels = levels
        assert dataset_info.classes == ("dot", "bar")

    def losses(
        self, maps: Sequence[Tensor], shape: tuple[int, int], sizes: Sizes, targets: Sequence[Target]
    ) -> dict[str, Tensor]:
        return {"loss_box": maps[0].sum() * 0 + torch.cat([target.labels for target in targets]).sum()}

    def detect(self, maps: Sequence[Tensor], shape: tuple[int, int], sizes: Sizes) -> list[Detections]:
        return [Detections(torch.tensor([[0.0, 0, 2, 2]]), torch.tensor([0.9]), torch.tensor([1])) for _ in sizes]

    def describe(
        self, maps: Sequence[Tensor], shape: tuple[int, int], sizes: Sizes, detections: Sequence[Detections]
    ) -> list[Detections]:
        return [row._replace(masks=torch.ones(1, 7, 7)) for row in detections]


class Sky(SegmentationDecoder):
    """A decoder that classifies bright pixels as sky, others as objects."""

    def __init__(self, levels: Sequence[Level], classes: int) -> None:
        super().__init__()
        assert classes == 2

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        return torch.cat([-maps[0], maps[0]], 1) * 9


class Queries(SegmentationDecoder):
    """A decoder with two queries: bright pixels are sky, others a bar."""

    own_losses = True
    segments: Sequence[MaskTargets] = ()

    def __init__(self, levels: Sequence[Level], classes: int) -> None:
        super().__init__()
        assert classes == 3

    def losses(self, layers: Sequence[tuple[Tensor, Tensor]], segments: Sequence[MaskTargets]) -> dict[str, Tensor]:
        self.segments = segments
        return {"loss_ce": layers[0][1].sum() * 0}

    def query_masks(self, maps: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
        classes = 9 * torch.eye(4)[[1, 2]].expand(len(maps[0]), 2, 4)
        return [(classes, torch.cat([maps[0], -maps[0]], 1) * 9)]


def make_task(**keys: Any) -> Panoptic:
    options: dict[str, Any] = {"backbone": Pixels, "decoder": Sky, "detector": Bars, "min_area": 1}
    return Panoptic(DATASET_INFO, **options | {"mean": [0.5], "std": [0.5]} | keys)


def batch_of() -> Batch:
    """Return images of 4 x 4 and 4 x 3 pixels, a bar of 2 x 2 pixels in a bright sky; originals are twice as large."""
    images = torch.full((2, 1, 4, 4), 1.0)
    images[:, :, :2, :2] = 0
    classes = torch.full((2, 4, 4), 1, dtype=torch.uint8)
    classes[:, :2, :2], classes[1, :, 3] = 2, 255
    original, originals = np.kron(classes.numpy(), np.ones((1, 2, 2), np.uint8)), [(8, 8), (8, 6)]
    columns: dict[str, Any] = {
        "ids": np.ones(1, np.int64),
        "boxes": np.array([[0.0, 0, 4, 4]]),
        "labels": np.array([2]),
    }
    columns |= {"areas": np.array([16.0]), "crowd": np.zeros(1, bool)}
    columns |= {"segments": [[[0, 0, 4, 0, 4, 4, 0, 4]]]}
    maps = [
        GroundTruthMap(row, labels, np.int32(3) - labels, np.array([2, 1]), np.zeros(2, bool))
        for row, labels in enumerate((original[0], original[1, :, :6]))
    ]
    return {
        "id": ["a", "b"],
        "image": images,
        "image_sizes": [(4, 4), (4, 3)],
        "original_size": originals,
        "mask": classes,
        "labels": [torch.tensor([2])] * 2,
        "boxes": [torch.tensor([[0.0, 0, 2, 2]])] * 2,
        "masks": [InstanceMasks.encode(classes[row : row + 1] == 2).runs for row in range(2)],
        "ground_truth_map": maps,
        "ground_truth": [GroundTruth(row, size, **columns) for row, size in enumerate(originals)],
    }


@pytest.mark.parametrize("keys", [{}, {"decoder": Queries, "detector": None}], ids=["panoptic_fpn", "queries"])
def test_a_perfect_prediction(keys: dict[str, Any], tmp_path: Path) -> None:
    model, batch = make_task(**keys).eval(), batch_of()
    evaluators = model.evaluators(DATASET_INFO)
    with torch.no_grad():
        predictions = model.predict(batch)
    for row, maps in enumerate(batch["ground_truth_map"]):
        height, width = maps.labels.shape
        assert np.array_equal(predictions["segmentation"][row, :height, :width], maps.labels)
    for evaluator in evaluators:
        evaluator.update(predictions, batch)
    states = [evaluators[0].state()]
    scores = evaluators[0].compute(states)
    assert next(iter(evaluators[0].better)) == "PQ" and scores["PQ"] == scores["mIoU"] == scores["PQ_st"] == 1
    tables = evaluators[0].details(states)  # type: ignore[attr-defined]
    bar = tables["per_class"][2]
    assert (bar["PQ"], bar["matched"], bar["IoU"]) == (1, 2, 1)
    assert bar["AP"] == scores["AP"] == scores["mask_AP"] == 1
    assert [set(row) >= {"PQ"} for row in tables["worst"]] == [True, True] and "counted" not in tables
    assert "loss" in evaluators[1].compute([evaluators[1].state()])
    prediction = {name: values[1] for name, values in predictions.items()}
    presenter = model.presenter()
    readable = presenter.readable(prediction)
    areas = {segment["class"]: segment["area"] for segment in readable["segments"]}
    assert areas == {"bar": 16, "sky": 32}
    assert sorted(presenter.caption(readable)) == ["1 x bar", "1 x sky"]
    json.dumps(readable)
    sample = {"image": torch.zeros(1, 8, 6, dtype=torch.uint8), "ground_truth_map": batch["ground_truth_map"][1]}
    presenter.save(tmp_path, "b", sample, prediction, DrawOptions())
    written = np.asarray(Image.open(tmp_path / "maps" / "b.png"))
    assert np.array_equal(written[..., 0], prediction["segments"][:8, :6]) and not written[..., 1:].any()
    comparison = presenter.compare(sample, prediction, DATASET_INFO.classes)
    assert comparison is not None and "1 x bar" in comparison.caption


def test_panoptic_fpn_merges_countable_classes_for_the_decoder() -> None:
    model, batch = make_task(decoder_weight=2.0), batch_of()
    losses = model(batch, Clock())
    assert losses["loss_box"] == 2  # a bar is the second of the detector's classes
    assert losses["loss_semantic"] < 1e-6
    batch["image"] = 1 - batch["image"]
    assert model(batch, Clock())["loss_semantic"].item() == pytest.approx(2 * 18, rel=1e-3)
    batch["mask"] = torch.full_like(batch["mask"], 255)
    assert model(batch, Clock())["loss_semantic"] == 0


def test_targets_of_mask_classifiers_are_objects_and_stuff() -> None:
    model, batch = make_task(decoder=Queries, detector=None), batch_of()
    with HostWaits() as waits:
        model(batch, Clock())
    assert waits.calls == {"tolist": 1}
    decoder: Any = model.decoder
    for row, segments in enumerate(decoder.segments):
        assert segments.labels.tolist() == [2, 1]
        assert segments.masks.sum((1, 2)).tolist() == [4, (12, 8)[row]]


def test_a_prediction_with_losses_decodes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cases: list[tuple[dict[str, Any], Any, str]] = [
        ({}, Sky, "forward"),
        ({"decoder": Queries, "detector": None}, Queries, "query_masks"),
    ]
    for keys, decoder, method in cases:
        decode = Mock(side_effect=partial(getattr(decoder, method), None))
        monkeypatch.setattr(decoder, method, decode)
        assert "losses/loss" in make_task(**keys).eval().predict(batch_of())
        decode.assert_called_once()


def test_invalid_settings_and_data_are_refused() -> None:
    class Boxes(Bars):
        masks = False

    for keys, message in (
        (
            {"detector": None, "decoder": lambda levels, classes: Sky(levels, 2)},
            "the decoder does not find objects; set a detector such as mask_rcnn",
        ),
        ({"decoder": lambda levels, classes: Queries(levels, 3)}, "set detector to null"),
        ({"detector": Boxes}, "needs instance masks and a feature pyramid"),
    ):
        with pytest.raises(ValueError, match=message):
            make_task(**keys)
    for change in ({"maps": False}, {"masks": False}, {"thing_labels": ()}):
        with pytest.raises(ValueError, match="take a source of panoptic data"):
            Panoptic(replace(DATASET_INFO, **change), backbone=Pixels, decoder=Sky, detector=Bars)
    model = make_task()
    with pytest.raises(ValueError, match="with the objects of the same classes to compare with"):
        model.evaluators(replace(DATASET_INFO, thing_labels=(0,)))
    assert "panoptic" in model.presenter().no_heatmap
    with pytest.raises(ValueError, match=r"task\.detector: Bars has no detect_batch"):
        model.eval().export_module().check_static()


def test_the_exported_function_merges_padded_images() -> None:
    module = make_task(decoder=Queries, detector=None).eval().export_module()
    module.check_static()
    inputs = {"image": batch_of()["image"], "image_sizes": torch.tensor(batch_of()["image_sizes"])}
    with torch.no_grad():
        expected, actual = module.expected(inputs), module(**inputs)
    assert list(expected) == list(actual)
    assert module.difference(expected, actual) < 1e-6
    assert actual["segments"][1, :, 3].tolist() == [0] * 4 and actual["segment_labels"].tolist() == [[1, 2]] * 2
    assert module.difference(expected, actual | {"segments": actual["segments"] + 1}) == 1
    batch = {"image_sizes": [(4, 4), (4, 3)], "original_size": [(8, 8), (8, 6)]}
    original = _original(actual, batch)
    maps = [ground_truth.labels for ground_truth in batch_of()["ground_truth_map"]]
    assert np.array_equal(original["segmentation"][0], maps[0])
    assert np.array_equal(original["segmentation"][1, :, :6], maps[1]) and (original["segments"][1, :, 6:] == 0).all()
    row = {key: rows[1] for key, rows in original.items()}
    readable = presenter_of(Task(), DATASET_INFO, row).readable(row)
    assert {segment["class"] for segment in readable["segments"]} == {"bar", "sky"}
    tensors = {name: rows[1].numpy() for name, rows in actual.items()}
    described = predict_script.describe(tensors, list(DATASET_INFO.classes), [], (4, 3), (8, 6))["segments"]
    assert {row["class"]: row["share"] for row in described} == {
        "bar": pytest.approx(1 / 3),
        "sky": pytest.approx(2 / 3),
    }
