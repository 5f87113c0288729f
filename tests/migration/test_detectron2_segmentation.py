"""detectron2's semantic and panoptic segmentation: converted configs; weights that compute what they do there."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from opabinia.config import ConfigError
from opabinia.contracts import Level
from opabinia.migration.weights.detection import translate_detectron2
from opabinia.models.decoders import SemanticFpn
from opabinia.models.necks import fpn
from tests.migration.recipes import resolve, unconverted
from tests.migration.test_detectron2 import convert_text

PANOPTIC = """
MODEL:
  META_ARCHITECTURE: PanopticFPN
  MASK_ON: True
  SEM_SEG_HEAD: {LOSS_WEIGHT: 0.5, CONVS_DIM: 64}
  PANOPTIC_FPN: {COMBINE: {STUFF_AREA_LIMIT: 100}}
DATASETS:
  TRAIN: ("coco_2017_train_panoptic_separated",)
  TEST: ("coco_2017_val_100_panoptic_separated",)
DATALOADER: {FILTER_EMPTY_ANNOTATIONS: False}
TEST: {EXPECTED_RESULTS: [["panoptic_seg", "PQ", 48.13, 0.8], ["sem_seg", "mIoU", 64.73, 1.3], ["segm", "AP", 39, 1]]}
"""
SEMANTIC = """
MODEL: {META_ARCHITECTURE: SemanticSegmentor, SEM_SEG_HEAD: {LOSS_WEIGHT: 2.0}}
DATASETS:
  TRAIN: ("coco_2017_train_panoptic_stuffonly",)
  TEST: ("coco_2017_val_panoptic_stuffonly",)
TEST: {EXPECTED_RESULTS: [["sem_seg", "mIoU", 76.51, 1.0]]}
"""


def test_panoptic_fpn(tmp_path: Path) -> None:
    recipe = convert_text(tmp_path, PANOPTIC)
    config = resolve(recipe, tmp_path)
    task = config["task"]
    assert (task["name"], task["detector"]["name"]) == ("panoptic", "mask_rcnn")
    assert task["detector"]["neck"]["name"] == "fpn" and task["decoder"]["neck"] is None
    assert (task["decoder"]["channels"], task["decoder"]["norm"], task["decoder_weight"]) == (64, "group", 0.5)
    assert (task["min_area"], task["max_overlap"], task["min_score"]) == (100, 0.5, 0.5)
    source = config["data"]["val"]["source"]
    assert source["name"] == "coco_panoptic" and "empty" not in config["data"]["train"]["source"]
    assert str(source["file"]).endswith("annotations/panoptic_val2017_100.json")
    assert str(source["maps"]).endswith("annotations/panoptic_val2017_100") and str(source["root"]).endswith("val2017")
    assert config["hooks"]["expected_scores"]["scores"] == {"val/PQ": [0.4813, 0.008], "val/mask_AP": [0.39, 0.01]}
    assert "one class for all objects" in recipe.text()


def test_semantic_segmentation(tmp_path: Path) -> None:
    recipe = convert_text(tmp_path, SEMANTIC)
    config = resolve(recipe, tmp_path)
    task = config["task"]
    assert (task["name"], task["decoder"]["name"], task["decoder"]["neck"]["channels"]) == ("segmentation", "fpn", 256)
    assert task["losses"][0]["weight"] == 2.0 and task["backbone"]["stride_in_1x1"]
    source = config["data"]["train"]["source"]
    assert (source["name"], source["source"]["name"]) == ("stuff_maps", "coco_panoptic")
    assert config["hooks"]["expected_scores"]["scores"] == {"val/mIoU": [0.7651, 0.01]}
    assert unconverted(recipe)["MODEL.RPN.PRE_NMS_TOPK_TRAIN"] == "this model has no detector"


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ("MODEL: {META_ARCHITECTURE: SemanticSegmentor}", "'coco_2017_train' has no segmentation maps"),
        (SEMANTIC.replace("LOSS_WEIGHT: 2.0", "NAME: DeepLabV3Head"), "'DeepLabV3Head' is not supported"),
        (SEMANTIC.replace("LOSS_WEIGHT: 2.0", "NORM: ''"), "NORM"),
        (PANOPTIC.replace("MASK_ON: True", "MASK_ON: False"), "needs instance masks"),
        (PANOPTIC.replace("PANOPTIC_FPN: {", "PANOPTIC_FPN: {INSTANCE_LOSS_WEIGHT: 2.0, "), "only 1 is supported"),
    ],
)
def test_unsupported_options_are_rejected(own: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        convert_text(tmp_path, own)


def head_of_detectron2(weights: dict[str, Tensor], pyramid: list[Tensor]) -> Tensor:
    """The outputs of SemSegFPNHead, by its names of weights."""
    total = torch.zeros(())
    for level, features in enumerate(pyramid, 2):
        for place in range(0, 2 * max(1, level - 2), 2):
            name = f"sem_seg_head.p{level}.{place}"
            features = F.conv2d(features, weights[f"{name}.weight"], padding=1)
            features = F.group_norm(features, 32, weights[f"{name}.norm.weight"], weights[f"{name}.norm.bias"]).relu()
            if level > 2:
                features = F.interpolate(features, scale_factor=2, mode="bilinear", align_corners=False)
        total = total + features
    return F.conv2d(total, weights["sem_seg_head.predictor.weight"], weights["sem_seg_head.predictor.bias"])


def test_weights_of_the_semantic_head_compute_the_same() -> None:
    levels = [Level(4, 4), Level(4, 8), Level(4, 16), Level(4, 32)]
    decoder = SemanticFpn(levels, 5, neck=partial(fpn, channels=16), channels=32).eval()
    draw = torch.Generator().manual_seed(0)
    weights: dict[str, Tensor] = {}
    for level in range(2, 6):
        weights[f"backbone.fpn_lateral{level}.weight"] = torch.randn(16, 4, 1, 1, generator=draw)
        weights[f"backbone.fpn_output{level}.weight"] = torch.randn(16, 16, 3, 3, generator=draw) / 12
        for name in (f"backbone.fpn_lateral{level}", f"backbone.fpn_output{level}"):
            weights[f"{name}.bias"] = torch.randn(16, generator=draw)
        for place in range(0, 2 * max(1, level - 2), 2):
            name = f"sem_seg_head.p{level}.{place}"
            weights[f"{name}.weight"] = torch.randn(32, 32 if place else 16, 3, 3, generator=draw) / 12
            weights |= {f"{name}.norm.{kind}": torch.rand(32, generator=draw) for kind in ("weight", "bias")}
    weights["sem_seg_head.predictor.weight"] = torch.randn(5, 32, 1, 1, generator=draw)
    weights["sem_seg_head.predictor.bias"] = torch.randn(5, generator=draw)
    translated = translate_detectron2({**weights, "backbone.bottom_up.res2.0.conv1.weight": torch.zeros(1)})
    own = {name.removeprefix("decoder."): value for name, value in translated.items() if name.startswith("decoder.")}
    decoder.load_state_dict(own)  # strict: every tensor has its place
    maps = [torch.randn(2, 4, 128 // stride, 64 // stride, generator=draw) for _, stride in levels]
    assert decoder.neck is not None
    with torch.no_grad():
        expected = head_of_detectron2(weights, decoder.neck(maps)[:4])
        torch.testing.assert_close(decoder(maps), expected, atol=1e-4, rtol=1e-4)
    with_detector = translate_detectron2({**weights, "roi_heads.box_predictor.cls_score.bias": torch.zeros(6)})
    assert "detector.neck.fpn.inner_blocks.0.0.weight" in with_detector and "decoder.classifier.bias" in with_detector
