"""Detectors without a feature pyramid (ResNet-C4 and -DC5), proposal networks, and other options of detectron2."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchvision.ops import deform_conv2d

from opabinia.contracts import DatasetInfo, Detector, InstanceMasks, Level, Target
from opabinia.models.backbones.deformable import DeformableConv, DeformableOptions
from opabinia.models.backbones.resnet import resnet
from opabinia.models.detectors.boxes import BoxOptions
from opabinia.models.detectors.keypoints import KeypointOptions
from opabinia.models.detectors.masks import MaskHead, MaskOptions
from opabinia.models.detectors.rcnn import keypoint_rcnn, mask_rcnn
from opabinia.models.detectors.regions import PoolingOptions, RegionPool, Regions
from opabinia.models.detectors.retinanet import RetinaNet, RunningMean
from opabinia.models.detectors.rpn import ProposalNetwork, ProposalOptions, RegionProposals
from opabinia.models.necks import NoNeck
from opabinia.tasks.detection.task import Detection

SIZES = [(64, 96), (60, 90)]
KEYPOINTS = ("nose", "tail")
INFO = DatasetInfo(samples=2, classes=("cat", "dog", "bird"), boxes=True, masks=True, keypoints=KEYPOINTS)
PROPOSALS = ProposalOptions(anchor_sizes=[[16.0, 32.0, 64.0]], batch_size_per_image=16, post_nms_topk_train=30)
BOX = BoxOptions(fc_dim=16, batch_size_per_image=8, score_threshold=0)


def make_batch(objects: int = 1) -> dict[str, Any]:
    torch.manual_seed(0)
    count = (objects,)
    return {
        "image": torch.rand(2, 3, 64, 96),
        "image_sizes": SIZES,
        "original_size": SIZES,
        "boxes": [torch.tensor([[8.0, 4, 60, 50]])[:objects]] * 2,
        "labels": [torch.full(count, 1)] * 2,
        "masks": [InstanceMasks.encode(torch.ones(objects, 64, 96)).runs] * 2,
    }


def without_pyramid(*, last_stage: bool, model: str = "test_resnet", **options: Any) -> Detection:
    """Return Mask R-CNN with ResNet-C4 or ResNet-DC5."""
    torch.manual_seed(0)
    detector = partial(
        mask_rcnn,
        neck=NoNeck,
        proposals=PROPOSALS,
        pooling=PoolingOptions(num_levels=1, last_stage=last_stage),
        box=replace(BOX, resolution=14, num_fc=0) if last_stage else BOX,
        mask=MaskOptions(num_convs=0, channels=8),
    )
    variation: dict[str, Any] = {"last_stride": 2} if last_stage else {"last_stride": 1, "last_dilation": 2}
    return Detection(
        INFO, backbone=partial(resnet, model=model, **variation, **options), detector=detector, freeze_norms=True
    )


@pytest.mark.parametrize("last_stage", [True, False], ids=["C4", "DC5"])
@pytest.mark.parametrize("objects", [1, 0])
def test_every_parameter_has_a_gradient(last_stage: bool, objects: int) -> None:
    task = without_pyramid(last_stage=last_stage)
    values = task(make_batch(objects), None)
    sum(value for name, value in values.items() if "loss" in name).backward()
    assert [name for name, param in task.named_parameters() if param.grad is None and param.requires_grad] == []
    task.eval()
    with torch.no_grad():
        predictions = task.predict(make_batch(objects))
    assert predictions["boxes"].shape == (2, 100, 4) and predictions["masks"].shape[:2] == (2, 100)


def test_the_last_stage_runs_on_regions_only() -> None:
    task: Any = without_pyramid(last_stage=True)
    stage = task.backbone.model.layer4
    assert sum(name.endswith("layer4.0.conv1.weight") for name in task.state_dict()) == 1
    shapes: list[tuple[int, ...]] = []
    stage.register_forward_hook(lambda _module, inputs, _output: shapes.append(tuple(inputs[0].shape)))
    image = torch.rand(1, 3, 64, 96)
    [features] = task.detector.pyramid(task.backbone.pyramid_features(image))
    assert features.shape[-2:] == (4, 6) and not shapes
    boxes = torch.tensor([[0.0, 0, 64, 64], [16, 0, 48, 32]])
    pool = task.detector.box.pool
    pooled = pool(features[None], [boxes])
    assert shapes == [(2, features.shape[1], 14, 14)] and pooled.shape == (2, pool.out_channels, 7, 7)
    plain = RegionPool([Level(features.shape[1], 16), Level(9, 32)], 14, PoolingOptions(num_levels=1))
    torch.testing.assert_close(pooled, stage(plain(features[None], [boxes])))
    # Features of regions are averaged over their positions.
    torch.testing.assert_close(task.detector.box.layers.head(pooled), pooled.mean((2, 3)))


def test_the_last_stage_needs_a_resnet_with_strides_16_and_32() -> None:
    with pytest.raises(ValueError, match="strides 16 and 32"):
        backbone = resnet(3, model="test_resnet", last_stride=1)
        backbone.enable_multi_scale()
        backbone.split_last_stage()
    with pytest.raises(ValueError, match="last_dilation: 2 takes the place of the stride"):
        resnet(3, model="test_resnet", last_stride=2, last_dilation=2)


def test_a_dilated_stage_equals_a_strided_stage_at_every_second_position() -> None:
    """Dilated convolutions instead of strides give the same values at more positions (Yu and Koltun 2016)."""
    stages = []
    variations: list[dict[str, Any]] = [{"last_stride": 2}, {"last_stride": 1, "last_dilation": 2}]
    for variation in variations:
        torch.manual_seed(0)
        backbone: Any = resnet(3, model="resnet10t", **variation)
        stages.append(backbone.eval().model.layer4[0].conv2)
    features = torch.rand(1, stages[0].in_channels, 12, 12)
    torch.testing.assert_close(stages[1](features)[..., ::2, ::2], stages[0](features[..., ::2, ::2]))


@pytest.mark.parametrize("modulated", [False, True])
def test_deformable_convolutions_start_as_convolutions(modulated: bool) -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(4, 6, 3, 2, 1, bias=False)
    deformable = DeformableConv(conv, groups=2, modulated=modulated)
    features = torch.rand(2, 4, 9, 9)
    torch.testing.assert_close(deformable(features), conv(features) * (0.5 if modulated else 1))
    nn.init.normal_(deformable.offset.weight)
    values = deformable.offset(features)
    expected = deform_conv2d(
        features, values[:, :36], conv.weight, stride=2, padding=1, mask=values[:, 36:].sigmoid() if modulated else None
    )
    torch.testing.assert_close(deformable(features), expected)
    assert {"weight", "offset.weight", "offset.bias"} == set(deformable.state_dict())


def test_deformable_stages() -> None:
    backbone = resnet(3, model="resnet26", deformable=DeformableOptions(stages=(3,), modulated=True))
    types = {name: type(getattr(backbone.model, name)[0].conv2).__name__ for name in ("layer2", "layer3")}
    assert types == {"layer2": "Conv2d", "layer3": "DeformableConv"}
    with pytest.raises(ValueError, match="deformable: BasicBlock"):
        resnet(3, model="resnet10t", deformable=DeformableOptions(stages=(4,)))


def make_maps(levels: tuple[Level, ...]) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(2, level.channels, 64 // level.stride, 96 // level.stride) for level in levels]


def make_targets() -> list[Target]:
    keypoints = torch.tensor([[[20.0, 20, 2], [70, 30, 0]]])
    box = torch.tensor([[8.0, 4, 60, 50]])
    return [Target(box, torch.tensor([1]), InstanceMasks.encode(torch.ones(1, 64, 96)), keypoints)] * 2


LEVELS = (Level(8, 16),)


def compute_losses(detector: Detector, seed: int = 0) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    return detector.losses(make_maps(LEVELS), (64, 96), SIZES, make_targets())


def make_detector(make: Any, proposals: ProposalOptions = PROPOSALS, **options: Any) -> Detector:
    torch.manual_seed(0)
    pooling = PoolingOptions(num_levels=1)
    detector: Detector = make(LEVELS, INFO, neck=NoNeck, proposals=proposals, pooling=pooling, **options)
    return detector


def test_loss_weights() -> None:
    plain = compute_losses(make_detector(keypoint_rcnn, box=BOX, keypoint=KeypointOptions(channels=8, num_convs=1)))
    weighted = compute_losses(
        make_detector(
            keypoint_rcnn,
            replace(PROPOSALS, loss_weight=2, box_loss_weight=3),
            box=replace(BOX, box_loss_weight=4),
            keypoint=KeypointOptions(channels=8, num_convs=1, loss_weight=5, keypoints_per_image=10),
        )
    )
    factors = {"loss_rpn_cls": 2, "loss_rpn_loc": 6, "loss_cls": 1, "loss_box_reg": 4}
    for name, factor in factors.items():
        torch.testing.assert_close(weighted[name], factor * plain[name])
    # One keypoint of each foreground region is visible: the mean over them becomes a sum over 10 keypoints per image.
    visible = plain["keypoint_head/num_fg_samples"] * 2
    torch.testing.assert_close(weighted["loss_keypoint"], 5 * plain["loss_keypoint"] * visible / (10 * 2))


def test_class_agnostic_masks() -> None:
    torch.manual_seed(0)
    options = MaskOptions(channels=4, num_convs=1, class_agnostic=True)
    head = MaskHead(LEVELS, 3, options, PoolingOptions(num_levels=1))
    assert head.predictor.mask_fcn_logits.out_channels == 1
    boxes = [torch.tensor([[8.0, 4, 60, 50]] * 2)]
    logits = head._logits([make_maps(LEVELS)[0][:1]], boxes, torch.tensor([0, 2]))
    assert logits.shape == (2, 28, 28) and torch.equal(logits[0], logits[1])
    assert compute_losses(make_detector(mask_rcnn, box=BOX, mask=options))["loss_mask"] > 0


def test_masks_trained_on_predicted_boxes() -> None:
    torch.manual_seed(0)
    options = replace(BOX, train_on_predictions=True)
    detector: Any = make_detector(mask_rcnn, box=options, mask=MaskOptions(channels=4, num_convs=1))
    head: Any = detector.box
    nn.init.zeros_(head.layers.predictor.bbox_pred.weight)
    # Boxes of class 1 move to the right by a tenth of their width.
    head.layers.predictor.bbox_pred.bias.data = torch.tensor([0.0] * 4 + [1.0, 0, 0, 0] + [0.0] * 4)
    boxes = torch.tensor([[10.0, 10, 30, 30], [10, 10, 30, 30]])
    regions = Regions(boxes, torch.tensor([1, 2]), torch.tensor([0, 0]), boxes)
    _, [[refined]] = head.losses([make_maps(LEVELS)[0][:1]], SIZES[:1], [regions], make_targets()[:1])
    assert refined.boxes.tolist() == [[12, 10, 32, 30], [10, 10, 30, 30]] and refined.labels is regions.labels
    pooled_boxes: list[Tensor] = []
    mask_head: Any = detector.others["mask"]
    mask_head.pool.register_forward_pre_hook(lambda _module, inputs: pooled_boxes.extend(inputs[1]))
    assert compute_losses(detector)["loss_mask"] > 0 and not any(
        box[0] == 8 for image in pooled_boxes for box in image.tolist()
    )


def test_several_anchor_sizes_per_level() -> None:
    options = ProposalOptions(anchor_sizes=[[16.0, 32.0], [64.0, 128.0]], aspect_ratios=(1,), offset=0.5)
    rpn = RegionProposals((Level(4, 16), Level(4, 32)), options)
    anchors = rpn([torch.zeros(1, 4, 1, 1)] * 2, (16, 16)).anchors
    assert anchors[0].tolist() == [[0, 0, 16, 16], [-8, -8, 24, 24]]
    assert anchors[1][1].tolist() == [-48, -48, 80, 80]


def test_a_proposal_network() -> None:
    torch.manual_seed(0)
    options = replace(PROPOSALS, post_nms_topk_test=7)
    detector = ProposalNetwork(LEVELS, INFO, neck=NoNeck, proposals=options)
    assert detector.max_detections == 7
    assert {name for name in compute_losses(detector) if "loss" in name} == {"loss_rpn_cls", "loss_rpn_loc"}
    detections = detector.detect(make_maps(LEVELS), (64, 96), SIZES)
    assert [len(image.boxes) for image in detections] == [7, 7] and not detections[0].labels.any()
    assert ((detections[0].scores[:-1] - detections[0].scores[1:]) >= 0).all() and (detections[0].scores < 1).all()
    # With ResNet-C4 the last stage is neither run nor trained.
    info = replace(INFO, masks=False)
    detector_part = partial(ProposalNetwork, neck=NoNeck, proposals=options, last_stage=False)
    task = Detection(info, backbone=partial(resnet, model="test_resnet", last_stride=2), detector=detector_part)
    trained = [name for name, param in task.named_parameters() if param.requires_grad]
    assert task.detector.neck.out_levels[0].stride == 16 and not any(".layer4." in name for name in trained)
    values = task({**make_batch(), "masks": [None, None]}, None)
    sum(value for name, value in values.items() if "loss" in name).backward()
    params = dict(task.named_parameters())
    assert all(params[name].grad is not None for name in trained)


def test_the_running_mean_matches_detectron2() -> None:
    """Starts at 100 for a batch of 2 images, then momentum 0.1: 46 and 43.4."""
    mean = RunningMean()
    assert mean.eval()(torch.tensor(10.0), 50.0) == 50 and mean.value == 0
    mean.train()
    values = [mean(torch.tensor(number), 50.0).item() for number in (10.0, 20.0)]
    assert values == pytest.approx([46, 43.4]) and mean.value.item() == pytest.approx(43.4)
    assert mean.eval()(torch.tensor(10.0), 50.0).item() == pytest.approx(43.4)


def test_losses_divided_by_the_running_mean() -> None:
    level = (Level(8, 16),)
    detectors = []
    for normalizer in ("image", "running_mean"):
        torch.manual_seed(0)
        detector = RetinaNet(level, INFO, neck=NoNeck, anchor_sizes=[32], loss_normalizer=normalizer)
        detectors.append(compute_losses(detector))
    plain, running = detectors
    divisor = 0.9 * 50 + 0.1 * plain["num_pos_anchors"]
    torch.testing.assert_close(running["loss_cls"], plain["loss_cls"] * plain["num_pos_anchors"] / divisor)
