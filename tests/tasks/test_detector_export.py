"""Detectors with queries and R-CNNs as graphs of static shapes, for any number of images."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.export import Dim

from opabinia.contracts import DatasetInfo, Predictions
from opabinia.contracts.masks import decode_rle
from opabinia.inference.export import exported_task, predict_script
from opabinia.inference.export.exported_task import ExportedTask, _original
from opabinia.models.backbones.timm import timm
from opabinia.models.decoders.mask2former import Mask2Former
from opabinia.models.detectors.boxes import BoxOptions
from opabinia.models.detectors.d_fine import DFine
from opabinia.models.detectors.keypoints import KeypointOptions
from opabinia.models.detectors.library_detectors import deformable_detr, detr, rf_detr
from opabinia.models.detectors.mask2former import MaskClassifier
from opabinia.models.detectors.masks import MaskOptions
from opabinia.models.detectors.query_keypoints import QueryKeypointOptions
from opabinia.models.detectors.query_masks import QueryMaskOptions
from opabinia.models.detectors.query_oriented import QueryOrientedOptions
from opabinia.models.detectors.rcnn import cascade_rcnn, keypoint_rcnn, mask_rcnn
from opabinia.models.detectors.regions import PoolingOptions
from opabinia.models.detectors.rotated_fcos import RotatedFcos
from opabinia.models.detectors.rpn import ProposalNetwork, ProposalOptions
from opabinia.models.detectors.rt_detr import RTDetr
from opabinia.models.necks import fpn, fpn_p3_p7_from_p5
from opabinia.tasks.detection import Detection
from opabinia.visualization.presenters.detections import DetectionPresenter

INFO = DatasetInfo(samples=1, classes=("circle", "square"), boxes=True, masks=True, keypoints=("top", "bottom"))
PROPOSALS: dict[str, Any] = {
    "neck": partial(fpn, channels=16),
    "proposals": ProposalOptions(pre_nms_topk_test=100, post_nms_topk_test=40),
}
REGIONS = {**PROPOSALS, "pooling": PoolingOptions(), "box": BoxOptions(fc_dim=32, max_detections=10)}
MASKS = MaskOptions(num_convs=1, channels=16)
KEYPOINTS = KeypointOptions(num_convs=1, channels=16)
QUERY_MASKS = QueryMaskOptions(num_blocks=1, ffn_dim=32, resolution=14)
R_CNNS = {
    "rpn": partial(ProposalNetwork, **PROPOSALS),
    "mask_rcnn": partial(mask_rcnn, **REGIONS, mask=MASKS),
    "keypoint_rcnn": partial(keypoint_rcnn, **REGIONS, keypoint=KEYPOINTS),
    "cascade_rcnn": partial(cascade_rcnn, **REGIONS, mask=MASKS, num_mask_heads=3),
}
DENSE = {
    "rotated_fcos": partial(
        RotatedFcos,
        neck=partial(fpn_p3_p7_from_p5, channels=32),
        num_convs=1,
        prior_probability=0.1,
        pre_nms_topk=20,
        max_detections=10,
    ),
}
SMALL: dict[str, Any] = {"num_queries": 20, "decoder_layers": 2, "ffn_dim": 48, "channels": 32}
HEADS = {"attention_heads": 4}
DETECTORS = {
    "rt_detr": partial(RTDetr, **SMALL, **HEADS),
    "rt_detr_oriented": partial(RTDetr, oriented=QueryOrientedOptions(), **SMALL, **HEADS),
    "rt_detr_discrete": partial(RTDetr, sampling="discrete", **SMALL, **HEADS),
    "d_fine": partial(DFine, **SMALL, **HEADS),
    "d_fine_heads": partial(DFine, mask=QUERY_MASKS, keypoint=QueryKeypointOptions(), **SMALL, **HEADS),
    "d_fine_regions": partial(DFine, roi_mask=MASKS, roi_keypoint=KEYPOINTS, **SMALL, **HEADS),
    "detr": partial(detr, encoder_layers=1, **SMALL, **HEADS),
    "deformable_detr": partial(deformable_detr, encoder_layers=1, **SMALL, **HEADS),
    "rf_detr": partial(
        rf_detr,
        **{**SMALL, "num_queries": 4},
        **{"num_groups": 3, "self_attention_heads": 4, "cross_attention_heads": 4, "mask": QUERY_MASKS},
    ),
    "mask2former": partial(
        MaskClassifier,
        decoder=partial(Mask2Former, num_queries=20, channels=32, encoder_layers=1, decoder_layers=2, **HEADS),
    ),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch warns its own developers
@pytest.mark.parametrize("form", ["torch", "onnx"])
@pytest.mark.parametrize("name", [*DETECTORS, *R_CNNS, *DENSE])
def test_the_graph_gives_the_detections_of_the_task(name: str, form: str, tmp_path: Path) -> None:
    if name in DETECTORS:
        pytest.importorskip("transformers", reason="the extra detr is not installed")
    torch.manual_seed(0)
    task = Detection(
        replace(INFO, oriented=name in ("rotated_fcos", "rt_detr_oriented")),
        backbone=partial(timm, model="test_resnet"),
        detector={**DETECTORS, **R_CNNS, **DENSE}[name],
        mean=[0.5],
        std=[0.5],
    ).eval()
    assert (compare_graph(task, form, tmp_path)["labels"] >= 0).any()


def compare_graph(task: Any, form: str, folder: Path) -> Predictions:
    """Export a model in evaluation mode, compare its graph with the model for one image and for three, and return the
    model's predictions."""
    if form == "onnx":
        for library in ("onnx", "onnxscript", "onnxruntime"):
            pytest.importorskip(library, reason="the extra export is not installed")
    module = task.export_module()
    module.check_static()
    sizes = torch.tensor([[96, 128], [90, 100], [64, 64]])
    inputs = {"image": torch.rand(3, 3, 96, 128), "image_sizes": sizes}
    expected = module.expected(inputs)
    with torch.no_grad():
        batch = Dim("batch", min=1)
        program = torch.export.export(module.eval(), (), inputs, dynamic_shapes={key: {0: batch} for key in inputs})
    if form == "torch":
        run = program.module()
    else:
        graph: Any = torch.onnx.export(program, dynamo=True, output_names=list(expected), verbose=False)
        graph.save(folder / "model.onnx", external_data=False)
        run = ExportedTask(folder / "model.onnx").run

    def first(values: Any, count: int) -> dict[str, Tensor]:
        return {key: value[:count] for key, value in values.items()}

    with torch.no_grad():
        for count in (1, 3):
            assert module.difference(first(expected, count), run(**first(inputs, count))) < 1e-4
    return expected


def test_the_script_describes_objects_as_the_library() -> None:
    """In pixels of an image that was resized by 1.5 and by 1.52; the last row is padding, one box leaves the image."""
    size, original = (60, 80), (90, 121)
    drawn = torch.rand(1, 4, 2, 2).sort(2).values.flatten(2) * torch.tensor([80.0, 60, 90, 70])
    outputs = {
        "boxes": drawn,
        "scores": torch.tensor([[0.9, 0.8, 0.7, 0.0]]),
        "labels": torch.tensor([[1, 0, 1, -1]]),
        "masks": torch.rand(1, 4, 14, 14).round(),
        "keypoints": torch.rand(1, 4, 2, 3) * 60,
    }
    rows = _original(outputs, {"image_sizes": [size], "original_size": [original]})
    expected = DetectionPresenter(INFO).readable({name: values[0] for name, values in rows.items()})["detections"]
    tensors = {name: values[0].numpy() for name, values in outputs.items()}
    script = predict_script.describe(tensors, list(INFO.classes), list(INFO.keypoints), size, original)["detections"]
    assert len(script) == len(expected) == 3
    for row, wanted in zip(script, expected, strict=True):
        assert row["class"] == wanted["class"] and row["score"] == pytest.approx(wanted["score"], abs=1e-4)
        assert row["box"] == pytest.approx(wanted["box"], abs=0.006)
        for name in INFO.keypoints:
            assert row["keypoints"][name] == pytest.approx(wanted["keypoints"][name], abs=0.006)
        pixels = decode_rle(row["mask"], original)
        assert pixels.any() and (pixels == decode_rle(wanted["mask"], original)).all()


def test_a_file_names_its_keypoints(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = {
        "people": {"task": "detection", "classes": ["person"], "keypoints": ["nose"]},
        "cars": {"classes": ["car"]},
    }
    metadata = {"classes": '["circle"]', "keypoints": '["top", "bottom"]', "tasks": json.dumps(tasks)}
    shapes = {"image": ["batch", 3, 96, 128], "image_sizes": ["batch", 2]}
    runtime = SimpleNamespace(shapes=shapes, outputs=["boxes"], metadata=metadata)
    monkeypatch.setattr(exported_task, "open_runtime", lambda path: runtime)
    task = ExportedTask(Path("model.onnx"))
    assert task.dataset_info.keypoints == ("top", "bottom")
    assert [info.keypoints for info in task.subtasks.values()] == [("nose",), ()]
    assert [info.classes for info in task.subtasks.values()] == [("person",), ("car",)]
