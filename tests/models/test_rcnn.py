"""R-CNNs follow detectron2's rules and reproduce torchvision's outputs; every parameter gets a gradient."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.keypoint_rcnn import KeypointRCNNHeads, KeypointRCNNPredictor
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.detection.roi_heads import RoIHeads
from torchvision.models.detection.rpn import RegionProposalNetwork, RPNHead
from torchvision.ops import MultiScaleRoIAlign, box_iou, roi_align

from opabinia.contracts import DataMismatch, DatasetInfo, Detections, Detector, InstanceMasks, Level, Neck, Target
from opabinia.models.detectors.boxes import BoxLayers, BoxOptions, BoxPredictions
from opabinia.models.detectors.cascade import CascadeHead
from opabinia.models.detectors.keypoints import KeypointOptions, heatmaps_to_keypoints
from opabinia.models.detectors.masks import MaskHead, MaskOptions
from opabinia.models.detectors.rcnn import cascade_rcnn, faster_rcnn, keypoint_rcnn, mask_rcnn
from opabinia.models.detectors.regions import (
    PoolingOptions,
    RegionPool,
    Regions,
    draw_samples,
    label_regions,
    sample_regions,
)
from opabinia.models.detectors.rpn import ProposalOptions, RegionProposals, RpnOutput
from opabinia.models.detectors.suppression import exceeds_size
from opabinia.models.losses.binary import draw_federated_classes

SHAPE = (96, 128)
SIZES = [(96, 128), (90, 100)]
LEVELS = tuple(Level(16, stride) for stride in (4, 8, 16, 32, 64))
KEYPOINTS = ("nose", "left", "right")
INFO = DatasetInfo(samples=2, classes=("cat", "dog", "bird"), boxes=True, masks=True, keypoints=KEYPOINTS)
ANCHORS = [8.0, 16, 32, 64, 128]
SMALL_PROPOSALS = ProposalOptions(
    anchor_sizes=ANCHORS, pre_nms_topk_test=200, post_nms_topk_test=60, pre_nms_topk_train=200, post_nms_topk_train=60
)
BOX = BoxOptions(fc_dim=32, score_threshold=0.01)


class IdentityNeck(Neck):
    """Return the feature maps unchanged."""

    def __init__(self, levels: Sequence[Level]) -> None:
        super().__init__()
        self.out_levels = tuple(levels)

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        return list(maps)


def pyramid(count: int = 2, seed: int = 0) -> list[Tensor]:
    """Return feature maps; torchvision computes a fractional stride for the coarsest (2 x 2 for 96 x 128 pixels)."""
    torch.manual_seed(seed)
    return [torch.randn(count, 16, math.ceil(SHAPE[0] / s), math.ceil(SHAPE[1] / s)) for _, s in LEVELS]


def full_target() -> Target:
    boxes = torch.tensor([[5.0, 5, 40, 50], [60, 30, 99, 80]])
    masks = torch.zeros(2, *SHAPE, dtype=torch.uint8)
    masks[0, 5:50, 5:30] = 1
    masks[1, 35:80, 60:95] = 1
    points = [[[10.0, 10, 2], [20, 20, 1], [0, 0, 0]], [[70, 70, 2], [0, 0, 0], [62.5, 44, 1]]]
    return Target(boxes, torch.tensor([0, 2]), InstanceMasks.encode(masks), torch.tensor(points))


def empty_target() -> Target:
    no_labels = torch.zeros(0, dtype=torch.int64)
    masks = InstanceMasks.encode(torch.zeros(0, *SHAPE, dtype=torch.uint8))
    return Target(torch.zeros(0, 4), no_labels, masks, torch.zeros(0, 3, 3))


def make_detector(name: str, info: DatasetInfo = INFO, **changes: Any) -> Detector:
    keys: dict[str, Any] = {"neck": IdentityNeck, "proposals": SMALL_PROPOSALS, "pooling": PoolingOptions(), "box": BOX}
    if name in ("mask_rcnn", "cascade_mask"):
        keys["mask"] = MaskOptions(channels=16, num_convs=2)
    if name == "keypoint_rcnn":
        keys["keypoint"] = KeypointOptions(channels=16, num_convs=2)
    make: Mapping[str, Callable[..., Detector]] = {
        "faster_rcnn": faster_rcnn,
        "mask_rcnn": mask_rcnn,
        "keypoint_rcnn": keypoint_rcnn,
        "cascade": cascade_rcnn,
        "cascade_mask": cascade_rcnn,
    }
    torch.manual_seed(1)
    return make[name](LEVELS, info, **{**keys, **changes})


ALL = ("faster_rcnn", "mask_rcnn", "keypoint_rcnn", "cascade", "cascade_mask")
every_detector = pytest.mark.parametrize("name", ALL)


def total_loss(losses: Mapping[str, Tensor]) -> Tensor:
    return torch.stack([value for name, value in losses.items() if "loss" in name]).sum()


# --- the contract -----------------------------------------------------------------------------------------------------


@every_detector
def test_reported_scalars_have_detectron2s_names(name: str) -> None:
    scalars = make_detector(name).losses(pyramid(), SHAPE, SIZES, [full_target(), empty_target()])
    rpn = {"loss_rpn_cls", "loss_rpn_loc", "rpn/num_pos_anchors", "rpn/num_neg_anchors"}
    samples = {"roi_head/num_fg_samples", "roi_head/num_bg_samples"}
    box = {f"fast_rcnn/{metric}" for metric in ("cls_accuracy", "fg_cls_accuracy", "false_negative")}
    if name.startswith("cascade"):
        box = {f"stage{number}/{metric}" for metric in box for number in range(3)}
        box |= {f"stage{number}/{metric}" for metric in samples for number in (1, 2)}
        box |= {f"{metric}_stage{number}" for metric in ("loss_cls", "loss_box_reg") for number in range(3)}
    else:
        box |= {"loss_cls", "loss_box_reg"}
    mask = {"loss_mask", "mask_rcnn/accuracy", "mask_rcnn/false_positive", "mask_rcnn/false_negative"}
    keypoint = {"loss_keypoint", "keypoint_head/num_fg_samples"}
    others = mask if "mask" in name else keypoint if "keypoint" in name else set()
    assert scalars.keys() == rpn | samples | box | others
    assert not any(value.requires_grad for key, value in scalars.items() if "loss" not in key)


@every_detector
def test_images_without_detections_are_described(name: str) -> None:
    no_detections = [Detections(torch.zeros(0, 4), torch.zeros(0), torch.zeros(0, dtype=torch.int64))] * 2
    for described in make_detector(name).describe(pyramid(), SHAPE, SIZES, no_detections):
        assert described.masks is None or described.masks.shape == (0, 28, 28)
        assert described.keypoints is None or described.keypoints.shape == (0, 3, 3)


@every_detector
def test_no_proposals_give_no_detections_and_no_loss(name: str) -> None:
    detector, no_proposals = make_detector(name), [torch.zeros(0, 4)] * 2
    box: Any = detector.box
    assert [len(image.boxes) for image in box.detect(pyramid(), SIZES, no_proposals)] == [0, 0]
    regions = sample_regions(no_proposals, [empty_target()] * 2, 0.5, 8, 0.25, 3)
    losses, _ = box.losses(pyramid(), SIZES, regions, [empty_target()] * 2)
    assert total_loss(losses) == 0
    total_loss(losses).backward()  # type: ignore[no-untyped-call]
    assert all(param.grad is not None and param.grad.eq(0).all() for param in box.parameters())


@every_detector
def test_nan_features_give_nan_losses_and_scores(name: str) -> None:
    """A single NaN in one feature map is enough, whichever regions are sampled."""
    detector, maps = make_detector(name), pyramid()
    maps[2][0, 0, 1, 1] = math.nan
    assert total_loss(detector.losses(maps, SHAPE, SIZES, [full_target(), empty_target()])).isnan()
    assert detector.detect(maps, SHAPE, SIZES)[0].scores.isnan().any()


BOXES_ONLY = DatasetInfo(samples=2, classes=("cat",), boxes=True)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("faster_rcnn", {"proposals": ProposalOptions(anchor_sizes=[8, 16])}, "sizes: 2 lists for 5 levels"),
        ("faster_rcnn", {"proposals": ProposalOptions(background_iou=0.8)}, "background_iou .0.8. must not be above"),
        ("faster_rcnn", {"pooling": PoolingOptions(num_levels=6)}, "num_levels: 6 levels .*, and the neck has 5"),
        ("cascade", {"later_ious": (0.6,)}, "later_ious has 1 stages, later_bbox_reg_weights 2"),
        ("cascade", {"box": BoxOptions(class_agnostic=False)}, "boxes of a cascade are class-agnostic"),
        ("cascade", {"stage_loss_weights": (1, 0.5)}, "stage_loss_weights has 2 of 3 stages"),
        ("cascade_mask", {"num_mask_heads": 2}, "num_mask_heads is 2: expected 1, or 3"),
        ("cascade_mask", {"info": BOXES_ONLY}, "masks: true"),
        ("mask_rcnn", {"info": BOXES_ONLY}, "masks: true"),
        ("keypoint_rcnn", {"info": BOXES_ONLY}, "keypoint_rcnn learns keypoints"),
    ],
)
def test_options_that_do_not_fit_raise(name: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_detector(name, **changes)


@pytest.mark.parametrize("kind", ["mask", "keypoint"])
def test_targets_without_annotations_raise(kind: str) -> None:
    bare = full_target()._replace(masks=None, keypoints=None)
    with pytest.raises(ValueError, match=f"without {kind}s"):
        make_detector(f"{kind}_rcnn").losses(pyramid(), SHAPE, SIZES, [bare, bare])


@torch.no_grad()
def test_static_shapes_give_the_same_detections_with_other_options() -> None:
    detector: Any = make_detector(
        "mask_rcnn",
        proposals=replace(SMALL_PROPOSALS, convention="torchvision", min_size=12, post_nms_topk_test=300),
        pooling=PoolingOptions(aligned=False, sampling_ratio=2),
        box=replace(BOX, min_size=15, nms_threshold=0.1),
    ).eval()
    maps = pyramid()
    detections = detector.detect_batch(maps, SHAPE, torch.tensor(SIZES))
    for row, image in enumerate(detector.describe(maps, SHAPE, SIZES, detector.detect(maps, SHAPE, SIZES))):
        assert 10 < len(image.labels) < 100
        for values, expected in zip(detections[:4], image[:4], strict=True):
            torch.testing.assert_close(values[row, : len(image.labels)], expected)


def test_images_without_mask_annotations_are_ignored_by_the_mask_loss() -> None:
    detector: Any = make_detector("mask_rcnn")
    head, maps = detector.others["mask"], pyramid()
    known, without = full_target(), empty_target()
    unknown = known._replace(masks=without.masks)
    losses, expected = (
        head.losses(maps, [[label_regions(target.boxes, target, 0.5, 3) for target in targets]], targets)
        for targets in ([known, unknown], [known, without])
    )
    assert losses.keys() == expected.keys() and losses["loss_mask"] > 0
    assert all(torch.equal(losses[name], expected[name]) for name in losses)
    total_loss(detector.losses(maps, SHAPE, SIZES, [unknown, unknown])).backward()  # type: ignore[no-untyped-call]
    assert all(param.grad is not None for param in detector.parameters())


# --- torchvision's weights --------------------------------------------------------------------------------------------


class SharedSampler:
    """torchvision's sampler with the random draws of ``draw_samples``."""

    def __init__(self, count: int, positive: float) -> None:
        self.count, self.positive = count, positive

    def __call__(self, labels: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        masks = []
        for image_labels in labels:
            rows, counts = draw_samples(image_labels.long().clamp(max=1), self.count, self.positive)
            masks.append(torch.zeros(len(image_labels), dtype=torch.bool).index_fill(0, rows[counts], True))
        positive = [mask & (image_labels > 0) for mask, image_labels in zip(masks, labels, strict=True)]
        return positive, [mask & ~chosen for mask, chosen in zip(masks, positive, strict=True)]


TORCHVISION: dict[str, Any] = {
    "proposals": ProposalOptions(
        anchor_sizes=ANCHORS,
        convention="torchvision",
        smooth_l1_beta=1 / 9,
        pre_nms_topk_test=200,
        post_nms_topk_test=60,
        pre_nms_topk_train=300,
        post_nms_topk_train=80,
        min_size=1e-3,
    ),
    "pooling": PoolingOptions(aligned=False, sampling_ratio=2),
    "box": BoxOptions(fc_dim=32, batch_size_per_image=64, score_threshold=0.01, smooth_l1_beta=1 / 9, min_size=1e-2),
}


class Torchvision(nn.Module):
    """torchvision's RPN and RoI heads, with masks and keypoints, and the options of TORCHVISION."""

    def __init__(self) -> None:
        super().__init__()
        anchors = AnchorGenerator(tuple((int(size),) for size in ANCHORS), ((0.5, 1.0, 2.0),) * 5)
        before, after = {"training": 300, "testing": 200}, {"training": 80, "testing": 60}
        self.rpn = RegionProposalNetwork(anchors, RPNHead(16, 3), 0.7, 0.3, 256, 0.5, before, after, 0.7)
        names = ["0", "1", "2", "3"]
        self.roi_heads = RoIHeads(
            MultiScaleRoIAlign(names, 7, 2),
            TwoMLPHead(16 * 49, 32),
            FastRCNNPredictor(32, 4),
            *(0.5, 0.5, 64, 0.25, None, 0.01, 0.5, 100),
            MultiScaleRoIAlign(names, 14, 2),
            MaskRCNNHeads(16, [16, 16], 1),
            MaskRCNNPredictor(16, 16, 4),
            MultiScaleRoIAlign(names, 14, 2),
            KeypointRCNNHeads(16, [16, 16]),
            KeypointRCNNPredictor(16, 3),
        )
        self.rpn.fg_bg_sampler = SharedSampler(256, 0.5)
        self.roi_heads.fg_bg_sampler = SharedSampler(64, 0.25)

    def forward(self, maps: Sequence[Tensor], targets: Sequence[Target]) -> dict[str, Tensor]:
        named_maps = dict(zip(("0", "1", "2", "3", "pool"), maps, strict=True))
        target_dicts = [self.target(target) for target in targets]
        proposals, rpn_losses = self.rpn(ImageList(torch.zeros(len(SIZES), 3, *SHAPE), SIZES), named_maps, target_dicts)
        losses: dict[str, Tensor] = rpn_losses | self.roi_heads(named_maps, proposals, SIZES, target_dicts)[1]
        return losses

    @staticmethod
    def target(target: Target) -> dict[str, Tensor]:
        assert target.masks is not None
        return {**target._asdict(), "labels": target.labels + 1, "masks": target.masks.dense()}


def convert_weights(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return torchvision's weights under our names, with the background class last or removed (see rcnn.py)."""
    prefixes = {
        "roi_heads.box_head.": "box.layers.head.",
        "roi_heads.box_predictor.": "box.layers.predictor.",
        "roi_heads.mask_head.": "others.mask.layers.",
        "roi_heads.mask_predictor.": "others.mask.predictor.",
        "roi_heads.keypoint_head.": "others.keypoint.layers.",
        "roi_heads.keypoint_predictor.": "others.keypoint.predictor.",
    }
    ours = {}
    for name, value in state.items():
        if "cls_score" in name:
            value = value.roll(-1, 0)
        if "roi_heads" in name and "bbox_pred" in name:
            value = value[4:]
        if "mask_fcn_logits" in name:
            value = value[1:]
        ours[
            next((ours + name[len(theirs) :] for theirs, ours in prefixes.items() if name.startswith(theirs)), name)
        ] = value
    return ours


def make_pair(name: str) -> tuple[Torchvision, Detector]:
    torch.manual_seed(5)
    theirs = Torchvision()
    for param in theirs.parameters():
        nn.init.normal_(param, std=0.1)
    changes = {**TORCHVISION, "mask": MaskOptions(channels=16, num_convs=2, soft_targets=True)}
    ours = make_detector(name, **(changes if name == "mask_rcnn" else TORCHVISION))
    own_state = ours.state_dict()
    ours.load_state_dict(
        {key: value for key, value in convert_weights(theirs.state_dict()).items() if key in own_state}
    )
    return theirs, ours


SINGLE_STAGE = ["faster_rcnn", "mask_rcnn", "keypoint_rcnn"]
TARGETS = [[full_target(), empty_target()], [empty_target(), empty_target()]]


def losses_of_both(name: str, targets: list[Target]) -> tuple[dict[str, float], dict[str, float]]:
    """Return our losses and torchvision's with the same weights and samples."""
    theirs, ours = make_pair(name)
    maps = pyramid()
    torch.manual_seed(11)
    expected = theirs(maps, targets)
    torch.manual_seed(11)
    losses = ours.losses(maps, SHAPE, SIZES, targets)
    names = {
        "loss_rpn_cls": "loss_objectness",
        "loss_rpn_loc": "loss_rpn_box_reg",
        "loss_cls": "loss_classifier",
        "loss_box_reg": "loss_box_reg",
        "loss_mask": "loss_mask",
        "loss_keypoint": "loss_keypoint",
    }
    keys = [key for key in losses if "loss" in key]
    return {key: losses[key].item() for key in keys}, {key: expected[names[key]].item() for key in keys}


@pytest.mark.parametrize("name", SINGLE_STAGE)
@pytest.mark.parametrize("targets", TARGETS, ids=["objects", "empty"])
def test_losses_with_torchvisions_weights_match_torchvision(name: str, targets: list[Target]) -> None:
    losses, expected = losses_of_both(name, targets)
    assert losses == pytest.approx(expected, rel=1e-4, abs=1e-6)


# --- rules ------------------------------------------------------------------------------------------------------------


def test_samples_are_limited_and_marked_as_counted() -> None:
    labels = torch.tensor([1, 1, -1] + [0] * 9)
    rows, counts = draw_samples(labels, 8, 0.5)
    assert counts.sum() == 8
    assert sorted(labels[rows[counts]].tolist()) == [0] * 6 + [1, 1]
    assert len(set(rows[counts].tolist())) == 8
    rows, counts = draw_samples(labels, 8, 0.125)
    assert sorted(labels[rows[counts]].tolist()) == [0] * 7 + [1]
    rows, counts = draw_samples(labels, 100, 0.5)
    assert counts.sum() == 11


def test_samples_are_drawn_uniformly() -> None:
    torch.manual_seed(0)
    labels = torch.tensor([0, 1, 1, 1, 1, 0])
    hits = torch.zeros(6)
    for _ in range(600):
        rows, counts = draw_samples(labels, 3, 0.5)
        hits[rows[counts]] += 1
    assert hits.sum() == 3 * 600
    torch.testing.assert_close(hits / 600, torch.tensor([1, 0.25, 0.25, 0.25, 0.25, 1]), atol=0.08, rtol=0)


def test_regions_are_foreground_from_an_iou_of_one_half() -> None:
    """Golden: IoUs of 0.49, 0.5 and 0.51 are background, object, object."""
    target = Target(torch.tensor([[0.0, 0, 100, 100]]), torch.tensor([1]))
    boxes = torch.tensor([[0.0, 0, 100, 49], [0, 0, 100, 50], [0, 0, 100, 51]])
    regions = label_regions(boxes, target, 0.5, classes=3)
    assert regions.labels.tolist() == [3, 1, 1]
    assert torch.equal(regions.targets, torch.stack([boxes[0], target.boxes[0], target.boxes[0]]))
    assert label_regions(boxes, empty_target(), 0.5, classes=3).labels.tolist() == [3, 3, 3]


def test_anchors_are_eight_strides_wide() -> None:
    """detectron2's 32 to 512 for strides of 4 to 64."""
    output = RegionProposals(LEVELS, ProposalOptions())([torch.zeros(1, 16, 2, 3)] * 5, SHAPE)
    assert [len(level) for level in output.anchors] == [18] * 5
    assert [(level[1, 2] - level[1, 0]).item() for level in output.anchors] == [32, 64, 128, 256, 512]


def test_proposals_are_suppressed_per_level_and_limited() -> None:
    """The same box on two levels stays twice; on one level the lower-scoring box and an empty box are dropped."""
    rpn = RegionProposals(LEVELS[:2], ProposalOptions())
    box, shifted, distant = [0.0, 0, 20, 20], [1.0, 0, 21, 20], [40.0, 40, 60, 70]
    anchors = [torch.tensor([box, shifted, [130.0, 5, 140, 9]]), torch.tensor([box, distant])]
    logits = [torch.tensor([[3.0, 2, 9]]), torch.tensor([[1.0, 4]])]
    output = RpnOutput(logits, [torch.zeros(1, len(level), 4) for level in anchors], anchors)
    (proposals,) = rpn.propose(output, SIZES[:1], pre_nms_topk=10, post_nms_topk=10)
    assert proposals.tolist() == [distant, box, box]
    assert rpn.propose(output, SIZES[:1], pre_nms_topk=10, post_nms_topk=2)[0].tolist() == [distant, box]
    assert rpn.propose(output, SIZES[:1], pre_nms_topk=1, post_nms_topk=10)[0].tolist() == [distant]
    static = rpn.propose_batch(output, torch.tensor(SIZES[:1]), pre_nms_topk=10, post_nms_topk=10)
    assert static.boxes[0].tolist() == [distant, box, box, [0.0] * 4, [0.0] * 4]
    assert static.labels[0].tolist() == [0, 0, 0, -1, -1]
    assert static.scores[0].tolist() == pytest.approx([0.982, 0.953, 0.731, 0, 0], abs=1e-3)


def test_rpn_losses_are_divided_by_the_requested_sample_count() -> None:
    """With 4 of 256 requested anchors the sum is divided by 256 (detectron2)."""
    rpn = RegionProposals(LEVELS[:1], ProposalOptions())
    anchors = torch.tensor([[0.0, 0, 10, 10], [20, 20, 30, 30], [40, 40, 50, 50], [0, 0, 10, 14]])
    target = Target(torch.tensor([[0.0, 0, 10, 10]]), torch.tensor([0]))
    output = RpnOutput([torch.tensor([[1.0, -2, 0, 0]])], [torch.full((1, 4, 4), 0.25)], [anchors])
    losses = rpn.losses(output, [target])
    assert box_iou(anchors[3:], target.boxes).item() > 0.7
    classification = [math.log1p(math.exp(value)) for value in (-1, -2, 0, 0)]
    assert losses["loss_rpn_cls"].item() == pytest.approx(sum(classification) / 256)
    localization = 4 * [0.25] + [0.25, 0.25 + 2 / 14, 0.25, 0.25 - math.log(10 / 14)]
    assert losses["loss_rpn_loc"].item() == pytest.approx(sum(localization) / 256)
    assert [losses[f"rpn/num_{kind}_anchors"].item() for kind in ("pos", "neg")] == [2, 2]


def test_box_losses_and_reported_accuracies() -> None:
    layers = BoxLayers(1, replace(INFO, classes=("cat", "dog")), BoxOptions(fc_dim=4), (10, 10, 5, 5))
    boxes = torch.tensor([[0.0, 0, 10, 10]]).repeat(4, 1)
    matched = boxes.clone()
    matched[0] = torch.tensor([2.0, 2, 12, 14])  # coded [2, 3, 0, 0.9116]
    regions = Regions(boxes, torch.tensor([1, 0, 2, 2]), torch.zeros(4, dtype=torch.int64), matched)
    logits = torch.tensor([[0.0, 9, 0], [0, 0, 9], [9, 0, 0], [0, 0, 9]])
    deltas = torch.zeros(4, 8)
    deltas[0, 4:] = torch.tensor([2.0, 3, 0, 0])
    deltas[0, :4] = deltas[2] = 100  # of other classes, of background
    deltas[1, 0] = 0.5
    scalars = layers.losses(BoxPredictions(logits, deltas), regions)
    assert scalars["loss_box_reg"].item() == pytest.approx((0.911607 + 0.5) / 4, abs=1e-5)
    assert scalars["loss_cls"].item() == pytest.approx(F.cross_entropy(logits, regions.labels).item())
    logged = [scalars[f"fast_rcnn/{name}"] for name in ("cls_accuracy", "fg_cls_accuracy", "false_negative")]
    assert logged == [0.5, 0.5, 0.5]


def test_both_sides_must_exceed_the_minimum_size() -> None:
    boxes = torch.tensor([[0, 0, 1, 1], [0, 0, 0, 1], [0, 0, 1, 0], [0, 0, math.nan, 1]])
    assert exceeds_size(boxes, 0).tolist() == [True, False, False, True]
    assert exceeds_size(boxes, 1).tolist() == [False, False, False, False]


def test_regions_are_pooled_from_the_level_of_their_size() -> None:
    """Golden: the level changes between sides of 111 and 112, 223 and 224, 447 and 448."""
    pool = RegionPool([Level(1, stride) for stride in (4, 8, 16, 32, 64)], 2, PoolingOptions())
    maps = [torch.full((2, 1, 600 // stride, 600 // stride), float(stride)) for stride in (4, 8, 16, 32, 64)]
    sides = torch.tensor([5.0, 111, 112, 223, 224, 447, 448, 590])
    boxes = torch.cat([torch.zeros(8, 2), sides[:, None].expand(-1, 2)], dim=1)
    pooled = pool(maps, [boxes[:3], boxes[3:]])
    assert pooled.shape == (8, 1, 2, 2)
    assert pooled.mean((1, 2, 3)).tolist() == [4, 4, 8, 8, 16, 16, 32, 32]
    boxes[1, 0] = math.nan
    assert pool(maps, [boxes, boxes[:0]]).isnan().flatten(1).any(1).tolist() == [False, True] + [False] * 6


def test_many_masks_are_cropped_a_few_at_a_time() -> None:
    """At 1024 x 1024 pixels four masks are float32 at a time, not all of an image; crops are those of each alone."""
    head = MaskHead(LEVELS, 3, MaskOptions(channels=4, num_convs=1), PoolingOptions())
    generator = torch.Generator().manual_seed(0)
    corners = torch.rand(10, 2, generator=generator) * 900
    boxes = torch.cat([corners, corners + 20 + torch.rand(10, 2, generator=generator) * 100], 1)
    pixels = torch.arange(1024)
    rows, columns = ((pixels >= boxes[:, k, None]) & (pixels < boxes[:, k + 2, None] - 8) for k in (1, 0))
    masks = InstanceMasks.encode((rows[:, :, None] & columns[:, None]).to(torch.uint8))
    target = Target(boxes, torch.zeros(10, dtype=torch.int64), masks)
    matched = torch.tensor([9, 0, 3, 3, 4, 8, 7, 1])
    regions = Regions(boxes[matched] + 3, target.labels[matched], matched, boxes[matched])
    with LargestTensor() as largest:
        crops = head._target_masks(regions, target, 28)
    assert largest.numel <= 4 * 1024 * 1024 + 1
    for crop, object_, box in zip(crops, matched.tolist(), regions.boxes, strict=True):
        rois = torch.cat([torch.zeros(1), box])[None]
        alone = roi_align(masks.dense(slice(object_, object_ + 1))[None].float(), rois, 28, 1.0, 0, aligned=True)
        assert torch.equal(crop, (alone[0, 0] >= 0.5).float()) and 0 < crop.mean() < 1


class LargestTensor(TorchDispatchMode):
    """Records the number of elements of the largest result of an operator."""

    numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.numel = max([self.numel, *(value.numel() for value in tree_leaves(result) if isinstance(value, Tensor))])
        return result


def test_keypoints_are_at_the_peaks_of_the_heatmaps() -> None:
    logits = torch.zeros(2, 1, 4, 4)
    logits[0, 0, 1, 2] = logits[1, 0, 3, 0] = 8
    boxes = torch.tensor([[10.0, 20, 14, 24], [0, 0, 40, 40]])
    keypoints = heatmaps_to_keypoints(logits, boxes)
    assert keypoints[0, 0].tolist() == pytest.approx([12.5, 21.5, math.exp(8) / (math.exp(8) + 15)], abs=1e-3)
    assert 0 < keypoints[1, 0, 0] < 10 and 30 < keypoints[1, 0, 1] < 40
    assert heatmaps_to_keypoints(logits[:0], boxes[:0]).shape == (0, 1, 3)
    invalid = heatmaps_to_keypoints(logits, torch.stack([boxes[0], torch.full((4,), math.nan)]))
    assert torch.equal(invalid[0], keypoints[0]) and invalid[1, :, :2].isnan().all()


LATER: Any = ((0.6, 0.7), ((20, 20, 10, 10), (30, 30, 15, 15)), PoolingOptions())


@pytest.mark.parametrize(
    ("average", "probabilities", "expected"),
    [("probabilities", (0.9, 0.6, 0.3), 0.6), ("logits", (0.9, 0.5, 0.9), 81 ** (1 / 3) / (1 + 81 ** (1 / 3)))],
)
def test_a_cascade_averages_scores_and_refines_boxes(
    average: Any, probabilities: tuple[float, ...], expected: float
) -> None:
    """Stage by stage the box moves by a tenth of its width; the odds of 9, 1 and 9 average to the cube root of 81."""
    head: Any = CascadeHead(LEVELS, replace(INFO, classes=("cat",)), BoxOptions(fc_dim=4), *LATER, None, average)
    for stage, score in zip(head.stages, probabilities, strict=True):
        nn.init.zeros_(stage.predictor.cls_score.weight)
        nn.init.zeros_(stage.predictor.bbox_pred.weight)
        stage.predictor.cls_score.bias.data = torch.tensor([score, 1 - score]).log()
        stage.predictor.bbox_pred.bias.data = torch.tensor([stage.weights[0] / 10, 0, 0, 0])
    [detections] = head.detect(pyramid(1), SIZES[:1], [torch.tensor([[10.0, 10, 30, 40]])])
    assert detections.scores.tolist() == pytest.approx([expected])
    assert detections.boxes[0].tolist() == pytest.approx([16, 10, 36, 40])


def test_later_stages_use_higher_iou_thresholds() -> None:
    head = CascadeHead(LEVELS, INFO, BoxOptions(fc_dim=4), *LATER)
    stages: Any = head.stages
    for stage in stages:
        nn.init.zeros_(stage.predictor.bbox_pred.weight)
    target = Target(torch.tensor([[0.0, 0, 100, 100]]), torch.tensor([1]))
    boxes = torch.tensor([[0.0, 0, 100, 55], [0, 0, 100, 65], [0, 0, 100, 75]])
    scalars, _ = head.losses(pyramid(1), [(128, 128)], [label_regions(boxes, target, 0.5, 3)], [target])
    assert [scalars[f"stage{number}/roi_head/num_fg_samples"].item() for number in (1, 2)] == [2, 1]


def test_losses_of_stages_are_weighted() -> None:
    unweighted = CascadeHead(LEVELS, INFO, BoxOptions(fc_dim=4), *LATER)
    weighted = CascadeHead(LEVELS, INFO, BoxOptions(fc_dim=4), *LATER, [1, 0.5, 0.25])
    weighted.load_state_dict(unweighted.state_dict())
    target = Target(torch.tensor([[0.0, 0, 100, 100]]), torch.tensor([1]))
    regions = [label_regions(torch.tensor([[0.0, 0, 100, 75]]), target, 0.5, 3)]
    gradients = []
    for head, factors in ((unweighted, (1, 1, 1)), (weighted, (1, 0.5, 0.25))):
        maps = [level.requires_grad_() for level in pyramid(1)]
        losses, _ = head.losses(maps, [(128, 128)], regions, [target])
        unit, _ = unweighted.losses(maps, [(128, 128)], regions, [target])
        for number, factor in enumerate(factors):
            name = f"loss_cls_stage{number}"
            assert losses[name].item() == pytest.approx(unit[name].item() * factor)
        gradients.append(torch.autograd.grad(losses["loss_cls_stage0"], maps[0])[0])
    # Gradients of features are divided by the number of stages only without weights.
    torch.testing.assert_close(gradients[0] * 3, gradients[1])


def test_a_mask_head_for_every_stage() -> None:
    detector: Any = make_detector("cascade_mask", num_mask_heads=3, stage_loss_weights=(1, 0.5, 0))
    maps, targets = pyramid(), [full_target(), empty_target()]
    losses = detector.losses(maps, SHAPE, SIZES, targets)
    assert "loss_mask" not in losses and losses["loss_mask_stage0"] > 0 and losses["loss_mask_stage2"] == 0
    total_loss(losses).backward()  # type: ignore[no-untyped-call]
    assert all(param.grad is not None for param in detector.parameters())
    # Each head is trained on the regions of its own stage.
    regions = [[label_regions(full_target().boxes[:rows], full_target(), 0.5, 3)] for rows in (1, 2, 1)]
    image = [level[:1] for level in maps]
    masks = detector.others["mask"]
    by_stage = masks.losses(image, regions, [full_target()])
    for number, factor in enumerate((1, 0.5, 0)):
        own = masks.stages[number].losses(image, [regions[number]], [full_target()])["loss_mask"]
        torch.testing.assert_close(by_stage[f"loss_mask_stage{number}"], factor * own)
    objects = (full_target().boxes, torch.ones(2), full_target().labels)
    detections = [Detections(*objects), Detections(*(values[:0] for values in objects))]
    described = masks.describe(maps, detections)
    means = sum(head.describe(maps, detections)[0].masks for head in masks.stages) / 3
    torch.testing.assert_close(described[0].masks, means)
    assert described[1].masks.shape == (0, 28, 28)


def test_the_federated_loss_matches_detectron2() -> None:
    """Binary cross-entropy over the regions' classes and others, drawn in proportion to the root of their frequency."""
    classes = tuple(map(str, range(40)))
    info = DatasetInfo(samples=100, classes=classes, boxes=True, image_counts=tuple(range(40)))
    boxes = torch.tensor([[0.0, 0, 10, 10]]).repeat(5, 1)
    labels = torch.tensor([3, 7, 3, 40, 0])
    regions = Regions(boxes, labels, torch.zeros(5, dtype=torch.int64), boxes)
    torch.manual_seed(0)
    logits = torch.randn(5, 41)
    weights = torch.tensor([*range(40), 0.0]).sqrt()
    targets = F.one_hot(labels, 41)[:, :40].float()
    losses = F.binary_cross_entropy_with_logits(logits[:, :40], targets, reduction="none")
    for count in (10, 3):  # the regions have 3 classes and the background
        head = BoxLayers(1, info, BoxOptions(fc_dim=4, class_loss="federated", federated_classes=count), (10, 10, 5, 5))
        torch.manual_seed(1)
        loss = head.losses(BoxPredictions(logits, torch.zeros(5, 160)), regions)["loss_cls"]
        torch.manual_seed(1)
        probabilities = weights.index_fill(0, labels, 0)
        drawn = torch.multinomial(probabilities, max(count - 4, 1))[: max(count - 4, 0)]
        columns = torch.cat([labels.unique()[:-1], drawn])
        assert len(columns) == max(count - 1, 3)
        torch.testing.assert_close(loss, losses[:, columns].sum() / 5)
    # With few classes all are drawn. Sigmoid probabilities need no image counts.
    assert draw_federated_classes(labels, weights, 500).tolist() == [True] * 40
    assert not head.state_dict().keys() & {"class_weights"}
    sigmoid = BoxLayers(1, replace(info, image_counts=()), BoxOptions(fc_dim=4, class_loss="sigmoid"), (10, 10, 5, 5))
    predictions = BoxPredictions(logits, torch.zeros(5, 160))
    torch.testing.assert_close(sigmoid.scores(predictions), logits.sigmoid())
    torch.testing.assert_close(sigmoid.losses(predictions, regions)["loss_cls"], losses.sum() / 5)
    with pytest.raises(DataMismatch, match="numbers of images"):
        draw_federated_classes(labels, torch.zeros(1), 3)
