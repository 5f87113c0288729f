"""R-CNNs: detectron2's rules, torchvision's numbers with torchvision's weights, and every parameter in every step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.keypoint_rcnn import KeypointRCNNHeads, KeypointRCNNPredictor
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.detection.roi_heads import RoIHeads
from torchvision.models.detection.rpn import RegionProposalNetwork, RPNHead
from torchvision.ops import MultiScaleRoIAlign, box_iou

from opabinia.contracts import DataMismatch, DatasetInfo, Detections, Detector, Level, Neck, Target
from opabinia.models.detectors.boxes import (
    BoxLayers,
    BoxOptions,
    BoxPredictions,
    draw_federated_classes,
    postprocess,
)
from opabinia.models.detectors.cascade import CascadeHead, scale_gradient
from opabinia.models.detectors.keypoints import KeypointOptions, heatmaps_to_keypoints, heatmaps_to_keypoints_batch
from opabinia.models.detectors.masks import MaskHead, MaskOptions
from opabinia.models.detectors.rcnn import cascade_rcnn, faster_rcnn, keypoint_rcnn, mask_rcnn
from opabinia.models.detectors.regions import (
    PoolingOptions,
    RegionPool,
    Regions,
    draw_samples,
    exceeds_size,
    label_regions,
    sample_regions,
)
from opabinia.models.detectors.rpn import ProposalOptions, RegionProposals, RpnOutput

SHAPE = (96, 128)
SIZES = [(96, 128), (90, 100)]
LEVELS = tuple(Level(16, stride) for stride in (4, 8, 16, 32, 64))
POINTS = ("nose", "left", "right")
FACTS = DatasetInfo(samples=2, classes=("cat", "dog", "bird"), boxes=True, masks=True, keypoints=POINTS)
ANCHORS = [8.0, 16, 32, 64, 128]
SMALL = ProposalOptions(
    anchor_sizes=ANCHORS, pre_nms_topk_test=200, post_nms_topk_test=60, pre_nms_topk_train=200, post_nms_topk_train=60
)
BOX = BoxOptions(fc_dim=32, score_threshold=0.01)


class Given(Neck):
    """Hands on the maps it gets."""

    def __init__(self, levels: Sequence[Level]) -> None:
        super().__init__()
        self.out_levels = tuple(levels)

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        return list(maps)


def pyramid(count: int = 2, seed: int = 0) -> list[Tensor]:
    """The coarsest one, of 2 x 2 places in 96 x 128 pixels, has no whole stride in torchvision's eyes."""
    torch.manual_seed(seed)
    return [torch.randn(count, 16, math.ceil(SHAPE[0] / s), math.ceil(SHAPE[1] / s)) for _, s in LEVELS]


def full() -> Target:
    boxes = torch.tensor([[5.0, 5, 40, 50], [60, 30, 99, 80]])
    masks = torch.zeros(2, *SHAPE, dtype=torch.uint8)
    masks[0, 5:50, 5:30] = 1
    masks[1, 35:80, 60:95] = 1
    points = [[[10.0, 10, 2], [20, 20, 1], [0, 0, 0]], [[70, 70, 2], [0, 0, 0], [62.5, 44, 1]]]
    return Target(boxes, torch.tensor([0, 2]), masks, torch.tensor(points))


def empty() -> Target:
    nothing = torch.zeros(0, dtype=torch.int64)
    return Target(torch.zeros(0, 4), nothing, torch.zeros(0, *SHAPE, dtype=torch.uint8), torch.zeros(0, 3, 3))


def made(name: str, **changes: Any) -> Detector:
    keys: dict[str, Any] = {"neck": Given, "proposals": SMALL, "pooling": PoolingOptions(), "box": BOX}
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
    return make[name](LEVELS, FACTS, **{**keys, **changes})


ALL = ("faster_rcnn", "mask_rcnn", "keypoint_rcnn", "cascade", "cascade_mask")
each = pytest.mark.parametrize("name", ALL)


def total(said: Mapping[str, Tensor]) -> Tensor:
    return torch.stack([value for name, value in said.items() if "loss" in name]).sum()


VARIANTS = {
    "convolutions": {"box": replace(BOX, num_convs=2, num_fc=1)},
    "norms": {
        "box": replace(BOX, num_convs=1, norm="batch"),
        "mask": MaskOptions(channels=32, num_convs=1, norm="group"),
        "proposals": replace(SMALL, num_convs=2),
    },
}


# --- the contract -----------------------------------------------------------------------------------------------------


@each
@pytest.mark.parametrize("targets", [[full(), empty()], [empty(), empty()]], ids=["some", "nothing"])
def test_every_parameter_takes_part_in_every_step(name: str, targets: list[Target]) -> None:
    detector = made(name)
    said = detector.losses(pyramid(), SHAPE, SIZES, targets)
    assert all(value.shape == () and value.isfinite() for value in said.values())
    total(said).backward()  # type: ignore[no-untyped-call]
    assert [key for key, one in detector.named_parameters() if one.grad is None] == []
    assert all(one.grad is not None and one.grad.isfinite().all() for one in detector.parameters())


@pytest.mark.parametrize("variant", VARIANTS)
def test_heads_can_have_convolutions_and_norms(variant: str) -> None:
    detector = made("mask_rcnn", **VARIANTS[variant])
    total(detector.losses(pyramid(), SHAPE, SIZES, [full(), empty()])).backward()  # type: ignore[no-untyped-call]
    assert [key for key, one in detector.named_parameters() if one.grad is None] == []
    kinds = [type(one).__name__ for one in detector.modules()]
    assert kinds.count("BatchNorm2d") == kinds.count("GroupNorm") == (variant == "norms")


@each
def test_what_is_reported_beside_the_losses_has_detectron2s_names(name: str) -> None:
    said = made(name).losses(pyramid(), SHAPE, SIZES, [full(), empty()])
    rpn = {"loss_rpn_cls", "loss_rpn_loc", "rpn/num_pos_anchors", "rpn/num_neg_anchors"}
    samples = {"roi_head/num_fg_samples", "roi_head/num_bg_samples"}
    box = {f"fast_rcnn/{one}" for one in ("cls_accuracy", "fg_cls_accuracy", "false_negative")}
    if name.startswith("cascade"):
        box = {f"stage{number}/{one}" for one in box for number in range(3)}
        box |= {f"stage{number}/{one}" for one in samples for number in (1, 2)}
        box |= {f"{one}_stage{number}" for one in ("loss_cls", "loss_box_reg") for number in range(3)}
    else:
        box |= {"loss_cls", "loss_box_reg"}
    mask = {"loss_mask", "mask_rcnn/accuracy", "mask_rcnn/false_positive", "mask_rcnn/false_negative"}
    keypoint = {"loss_keypoint", "keypoint_head/num_fg_samples"}
    others = mask if "mask" in name else keypoint if "keypoint" in name else set()
    assert said.keys() == rpn | samples | box | others
    assert not any(value.requires_grad for key, value in said.items() if "loss" not in key)


@each
def test_it_finds_and_describes(name: str) -> None:
    detector, maps = made(name), pyramid()
    found = detector.describe(maps, SHAPE, SIZES, detector.detect(maps, SHAPE, SIZES))
    for one, (height, width) in zip(found, SIZES, strict=True):
        count = len(one.boxes)
        assert 0 < count <= detector.max_detections
        assert one.boxes.shape == (count, 4) and one.scores.shape == one.labels.shape == (count,)
        assert (one.scores.diff() <= 0).all()
        assert one.boxes.min() >= 0 and one.boxes[:, 2].max() <= width and one.boxes[:, 3].max() <= height
        assert set(one.labels.tolist()) <= {0, 1, 2}
        assert (one.masks is None) == ("mask" not in name)
        assert one.masks is None or (
            one.masks.shape == (count, 28, 28) and 0 <= one.masks.min() <= one.masks.max() <= 1
        )
        assert (one.keypoints is None) == ("keypoint" not in name)
        assert one.keypoints is None or one.keypoints.shape == (count, 3, 3)


def test_static_shapes_give_the_same_detections() -> None:
    weights_of_torchvision = replace(SMALL, convention="torchvision", min_size=12, post_nms_topk_test=300)
    corners = PoolingOptions(aligned=False, sampling_ratio=2)
    changed = {
        "proposals": weights_of_torchvision,
        "pooling": corners,
        "box": replace(BOX, min_size=15, nms_threshold=0.1),
    }
    cases: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in ALL]
    cases += [("cascade_mask", {"num_mask_heads": 3, "score_average": "logits"}), ("mask_rcnn", changed)]
    maps = pyramid()
    for name, changes in cases:
        detector: Any = made(name, **changes).eval()
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            expected = detector.describe(maps, SHAPE, SIZES, detector.detect(maps, SHAPE, SIZES))
            found = detector.detect_batch(maps, SHAPE, torch.tensor(SIZES))
        counts = [len(image.labels) for image in expected]
        assert min(counts) > 10 and (min(counts) < 100 or changes is not changed)
        for field, values in found._asdict().items():
            assert (values is None) == (getattr(expected[0], field) is None), (name, field)
            for index, count in enumerate(counts if values is not None else ()):
                torch.testing.assert_close(
                    values[index, :count], getattr(expected[index], field), msg=f"{name} {field}"
                )
                assert (values[index, count:] == (-1 if field == "labels" else 0)).all()


@each
def test_nothing_found_is_described_too(name: str) -> None:
    nothing = [Detections(torch.zeros(0, 4), torch.zeros(0), torch.zeros(0, dtype=torch.int64))] * 2
    for one in made(name).describe(pyramid(), SHAPE, SIZES, nothing):
        assert one.masks is None or one.masks.shape == (0, 28, 28)
        assert one.keypoints is None or one.keypoints.shape == (0, 3, 3)


@each
def test_nothing_is_found_where_nothing_is_proposed(name: str) -> None:
    detector, nowhere = made(name), [torch.zeros(0, 4)] * 2
    box: Any = detector.box
    assert [len(one.boxes) for one in box.detect(pyramid(), SIZES, nowhere)] == [0, 0]
    regions = [sample_regions(one, empty(), 0.5, 8, 0.25, 3) for one in nowhere]
    losses, _ = box.losses(pyramid(), SIZES, regions, [empty()] * 2)
    assert total(losses) == 0
    total(losses).backward()  # type: ignore[no-untyped-call]
    assert all(one.grad is not None and one.grad.eq(0).all() for one in box.parameters())


@each
def test_it_is_the_same_in_training_and_evaluation(name: str) -> None:
    detector, maps = made(name), pyramid()
    found, losses = [], []
    for mode in (True, False):
        detector.train(mode)
        torch.manual_seed(3)
        losses.append(total(detector.losses(maps, SHAPE, SIZES, [full(), empty()])))
        found.append(detector.detect(maps, SHAPE, SIZES))
    assert losses[0] == losses[1]
    assert all(torch.equal(a.boxes, b.boxes) for a, b in zip(*found, strict=True))


@each
@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_and_channels_last(name: str, precision: torch.dtype) -> None:
    detector = made(name).to(memory_format=torch.channels_last)
    maps = [one.contiguous(memory_format=torch.channels_last) for one in pyramid()]
    exact = detector.losses(maps, SHAPE, SIZES, [full(), empty()])
    with torch.autocast("cpu", precision):
        maps = [one.to(precision) for one in maps]
        said = detector.losses(maps, SHAPE, SIZES, [full(), empty()])
        found = detector.describe(maps, SHAPE, SIZES, detector.detect(maps, SHAPE, SIZES))
    assert total(said).dtype == torch.float32
    assert total(said).item() == pytest.approx(total(exact).item(), rel=0.1)
    assert all(one.boxes.dtype == one.scores.dtype == torch.float32 for one in found)
    total(said).backward()  # type: ignore[no-untyped-call]
    assert all(one.grad is not None and one.grad.isfinite().all() for one in detector.parameters())


@each
def test_what_is_not_a_number_shows(name: str) -> None:
    """One place of one map is enough, wherever it is drawn from."""
    detector, maps = made(name), pyramid()
    maps[2][0, 0, 1, 1] = math.nan
    assert total(detector.losses(maps, SHAPE, SIZES, [full(), empty()])).isnan()
    assert detector.detect(maps, SHAPE, SIZES)[0].scores.isnan().any()


def test_masks_and_keypoints_are_refused_where_there_are_none() -> None:
    plain = DatasetInfo(samples=2, classes=("cat",), boxes=True)
    keys: dict[str, Any] = {"neck": Given, "proposals": SMALL, "pooling": PoolingOptions(), "box": BOX}
    with pytest.raises(ValueError, match="masks: true"):
        mask_rcnn(LEVELS, plain, **keys, mask=MaskOptions())
    with pytest.raises(ValueError, match="masks: true"):
        cascade_rcnn(LEVELS, plain, **keys, mask=MaskOptions())
    with pytest.raises(ValueError, match="keypoint_rcnn learns keypoints"):
        keypoint_rcnn(LEVELS, plain, **keys, keypoint=KeypointOptions())


@pytest.mark.parametrize(
    ("name", "changes", "says"),
    [
        (
            "faster_rcnn",
            {"proposals": ProposalOptions(anchor_sizes=[8, 16])},
            "sizes: 2 lists for 5 levels",
        ),
        ("faster_rcnn", {"proposals": ProposalOptions(background_iou=0.8)}, "background_iou .0.8. must not be above"),
        (
            "faster_rcnn",
            {"pooling": PoolingOptions(num_levels=6)},
            "num_levels: 6 levels to pool from, and the neck has 5",
        ),
        ("cascade", {"later_ious": (0.6,)}, "later_ious has 1 stages, later_bbox_reg_weights 2"),
        ("cascade", {"box": BoxOptions(class_agnostic=False)}, "boxes of a cascade are class-agnostic"),
    ],
    ids=["sizes", "overlaps", "maps", "stages", "classes"],
)
def test_what_does_not_fit_is_reported(name: str, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        made(name, **changes)


def test_an_image_without_masks_or_keypoints_is_reported() -> None:
    bare = full()._replace(masks=None, keypoints=None)
    with pytest.raises(ValueError, match="without masks"):
        made("mask_rcnn").losses(pyramid(), SHAPE, SIZES, [bare, bare])
    with pytest.raises(ValueError, match="without keypoints"):
        made("keypoint_rcnn").losses(pyramid(), SHAPE, SIZES, [bare, bare])


def test_images_whose_masks_are_unknown_have_no_part_in_the_loss_of_masks() -> None:
    detector: Any = made("mask_rcnn")
    head, maps = detector.others["mask"], pyramid()
    known, none = full(), empty()
    unknown = known._replace(masks=none.masks)
    found, expected = (
        head.losses(maps, [[label_regions(target.boxes, target, 0.5, 3) for target in targets]], targets)
        for targets in ([known, unknown], [known, none])
    )
    assert found.keys() == expected.keys() and found["loss_mask"] > 0
    assert all(torch.equal(found[name], expected[name]) for name in found)
    total(detector.losses(maps, SHAPE, SIZES, [unknown, unknown])).backward()  # type: ignore[no-untyped-call]
    assert all(param.grad is not None for param in detector.parameters())


# --- torchvision's weights --------------------------------------------------------------------------------------------


class SameDraw:
    """torchvision's sampler, drawing what ours draws."""

    def __init__(self, count: int, positive: float) -> None:
        self.count, self.positive = count, positive

    def __call__(self, labels: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        masks = []
        for one in labels:
            rows, counts = draw_samples(one.long().clamp(max=1), self.count, self.positive)
            masks.append(torch.zeros(len(one), dtype=torch.bool).index_fill(0, rows[counts], True))
        positive = [mask & (one > 0) for mask, one in zip(masks, labels, strict=True)]
        return positive, [mask & ~these for mask, these in zip(masks, positive, strict=True)]


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
    """torchvision's two stages, with masks and keypoints, and the numbers of TORCHVISION."""

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
        self.rpn.fg_bg_sampler = SameDraw(256, 0.5)
        self.roi_heads.fg_bg_sampler = SameDraw(64, 0.25)

    def forward(self, maps: Sequence[Tensor], targets: Sequence[Target] | None = None) -> tuple[Any, Any]:
        named = dict(zip(("0", "1", "2", "3", "pool"), maps, strict=True))
        given = [{**one._asdict(), "labels": one.labels + 1} for one in targets] if targets else None
        proposals, first = self.rpn(ImageList(torch.zeros(len(SIZES), 3, *SHAPE), SIZES), named, given)
        found, second = self.roi_heads(named, proposals, SIZES, given)
        return found, first | second


def renamed(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights of torchvision under our names, the background behind the classes or left out (see rcnn.py)."""
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


def both(name: str) -> tuple[Torchvision, Detector]:
    torch.manual_seed(5)
    theirs = Torchvision()
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.1)
    changes = {**TORCHVISION, "mask": MaskOptions(channels=16, num_convs=2, soft_targets=True)}
    ours = made(name, **(changes if name == "mask_rcnn" else TORCHVISION))
    known = ours.state_dict()
    ours.load_state_dict({key: value for key, value in renamed(theirs.state_dict()).items() if key in known})
    return theirs, ours


plain = pytest.mark.parametrize("name", ["faster_rcnn", "mask_rcnn", "keypoint_rcnn"])


@plain
def test_torchvisions_weights_find_what_they_find_there(name: str) -> None:
    theirs, ours = both(name)
    maps = pyramid()
    expected, _ = theirs.eval()(maps)
    found = ours.describe(maps, SHAPE, SIZES, ours.detect(maps, SHAPE, SIZES))
    for one, there in zip(found, expected, strict=True):
        assert len(one.boxes) == len(there["boxes"]) > 10
        torch.testing.assert_close(one.boxes, there["boxes"], atol=1e-4, rtol=0)
        torch.testing.assert_close(one.scores, there["scores"], atol=1e-6, rtol=0)
        assert torch.equal(one.labels, there["labels"] - 1)
        if one.masks is not None:
            torch.testing.assert_close(one.masks, there["masks"][:, 0], atol=1e-5, rtol=0)
        if one.keypoints is not None:
            torch.testing.assert_close(one.keypoints[..., :2], there["keypoints"][..., :2], atol=1e-4, rtol=0)


@plain
@pytest.mark.parametrize("targets", [[full(), empty()], [empty(), empty()]], ids=["some", "nothing"])
def test_torchvisions_weights_lose_what_they_lose_there(name: str, targets: list[Target]) -> None:
    theirs, ours = both(name)
    maps = pyramid()
    torch.manual_seed(11)
    _, expected = theirs(maps, targets)
    torch.manual_seed(11)
    said = ours.losses(maps, SHAPE, SIZES, targets)
    names = {
        "loss_rpn_cls": "loss_objectness",
        "loss_rpn_loc": "loss_rpn_box_reg",
        "loss_cls": "loss_classifier",
        "loss_box_reg": "loss_box_reg",
        "loss_mask": "loss_mask",
        "loss_keypoint": "loss_keypoint",
    }
    for one in (one for one in said if "loss" in one):
        assert said[one].item() == pytest.approx(expected[names[one]].item(), rel=1e-4, abs=1e-6), one


# --- rules ------------------------------------------------------------------------------------------------------------


def test_draws_are_limited_and_say_what_counts() -> None:
    labels = torch.tensor([1, 1, -1] + [0] * 9)
    rows, counts = draw_samples(labels, 8, 0.5)
    assert counts.sum() == 8
    assert sorted(labels[rows[counts]].tolist()) == [0] * 6 + [1, 1]
    assert len(set(rows[counts].tolist())) == 8
    rows, counts = draw_samples(labels, 8, 0.125)
    assert sorted(labels[rows[counts]].tolist()) == [0] * 7 + [1]
    rows, counts = draw_samples(labels, 100, 0.5)
    assert counts.sum() == 11


def test_draws_are_fair() -> None:
    torch.manual_seed(0)
    labels = torch.tensor([0, 1, 1, 1, 1, 0])
    hits = torch.zeros(6)
    for _ in range(600):
        rows, counts = draw_samples(labels, 3, 0.5)
        hits[rows[counts]] += 1
    assert hits.sum() == 3 * 600
    torch.testing.assert_close(hits / 600, torch.tensor([1, 0.25, 0.25, 0.25, 0.25, 1]), atol=0.08, rtol=0)


def test_regions_are_objects_from_half_an_overlap_on() -> None:
    """Golden: 0.49, 0.5 and 0.51 are background, object, object."""
    target = Target(torch.tensor([[0.0, 0, 100, 100]]), torch.tensor([1]))
    boxes = torch.tensor([[0.0, 0, 100, 49], [0, 0, 100, 50], [0, 0, 100, 51]])
    found = label_regions(boxes, target, 0.5, classes=3)
    assert found.labels.tolist() == [3, 1, 1]
    assert torch.equal(found.targets, torch.stack([boxes[0], target.boxes[0], target.boxes[0]]))
    assert label_regions(boxes, empty(), 0.5, classes=3).labels.tolist() == [3, 3, 3]


def test_true_boxes_are_among_the_regions() -> None:
    found = sample_regions(torch.zeros(0, 4), full(), 0.5, 8, 0.25, 3)
    assert sorted(found.labels.tolist()) == [0, 2]
    nothing = sample_regions(torch.zeros(0, 4), empty(), 0.5, 8, 0.25, 3)
    assert len(nothing.boxes) == 0


def test_anchors_are_eight_strides_wide() -> None:
    """detectron2's 32 to 512 for strides of 4 to 64."""
    guesses = RegionProposals(LEVELS, ProposalOptions())([torch.zeros(1, 16, 2, 3)] * 5, SHAPE)
    assert [len(one) for one in guesses.anchors] == [18] * 5
    assert [(one[1, 2] - one[1, 0]).item() for one in guesses.anchors] == [32, 64, 128, 256, 512]


def test_proposals_are_suppressed_by_level_and_cut() -> None:
    """The same box on two levels stays twice; the lesser of two on one level goes, and so does one without extent."""
    rpn = RegionProposals(LEVELS[:2], ProposalOptions())
    box, shifted, other = [0.0, 0, 20, 20], [1.0, 0, 21, 20], [40.0, 40, 60, 70]
    anchors = [torch.tensor([box, shifted, [130.0, 5, 140, 9]]), torch.tensor([box, other])]
    logits = [torch.tensor([[3.0, 2, 9]]), torch.tensor([[1.0, 4]])]
    guesses = RpnOutput(logits, [torch.zeros(1, len(one), 4) for one in anchors], anchors)
    (found,) = rpn.propose(guesses, SIZES[:1], pre_nms_topk=10, post_nms_topk=10)
    assert found.tolist() == [other, box, box]
    assert rpn.propose(guesses, SIZES[:1], pre_nms_topk=10, post_nms_topk=2)[0].tolist() == [other, box]
    assert rpn.propose(guesses, SIZES[:1], pre_nms_topk=1, post_nms_topk=10)[0].tolist() == [other]
    static = rpn.propose_batch(guesses, torch.tensor(SIZES[:1]), pre_nms_topk=10, post_nms_topk=10)
    assert static.boxes[0].tolist() == [other, box, box, [0.0] * 4, [0.0] * 4]
    assert static.labels[0].tolist() == [0, 0, 0, -1, -1]
    assert static.scores[0].tolist() == pytest.approx([0.982, 0.953, 0.731, 0, 0], abs=1e-3)


def test_losses_of_proposals_are_means_over_the_quota() -> None:
    """4 anchors of 256 asked for: the sum is divided by 256 (detectron2)."""
    rpn = RegionProposals(LEVELS[:1], ProposalOptions())
    anchors = torch.tensor([[0.0, 0, 10, 10], [20, 20, 30, 30], [40, 40, 50, 50], [0, 0, 10, 14]])
    target = Target(torch.tensor([[0.0, 0, 10, 10]]), torch.tensor([0]))
    guesses = RpnOutput([torch.tensor([[1.0, -2, 0, 0]])], [torch.full((1, 4, 4), 0.25)], [anchors])
    said = rpn.losses(guesses, [target])
    assert box_iou(anchors[3:], target.boxes).item() > 0.7
    existence = [math.log1p(math.exp(value)) for value in (-1, -2, 0, 0)]
    assert said["loss_rpn_cls"].item() == pytest.approx(sum(existence) / 256)
    place = 4 * [0.25] + [0.25, 0.25 + 2 / 14, 0.25, 0.25 - math.log(10 / 14)]
    assert said["loss_rpn_loc"].item() == pytest.approx(sum(place) / 256)
    assert [said[f"rpn/num_{kind}_anchors"].item() for kind in ("pos", "neg")] == [2, 2]


def test_losses_of_boxes_and_what_is_reported_beside_them() -> None:
    layers = BoxLayers(1, replace(FACTS, classes=("cat", "dog")), BoxOptions(fc_dim=4), (10, 10, 5, 5))
    boxes = torch.tensor([[0.0, 0, 10, 10]]).repeat(4, 1)
    goals = boxes.clone()
    goals[0] = torch.tensor([2.0, 2, 12, 14])  # coded [2, 3, 0, 0.9116]
    regions = Regions(boxes, torch.tensor([1, 0, 2, 2]), torch.zeros(4, dtype=torch.int64), goals)
    logits = torch.tensor([[0.0, 9, 0], [0, 0, 9], [9, 0, 0], [0, 0, 9]])
    deltas = torch.zeros(4, 8)
    deltas[0, 4:] = torch.tensor([2.0, 3, 0, 0])
    deltas[0, :4] = deltas[2] = 100  # of other classes, of background
    deltas[1, 0] = 0.5
    said = layers.losses(BoxPredictions(logits, deltas), regions)
    assert said["loss_box_reg"].item() == pytest.approx((0.911607 + 0.5) / 4, abs=1e-5)
    assert said["loss_cls"].item() == pytest.approx(F.cross_entropy(logits, regions.labels).item())
    logged = [said[f"fast_rcnn/{name}"] for name in ("cls_accuracy", "fg_cls_accuracy", "false_negative")]
    assert logged == [0.5, 0.5, 0.5]


def test_the_best_of_each_class_stays() -> None:
    boxes = torch.tensor([[0.0, 0, 20, 20], [1, 0, 21, 20], [50, 50, 200, 90], [9, 9, 9, 30]])[:, None]
    scores = torch.tensor([[0.6, 0.3, 0.1], [0.5, 0.04, 0.46], [0.05, 0.2, 0.75], [0.9, 0, 0.1]])
    found = postprocess(boxes, scores, (96, 128), BoxOptions())
    assert found.scores.tolist() == pytest.approx([0.6, 0.3, 0.2])
    assert found.labels.tolist() == [0, 1, 1]
    assert found.boxes[2].tolist() == [50, 50, 128, 90]
    assert postprocess(boxes, scores, (96, 128), BoxOptions(max_detections=1)).labels.tolist() == [0]


def test_extent_is_asked_of_both_sides() -> None:
    boxes = torch.tensor([[0, 0, 1, 1], [0, 0, 0, 1], [0, 0, 1, 0], [0, 0, math.nan, 1]])
    assert exceeds_size(boxes, 0).tolist() == [True, False, False, True]
    assert exceeds_size(boxes, 1).tolist() == [False, False, False, False]


def test_a_region_is_taken_from_the_level_of_its_size() -> None:
    """Golden: sides of 111 and 112, 223 and 224, 447 and 448 are where the level changes."""
    pool = RegionPool([Level(1, stride) for stride in (4, 8, 16, 32, 64)], 2, PoolingOptions())
    maps = [torch.full((2, 1, 600 // stride, 600 // stride), float(stride)) for stride in (4, 8, 16, 32, 64)]
    sides = torch.tensor([5.0, 111, 112, 223, 224, 447, 448, 590])
    boxes = torch.cat([torch.zeros(8, 2), sides[:, None].expand(-1, 2)], dim=1)
    found = pool(maps, [boxes[:3], boxes[3:]])
    assert found.shape == (8, 1, 2, 2)
    assert found.mean((1, 2, 3)).tolist() == [4, 4, 8, 8, 16, 16, 32, 32]
    boxes[1, 0] = math.nan
    assert pool(maps, [boxes, boxes[:0]]).isnan().flatten(1).any(1).tolist() == [False, True] + [False] * 6


def test_true_masks_are_cut_out() -> None:
    head = MaskHead(LEVELS, 3, MaskOptions(channels=4, num_convs=1), PoolingOptions())
    mask = torch.zeros(1, *SHAPE, dtype=torch.uint8)
    mask[0, 0:20, 0:10] = 1
    target = Target(torch.tensor([[0.0, 0, 20, 20]]), torch.tensor([1]), mask)
    regions = Regions(target.boxes, target.labels, torch.tensor([0]), target.boxes)
    assert torch.equal(head._target_masks(regions, target, 4)[0], torch.tensor([[1.0, 1, 0, 0]] * 4))


def test_peaks_are_where_the_maps_are_highest() -> None:
    logits = torch.zeros(2, 1, 4, 4)
    logits[0, 0, 1, 2] = logits[1, 0, 3, 0] = 8
    boxes = torch.tensor([[10.0, 20, 14, 24], [0, 0, 40, 40]])
    found = heatmaps_to_keypoints(logits, boxes)
    assert found[0, 0].tolist() == pytest.approx([12.5, 21.5, math.exp(8) / (math.exp(8) + 15)], abs=1e-3)
    assert 0 < found[1, 0, 0] < 10 and 30 < found[1, 0, 1] < 40
    assert heatmaps_to_keypoints(logits[:0], boxes[:0]).shape == (0, 1, 3)
    lost = heatmaps_to_keypoints(logits, torch.stack([boxes[0], torch.full((4,), math.nan)]))
    assert torch.equal(lost[0], found[0]) and lost[1, :, :2].isnan().all()


def test_peaks_with_static_shapes() -> None:
    """Boxes smaller than a pixel, as large as the image, and in between."""
    generator = torch.Generator().manual_seed(0)
    corners = (torch.rand(2, 8, 2, generator=generator) * torch.tensor([100.0, 70])).repeat(1, 1, 2)
    boxes = corners + F.pad(torch.rand(2, 8, 2, generator=generator) * 25, (2, 0))
    boxes[0, 0], boxes[1, 1] = torch.tensor([0.0, 0, 128, 96]), torch.tensor([3.0, 4, 3.2, 4.6])
    logits = torch.randn(2, 8, 3, 14, 14, generator=generator)
    with torch.compiler.set_stance("force_eager"):
        found = heatmaps_to_keypoints_batch(logits, boxes, SHAPE)
        assert heatmaps_to_keypoints_batch(logits.to("meta"), boxes.to("meta"), SHAPE).is_meta
    torch.testing.assert_close(found.flatten(0, 1), heatmaps_to_keypoints(logits.flatten(0, 1), boxes.flatten(0, 1)))


def test_gradients_are_shared_among_stages() -> None:
    values = torch.tensor([1.0, -2, 1e9], requires_grad=True)
    shared = scale_gradient(values, 1 / 3)
    assert torch.equal(shared, values)
    shared.sum().backward()  # type: ignore[no-untyped-call]
    assert values.grad is not None
    torch.testing.assert_close(values.grad, torch.full((3,), 1 / 3))


def test_a_cascade_means_scores_and_moves_boxes() -> None:
    """Stage by stage the box moves by a tenth of its width, and its score is 0.9, 0.6 and 0.3."""
    head = CascadeHead(
        LEVELS,
        replace(FACTS, classes=("cat",)),
        BoxOptions(fc_dim=4),
        (0.6, 0.7),
        ((20, 20, 10, 10), (30, 30, 15, 15)),
        PoolingOptions(),
    )
    stages: Any = head.stages
    for stage, score in zip(stages, (0.9, 0.6, 0.3), strict=True):
        nn.init.zeros_(stage.predictor.cls_score.weight)
        nn.init.zeros_(stage.predictor.bbox_pred.weight)
        stage.predictor.cls_score.bias.data = torch.tensor([score, 1 - score]).log()
        stage.predictor.bbox_pred.bias.data = torch.tensor([stage.weights[0] / 10, 0, 0, 0])
    found = head.detect(pyramid(1), SIZES[:1], [torch.tensor([[10.0, 10, 30, 40]])])
    assert found[0].scores.tolist() == pytest.approx([0.6])
    assert found[0].boxes[0].tolist() == pytest.approx([16, 10, 36, 40])


def test_later_stages_learn_from_what_fits_better() -> None:
    head = CascadeHead(
        LEVELS, FACTS, BoxOptions(fc_dim=4), (0.6, 0.7), ((20, 20, 10, 10), (30, 30, 15, 15)), PoolingOptions()
    )
    stages: Any = head.stages
    for stage in stages:
        nn.init.zeros_(stage.predictor.bbox_pred.weight)
    target = Target(torch.tensor([[0.0, 0, 100, 100]]), torch.tensor([1]))
    boxes = torch.tensor([[0.0, 0, 100, 55], [0, 0, 100, 65], [0, 0, 100, 75]])
    said, _ = head.losses(pyramid(1), [(128, 128)], [label_regions(boxes, target, 0.5, 3)], [target])
    assert [said[f"stage{number}/roi_head/num_fg_samples"].item() for number in (1, 2)] == [2, 1]


def test_losses_of_stages_are_weighted() -> None:
    later: Any = ((0.6, 0.7), ((20, 20, 10, 10), (30, 30, 15, 15)), PoolingOptions())
    even = CascadeHead(LEVELS, FACTS, BoxOptions(fc_dim=4), *later)
    weighted = CascadeHead(LEVELS, FACTS, BoxOptions(fc_dim=4), *later, [1, 0.5, 0.25])
    weighted.load_state_dict(even.state_dict())
    target = Target(torch.tensor([[0.0, 0, 100, 100]]), torch.tensor([1]))
    regions = [label_regions(torch.tensor([[0.0, 0, 100, 75]]), target, 0.5, 3)]
    gradients = []
    for head, factors in ((even, (1, 1, 1)), (weighted, (1, 0.5, 0.25))):
        maps = [level.requires_grad_() for level in pyramid(1)]
        losses, _ = head.losses(maps, [(128, 128)], regions, [target])
        unit, _ = even.losses(maps, [(128, 128)], regions, [target])
        for number, factor in enumerate(factors):
            name = f"loss_cls_stage{number}"
            assert losses[name].item() == pytest.approx(unit[name].item() * factor)
        gradients.append(torch.autograd.grad(losses["loss_cls_stage0"], maps[0])[0])
    # Gradients of features are divided by the number of stages only without weights.
    torch.testing.assert_close(gradients[0] * 3, gradients[1])
    with pytest.raises(ValueError, match="stage_loss_weights has 2 of 3 stages"):
        CascadeHead(LEVELS, FACTS, BoxOptions(fc_dim=4), *later, [1, 0.5])


def test_a_mask_head_for_every_stage() -> None:
    detector: Any = made("cascade_mask", num_mask_heads=3, stage_loss_weights=(1, 0.5, 0))
    maps, targets = pyramid(), [full(), empty()]
    losses = detector.losses(maps, SHAPE, SIZES, targets)
    assert "loss_mask" not in losses and losses["loss_mask_stage0"] > 0 and losses["loss_mask_stage2"] == 0
    total(losses).backward()  # type: ignore[no-untyped-call]
    assert all(parameter.grad is not None for parameter in detector.parameters())
    # Each is trained on the regions of its own stage.
    regions = [[label_regions(full().boxes[:rows], full(), 0.5, 3)] for rows in (1, 2, 1)]
    image = [level[:1] for level in maps]
    masks = detector.others["mask"]
    by_stage = masks.losses(image, regions, [full()])
    for number, factor in enumerate((1, 0.5, 0)):
        own = masks.stages[number].losses(image, [regions[number]], [full()])["loss_mask"]
        torch.testing.assert_close(by_stage[f"loss_mask_stage{number}"], factor * own)
    objects = (full().boxes, torch.ones(2), full().labels)
    detections = [Detections(*objects), Detections(*(values[:0] for values in objects))]
    described = masks.describe(maps, detections)
    means = sum(head.describe(maps, detections)[0].masks for head in masks.stages) / 3
    torch.testing.assert_close(described[0].masks, means)
    assert described[1].masks.shape == (0, 28, 28)
    with pytest.raises(ValueError, match="num_mask_heads is 2: expected 1, or 3"):
        made("cascade_mask", num_mask_heads=2)


def test_means_of_logits_are_mmdetections() -> None:
    later: Any = ((0.6,), ((20, 20, 10, 10),), PoolingOptions(), None)
    for average, expected in (("probabilities", (0.9 + 0.5) / 2), ("logits", 0.75)):  # of the odds 9 and 1 comes 3
        head: Any = CascadeHead(LEVELS, replace(FACTS, classes=("cat",)), BoxOptions(fc_dim=4), *later, average)
        for stage, score in zip(head.stages, (0.9, 0.5), strict=True):
            nn.init.zeros_(stage.predictor.cls_score.weight)
            stage.predictor.cls_score.bias.data = torch.tensor([score, 1 - score]).log()
        [found] = head.detect(pyramid(1), SIZES[:1], [torch.tensor([[10.0, 10, 30, 40]])])
        assert found.scores.tolist() == pytest.approx([expected])


def test_the_federated_loss_is_detectron2s() -> None:
    """Binary cross-entropy over the classes of the regions and others drawn by the root of their frequency."""
    classes = tuple(map(str, range(40)))
    info = DatasetInfo(samples=100, classes=classes, boxes=True, image_counts=tuple(range(40)))
    boxes = torch.tensor([[0.0, 0, 10, 10]]).repeat(5, 1)
    labels = torch.tensor([3, 7, 3, 40, 0])
    regions = Regions(boxes, labels, torch.zeros(5, dtype=torch.int64), boxes)
    torch.manual_seed(0)
    logits = torch.randn(5, 41)
    weights = torch.tensor([*range(40), 0.0]).sqrt()
    targets = F.one_hot(labels, 41)[:, :40].float()
    every = F.binary_cross_entropy_with_logits(logits[:, :40], targets, reduction="none")
    for count in (10, 3):  # of 3 classes and the background
        head = BoxLayers(1, info, BoxOptions(fc_dim=4, class_loss="federated", federated_classes=count), (10, 10, 5, 5))
        torch.manual_seed(1)
        loss = head.losses(BoxPredictions(logits, torch.zeros(5, 160)), regions)["loss_cls"]
        torch.manual_seed(1)
        probabilities = weights.index_fill(0, labels, 0)
        others = torch.multinomial(probabilities, max(count - 4, 1))[: max(count - 4, 0)]
        columns = torch.cat([labels.unique()[:-1], others])
        assert len(columns) == max(count - 1, 3)
        torch.testing.assert_close(loss, every[:, columns].sum() / 5)
    # The other classes of small data are all drawn; probabilities are sigmoids, and need no numbers of images.
    assert draw_federated_classes(labels, weights, 500).tolist() == [True] * 40
    assert not head.state_dict().keys() & {"class_weights"}
    sigmoid = BoxLayers(1, replace(info, image_counts=()), BoxOptions(fc_dim=4, class_loss="sigmoid"), (10, 10, 5, 5))
    predictions = BoxPredictions(logits, torch.zeros(5, 160))
    torch.testing.assert_close(sigmoid.scores(predictions), logits.sigmoid())
    torch.testing.assert_close(sigmoid.losses(predictions, regions)["loss_cls"], every.sum() / 5)
    with pytest.raises(DataMismatch, match="numbers of images"):
        draw_federated_classes(labels, torch.zeros(1), 3)


# --- it learns --------------------------------------------------------------------------------------------------------


class Strided(nn.Module):
    """A few convolutions, for maps of strides 4, 8 and 16."""

    def __init__(self) -> None:
        super().__init__()
        widths = ((3, 16, 4), (16, 24, 2), (24, 32, 2))
        self.steps = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, b, 5, stride, 2), nn.BatchNorm2d(b), nn.ReLU(), nn.Conv2d(b, b, 3, 1, 1))
            for a, b, stride in widths
        )
        self.outs = nn.ModuleList(nn.Conv2d(b, 16, 1) for _, b, _ in widths)

    def forward(self, images: Tensor) -> list[Tensor]:
        maps = []
        for step, out in zip(self.steps, self.outs, strict=True):
            images = step(images)
            maps.append(out(images))
        return maps


def squares() -> tuple[Tensor, list[Target]]:
    """Two squares in each of four images, a red one and a green one, each with its mask."""
    images = 0.1 * torch.randn(4, 3, 64, 64)
    targets = []
    for image in images:
        left = torch.randint(0, 12, (2,))
        top = torch.randint(0, 40, (2,))
        sides = torch.randint(12, 20, (2,))
        boxes = torch.stack([left, top, left + sides, top + sides], dim=1)
        boxes[1, 0::2] += 32
        masks = torch.zeros(2, 64, 64, dtype=torch.uint8)
        for colour, (x1, y1, x2, y2) in enumerate(boxes.tolist()):
            image[colour, y1:y2, x1:x2] += 2
            masks[colour, y1:y2, x1:x2] = 1
        targets.append(Target(boxes.float(), torch.tensor([0, 1]), masks))
    return images, targets


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mask_rcnn", "cascade"])
def test_squares_are_learned_by_heart(name: str) -> None:
    torch.manual_seed(0)
    images, targets = squares()
    levels = [Level(16, 4), Level(16, 8), Level(16, 16)]
    keys: dict[str, Any] = {
        "neck": Given,
        "proposals": ProposalOptions(
            anchor_sizes=[12, 18, 24],
            aspect_ratios=(1,),
            pre_nms_topk_test=100,
            post_nms_topk_test=30,
            post_nms_topk_train=60,
        ),
        "pooling": PoolingOptions(num_levels=3, canonical_size=56),
        "box": BoxOptions(fc_dim=64, batch_size_per_image=32),
        "mask": MaskOptions(channels=16, num_convs=2),
    }
    net = Strided()
    make: Any = {"mask_rcnn": mask_rcnn, "cascade": cascade_rcnn}[name]
    detector = make(levels, DatasetInfo(samples=4, classes=("red", "green"), boxes=True, masks=True), **keys)
    shape, sizes = (64, 64), [(64, 64)] * 4
    optimizer = torch.optim.AdamW([*net.parameters(), *detector.parameters()], lr=2e-3)
    for _ in range(150):
        optimizer.zero_grad()
        maps = detector.pyramid(net(images))
        total(detector.losses(maps, shape, sizes, targets)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    with torch.no_grad():
        maps = detector.pyramid(net.eval()(images))
        found = detector.describe(maps, shape, sizes, detector.detect(maps, shape, sizes))
    for one, target in zip(found, targets, strict=True):
        sure = one.scores > 0.5
        assert sorted(one.labels[sure].tolist()) == [0, 1]
        overlaps = box_iou(target.boxes[one.labels[sure]], one.boxes[sure]).diagonal()
        assert overlaps.min() > 0.7
        assert one.masks is not None and one.masks[sure].mean() > 0.8
