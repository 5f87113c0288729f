"""Weights under MMDetection's names fill our detectors; the names and shapes are those of its public sources."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from timm import create_model
from torch import Tensor

from opabinia.contracts import DatasetInfo, Detector
from opabinia.models.backbones.timm import timm
from opabinia.models.detectors.boxes import BoxOptions
from opabinia.models.detectors.fcos import Fcos
from opabinia.models.detectors.masks import MaskOptions
from opabinia.models.detectors.rcnn import cascade_rcnn, faster_rcnn, mask_rcnn
from opabinia.models.detectors.regions import PoolingOptions
from opabinia.models.detectors.retinanet import RetinaNet
from opabinia.models.detectors.rotated_fcos import RotatedFcos, decode_rotated
from opabinia.models.detectors.rpn import ProposalOptions
from opabinia.models.necks import NoNeck, fpn, fpn_p3_p7, fpn_p3_p7_from_p5
from opabinia.models.weights.init import Init, initialize
from opabinia.models.weights.translation import translate_weights
from opabinia.tasks.classification import Classification
from opabinia.tasks.detection import Detection

CLASSES = ("circle", "square", "star")
K, WIDTH, CHANNELS = len(CLASSES), 24, 32
OPTIONS: dict[str, Any] = {"neck": partial(fpn, channels=CHANNELS), "proposals": ProposalOptions()}
OPTIONS |= {"pooling": PoolingOptions(), "box": BoxOptions(fc_dim=WIDTH)}
OURS: dict[str, Callable[..., Detector]] = {
    "faster": partial(faster_rcnn, **OPTIONS),
    "mask": partial(mask_rcnn, **OPTIONS, mask=MaskOptions(channels=CHANNELS)),
    "cascade": partial(cascade_rcnn, **OPTIONS),
    "cascade_mask": partial(cascade_rcnn, **OPTIONS, mask=MaskOptions(channels=CHANNELS), num_mask_heads=3),
    "convolutions": partial(
        faster_rcnn, **{**OPTIONS, "box": BoxOptions(num_convs=4, num_fc=1, norm="group", fc_dim=WIDTH)}
    ),
    "c4": partial(
        faster_rcnn,
        neck=NoNeck,
        proposals=ProposalOptions(anchor_sizes=[[32.0, 64.0, 128.0, 256.0, 512.0]]),
        pooling=PoolingOptions(last_stage=True, num_levels=1),
        box=BoxOptions(num_fc=0, resolution=14),
    ),
    "fcos": partial(Fcos, neck=partial(fpn_p3_p7_from_p5, channels=CHANNELS), level_factors=True),
    "rotated_fcos": partial(RotatedFcos, neck=partial(fpn_p3_p7_from_p5, channels=CHANNELS)),
    "retinanet": partial(RetinaNet, neck=partial(fpn_p3_p7, channels=CHANNELS, relu_before_p7=False)),
}


def shapes(name: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names of the layers of MMDetection's detector, and the shapes of their weights; all have biases."""
    widths = (32, 48, 192, 96)
    if name == "c4":
        yield "rpn_head.rpn_conv", (192, 192, 3, 3)
        yield "rpn_head.rpn_cls", (15, 192, 1, 1)
        yield "rpn_head.rpn_reg", (60, 192, 1, 1)
        yield "roi_head.bbox_head.fc_cls", (K + 1, 96)
        yield "roi_head.bbox_head.fc_reg", (4 * K, 96)
        return
    dense = name in ("retinanet", "fcos", "rotated_fcos")
    for number, width in enumerate(widths[1 if dense else 0 :]):
        yield f"neck.lateral_convs.{number}.conv", (CHANNELS, width, 1, 1)
        yield f"neck.fpn_convs.{number}.conv", (CHANNELS, CHANNELS, 3, 3)
    if dense:
        yield "neck.fpn_convs.3.conv", (CHANNELS, 96 if name == "retinanet" else CHANNELS, 3, 3)
        yield "neck.fpn_convs.4.conv", (CHANNELS, CHANNELS, 3, 3)
        for branch in ("cls_convs", "reg_convs"):
            for number in range(4):
                yield f"bbox_head.{branch}.{number}.conv", (CHANNELS, CHANNELS, 3, 3)
        kind, anchors = ("retina", 9) if name == "retinanet" else ("conv", 1)
        yield f"bbox_head.{kind}_cls", (anchors * K, CHANNELS, 3, 3)
        yield f"bbox_head.{kind}_reg", (anchors * 4, CHANNELS, 3, 3)
        if name.endswith("fcos"):
            yield "bbox_head.conv_centerness", (1, CHANNELS, 3, 3)
        if name == "rotated_fcos":
            yield "bbox_head.conv_angle", (1, CHANNELS, 3, 3)
        return
    yield "rpn_head.rpn_conv", (CHANNELS, CHANNELS, 3, 3)
    yield "rpn_head.rpn_cls", (3, CHANNELS, 1, 1)
    yield "rpn_head.rpn_reg", (12, CHANNELS, 1, 1)
    stages = ("0.", "1.", "2.") if name.startswith("cascade") else ("",)
    for stage in stages:
        head = f"roi_head.bbox_head.{stage}"
        yield f"{head}shared_fcs.0", (WIDTH, CHANNELS * 49)
        if name != "convolutions":
            yield f"{head}shared_fcs.1", (WIDTH, WIDTH)
        yield f"{head}fc_cls", (K + 1, WIDTH)
        yield f"{head}fc_reg", (4 if stage else 4 * K, WIDTH)
    for stage in stages if name.endswith("mask") else ():
        for number in range(4):
            yield f"roi_head.mask_head.{stage}convs.{number}.conv", (CHANNELS, CHANNELS, 3, 3)
        yield f"roi_head.mask_head.{stage}upsample", (CHANNELS, CHANNELS, 2, 2)
        yield f"roi_head.mask_head.{stage}conv_logits", (K, CHANNELS, 1, 1)


def file_of(name: str) -> dict[str, Tensor]:
    torch.manual_seed(0)
    weights = {
        f"backbone.{key}": tensor for key, tensor in create_model("test_resnet", num_classes=0).state_dict().items()
    }
    for layer, shape in shapes(name):
        weights |= {f"{layer}.weight": torch.randn(shape), f"{layer}.bias": torch.randn(shape[0])}
        if name.endswith("fcos") and "_convs" in layer and "bbox" in layer:
            weights |= {f"{layer[:-4]}gn.{kind}": torch.randn(CHANNELS) for kind in ("weight", "bias")}
            del weights[f"{layer}.bias"]
    if name.endswith("fcos"):
        weights |= {f"bbox_head.scales.{level}.scale": torch.tensor(1.0 + level) for level in range(5)}
    if name == "rotated_fcos":
        weights["bbox_head.scale_angle.scale"] = torch.tensor(1.5)
    if name == "convolutions":
        for number in range(4):
            head = f"roi_head.bbox_head.shared_convs.{number}"
            weights[f"{head}.conv.weight"] = torch.randn(CHANNELS, CHANNELS, 3, 3)
            weights |= {f"{head}.gn.{kind}": torch.randn(CHANNELS) for kind in ("weight", "bias")}
    if name == "c4":
        return {
            key.replace("backbone.layer4", "roi_head.shared_head.layer4"): tensor for key, tensor in weights.items()
        }
    return weights


def task_of(name: str) -> Detection:
    info = DatasetInfo(samples=1, classes=CLASSES, boxes=True, masks=True, oriented=name == "rotated_fcos")
    return Detection(info, backbone=partial(timm, model="test_resnet"), detector=OURS[name])


def task_with(name: str, file: Path) -> Any:
    task = task_of(name)
    torch.save({"meta": {"mmdet_version": "3.0.0"}, "state_dict": file_of(name)}, file)
    assert initialize(task, Init(weights=file, strict=True)).translated == "MMDetection's names"
    return task


@pytest.mark.parametrize("name", OURS)
def test_every_weight_of_mmdetection_is_loaded(tmp_path: Path, name: str) -> None:
    task_with(name, tmp_path / "a.pth")


@torch.no_grad()
def test_anchors_of_a_retinanet_of_mmdetection(tmp_path: Path) -> None:
    """Nine anchors at a position: there three sizes of each aspect ratio, here three ratios of each size."""
    task, weights = task_with("retinanet", tmp_path / "a.pth").eval(), file_of("retinanet")
    head = task.detector.head["regression_head"]
    values = torch.randn(1, CHANNELS, 2, 2)
    there = torch.conv2d(
        values, weights["bbox_head.retina_reg.weight"], weights["bbox_head.retina_reg.bias"], padding=1
    )
    here = head.bbox_reg(values).unflatten(1, (3, 3, 4))  # sizes, ratios
    torch.testing.assert_close(here, there.unflatten(1, (3, 3, 4)).transpose(1, 2))
    # In ResNet-C4 these are five sizes of three ratios.
    task, weights = task_with("c4", tmp_path / "b.pth"), file_of("c4")
    rows = weights["rpn_head.rpn_reg.bias"].view(3, 5, 4).transpose(0, 1).flatten()
    assert torch.equal(task.detector.rpn.head.bbox_pred.bias, rows)


@torch.no_grad()
def test_branches_and_factors_of_fcos(tmp_path: Path) -> None:
    task, weights = task_with("fcos", tmp_path / "a.pth"), file_of("fcos")
    head = task.detector.head
    assert [factor.item() for factor in head["scales"]] == [1, 2, 3, 4, 5]
    for branch, ours in (("cls", "classification_head"), ("reg", "regression_head")):
        assert torch.equal(head[ours].conv[6].weight, weights[f"bbox_head.{branch}_convs.2.conv.weight"])
        assert torch.equal(head[ours].conv[7].bias, weights[f"bbox_head.{branch}_convs.2.gn.bias"])
        assert not head[ours].conv[6].bias.any()


@torch.no_grad()
def test_angles_of_mmrotate_are_clockwise(tmp_path: Path) -> None:
    head, weights = task_with("rotated_fcos", tmp_path / "a.pth").detector.head, file_of("rotated_fcos")
    assert torch.equal(head["angle"].weight, -weights["bbox_head.conv_angle.weight"])
    assert torch.equal(head["angle"].bias, -weights["bbox_head.conv_angle.bias"])
    assert head["angle_scale"][0] == 1.5
    # Its decoder, with a rotation matrix of an image whose y-axis points down.
    left, top, right, bottom, angle = 1.0, 2.0, 4.0, 3.0, 0.4
    shift = torch.tensor([right - left, bottom - top]) / 2
    matrix = torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    box = decode_rotated(torch.tensor([left, top, right, bottom, -angle]), torch.tensor([-0.5, -0.5, 0.5, 0.5]))
    torch.testing.assert_close(box, torch.tensor([*(matrix @ shift), 5, 5, -math.degrees(angle)]))


def test_offsets_of_deformable_convolutions_are_known() -> None:
    given = {
        name: torch.zeros(1)
        for name in ("neck.lateral_convs.0.conv.weight", "backbone.layer3.0.conv2.conv_offset.bias")
    }
    assert "backbone.model.layer3.0.conv2.offset.bias" in translate_weights(given).weights


@torch.no_grad()
def test_the_last_levels_of_a_retinanet_of_mmdetection(tmp_path: Path) -> None:
    task, weights = task_with("retinanet", tmp_path / "a.pth").eval(), file_of("retinanet")
    maps = [torch.randn(1, width, side, side) for width, side in ((48, 8), (192, 4), (96, 2))]
    levels = task.detector.neck(maps)
    last = torch.conv2d(levels[3], weights["neck.fpn_convs.4.conv.weight"], weights["neck.fpn_convs.4.conv.bias"], 2, 1)
    torch.testing.assert_close(levels[4], last)


def test_the_backbone_of_a_classifier_of_mmpretrain_has_torchvisions_names(tmp_path: Path) -> None:
    net = create_model("test_resnet", num_classes=K).state_dict()
    renamed = {f"backbone.{key}".replace("backbone.fc.", "head.fc."): tensor for key, tensor in net.items()}
    torch.save({"state_dict": renamed}, tmp_path / "a.pth")
    task = Classification(DatasetInfo(samples=1, classes=CLASSES), backbone=partial(timm, model="test_resnet"))
    assert len(initialize(task, Init(weights=tmp_path / "a.pth")).missing) == 2
