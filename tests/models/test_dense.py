"""FCOS and RetinaNet: comparison with torchvision, assignment rules, and multi-process training."""

import math
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models import detection as torchvision_detection
from torchvision.ops.feature_pyramid_network import FeaturePyramidNetwork, LastLevelP6P7

from opabinia.contracts import DatasetInfo, Detections, Detector, Level, Target
from opabinia.models.detectors.anchors import grid_anchors
from opabinia.models.detectors.dense import is_top1
from opabinia.models.detectors.fcos import Fcos, assign_points, centerness_targets
from opabinia.models.detectors.retinanet import RetinaNet
from opabinia.models.detectors.suppression import Candidates, suppress
from opabinia.models.necks import fpn_p3_p7_from_p5

LEVELS = [Level(8, 8), Level(16, 16), Level(24, 32)]
INFO = DatasetInfo(samples=8, classes=("a", "b", "c"), boxes=True)
NECK: Any = partial(fpn_p3_p7_from_p5, channels=32)
SHAPE = (96, 160)  # P7 is 1 x 2: torchvision's stride there is not 128

DETECTORS: dict[str, Callable[..., Detector]] = {
    "fcos": partial(Fcos, LEVELS, INFO, neck=NECK),
    "retinanet": partial(RetinaNet, LEVELS, INFO, neck=NECK),
}
every_detector = pytest.mark.parametrize("name", DETECTORS)


def make_images(count: int) -> Tensor:
    return torch.rand(count, 3, *SHAPE, generator=torch.Generator().manual_seed(1))


def make_targets(counts: list[int]) -> list[Target]:
    """Return targets with these numbers of objects, all inside the image."""
    generator = torch.Generator().manual_seed(3)
    targets = []
    for count in counts:
        corner = torch.rand(count, 2, generator=generator) * torch.tensor([120.0, 60.0])
        ends = corner + 12 + torch.rand(count, 2, generator=generator) * 60
        boxes = torch.cat([corner, ends.minimum(torch.tensor([160.0, 96.0]))], 1)
        targets.append(Target(boxes, torch.randint(0, 3, (count,), generator=generator)))
    return targets


class Backbone(nn.Module):
    """A tiny backbone, with (``forward``) and without (``maps``) torchvision's neck."""

    out_channels = 32

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Conv2d(3, 8, 8, 8), nn.Conv2d(8, 16, 2, 2), nn.Conv2d(16, 24, 3, 2, 1)])
        self.fpn = FeaturePyramidNetwork([8, 16, 24], 32, LastLevelP6P7(32, 32))

    def maps(self, images: Tensor) -> list[Tensor]:
        levels = []
        for layer in self.layers:
            images = layer(images)
            levels.append(images)
        return levels

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        pyramid: dict[str, Tensor] = self.fpn(OrderedDict(zip("012", self.maps(images), strict=True)))
        return pyramid


def init_head(detector: nn.Module) -> None:
    """Initialize the head with large weights, so that outputs differ between positions and classes."""
    for name, param in detector.named_parameters():
        if "head" in name and param.ndim == 4:
            nn.init.kaiming_normal_(param) if "conv" in name else nn.init.normal_(param, std=0.2)


# --- torchvision ------------------------------------------------------------------------------------------------------


SETTINGS: dict[str, tuple[Callable[..., nn.Module], dict[str, Any], dict[str, Any]]] = {
    "fcos": (torchvision_detection.FCOS, {"score_thresh": 0.2}, {"offset": 0, "score_threshold": 0.2}),
    "retinanet": (
        torchvision_detection.RetinaNet,
        {"score_thresh": 0.05},
        {"smooth_l1_beta": 0, "max_detections": 300, "score_threshold": 0.05},
    ),
}


def make_pair(name: str) -> tuple[Any, Detector]:
    """Return torchvision's detector and ours, with the same weights."""
    torch.manual_seed(2)
    make, keys, own = SETTINGS[name]
    common = {"min_size": SHAPE[0], "max_size": SHAPE[1], "image_mean": [0.0] * 3, "image_std": [1.0] * 3}
    theirs, ours = make(Backbone(), 3, **common, **keys), DETECTORS[name](convention="torchvision", **own)
    init_head(theirs)
    weights = {key.replace("backbone.fpn", "neck.fpn"): value for key, value in theirs.state_dict().items()}
    ours.load_state_dict({key: value for key, value in weights.items() if not key.startswith("backbone")})
    return theirs, ours


Losses = dict[str, Tensor]
Gradients = Sequence[Tensor]


def losses_and_gradients(name: str, counts: list[int]) -> tuple[Losses, Losses, Gradients, Gradients]:
    """Return our losses and torchvision's under the same names, and the gradients of both heads."""
    theirs, ours = make_pair(name)
    images, targets = make_images(len(counts)), make_targets(counts)
    expected = theirs(list(images), [{"boxes": target.boxes, "labels": target.labels} for target in targets])
    losses = only_losses(ours.losses(ours.pyramid(theirs.backbone.maps(images)), SHAPE, [SHAPE] * len(counts), targets))
    names = {"loss_cls": "classification", "loss_box_reg": "bbox_regression", "loss_centerness": "bbox_ctrness"}
    gradients = [
        torch.autograd.grad(sum(values.values()), list(model.head.parameters()))  # type: ignore[arg-type]
        for values, model in ((losses, ours), (expected, theirs))
    ]
    renamed = {key: expected[value] for key, value in names.items() if value in expected}
    return losses, renamed, gradients[0], gradients[1]


def only_losses(scalars: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value for name, value in scalars.items() if "loss" in name}


def test_the_original_fcos_matches_mmdetection() -> None:
    """FCOS of 2019: all points within a box, exponential distances with a factor per level, -log IoU weighted
    by centerness, which comes from the branch of the classes."""
    options: Any = {"center_sampling_radius": None, "distances": "exponential", "level_factors": True}
    options |= {"centerness_branch": "class", "box_loss": "iou", "weight_boxes": True}
    torch.manual_seed(0)
    detector: Any = DETECTORS["fcos"](**options)
    factors = detector.head["scales"]
    for number, factor in enumerate(factors):
        nn.init.constant_(factor, 0.5 + number / 4)
    classes, boxes = detector.head["classification_head"], detector.head["regression_head"]
    nn.init.constant_(boxes.bbox_reg.bias, 3.0)
    nn.init.normal_(boxes.bbox_ctrness.weight)
    maps, target = detector.pyramid(Backbone().maps(make_images(1))), make_targets([3])[0]
    result = only_losses(detector.losses(maps, SHAPE, [SHAPE], [target]))
    weights, losses, centerness_losses = [], [], []
    for number, (level, stride) in enumerate(zip(maps, (8, 16, 32, 64, 128), strict=True)):
        distances = (boxes.bbox_reg(boxes.conv(level)) * factors[number]).exp()[0]
        centerness = boxes.bbox_ctrness(classes.conv(level))[0, 0]
        low, high = (0 if stride == 8 else 4 * stride), (math.inf if stride == 128 else 8 * stride)
        for row in range(level.shape[2]):
            for column in range(level.shape[3]):
                point = torch.tensor([column + 0.5, row + 0.5]).repeat(2) * stride
                sides = (target.boxes - point) * torch.tensor([-1, -1, 1, 1])
                inside = (sides.amin(1) > 0) & (sides.amax(1) >= low) & (sides.amax(1) <= high)
                if not inside.any():
                    continue
                areas = (target.boxes[:, 2:] - target.boxes[:, :2]).prod(1).where(inside, math.inf)
                left, top, right, bottom = sides[areas.argmin()]
                ratio = min(left, right) * min(top, bottom) / (max(left, right) * max(top, bottom))
                predicted = distances[:, row, column]
                smaller = torch.minimum(predicted, sides[areas.argmin()])
                overlap = (smaller[0] + smaller[2]) * (smaller[1] + smaller[3])
                union = (predicted[0] + predicted[2]) * (predicted[1] + predicted[3]) + areas.min() - overlap
                weights.append(ratio.sqrt())
                losses.append(-(overlap / union).log())
                loss = F.binary_cross_entropy_with_logits(centerness[row, column], weights[-1])
                centerness_losses.append(loss)
    weight = torch.stack(weights)
    assert len(weights) > 30
    torch.testing.assert_close(result["loss_box_reg"], (weight * torch.stack(losses)).sum() / weight.sum())
    torch.testing.assert_close(result["loss_centerness"], torch.stack(centerness_losses).mean())
    sum(result.values()).backward()  # type: ignore[union-attr]
    assert all(param.grad is not None for param in detector.parameters())
    empty = only_losses(detector.losses(maps, SHAPE, [SHAPE], make_targets([0])))
    assert empty["loss_box_reg"] == 0 and empty["loss_cls"].isfinite()


@every_detector
def test_losses_average_over_processes_to_those_of_the_global_batch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in DDP: each of two processes divides by the numbers of the global batch and is weighted by its images."""
    detector, maps, targets = DETECTORS[name](), Backbone().maps(make_images(3)), make_targets([5, 0, 4])
    every = detector.losses(detector.pyramid(maps), SHAPE, [SHAPE] * 3, targets)
    module = sys.modules[type(detector).__module__]
    positives = every["num_pos_anchors"].detach()
    monkeypatch.setattr(module, "mean_over_samples", lambda total, count: positives)
    parts = []
    for rows in (slice(0, 1), slice(1, 3)):
        part = detector.pyramid([level[rows] for level in maps])
        parts.append(detector.losses(part, SHAPE, [SHAPE] * len(targets[rows]), targets[rows]))
    for key, value in only_losses(every).items():
        torch.testing.assert_close((parts[0][key] + 2 * parts[1][key]) / 3, value)


# --- rules ------------------------------------------------------------------------------------------------------------


def make_points(*strides: int, side: int = 128) -> list[Tensor]:
    half = torch.tensor([-0.5, -0.5, 0.5, 0.5])
    return [grid_anchors((half * s)[None], (side // s, side // s), s, 0.5) for s in strides]


def assigned_points(points: list[Tensor], boxes: list[list[float]], radius: float = 1.5) -> list[list[list[float]]]:
    """Return for each object the points (x, y, stride) that it is assigned to."""
    assigned = assign_points(points, [Target(torch.tensor(boxes), torch.arange(len(boxes)))], radius)
    anchors = torch.cat(points)
    for number, box in enumerate(boxes):
        assert (assigned.boxes[0][assigned.classes[0] == number] == torch.tensor(box)).all()
    locations = torch.stack([anchors[:, [0, 2]].mean(1), anchors[:, [1, 3]].mean(1), anchors[:, 2] - anchors[:, 0]], 1)
    return [locations[assigned.classes[0] == number].tolist() for number in range(len(boxes))]


def test_points_near_the_centre_are_assigned() -> None:
    points = assigned_points(make_points(8, 16), [[0.0, 0, 40, 40]])
    assert points == [[[x, y, 8] for y in (12, 20, 28) for x in (12, 20, 28)]]
    assert len(assigned_points(make_points(8, 16), [[0.0, 0, 40, 40]], radius=9)[0]) == 25


def test_points_in_two_objects_are_assigned_to_the_smaller() -> None:
    large, small = assigned_points(make_points(8, 16), [[0.0, 0, 40, 40], [8, 8, 32, 24]])
    assert small == [[x, y, 8] for y in (12, 20) for x in (12, 20, 28)]
    assert large == [[x, 28, 8] for x in (12, 20, 28)]


def test_levels_have_distances_of_four_to_eight_strides() -> None:
    # The farthest side is 64 pixels from the point at 68, the limit of both levels: both are assigned.
    (points,) = assigned_points(make_points(8, 16), [[4.0, 4, 128, 128]], radius=0.6)
    assert {stride for *_, stride in points} == {8, 16}
    (larger,) = assigned_points(make_points(8, 16, 32), [[0.0, 0, 128, 128]])
    assert {stride for *_, stride in larger} == {16}
    (coarsest,) = assigned_points(make_points(8, 16), [[0.0, 0, 128, 128]], radius=0.6)
    assert {stride for *_, stride in coarsest} == {16}


def test_centerness_follows_the_paper() -> None:
    anchors = torch.tensor([[-2.0, 1, 6, 9], [1, 1, 9, 9], [20, 0, 28, 8]])
    boxes = torch.tensor([0.0, 0, 10, 10]).expand(1, 3, 4)
    assert centerness_targets(anchors, boxes).tolist() == [[pytest.approx(0.5), 1, 0]]


def test_suppression_is_per_class_and_keeps_nan_scores() -> None:
    boxes = torch.tensor([[[0.0, 0, 20, 20], [0, 0, 20, 19], [0, 0, 20, 19], [5, 5, 30, 30]]])
    candidates = Candidates(torch.tensor([[0.9, 0.8, 0.7, 0.05]]), torch.tensor([[0, 0, 1, 1]]), boxes)
    (kept,) = suppress([candidates], [(16, 40)], 0.05, 0.5, 10)
    assert kept.labels.tolist() == [0, 1] and kept.boxes[0].tolist() == [0, 0, 20, 16]
    (invalid,) = suppress([candidates._replace(scores=candidates.scores / 0)], [(16, 40)], 0.05, 0.5, 10)
    assert isinstance(invalid, Detections) and not invalid.scores.isfinite().any()


def test_ties_count_as_top1() -> None:
    logits = torch.tensor([[[1.0, 1, 0], [0, 2, 1], [5, 0, 0]]])
    assert is_top1(logits, torch.tensor([[1, 2, -1]])).tolist() == [[True, False, False]]


def test_anchors_of_retinanet_follow_the_paper() -> None:
    detector = DETECTORS["retinanet"]()
    assert isinstance(detector, RetinaNet)
    maps = [torch.zeros(1, 1, 1, 1)] * 5
    areas = torch.stack([(level[:, 2:] - level[:, :2]).prod(1).sqrt() for level in detector.grid(maps)])
    expected = [[32 * 2**level * 2 ** (third / 3) for third in range(3) for _ in range(3)] for level in range(5)]
    torch.testing.assert_close(areas, torch.tensor(expected))


@pytest.mark.parametrize(
    ("name", "keys", "message"),
    [
        ("fcos", {"neck": partial(fpn_p3_p7_from_p5, channels=40)}, "32 groups, which do not divide the 40 channels"),
        ("retinanet", {"background_iou": 0.6}, r"background_iou \(0.6\) must not be above foreground_iou \(0.5\)"),
        ("retinanet", {"anchor_sizes": [8.0, 16.0]}, "2 lists for 5 levels"),
    ],
    ids=["channels", "thresholds", "sizes"],
)
def test_options_that_do_not_fit_raise(name: str, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DETECTORS[name](**keys)
