"""Weights under MMDetection's names fill our detectors; the names and shapes are those of its public sources."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from timm import create_model
from torch import Tensor

from opabinia.contracts import DatasetInfo, Detector
from opabinia.migration import weights as weights_of_others  # noqa: F401 (registers their names)
from opabinia.models.backbones.timm import timm
from opabinia.models.detectors.boxes import BoxOptions
from opabinia.models.detectors.masks import MaskOptions
from opabinia.models.detectors.rcnn import cascade_rcnn, faster_rcnn, mask_rcnn
from opabinia.models.detectors.regions import PoolingOptions
from opabinia.models.detectors.retinanet import RetinaNet
from opabinia.models.detectors.rpn import ProposalOptions
from opabinia.models.necks import fpn, fpn_p3_p7
from opabinia.models.weights.init import Init, initialize
from opabinia.tasks.classification import Classification
from opabinia.tasks.detection import Detection

CLASSES = ("circle", "square", "star")
K, WIDTH, CHANNELS = len(CLASSES), 24, 32
OPTIONS: dict[str, Any] = {"neck": partial(fpn, channels=CHANNELS), "proposals": ProposalOptions()}
OPTIONS |= {"pooling": PoolingOptions(), "box": BoxOptions(fc_dim=WIDTH)}
OURS: dict[str, Callable[..., Detector]] = {
    "faster": partial(faster_rcnn, **OPTIONS),
    "mask": partial(mask_rcnn, **OPTIONS, mask=MaskOptions()),
    "cascade": partial(cascade_rcnn, **OPTIONS),
    "cascade_mask": partial(cascade_rcnn, **OPTIONS, mask=MaskOptions(), num_mask_heads=3),
    "convolutions": partial(
        faster_rcnn, **{**OPTIONS, "box": BoxOptions(num_convs=4, num_fc=1, norm="group", fc_dim=WIDTH)}
    ),
    "retinanet": partial(RetinaNet, neck=partial(fpn_p3_p7, channels=CHANNELS, relu_before_p7=False)),
}


def shapes(name: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names of the layers of MMDetection's detector, and the shapes of their weights; all have biases."""
    widths = (64, 128, 256, 512)
    finest = 1 if name == "retinanet" else 0
    for number, width in enumerate(widths[finest:]):
        yield f"neck.lateral_convs.{number}.conv", (CHANNELS, width, 1, 1)
        yield f"neck.fpn_convs.{number}.conv", (CHANNELS, CHANNELS, 3, 3)
    if name == "retinanet":
        yield "neck.fpn_convs.3.conv", (CHANNELS, 512, 3, 3)
        yield "neck.fpn_convs.4.conv", (CHANNELS, CHANNELS, 3, 3)
        for branch in ("cls_convs", "reg_convs"):
            for number in range(4):
                yield f"bbox_head.{branch}.{number}.conv", (CHANNELS, CHANNELS, 3, 3)
        yield "bbox_head.retina_cls", (9 * K, CHANNELS, 3, 3)
        yield "bbox_head.retina_reg", (9 * 4, CHANNELS, 3, 3)
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
            yield f"roi_head.mask_head.{stage}convs.{number}.conv", (256, 256 if number else CHANNELS, 3, 3)
        yield f"roi_head.mask_head.{stage}upsample", (256, 256, 2, 2)
        yield f"roi_head.mask_head.{stage}conv_logits", (K, 256, 1, 1)


def file_of(name: str) -> dict[str, Tensor]:
    torch.manual_seed(0)
    weights = {f"backbone.{key}": one for key, one in create_model("resnet18", num_classes=0).state_dict().items()}
    for layer, shape in shapes(name):
        weights |= {f"{layer}.weight": torch.randn(shape), f"{layer}.bias": torch.randn(shape[0])}
    if name == "convolutions":
        for number in range(4):
            head = f"roi_head.bbox_head.shared_convs.{number}"
            weights[f"{head}.conv.weight"] = torch.randn(CHANNELS, CHANNELS, 3, 3)
            weights |= {f"{head}.gn.{kind}": torch.randn(CHANNELS) for kind in ("weight", "bias")}
    return weights


def task_with(name: str, file: Path) -> Any:
    info = DatasetInfo(samples=1, classes=CLASSES, boxes=True, masks=True)
    task = Detection(info, backbone=partial(timm, model="resnet18"), detector=OURS[name])
    torch.save({"meta": {"mmdet_version": "3.0.0"}, "state_dict": file_of(name)}, file)
    assert initialize(task, Init(weights=file, strict=True)).translated == "MMDetection's names"
    return task


@pytest.mark.parametrize("name", OURS)
def test_every_weight_of_mmdetection_finds_its_place(tmp_path: Path, name: str) -> None:
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
    maps = [torch.randn(1, width, side, side) for width, side in ((128, 8), (256, 4), (512, 2))]
    levels = task.detector.neck(maps)
    last = torch.conv2d(levels[3], weights["neck.fpn_convs.4.conv.weight"], weights["neck.fpn_convs.4.conv.bias"], 2, 1)
    torch.testing.assert_close(levels[4], last)


def test_the_backbone_of_a_classifier_of_mmpretrain_has_torchvisions_names(tmp_path: Path) -> None:
    net = create_model("resnet18", num_classes=K).state_dict()
    renamed = {f"backbone.{key}".replace("backbone.fc.", "head.fc."): tensor for key, tensor in net.items()}
    torch.save({"state_dict": renamed}, tmp_path / "a.pth")
    task = Classification(DatasetInfo(samples=1, classes=CLASSES), backbone=partial(timm, model="resnet18"))
    assert len(initialize(task, Init(weights=tmp_path / "a.pth")).missing) == 2
