"""Detection weights of torchvision and detectron2: all are loaded, and the outputs are those of the original."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from timm import create_model
from torch import Tensor, nn
from torchvision.models import detection as theirs
from torchvision.models import resnet18
from torchvision.models.detection import backbone_utils
from torchvision.models.detection.faster_rcnn import FastRCNNConvFCHead, FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.retinanet import RetinaNetHead
from torchvision.models.detection.rpn import RPNHead
from torchvision.ops.feature_pyramid_network import LastLevelP6P7

from opabinia.contracts import DatasetInfo, Detector, Level
from opabinia.migration.weights.detection import select_coco_classes
from opabinia.models.backbones.resnet import resnet
from opabinia.models.backbones.timm import timm
from opabinia.models.detectors.boxes import BoxOptions
from opabinia.models.detectors.fcos import Fcos
from opabinia.models.detectors.keypoints import KeypointOptions
from opabinia.models.detectors.masks import MaskOptions
from opabinia.models.detectors.rcnn import cascade_rcnn, faster_rcnn, keypoint_rcnn, mask_rcnn
from opabinia.models.detectors.regions import PoolingOptions
from opabinia.models.detectors.retinanet import RetinaNet
from opabinia.models.detectors.rpn import ProposalOptions
from opabinia.models.necks import fpn, fpn_p3_p7, fpn_p3_p7_from_p5
from opabinia.models.weights.init import Init, LoadReport, initialize
from opabinia.models.weights.translation import translate_weights
from opabinia.tasks.detection import Detection

CLASSES = ("circle", "square", "star")
POINTS = ("left", "right")
INFO = DatasetInfo(samples=1, classes=CLASSES, boxes=True, masks=True, keypoints=POINTS)
WIDTH = 24
IMAGE = (96, 128)


def detect(task: Detection, image: Tensor) -> dict[str, Tensor]:
    size = (image.shape[-2], image.shape[-1])
    with torch.no_grad():
        predictions = task.eval().predict({"image": image[None], "image_sizes": [size], "original_size": [size]})
    count = int((predictions["labels"] >= 0).sum())
    return {name: rows[0][:count] for name, rows in predictions.items()}


def load(task: Detection, file: Path, **keys: Any) -> LoadReport:
    return initialize(task, Init(weights=file, **keys))


# --- torchvision ------------------------------------------------------------------------------------------------------

TORCHVISION: dict[str, Any] = {
    "proposals": ProposalOptions(convention="torchvision", min_size=1e-3, post_nms_topk_test=100),
    "pooling": PoolingOptions(aligned=False, sampling_ratio=2),
    "box": BoxOptions(min_size=0.01, fc_dim=WIDTH, max_detections=10),
}
OURS: dict[str, Callable[..., Detector]] = {
    "faster_rcnn": partial(faster_rcnn, **TORCHVISION),
    "mask_rcnn": partial(mask_rcnn, **TORCHVISION, mask=MaskOptions()),
    "keypoint_rcnn": partial(keypoint_rcnn, **TORCHVISION, keypoint=KeypointOptions()),
    "mask_rcnn_v2": partial(
        mask_rcnn,
        neck=partial(fpn, norm="batch"),
        proposals=replace(TORCHVISION["proposals"], num_convs=2),
        pooling=TORCHVISION["pooling"],
        box=replace(TORCHVISION["box"], num_convs=4, num_fc=1, norm="batch"),
        mask=MaskOptions(norm="batch"),
    ),
    "retinanet": partial(RetinaNet, neck=fpn_p3_p7_from_p5, convention="torchvision", max_detections=300),
    "retinanet_v2": partial(RetinaNet, neck=fpn_p3_p7, convention="torchvision", max_detections=300, norm="group"),
    "fcos": partial(Fcos, convention="torchvision", offset=0, score_threshold=0.2),
}


def torchvision_detector(name: str, classes: int = len(CLASSES)) -> nn.Module:
    """Return torchvision's detector on a ResNet-18, with the names of published weights; class 0 is the background."""
    options: dict[str, Any] = {"min_size": IMAGE[0], "max_size": IMAGE[1]}
    make_backbone = partial(
        backbone_utils.resnet_fpn_backbone,
        backbone_name="resnet18",
        weights=None,
        trainable_layers=5,
        norm_layer=nn.BatchNorm2d,
    )
    if "rcnn" in name:
        options |= {"box_head": TwoMLPHead(256 * 49, WIDTH), "box_predictor": FastRCNNPredictor(WIDTH, classes + 1)}
        options |= {"rpn_post_nms_top_n_test": 100, "box_detections_per_img": 10}
    if name == "faster_rcnn":
        return theirs.FasterRCNN(make_backbone(), None, **options)
    if name == "mask_rcnn":
        predictor = theirs.mask_rcnn.MaskRCNNPredictor(256, 256, classes + 1)
        return theirs.MaskRCNN(make_backbone(), None, mask_predictor=predictor, **options)
    if name == "mask_rcnn_v2":
        backbone = resnet18(weights=None)
        pyramid = backbone_utils._resnet_fpn_extractor(backbone, 5, norm_layer=nn.BatchNorm2d)
        convs = [256, 256, 256, 256]
        heads = {"box_head": FastRCNNConvFCHead((256, 7, 7), convs, [WIDTH], norm_layer=nn.BatchNorm2d)}
        heads |= {"mask_head": theirs.mask_rcnn.MaskRCNNHeads(256, convs, 1, norm_layer=nn.BatchNorm2d)}
        heads |= {"rpn_head": RPNHead(256, 3, conv_depth=2)}
        predictor = theirs.mask_rcnn.MaskRCNNPredictor(256, 256, classes + 1)
        return theirs.MaskRCNN(pyramid, None, mask_predictor=predictor, **{**options, **heads})
    if name == "keypoint_rcnn":
        return theirs.KeypointRCNN(make_backbone(), None, num_keypoints=len(POINTS), keypoint_predictor=None, **options)
    make_dense_backbone = partial(make_backbone, returned_layers=[2, 3, 4])
    if name == "fcos":
        return theirs.FCOS(make_dense_backbone(extra_blocks=LastLevelP6P7(256, 256)), classes + 1, **options)
    if name == "retinanet":
        return theirs.RetinaNet(make_dense_backbone(extra_blocks=LastLevelP6P7(256, 256)), classes + 1, **options)
    backbone = make_dense_backbone(extra_blocks=LastLevelP6P7(512, 256))
    head = RetinaNetHead(256, 9, classes + 1, norm_layer=partial(nn.GroupNorm, 32))
    return theirs.RetinaNet(backbone, classes + 1, head=head, **options)


def randomize(net: nn.Module, classes: int = len(CLASSES)) -> Any:
    """Draw statistics and scores that differ between positions."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, tensor in net.state_dict().items():
            if "running_mean" in name:
                tensor.normal_(0, 0.1, generator=generator)
            elif "running_var" in name:
                tensor.uniform_(0.5, 1.5, generator=generator)
            elif "bn3.weight" in name:  # in bottlenecks: keeps the features of deep networks small
                tensor.fill_(0.2)
            elif "cls_score.weight" in name:
                tensor.normal_(0, 1, generator=generator)
            elif "cls_logits.weight" in name and "rpn" not in name:
                tensor.normal_(0, 0.1, generator=generator)
            elif "cls_logits.bias" in name and "rpn" not in name:
                tensor.normal_(-2, 1, generator=generator)
                # Class 0 is the background, which a detector is never trained to predict.
                tensor.view(-1, classes + 1)[:, 0] = -100
            elif "bbox_" in name and name.endswith("weight"):
                tensor.normal_(0, 0.02, generator=generator)
    return net.eval()


def our_task(name: str, dataset_info: DatasetInfo = INFO) -> Detection:
    return Detection(dataset_info, backbone=partial(timm, model="resnet18"), detector=OURS[name])


def name_in_first_version(name: str) -> str:
    """Return the name that a weight had in torchvision 0.8."""
    name = re.sub(r"(inner_blocks|layer_blocks)\.(\d)\.0\.", r"\1.\2.", name)
    name = name.replace("rpn.head.conv.0.0.", "rpn.head.conv.")
    name = re.sub(r"mask_head\.(\d)\.0\.", lambda match: f"mask_head.mask_fcn{int(match[1]) + 1}.", name)
    return re.sub(r"_head\.conv\.(\d)\.0\.", lambda match: f"_head.conv.{2 * int(match[1])}.", name)


def assert_same_detections(ours: Mapping[str, Tensor], expected: Mapping[str, Tensor], tolerance: float = 1e-3) -> None:
    assert len(expected["scores"]) > 5
    torch.testing.assert_close(ours["scores"], expected["scores"], atol=tolerance, rtol=0)
    torch.testing.assert_close(ours["boxes"], expected["boxes"], atol=1e-3, rtol=0)
    assert torch.equal(ours["labels"], expected["labels"] - 1)
    if "masks" in expected:
        assert "masks" in ours
    if "keypoints" in expected:
        torch.testing.assert_close(ours["keypoints"][..., :2], expected["keypoints"][..., :2], atol=1e-3, rtol=0)


Found = Mapping[str, Tensor]


def detections_of_both(folder: Path, name: str, names: Callable[[str], str] = str) -> tuple[Found, Found, LoadReport]:
    """Return our detections in an image with torchvision's weights, torchvision's, and the report of the loading."""
    torch.manual_seed(0)
    net = randomize(torchvision_detector(name))
    torch.save({names(key): tensor for key, tensor in net.state_dict().items()}, folder / "a.pth")
    task = our_task(name)
    report = load(task, folder / "a.pth", strict=True)
    image = torch.rand(3, *IMAGE)
    with torch.no_grad():
        expected = net([image])[0]
    return detect(task, image), expected, report


IN_FIRST_VERSION = [name for name in OURS if name != "fcos" and not name.endswith("v2")]


@pytest.mark.parametrize(
    ("name", "names"),
    [
        *(pytest.param(name, str, id=name) for name in OURS),
        *(
            pytest.param(
                name,
                name_in_first_version,
                id=f"{name}-first",
                marks=[pytest.mark.slow] * (name in ("mask_rcnn", "keypoint_rcnn")),
            )
            for name in IN_FIRST_VERSION
        ),
    ],
)
def test_weights_of_torchvision_have_the_same_detections(
    tmp_path: Path, name: str, names: Callable[[str], str]
) -> None:
    detections, expected, report = detections_of_both(tmp_path, name, names)
    assert "torchvision's names" in str(report)
    assert_same_detections(detections, expected)


def test_full_size_models_are_loaded(tmp_path: Path) -> None:
    """The weights have the published names and shapes; of their 91 classes our model has the 80 of COCO."""
    net = theirs.fasterrcnn_resnet50_fpn(weights=None, weights_backbone=None, num_classes=91)
    torch.save(net.state_dict(), tmp_path / "a.pth")
    dataset_info = DatasetInfo(samples=1, classes=tuple(map(str, range(80))), boxes=True)
    keys = {**TORCHVISION, "box": BoxOptions(min_size=0.01)}
    task = Detection(dataset_info, backbone=partial(timm, model="resnet50"), detector=partial(faster_rcnn, **keys))
    report = load(task, tmp_path / "a.pth", strict=True)
    assert {name.rpartition(".")[0]: shapes for name, shapes in report.resized.items() if "weight" in name} == {
        "detector.box.layers.predictor.cls_score": "91x1024 -> 81x1024",
        "detector.box.layers.predictor.bbox_pred": "360x1024 -> 320x1024",
    }
    cls_score, bbox_pred = net.roi_heads.box_predictor.cls_score, net.roi_heads.box_predictor.bbox_pred
    predictor: Any = task.detector.box.layers.predictor  # type: ignore[union-attr]
    # COCO's first class is 1, its 12th is number 13 (there is no 12), its last 90; our background is the last row.
    for row, number in ((0, 1), (11, 13), (79, 90), (80, 0)):
        assert torch.equal(predictor.cls_score.weight[row], cls_score.weight[number])
    for row, number in ((0, 1), (11, 13), (79, 90)):
        assert torch.equal(predictor.bbox_pred.bias[4 * row : 4 * row + 4], bbox_pred.bias[4 * number : 4 * number + 4])


def test_classes_of_coco_in_other_layers() -> None:
    numbers = torch.arange(90.0)
    in_coco = torch.tensor([n for n in range(90) if n + 1 not in (12, 26, 29, 30, 45, 66, 68, 69, 71, 83)])
    anchors = torch.stack([numbers, 100 + numbers]).flatten()
    selected = select_coco_classes("h.cls_logits.bias", anchors, torch.empty(160))
    assert selected is not None and torch.equal(selected.view(2, 80)[1], 100 + in_coco)
    assert torch.equal(select_coco_classes("h.mask_fcn_logits.bias", numbers, torch.empty(80)), in_coco.float())  # type: ignore[arg-type]
    assert select_coco_classes("h.mask_fcn_logits.bias", numbers, torch.empty(79)) is None
    assert select_coco_classes("h.other.bias", numbers, torch.empty(80)) is None
    assert select_coco_classes("h.cls_score.bias", numbers, torch.empty(80)) is None


def test_layers_of_other_classes_are_skipped_and_reported(tmp_path: Path) -> None:
    torch.save(torchvision_detector("mask_rcnn").state_dict(), tmp_path / "a.pth")
    task = our_task("mask_rcnn", DatasetInfo(samples=1, classes=("x",), boxes=True, masks=True))
    before = {name: tensor.clone() for name, tensor in task.state_dict().items()}
    report = load(task, tmp_path / "a.pth")
    heads = [
        "box.layers.predictor.cls_score",
        "box.layers.predictor.bbox_pred",
        "others.mask.predictor.mask_fcn_logits",
    ]
    assert set(report.other_shape) == {f"detector.{head}.{kind}" for head in heads for kind in ("weight", "bias")}
    assert not report.missing and not report.unexpected
    assert "detector.box.layers.predictor.cls_score.weight 4x24 -> 2x24" in str(report)
    after = task.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in report.other_shape)
    assert not torch.equal(after["detector.box.layers.head.fc6.weight"], before["detector.box.layers.head.fc6.weight"])
    with pytest.raises(ValueError, match=r"(?s)strict: not everything fits; .*skipped, of another shape \(6\)"):
        load(task, tmp_path / "a.pth", strict=True)


def test_the_backbone_alone_can_be_loaded(tmp_path: Path) -> None:
    net = torchvision_detector("faster_rcnn")
    torch.save(net.state_dict(), tmp_path / "a.pth")
    task = our_task("fcos")
    report = load(task, tmp_path / "a.pth", target_prefix="backbone")
    assert report.complete
    given = net.state_dict()["backbone.body.layer3.0.conv1.weight"]
    assert torch.equal(task.state_dict()["backbone.model.layer3.0.conv1.weight"], given)


# --- detectron2 -------------------------------------------------------------------------------------------------------

Arrays = dict[str, NDArray[np.float32]]


class Zoo:
    """A small file of detectron2's model zoo: names (as in its sources) and shapes of the weights.

    Args:
        detector: ``faster``, ``mask``, ``keypoint``, ``cascade`` or ``retinanet``.
    """

    def __init__(self, detector: str) -> None:
        depths, planes, channels, width, classes = (2, 1, 1, 1), (8, 8, 16, 16), 32, WIDTH, len(CLASSES)
        self._generator = np.random.default_rng(0)
        self.arrays: Arrays = {}
        self.resnet(depths, planes)
        first = 3 if detector == "retinanet" else 2
        for level in range(first, 6):
            self.conv(f"backbone.fpn_lateral{level}", channels, 4 * planes[level - 2], 1)
            self.conv(f"backbone.fpn_output{level}", channels, channels, 3)
        if detector == "retinanet":
            self.conv("backbone.top_block.p6", channels, 4 * planes[-1], 3)
            self.conv("backbone.top_block.p7", channels, channels, 3)
            for branch in ("cls_subnet", "bbox_subnet"):
                for place in (0, 2, 4, 6):
                    self.conv(f"head.{branch}.{place}", channels, channels, 3)
            self.conv("head.cls_score", 9 * classes, channels, 3)
            self.conv("head.bbox_pred", 9 * 4, channels, 3)
            return
        self.conv("proposal_generator.rpn_head.conv", channels, channels, 3)
        self.conv("proposal_generator.rpn_head.objectness_logits", 3, channels, 1)
        self.conv("proposal_generator.rpn_head.anchor_deltas", 12, channels, 1)
        for stage in (".0", ".1", ".2") if detector == "cascade" else ("",):
            self.layer(f"roi_heads.box_head{stage}.fc1", width, channels * 49)
            self.layer(f"roi_heads.box_head{stage}.fc2", width, width)
            self.layer(f"roi_heads.box_predictor{stage}.cls_score", classes + 1, width)
            self.layer(f"roi_heads.box_predictor{stage}.bbox_pred", 4 if stage else 4 * classes, width)
        if detector == "mask":
            for place in range(1, 5):
                self.conv(f"roi_heads.mask_head.mask_fcn{place}", 256, channels if place == 1 else 256, 3)
            self.conv("roi_heads.mask_head.deconv", 256, 256, 2)
            self.conv("roi_heads.mask_head.predictor", classes, 256, 1)
        if detector == "keypoint":
            for place in range(1, 9):
                self.conv(f"roi_heads.keypoint_head.conv_fcn{place}", 512, channels if place == 1 else 512, 3)
            self.conv("roi_heads.keypoint_head.score_lowres", len(POINTS), 512, 4)
            name = "roi_heads.keypoint_head.score_lowres.weight"  # transposed
            self.arrays[name] = np.ascontiguousarray(self.arrays[name].swapaxes(0, 1))

    def resnet(self, depths: Sequence[int], planes: Sequence[int]) -> None:
        self.normed("backbone.bottom_up.stem.conv1", 64, 3, 7)
        before = 64
        for stage, (depth, width) in enumerate(zip(depths, planes, strict=True), start=2):
            for number in range(depth):
                block = f"backbone.bottom_up.res{stage}.{number}"
                if number == 0:
                    self.normed(f"{block}.shortcut", 4 * width, before, 1)
                self.normed(f"{block}.conv1", width, before, 1)
                self.normed(f"{block}.conv2", width, width, 3)
                self.normed(f"{block}.conv3", 4 * width, width, 1)
                before = 4 * width

    def layer(self, name: str, out: int, into: int, *side: int) -> None:
        spread = (into * np.prod(side or (1,))) ** -0.5
        self.arrays[f"{name}.weight"] = self._generator.normal(0, spread, (out, into, *side)).astype(np.float32)
        self.arrays[f"{name}.bias"] = self._generator.normal(0, 0.1, out).astype(np.float32)

    def conv(self, name: str, out: int, into: int, side: int) -> None:
        self.layer(name, out, into, side, side)

    def normed(self, name: str, out: int, into: int, side: int) -> None:
        self.conv(name, out, into, side)
        del self.arrays[f"{name}.bias"]
        for kind, low, high in (("weight", 0.5, 1.5), ("bias", -0.1, 0.1)):
            self.arrays[f"{name}.norm.{kind}"] = self._generator.uniform(low, high, out).astype(np.float32)
        for kind, low, high in (("running_mean", -0.1, 0.1), ("running_var", 0.5, 1.5)):
            self.arrays[f"{name}.norm.{kind}"] = self._generator.uniform(low, high, out).astype(np.float32)

    def write(self, path: Path) -> Path:
        path.write_bytes(pickle.dumps({"model": self.arrays, "__author__": "Detectron2 Model Zoo"}, 2))
        return path


SMALL_BOX = BoxOptions(fc_dim=WIDTH)
NECK = partial(fpn, channels=32)
DETECTRON2_DETECTORS: dict[str, Callable[..., Detector]] = {
    "faster": partial(faster_rcnn, neck=NECK, proposals=ProposalOptions(), pooling=PoolingOptions(), box=SMALL_BOX),
    "mask": partial(
        mask_rcnn, neck=NECK, proposals=ProposalOptions(), pooling=PoolingOptions(), box=SMALL_BOX, mask=MaskOptions()
    ),
    "keypoint": partial(
        keypoint_rcnn,
        neck=NECK,
        proposals=ProposalOptions(),
        pooling=PoolingOptions(),
        box=SMALL_BOX,
        keypoint=KeypointOptions(),
    ),
    "cascade": partial(cascade_rcnn, neck=NECK, proposals=ProposalOptions(), pooling=PoolingOptions(), box=SMALL_BOX),
    "retinanet": partial(RetinaNet, neck=partial(fpn_p3_p7, channels=32)),
}
DETECTRON2_COLORS = {"mean": [0.485, 0.456, 0.406], "std": [1 / 255]}


def task_of_detectron2(name: str) -> Detection:
    backbone = partial(
        resnet,
        model="resnet50",
        last_stride=2,
        stride_in_1x1=True,
        options={"layers": [2, 1, 1, 1], "channels": [8, 8, 16, 16]},
    )
    return Detection(INFO, backbone=backbone, detector=DETECTRON2_DETECTORS[name], **DETECTRON2_COLORS)


class Reference:
    """The layers of detectron2, by its names of weights; written by hand, since detectron2 cannot be installed."""

    def __init__(self, arrays: Arrays) -> None:
        self.arrays = {name: torch.from_numpy(array) for name, array in arrays.items()}

    def conv(self, name: str, values: Tensor, **keys: Any) -> Tensor:
        weight = self.arrays[f"{name}.weight"]
        padding = weight.shape[-1] // 2
        return F.conv2d(values, weight, self.arrays.get(f"{name}.bias"), padding=padding, **keys)

    def linear(self, name: str, values: Tensor) -> Tensor:
        return F.linear(values, self.arrays[f"{name}.weight"], self.arrays[f"{name}.bias"])

    def normed(self, name: str, values: Tensor, stride: int = 1) -> Tensor:
        kinds = ("running_mean", "running_var", "weight", "bias")
        norm = [self.arrays[f"{name}.norm.{kind}"] for kind in kinds]
        return F.batch_norm(self.conv(name, values, stride=stride), *norm, eps=1e-5)

    def backbone(self, image: Tensor) -> list[Tensor]:
        """Return the feature maps of the four stages; ``image`` is RGB in 0 to 1."""
        pixels = 255 * image.flip(0) - torch.tensor([103.530, 116.280, 123.675]).view(3, 1, 1)
        values = F.relu(self.normed("backbone.bottom_up.stem.conv1", pixels[None], 2))
        values = F.max_pool2d(values, 3, 2, 1)
        maps = []
        for stage in range(2, 6):
            number = 0
            while f"backbone.bottom_up.res{stage}.{number}.conv1.weight" in self.arrays:
                block = f"backbone.bottom_up.res{stage}.{number}"
                stride = 2 if stage > 2 and number == 0 else 1
                shortcut = self.normed(f"{block}.shortcut", values, stride) if number == 0 else values
                values = F.relu(self.normed(f"{block}.conv1", values, stride))
                values = F.relu(self.normed(f"{block}.conv2", values))
                values = F.relu(self.normed(f"{block}.conv3", values) + shortcut)
                number += 1
            maps.append(values)
        return maps

    def pyramid(self, maps: Sequence[Tensor], first: int) -> list[Tensor]:
        levels: list[Tensor] = []
        above: Tensor | None = None
        for level in range(5, first - 1, -1):
            lateral = self.conv(f"backbone.fpn_lateral{level}", maps[level - 2])
            above = lateral if above is None else lateral + F.interpolate(above, scale_factor=2.0)
            levels.insert(0, self.conv(f"backbone.fpn_output{level}", above))
        if first == 2:
            return [*levels, F.max_pool2d(levels[-1], 1, 2)]
        sixth = self.conv("backbone.top_block.p6", maps[-1], stride=2)
        return [*levels, sixth, self.conv("backbone.top_block.p7", F.relu(sixth), stride=2)]

    def row(self, names: Sequence[str], values: Tensor) -> Tensor:
        for name in names:
            values = F.relu(self.conv(name, values))
        return values

    def box(self, stage: str, pooled: Tensor) -> tuple[Tensor, Tensor]:
        values = F.relu(self.linear(f"roi_heads.box_head{stage}.fc1", pooled.flatten(1)))
        values = F.relu(self.linear(f"roi_heads.box_head{stage}.fc2", values))
        predictor = f"roi_heads.box_predictor{stage}"
        return self.linear(f"{predictor}.cls_score", values), self.linear(f"{predictor}.bbox_pred", values)

    def raised(self, name: str, values: Tensor, padding: int) -> Tensor:
        weight, bias = self.arrays[f"{name}.weight"], self.arrays[f"{name}.bias"]
        return F.conv_transpose2d(values, weight, bias, stride=2, padding=padding)


def compare_with_the_zoo(folder: Path, name: str, close: Callable[[Any, Any], None]) -> None:
    """Pass the outputs of each layer with weights of the zoo, and those of the reference, to ``close``."""
    zoo = Zoo(name)
    reference = Reference(zoo.arrays)
    task: Any = task_of_detectron2(name).eval()
    report = load(task, zoo.write(folder / "a.pkl"), strict=True)
    assert len(report.loaded) == len(zoo.arrays)
    assert "(detectron2's names, backbone.model.conv1.weight turned from BGR to RGB)" in str(report)
    image, first = torch.rand(3, 64, 96), 3 if name == "retinanet" else 2
    with torch.no_grad():
        maps = task.feature_maps(image[None], [(64, 96)])
        stages = reference.backbone(image)
        close(maps, stages)
        pyramid, expected = task.detector.neck(maps), reference.pyramid(stages, first)
        close(pyramid, expected)
        heads(name, task.detector, reference, pyramid[0], close)


@pytest.mark.parametrize("name", DETECTRON2_DETECTORS)
def test_weights_of_the_zoo_have_the_outputs_of_the_reference(tmp_path: Path, name: str) -> None:
    compare_with_the_zoo(tmp_path, name, partial(torch.testing.assert_close, atol=1e-3, rtol=1e-3))


def heads(name: str, detector: Any, reference: Reference, values: Tensor, close: Callable[..., None]) -> None:
    """Compare the heads on a feature map of the pyramid, or on the 49 or 196 positions of a region."""
    if name == "retinanet":
        rows = [[f"head.{branch}_subnet.{place}" for place in (0, 2, 4, 6)] for branch in ("cls", "bbox")]
        logits = reference.conv("head.cls_score", reference.row(rows[0], values))
        deltas = reference.conv("head.bbox_pred", reference.row(rows[1], values))
        close(detector.head["classification_head"]([values])[0], by_position(logits, len(CLASSES)))
        close(detector.head["regression_head"]([values])[0], by_position(deltas, 4))
        return
    rpn = "proposal_generator.rpn_head"
    hidden = reference.row([f"{rpn}.conv"], values)
    close(
        [outputs[0] for outputs in detector.rpn.head([values])],
        [reference.conv(f"{rpn}.{layer}", hidden) for layer in ("objectness_logits", "anchor_deltas")],
    )
    pooled = torch.randn(4, 32, 7, 7)
    stages = detector.box.stages if name == "cascade" else [detector.box.layers]
    for number, stage in enumerate(stages):
        close(tuple(stage(pooled)), reference.box(f".{number}" if name == "cascade" else "", pooled))
    pooled = torch.randn(2, 32, 14, 14)
    if name == "mask":
        hidden = reference.row([f"roi_heads.mask_head.mask_fcn{place}" for place in range(1, 5)], pooled)
        hidden = F.relu(reference.raised("roi_heads.mask_head.deconv", hidden, 0))
        masks = detector.others["mask"]
        close(masks.predictor(masks.layers(pooled)), reference.conv("roi_heads.mask_head.predictor", hidden))
    if name == "keypoint":
        hidden = reference.row([f"roi_heads.keypoint_head.conv_fcn{place}" for place in range(1, 9)], pooled)
        hidden = reference.raised("roi_heads.keypoint_head.score_lowres", hidden, 1)
        hidden = F.interpolate(hidden, scale_factor=2.0, mode="bilinear", align_corners=False)
        points = detector.others["keypoint"]
        close(points.predictor(points.layers(pooled)), hidden)


def by_position(values: Tensor, each: int) -> Tensor:
    """1 x A * ``each`` x H x W to H * W * A x ``each``."""
    return values[0].unflatten(0, (-1, each)).permute(2, 3, 0, 1).flatten(0, 2)


def zoo_with_norms(norm: str) -> Zoo:
    """Mask R-CNN as trained from scratch with group norm or SyncBN, or with large scale jitter: two convolutions in the
    RPN, which has no norms; four convolutions and a linear layer in the box head; norms in FPN, box and mask head."""
    zoo = Zoo("mask")
    for name in [name for name in zoo.arrays if re.search(r"rpn_head\.conv\.|box_head|mask_fcn|fpn_", name)]:
        del zoo.arrays[name]
    levels = [f"backbone.fpn_{layer}{level}" for layer in ("lateral", "output") for level in range(2, 6)]
    for name in levels:
        zoo.normed(
            name, 32, 32 if "output" in name else 4 * (8, 8, 16, 16)[int(name[-1]) - 2], 3 if "output" in name else 1
        )
    for place in (0, 1):
        zoo.conv(f"proposal_generator.rpn_head.conv.conv{place}", 32, 32, 3)
    for place in range(1, 5):
        zoo.normed(f"roi_heads.box_head.conv{place}", 32, 32, 3)
        zoo.normed(f"roi_heads.mask_head.mask_fcn{place}", 256, 32 if place == 1 else 256, 3)
    zoo.layer("roi_heads.box_head.fc1", WIDTH, 32 * 49)
    if norm == "group":
        head = r"fpn_|box_head|mask_head"
        zoo.arrays = {
            name: array for name, array in zoo.arrays.items() if not (re.search(head, name) and "running" in name)
        }
    return zoo


@pytest.mark.parametrize("norm", ["group", "batch"])
def test_heads_with_norms_have_the_outputs_of_the_reference(tmp_path: Path, norm: Any) -> None:
    zoo = zoo_with_norms(norm)
    detector = partial(
        mask_rcnn,
        neck=partial(fpn, channels=32, norm=norm),
        proposals=ProposalOptions(num_convs=2),
        pooling=PoolingOptions(),
        box=BoxOptions(num_convs=4, num_fc=1, norm=norm, fc_dim=WIDTH),
        mask=MaskOptions(norm=norm),
    )
    backbone = partial(resnet, last_stride=2, options={"layers": [2, 1, 1, 1], "channels": [8, 8, 16, 16]})
    task: Any = Detection(INFO, backbone=backbone, detector=detector).eval()
    report = load(task, zoo.write(tmp_path / "a.pkl"), strict=True)
    assert len(report.loaded) == len(zoo.arrays)
    reference = Reference(zoo.arrays)

    def row(names: Sequence[str], values: Tensor) -> Tensor:
        for name in names:
            weight, bias = (reference.arrays[f"{name}.norm.{kind}"] for kind in ("weight", "bias"))
            convolved = reference.conv(name, values)
            values = F.relu(
                F.group_norm(convolved, 32, weight, bias) if norm == "group" else reference.normed(name, values)
            )
        return values

    box, mask, pooled = task.detector.box.layers, task.detector.others["mask"], torch.randn(2, 32, 7, 7)
    with torch.no_grad():
        hidden = row([f"roi_heads.box_head.conv{place}" for place in range(1, 5)], pooled).flatten(1)
        expected = F.relu(reference.linear("roi_heads.box_head.fc1", hidden))
        torch.testing.assert_close(box.head(pooled), expected, atol=1e-4, rtol=1e-4)
        expected = row([f"roi_heads.mask_head.mask_fcn{place}" for place in range(1, 5)], pooled)
        torch.testing.assert_close(mask.layers(pooled), expected, atol=1e-4, rtol=1e-4)


def test_tensors_that_are_not_weights_are_skipped(tmp_path: Path) -> None:
    zoo = Zoo("faster")
    zoo.arrays["pixel_mean"] = np.zeros((3, 1, 1), np.float32)
    zoo.arrays["proposal_generator.anchor_generator.cell_anchors.0"] = np.zeros((3, 4), np.float32)
    assert load(task_of_detectron2("faster"), zoo.write(tmp_path / "a.pkl")).complete


def test_names_of_detectron2s_fcos() -> None:
    zoo = Zoo("retinanet")
    for branch in ("cls_subnet", "bbox_subnet"):
        for place in (2, 4, 6):
            del zoo.arrays[f"head.{branch}.{place}.weight"], zoo.arrays[f"head.{branch}.{place}.bias"]
        for place in (3, 6, 9):
            zoo.conv(f"head.{branch}.{place}", 32, 32, 3)
        for place in (1, 4, 7, 10):
            zoo.layer(f"head.{branch}.{place}", 32, 1)
            zoo.arrays[f"head.{branch}.{place}.weight"] = zoo.arrays[f"head.{branch}.{place}.weight"][:, 0]
    zoo.conv("head.cls_score", len(CLASSES), 32, 3)
    zoo.conv("head.bbox_pred", 4, 32, 3)
    zoo.conv("head.ctrness", 1, 32, 3)
    levels = [Level(32, 8), Level(64, 16), Level(64, 32)]
    detector = Fcos(levels, INFO, neck=partial(fpn_p3_p7, channels=32))
    weights = translate_weights({name: torch.from_numpy(array) for name, array in zoo.arrays.items()}).weights
    state = {name.removeprefix("detector."): tensor for name, tensor in weights.items() if name.startswith("detector.")}
    detector.load_state_dict(state)
    assert torch.equal(
        detector.state_dict()["head.classification_head.conv.9.weight"],
        torch.from_numpy(zoo.arrays["head.cls_subnet.9.weight"]),
    )


def test_names_of_retinanet_with_norms() -> None:
    names = [f"head.cls_subnet.{place}.weight" for place in (0, 1, 3, 4, 6, 7, 9, 10)]
    given = {"backbone.bottom_up.stem.conv1.weight": torch.zeros(1)} | {name: torch.zeros(1) for name in names}
    assert [name.partition("conv.")[2] for name in list(translate_weights(given).weights)[1:]] == [
        f"{block}.{place}.weight" for block in range(4) for place in (0, 1)
    ]


def test_names_of_other_frameworks_are_registered_when_weights_are_read() -> None:
    program = (
        "import sys; from opabinia.models.weights.translation import translate_weights; import torch; "
        "assert 'opabinia.migration' not in sys.modules; "
        "print(translate_weights({'backbone.bottom_up.res2.0.conv1.weight': torch.zeros(1)}).description)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "detectron2" in run.stdout


# --- ResNets of detectron2's zoo --------------------------------------------------------------------------------------


def of_caffe2(arrays: Arrays) -> Arrays:
    """Return a ResNet under the names of MSRA's R-50.pkl: no statistics, a bias of the stem, and a classifier."""
    renamed: Arrays = {}
    kinds = {"norm.weight": "bn_s", "norm.bias": "bn_b", "weight": "w"}
    branches = {"shortcut": "branch1", "conv1": "branch2a", "conv2": "branch2b", "conv3": "branch2c"}
    for name, array in arrays.items():
        parts = name.removeprefix("backbone.bottom_up.").split(".")
        kind = kinds.get(".".join(parts[3:] if parts[0] != "stem" else parts[2:]))
        if kind is None:
            continue
        if parts[0] == "stem":
            renamed["conv1_w" if kind == "w" else f"res_conv1_{kind}"] = array
        else:
            renamed[f"{parts[0]}_{parts[1]}_{branches[parts[2]]}_{kind}"] = array
    return renamed | {
        "conv1_b": np.zeros(64, np.float32),
        "fc1000_w": np.zeros((1000, 64), np.float32),
        "fc1000_b": np.zeros(1000, np.float32),
        "conv1_w_momentum": np.zeros(1, np.float32),
    }


def backbone_of(arrays: Arrays) -> Arrays:
    return {name: array for name, array in arrays.items() if name.startswith("backbone.bottom_up.")}


def test_a_resnet_of_caffe2_has_the_outputs_of_the_reference(tmp_path: Path) -> None:
    arrays = backbone_of(Zoo("faster").arrays)
    for name, array in arrays.items():  # as detectron2 sets missing statistics
        if name.endswith("running_mean"):
            array[:] = 0
        elif name.endswith("running_var"):
            array[:] = 1 - 1e-5
    (tmp_path / "a.pkl").write_bytes(pickle.dumps({"blobs": of_caffe2(arrays)}, 2))
    task = task_of_detectron2("faster").eval()
    report = load(task, tmp_path / "a.pkl", target_prefix="backbone")
    assert not report.missing and not report.other_shape
    assert set(report.unexpected) == {
        "backbone.model.conv1.bias",
        "backbone.model.fc.weight",
        "backbone.model.fc.bias",
    }
    image = torch.rand(3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(
            task.feature_maps(image[None], [(64, 64)]), Reference(arrays).backbone(image), atol=1e-3, rtol=1e-3
        )


def test_statistics_of_caffe2s_norms_are_loaded_if_present() -> None:
    given = {"conv1_w": torch.zeros(1, 3, 1, 1), "res_conv1_bn_s": torch.ones(4)}
    statistics = {"res_conv1_bn_rm": torch.full([4], 2.0), "res_conv1_bn_riv": torch.full([4], 3.0)}
    weights = translate_weights({**given, **statistics}).weights
    assert (weights["backbone.model.bn1.running_mean"] == 2).all() and (
        weights["backbone.model.bn1.running_var"] == 3
    ).all()
    weights = translate_weights(given).weights
    assert (weights["backbone.model.bn1.running_mean"] == 0).all()
    torch.testing.assert_close(weights["backbone.model.bn1.running_var"] + 1e-5, torch.ones(4))


def test_a_backbone_converted_from_torchvision_stays_in_rgb(tmp_path: Path) -> None:
    arrays = {
        name.removeprefix("backbone.bottom_up."): array for name, array in backbone_of(Zoo("faster").arrays).items()
    }
    (tmp_path / "a.pkl").write_bytes(pickle.dumps({"model": arrays, "__author__": "torchvision"}))
    for order, stem in (
        (None, arrays["stem.conv1.weight"]),
        ("rgb", arrays["stem.conv1.weight"]),
        ("bgr", arrays["stem.conv1.weight"][:, ::-1].copy()),
    ):
        task = task_of_detectron2("faster")
        assert load(task, tmp_path / "a.pkl", target_prefix="backbone", channel_order=order).complete
        assert torch.equal(task.state_dict()["backbone.model.conv1.weight"], torch.from_numpy(stem))


def test_other_names_are_not_changed() -> None:
    given = {"layer1.0.conv1.weight": torch.zeros(2, 3, 1, 1), "fc.weight": torch.ones(2)}
    unchanged = translate_weights(given)
    assert unchanged.description == "" and unchanged.weights.keys() == given.keys()
    given["layer1.0.conv1.weight"][:, 0] = 1
    turned = translate_weights(given, "bgr")
    assert turned.description == "layer1.0.conv1.weight turned from BGR to RGB"
    assert (turned.weights["layer1.0.conv1.weight"][:, 2] == 1).all()


@pytest.mark.parametrize(
    "model", ["nfnet_f0", "levit_128s", "cs3darknet_s", "resnetv2_50", "swin_tiny_patch4_window7_224"]
)
def test_names_of_timm_are_not_mistaken_for_those_of_others(model: str) -> None:
    """Many begin with ``stem.conv1``, like those of detectron2's backbones."""
    with torch.device("meta"):
        given = create_model(model).state_dict()
    assert translate_weights(given).weights.keys() == given.keys()
