"""Panoptic segmentation as a graph of static shapes, for any number of images."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from opabinia.contracts import DatasetInfo
from opabinia.models.backbones.timm import timm
from opabinia.models.decoders.mask2former import Mask2Former
from opabinia.models.decoders.pyramids import SemanticFpn
from opabinia.tasks.segmentation import Panoptic
from tests.tasks.test_detector_export import HEADS, R_CNNS, compare_graph

CLASSES = ("circle", "square", "sky", "sea")
INFO = DatasetInfo(samples=1, classes=CLASSES, boxes=True, masks=True, maps=True, thing_labels=(0, 1))
MODELS: dict[str, dict[str, Any]] = {
    "panoptic_fpn": {
        "detector": R_CNNS["mask_rcnn"],
        "decoder": partial(SemanticFpn, neck=None, channels=32),
        "min_score": 0.3,
        "max_overlap": 0.9,
        "min_area": 20,
    },
    "mask2former": {
        "detector": None,
        "decoder": partial(Mask2Former, num_queries=20, channels=32, encoder_layers=1, decoder_layers=2, **HEADS),
        "min_score": 0.2,
        "max_overlap": 0.95,
    },
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch warns its own developers
@pytest.mark.parametrize("form", ["torch", "onnx"])
@pytest.mark.parametrize("name", MODELS)
def test_the_graph_gives_the_segments_of_the_task(name: str, form: str, tmp_path: Path) -> None:
    if name == "mask2former":
        pytest.importorskip("transformers", reason="the extra detr is not installed")
    torch.manual_seed(0)
    task: Any = Panoptic(INFO, backbone=partial(timm, model="test_resnet"), mean=[0.5], std=[0.5], **MODELS[name])
    if name == "mask2former":
        task.decoder.model.class_predictor.weight.data *= 8
    assert (compare_graph(task.eval(), form, tmp_path)["segment_labels"] >= 0).sum() > 3
