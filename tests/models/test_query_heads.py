"""Heads on queries: losses, positions and boxes by hand, images without annotations, training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchvision.ops import box_convert

from opabinia.contracts import Batch, Clock, Detections, InstanceMasks, Level, Target
from opabinia.contracts.keypoints import COCO_SIGMAS
from opabinia.contracts.rotated_boxes import aligned_iou, box_corners, upright_boxes
from opabinia.data.collate import collate
from opabinia.data.sources.digit_scenes import KEYPOINTS, SCENES, DigitScenes
from opabinia.models.backbones.timm import timm
from opabinia.models.detectors.d_fine import DFine
from opabinia.models.detectors.query_heads import MatchedObjects, Queries
from opabinia.models.detectors.query_keypoints import QueryKeypointHead, QueryKeypointOptions
from opabinia.models.detectors.query_masks import QueryMaskHead, QueryMaskOptions
from opabinia.models.detectors.query_oriented import QueryOrientedHead, QueryOrientedOptions
from opabinia.models.losses import masks as mask_losses
from opabinia.models.losses import matching
from opabinia.models.losses.keypoints import keypoint_similarity
from opabinia.models.losses.masks import point_mask_losses
from opabinia.tasks.dense_base import TestTimeAugmentation
from opabinia.tasks.detection import Detection
from tests.models.test_detectors import (
    DETECTORS,
    INFO,
    LEVELS,
    LIBRARY,
    ROI_HEADS,
    SHAPE,
    SIZES,
    make_detector,
    make_target,
    needs_library,
)
from tests.models.test_rotated_boxes import random_boxes

# --- masks ------------------------------------------------------------------------------------------------------------


def draw_center(logits: Tensor, count: int) -> Tensor:
    """Return the center of the image for every point."""
    return torch.full((len(logits), count, 2), 0.5)


def test_point_losses_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mask of probability 1/2 costs log 2; the dice loss at 8 points is 1 - (2 * 4 + 1) / (4 + 8 + 1) for an object
    that covers all of them, and 1 - 1 / (4 + 0 + 1) for one that covers none."""
    monkeypatch.setattr(mask_losses, "draw_points", draw_center)
    true = torch.stack([torch.zeros(6, 6), torch.ones(6, 6)]).to(torch.uint8)
    entropy, dice = point_mask_losses(torch.zeros(3, 4, 4), true, torch.tensor([1, 0, 1]), num_points=8)
    assert entropy.item() == pytest.approx(3 * math.log(2))
    assert dice.item() == pytest.approx(2 * (1 - 9 / 13) + (1 - 1 / 5))


class RampHead(QueryMaskHead):
    """Its only pixel feature is the distance of a cell's center from the left side of the image, in pixels."""

    def _pixels(self, maps: Sequence[Tensor], shape: tuple[int, int]) -> Tensor:
        cells = torch.arange(shape[1] // 4) * 4.0 + 2
        return cells.expand(len(maps[-1]), 1, shape[0] // 4, -1)

    def _kernels(self, embeddings: Tensor) -> Tensor:
        return torch.ones(*embeddings.shape[:-1], 1)


def ramp_head() -> QueryMaskHead:
    return RampHead([Level(8, 8)], 8, QueryMaskOptions(resolution=2, num_points=16, mask_weight=1, dice_weight=1))


def test_masks_are_stretched_to_the_boxes() -> None:
    """The squares of a box from 8 to 24 have their centers at 12 and 20 pixels."""
    head = ramp_head()
    nn.init.constant_(head.segmentation_bias, -16.0)
    boxes = torch.tensor([[[8.0, 0, 24, 16], [4, 4, 12, 8]]])
    detections = Detections(boxes, torch.ones(1, 2), torch.zeros(1, 2, dtype=torch.int64))
    queries = Queries(torch.zeros(1, 2, 8), torch.zeros(1, 2, 4))
    masks = head.describe(queries, [torch.zeros(1, 8, 4, 4)], (32, 32), detections).masks
    assert masks is not None
    expected = torch.tensor([[-4.0, 4.0], [-10.0, -6.0]])[None, :, None].expand(1, 2, 2, 2)
    torch.testing.assert_close(masks, expected.sigmoid())


def test_images_with_unknown_masks_have_no_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of three images has an object without a mask; the third object's mask is the second one."""
    monkeypatch.setattr(mask_losses, "draw_points", draw_center)
    head = ramp_head()
    nn.init.constant_(head.segmentation_bias, 1000.0)  # every pixel is inside
    covered, empty = (InstanceMasks.encode(torch.full((1, 32, 32), value, dtype=torch.uint8)) for value in (1, 0))
    unknown = InstanceMasks.encode(torch.zeros(0, 32, 32, dtype=torch.uint8))
    targets = [Target(torch.zeros(1, 4), torch.zeros(1), masks) for masks in (covered, unknown, empty)]
    queries, objects = Queries(torch.zeros(3, 8), torch.zeros(3, 4)), MatchedObjects(torch.arange(3), [1, 1, 1])
    losses = head.losses(queries, objects, [torch.zeros(3, 8, 4, 4)], (32, 32), targets, torch.tensor(2.0))
    # The logit is 1000 + 16 at the center; the first image has no loss, the dice loss of the last is 1 - 1 / (16 + 1).
    assert losses["loss_mask"].item() == pytest.approx(1016 / 2)
    assert losses["loss_dice"].item() == pytest.approx((1 - 1 / 17) / 2)
    with pytest.raises(ValueError, match="an image without masks came to a detector that learns them"):
        head.losses(queries, objects, [], (32, 32), [target._replace(masks=None) for target in targets], torch.ones(()))


# --- keypoints --------------------------------------------------------------------------------------------------------


def keypoint_head(**options: Any) -> QueryKeypointHead:
    """Return a head of three keypoints at the center of the box, its right and its bottom side, with probabilities of
    1/2, 1/2 and 3/4."""
    head = QueryKeypointHead(("a", "b", "c"), 8, QueryKeypointOptions(**options))
    with torch.no_grad():
        head.layers[-1].bias.copy_(torch.tensor([0, 0, 0, 0.5, 0, 0, 0, 0.5, math.log(3)]))
    return head


def test_keypoints_are_relative_to_the_box() -> None:
    """The box's center is (40, 20), its size 20 x 16, in images of 80 x 40."""
    queries = Queries(torch.randn(1, 1, 8), torch.tensor([[[0.5, 0.5, 0.25, 0.4]]]))
    detections = Detections(torch.zeros(1, 1, 4), torch.ones(1, 1), torch.zeros(1, 1, dtype=torch.int64))
    points = keypoint_head().describe(queries, [], (40, 80), detections).keypoints
    assert points is not None
    torch.testing.assert_close(points, torch.tensor([[[[40, 20, 0.5], [50, 20, 0.5], [40, 28, 0.75]]]]))


def test_keypoint_losses_by_hand() -> None:
    """Of the object in the second image (area 20 x 16) the first keypoint is 8 pixels too far to the left, the second
    is exact, the third is unknown; nothing is known of the object in the first image."""
    head = keypoint_head(sigmas=(0.1, 0.1, 0.1), distance_weight=1, similarity_weight=1, visibility_weight=1)
    box = torch.tensor([[30.0, 12, 50, 28]])
    known = torch.tensor([[[48.0, 20, 2], [50, 20, 1], [0, 0, 0]]])
    targets = [Target(box, torch.zeros(1), keypoints=points) for points in (torch.zeros(1, 3, 3), known)]
    queries = Queries(torch.randn(2, 8), torch.tensor([[0.5, 0.5, 0.25, 0.4]] * 2))
    losses = head.losses(queries, MatchedObjects(torch.arange(2), [1, 1]), [], (40, 80), targets, torch.tensor(2.0))
    similarity = math.exp(-(8**2) / (2 * 0.2**2 * 320))
    assert losses["loss_keypoint"].item() == pytest.approx(8 / 80 / 2)
    assert losses["loss_oks"].item() == pytest.approx((1 - similarity) / 2 / 2)
    assert losses["loss_visibility"].item() == pytest.approx((2 * math.log(2) + math.log(4)) / 3 / 2)
    with pytest.raises(ValueError, match="an image without keypoints came to a detector that learns them"):
        head.losses(queries, MatchedObjects(torch.arange(2), [1, 1]), [], (40, 80), [Target(*targets[0][:2])] * 2, box)


def test_similarity_is_that_of_coco() -> None:
    """As in pycocotools' ``computeOks``, for a keypoint that is two sigmas off: exp(-1/2)."""
    shifts = torch.tensor([[[0.1 * 20, 0.0], [0, 0]]])
    similarity = keypoint_similarity(shifts, torch.tensor([400.0]), torch.tensor([0.05, 0.025]))
    assert similarity.tolist() == [pytest.approx([math.exp(-0.5), 1])]


def test_sigmas() -> None:
    coco = QueryKeypointHead(tuple(COCO_SIGMAS), 8, QueryKeypointOptions())
    assert coco._sigmas == tuple(COCO_SIGMAS.values()) and keypoint_head()._sigmas == (0.05, 0.05, 0.05)
    with pytest.raises(ValueError, match=r"keypoint\.sigmas: 2 numbers for 3 keypoints; give one for each"):
        keypoint_head(sigmas=(0.1, 0.1))


# --- oriented boxes ---------------------------------------------------------------------------------------------------

QUERY_BOX = torch.tensor([0.5, 0.5, 0.35, 0.1])
"""In images of 80 x 40 its center is (40, 20) and its size 28 x 4: the mean of the squared sides is 20^2."""


def oriented_head(width: float, height: float, angle: float, **options: Any) -> QueryOrientedHead:
    """Return a head whose boxes have a width and height, in units of the mean side, and an angle in degrees."""
    head = QueryOrientedHead(8, QueryOrientedOptions(**options))
    double = math.radians(2 * angle)
    bias = [math.log(width), math.log(height), 3 * math.cos(double) - 1, 3 * math.sin(double)]
    with torch.no_grad():
        head.layers[-1].bias.copy_(torch.tensor(bias))
    return head


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ((1, 0.5, 30), [40, 20, 20, 10, 30]),
        ((0.5, 1, 30), [40, 20, 20, 10, -60]),
        ((1, 0.5, -80), [40, 20, 20, 10, -80]),
    ],
)
def test_oriented_boxes_of_queries(numbers: tuple[float, float, float], expected: list[float]) -> None:
    queries = Queries(torch.randn(1, 1, 8), QUERY_BOX.view(1, 1, 4))
    detections = Detections(torch.zeros(1, 1, 4), torch.ones(1, 1), torch.zeros(1, 1, dtype=torch.int64))
    boxes = oriented_head(*numbers).describe(queries, [], (40, 80), detections).boxes
    torch.testing.assert_close(boxes, torch.tensor([[expected]]), check_dtype=False)


def oriented_losses(head: QueryOrientedHead, *boxes: list[float]) -> dict[str, float]:
    """Return the losses of queries matched with objects, one in each image."""
    targets = [Target(torch.tensor([box]).view(1, 5), torch.zeros(1)) for box in boxes]
    queries = Queries(torch.randn(len(boxes), 8), QUERY_BOX.expand(len(boxes), 4))
    objects = MatchedObjects(torch.arange(len(boxes)), [1] * len(boxes))
    losses = head.losses(queries, objects, [], (40, 80), targets, torch.tensor(2.0))
    return {name: value.item() for name, value in losses.items()}


def test_oriented_losses_by_hand() -> None:
    """Predicted are 20 x 10 at 30 degrees, wherever the objects are. Across, the IoU is 1 / 3 and the loss of the angle
    2 (20 - 10) / (20 + 10) = 2 / 3, however the numbers of the object are ordered; a square has no longer side."""
    head = oriented_head(1, 0.5, 30, iou_weight=1, angle_weight=1)
    losses = oriented_losses(head, [10.0, 10, 20, 5, 30], [70.0, 30, 10, 10, 120])
    assert losses == pytest.approx({"loss_rotated_iou": 2 * math.log(2) / 2, "loss_angle": 0}, abs=1e-5)
    across = oriented_losses(head, [0.0, 40, 20, 10, -60], [40.0, 20, 10, 20, 30])
    assert across == pytest.approx({"loss_rotated_iou": 2 * math.log(3) / 2, "loss_angle": 2 / 3}, abs=1e-5)
    doubled = oriented_losses(oriented_head(1, 0.5, 30), [0.0, 40, 20, 10, -60], [40.0, 20, 10, 20, 30])
    assert doubled == pytest.approx({name: 2 * value for name, value in across.items()}), "by the options"


def test_the_oriented_head_learns_shapes() -> None:
    """A square is among them."""
    torch.manual_seed(0)
    true = random_boxes(12).float()
    true[0, 3] = true[0, 2]
    upright = box_convert(upright_boxes(true), "xyxy", "cxcywh")
    queries = Queries(torch.randn(12, 32), upright / torch.tensor([160.0, 80, 160, 80]))
    head, targets = QueryOrientedHead(32, QueryOrientedOptions()), [Target(true, torch.zeros(12))]
    optimizer = torch.optim.Adam(head.parameters(), lr=0.003)
    for _ in range(300):
        losses = head.losses(
            queries, MatchedObjects(torch.arange(12), [12]), [], (80, 160), targets, torch.tensor(12.0)
        )
        optimizer.zero_grad()
        torch.stack(list(losses.values())).sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    detections = Detections(upright[None], torch.ones(1, 12), torch.zeros(1, 12, dtype=torch.int64))
    with torch.no_grad():
        (boxes,) = head.describe(Queries(*(values[None] for values in queries)), [], (80, 160), detections).boxes
    assert (aligned_iou(box_corners(boxes), true) > 0.9).all() and (boxes[:, 2] >= boxes[:, 3]).all()


# --- detectors with heads ---------------------------------------------------------------------------------------------

HEADS = {
    "masks": {"loss_mask", "loss_dice"},
    "keypoints": {"loss_keypoint", "loss_oks", "loss_visibility"},
    "oriented": {"loss_rotated_iou", "loss_angle"},
    "regions": {"loss_mask", "loss_keypoint"},
}
LABELS = {"oriented": (), "regions": ("masks", "keypoints")}


@needs_library
@pytest.mark.parametrize("name", [name for name in LIBRARY if name.rpartition("_")[2] in HEADS])
def test_heads_change_nothing_else(name: str) -> None:
    detector, _, head = name.rpartition("_")
    plain, maps = make_detector(detector)
    with_head, _ = make_detector(f"{detector}_{head}")
    assert not with_head.load_state_dict(plain.state_dict(), strict=False).unexpected_keys
    targets = [make_target(f"{detector}_{head}", count) for count in (2, 1)]
    upright = [target._replace(boxes=upright_boxes(target.boxes)) for target in targets]
    results = []
    for model, given in ((plain, upright), (with_head, targets)):
        torch.manual_seed(1)
        losses = model.eval().losses(maps, SHAPE, SIZES, given)
        model.max_detections = 5
        first = 1 if with_head.oriented else 0  # without the boxes
        losses = {name: value for name, value in losses.items() if name.startswith("loss")}
        results.append((losses, [image[first:3] for image in model.detect(maps, SHAPE, SIZES)]))
    added = {name: results[1][0].pop(name) for name in HEADS[head]}
    outside = {"loss_keypoint"} if head == "regions" else set()  # no keypoint is within an untrained box
    assert all(value > 0 for name, value in added.items() if name not in outside)
    torch.testing.assert_close(*results, atol=0, rtol=0)
    assert plain.label_keys == ("boxes",) and with_head.label_keys == ("boxes", *LABELS.get(head, (head,)))


@needs_library
@pytest.mark.parametrize(
    "name", ["rt_detr_masks", "d_fine_masks", "d_fine_keypoints", "d_fine_oriented", "d_fine_regions"]
)
def test_losses_average_over_processes_to_those_of_the_global_batch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One image has two objects, the other has one; each of two processes has one image."""
    grid = torch.cartesian_prod(torch.arange(8), torch.arange(8)).flip(1) / 8 + 1 / 16
    monkeypatch.setattr(mask_losses, "draw_points", lambda logits, count: grid.expand(len(logits), -1, -1))
    detector, maps = make_detector(name)
    targets = [make_target(name, 2), make_target(name, 1)]
    expected = detector.eval().losses(maps, SHAPE, SIZES, targets)
    monkeypatch.setattr(matching, "mean_over_samples", lambda total, samples: torch.tensor(3 / 2))
    parts = [detector.losses([level[[n]] for level in maps], SHAPE, [SIZES[n]], [targets[n]]) for n in range(2)]
    averaged = HEADS | {"regions": {"loss_mask"}}  # keypoints: a mean over those within regions, as in R-CNNs
    for key in averaged[name.rpartition("_")[2]]:
        assert (parts[0][key] + parts[1][key]).item() / 2 == pytest.approx(expected[key].item(), rel=1e-5), key


@pytest.fixture
def scenes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Batch:
    """Two scenes of digits. All of them would be rendered for seconds."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setitem(SCENES, "train", 2)
    source = DigitScenes(split="train", masks=True, keypoints=True)
    return collate([source[index] for index in range(2)], size_multiple=32)


@needs_library
def test_region_heads_are_trained_on_the_boxes_of_matched_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the second image are of its own objects, whose numbers begin at 0 in each image."""
    head = DETECTORS["d_fine_regions"](LEVELS, INFO).heads["mask"]
    given: list[Any] = []
    monkeypatch.setattr(head.head, "losses", lambda maps, regions, targets: given.extend(regions[0]) or {})
    targets = [make_target("d_fine_regions", 2), make_target("d_fine_regions", 1)]
    queries = Queries(torch.zeros(3, 16), torch.tensor([[0.5, 0.5, 0.25, 0.5]] * 3))
    maps = [torch.zeros(2, level.channels, 8, 8) for level in (LEVELS[0], Level(16, 8))]
    objects = MatchedObjects(torch.tensor([1, 0, 2]), [2, 1])
    head.losses(queries, objects, maps, (40, 80), targets, torch.tensor(3.0))
    assert [image.matched.tolist() for image in given] == [[1, 0], [0]]
    assert [image.labels.tolist() for image in given] == [[1, 0], [0]]
    assert given[1].boxes.tolist() == [[30, 10, 50, 30]] and torch.equal(given[0].targets, targets[0].boxes.flip(0))


@needs_library
@pytest.mark.parametrize("regions", [False, True])
def test_both_heads_learn_some_scenes(scenes: Batch, regions: bool) -> None:
    torch.manual_seed(0)
    small: dict[str, Any] = {"channels": 32, "num_queries": 16, "decoder_layers": 1, "attention_heads": 4}
    small |= {"ffn_dim": 64, "num_denoising": 0, "depth_multiplier": 0.34, "hidden_expansion": 0.5}
    heads: dict[str, Any] = {
        "mask": QueryMaskOptions(num_blocks=1, ffn_dim=64, num_points=256),
        "keypoint": QueryKeypointOptions(),
    }
    detector = partial(DFine, **small, **(ROI_HEADS if regions else heads))
    info = replace(INFO, classes=tuple("0123456789"), keypoints=KEYPOINTS, channels=1)
    task = Detection(info, backbone=partial(timm, model="test_resnet"), detector=detector, mean=[0.4], std=[0.25])
    optimizer = torch.optim.AdamW(task.parameters(), lr=0.003)
    history = []
    for _ in range(60):
        losses = task.losses(task.extract(scenes), scenes, Clock())
        history.append({name: value.item() for name, value in losses.items()})
        optimizer.zero_grad()
        torch.stack(list(losses.values())).sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    names = HEADS["regions"] if regions else HEADS["masks"] | {"loss_keypoint", "loss_visibility"}
    for name in names:
        assert history[-1][name] < 0.5 * history[0][name], name


@needs_library
@pytest.mark.parametrize("detector", ["rt_detr", "d_fine", "rf_detr"])
def test_data_without_what_a_head_learns_is_an_error(detector: str) -> None:
    with pytest.raises(ValueError, match="mask: the training data has no masks: write masks: true in its source"):
        DETECTORS[f"{detector}_masks"](LEVELS, replace(INFO, masks=False))
    with pytest.raises(ValueError, match="keypoint: the training data has no keypoints: take a source that has them"):
        DETECTORS[f"{detector}_keypoints"](LEVELS, replace(INFO, keypoints=()))
    with pytest.raises(ValueError, match="no masks and keypoints: write keypoint: null, or oriented: null"):
        DETECTORS[f"{detector}_keypoints"](LEVELS, INFO, oriented=QueryOrientedOptions())


@needs_library
@pytest.mark.parametrize("detector", ["rt_detr", "d_fine"])
def test_region_heads_check_data_and_other_heads(detector: str) -> None:
    make = DETECTORS[f"{detector}_regions"]
    with pytest.raises(ValueError, match="roi_mask: the training data has no masks: write masks: true in its source"):
        make(LEVELS, replace(INFO, masks=False))
    with pytest.raises(ValueError, match="keypoint and roi_keypoint are two heads for the same: write keypoint: null"):
        make(LEVELS, INFO, keypoint=QueryKeypointOptions())


@needs_library
def test_keypoints_of_views() -> None:
    """Those of a scaled view are in pixels of the image: a new head has them at the center of the box. Mirrored views
    are refused."""
    task_of = partial(Detection, INFO, backbone=partial(timm, model="test_resnet"), mean=[0.5], std=[0.5])
    detector = DETECTORS["d_fine_keypoints"]
    torch.manual_seed(0)
    task = task_of(detector=detector).eval()
    task.test_time_augmentation = TestTimeAugmentation(scales=[2.0], flip=False)
    with torch.no_grad():
        (found,) = task._detect(torch.rand(1, 3, 64, 96), [(64, 96)])
    inside = ((found.boxes > 0) & (found.boxes < torch.tensor([96, 64, 96, 64]))).all(1)
    assert found.keypoints is not None and inside.any()
    centers = (found.boxes[inside, None, :2] + found.boxes[inside, None, 2:]) / 2
    torch.testing.assert_close(found.keypoints[inside, :, :2], centers.expand(-1, 3, -1))
    with pytest.raises(ValueError, match=r"test_time_augmentation\.flip: this detector predicts keypoints together"):
        task_of(detector=detector, test_time_augmentation=TestTimeAugmentation(scales=[1.0]))
