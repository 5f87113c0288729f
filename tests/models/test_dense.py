"""FCOS and RetinaNet against torchvision's, their rules by hand, and on many processes."""

import json
import math
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.parallel import DistributedDataParallel
from torchvision.models import detection as torchvisions
from torchvision.ops.feature_pyramid_network import FeaturePyramidNetwork, LastLevelP6P7

from opabinia.contracts import DatasetInfo, Detections, Detector, GlobalBatch, Level, Target
from opabinia.models.detectors.anchors import _cached_anchors, grid_anchors
from opabinia.models.detectors.dense import HeadOutput, is_top1, split_levels, top_candidates
from opabinia.models.detectors.fcos import Fcos, assign_points, centerness_targets
from opabinia.models.detectors.retinanet import RetinaNet
from opabinia.models.detectors.suppression import Candidates, suppress
from opabinia.models.necks import fpn, fpn_p3_p7_from_p5
from tests.faults.programs import Server

LEVELS = [Level(8, 8), Level(16, 16), Level(24, 32)]
FACTS = DatasetInfo(samples=8, classes=("a", "b", "c"), boxes=True)
NECK: Any = partial(fpn_p3_p7_from_p5, channels=32)
SHAPE = (96, 160)  # P7 is 1 x 2: torchvision's stride there is not 128

DETECTORS: dict[str, Callable[..., Detector]] = {
    "fcos": partial(Fcos, LEVELS, FACTS, neck=NECK),
    "retinanet": partial(RetinaNet, LEVELS, FACTS, neck=NECK),
}
every = pytest.mark.parametrize("name", DETECTORS)


def images_of(count: int) -> Tensor:
    return torch.rand(count, 3, *SHAPE, generator=torch.Generator().manual_seed(1))


def targets_of(counts: list[int]) -> list[Target]:
    """So many objects in each image, inside it."""
    generator = torch.Generator().manual_seed(3)
    targets = []
    for count in counts:
        corner = torch.rand(count, 2, generator=generator) * torch.tensor([120.0, 60.0])
        ends = corner + 12 + torch.rand(count, 2, generator=generator) * 60
        boxes = torch.cat([corner, ends.minimum(torch.tensor([160.0, 96.0]))], 1)
        targets.append(Target(boxes, torch.randint(0, 3, (count,), generator=generator)))
    return targets


class Body(nn.Module):
    """The tiniest backbone, with and without torchvision's neck."""

    out_channels = 32

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Conv2d(3, 8, 8, 8), nn.Conv2d(8, 16, 2, 2), nn.Conv2d(16, 24, 3, 2, 1)])
        self.fpn = FeaturePyramidNetwork([8, 16, 24], 32, LastLevelP6P7(32, 32))

    def maps(self, images: Tensor) -> list[Tensor]:
        found = []
        for layer in self.layers:
            images = layer(images)
            found.append(images)
        return found

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        pyramid: dict[str, Tensor] = self.fpn(OrderedDict(zip("012", self.maps(images), strict=True)))
        return pyramid


def learned(detector: nn.Module) -> None:
    """Give the head weights that tell places and classes apart."""
    for name, one in detector.named_parameters():
        if "head" in name and one.ndim == 4:
            nn.init.kaiming_normal_(one) if "conv" in name else nn.init.normal_(one, std=0.2)


# --- torchvision's ----------------------------------------------------------------------------------------------------


SETTINGS: dict[str, tuple[Callable[..., nn.Module], dict[str, Any], dict[str, Any]]] = {
    "fcos": (torchvisions.FCOS, {"score_thresh": 0.2}, {"offset": 0, "score_threshold": 0.2}),
    "retinanet": (
        torchvisions.RetinaNet,
        {"score_thresh": 0.05},
        {"smooth_l1_beta": 0, "max_detections": 300, "score_threshold": 0.05},
    ),
}


def pair(name: str) -> tuple[Any, Detector]:
    """torchvision's detector, and ours with its weights, carried over by name."""
    torch.manual_seed(2)
    make, keys, own = SETTINGS[name]
    same = {"min_size": SHAPE[0], "max_size": SHAPE[1], "image_mean": [0.0] * 3, "image_std": [1.0] * 3}
    theirs, ours = make(Body(), 3, **same, **keys), DETECTORS[name](convention="torchvision", **own)
    learned(theirs)
    weights = {key.replace("backbone.fpn", "neck.fpn"): value for key, value in theirs.state_dict().items()}
    ours.load_state_dict({key: value for key, value in weights.items() if not key.startswith("backbone")})
    return theirs, ours


@every
@torch.no_grad()
def test_with_torchvisions_weights_it_finds_what_torchvision_finds(name: str) -> None:
    theirs, ours = pair(name)
    images = images_of(3)
    found = ours.detect(ours.pyramid(theirs.backbone.maps(images)), SHAPE, [SHAPE] * 3)
    for one, expected in zip(found, theirs.eval()(list(images)), strict=True):
        assert len(one.boxes) > 20
        torch.testing.assert_close(one.scores, expected["scores"], atol=1e-6, rtol=0)
        torch.testing.assert_close(one.boxes, expected["boxes"], atol=1e-4, rtol=0)
        assert torch.equal(one.labels, expected["labels"])


@every
@pytest.mark.parametrize("counts", [[5, 0, 8, 1], [3, 4]], ids=str)
def test_losses_and_gradients_are_torchvisions(name: str, counts: list[int]) -> None:
    theirs, ours = pair(name)
    images, targets = images_of(len(counts)), targets_of(counts)
    expected = theirs(list(images), [{"boxes": one.boxes, "labels": one.labels} for one in targets])
    found = losses_of(ours.losses(ours.pyramid(theirs.backbone.maps(images)), SHAPE, [SHAPE] * len(counts), targets))
    names = {"loss_cls": "classification", "loss_box_reg": "bbox_regression", "loss_centerness": "bbox_ctrness"}
    assert found.keys() == {key for key, value in names.items() if value in expected}
    for key, value in found.items():
        assert float(value.detach()) == pytest.approx(float(expected[names[key]].detach()), rel=1e-4)
    gradients = [
        torch.autograd.grad(sum(losses.values()), list(model.head.parameters()))  # type: ignore[arg-type]
        for losses, model in ((found, ours), (expected, theirs))
    ]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)


def losses_of(said: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value for name, value in said.items() if "loss" in name}


def test_the_first_form_of_fcos_is_mmdetections() -> None:
    """Of 2019: all points within a box, distances in pixels as exponents, their factor on each level, -log IoU weighted
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
    maps, target = detector.pyramid(Body().maps(images_of(1))), targets_of([3])[0]
    found = losses_of(detector.losses(maps, SHAPE, [SHAPE], [target]))
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
                own = distances[:, row, column]
                shared = torch.minimum(own, sides[areas.argmin()])
                overlap = (shared[0] + shared[2]) * (shared[1] + shared[3])
                union = (own[0] + own[2]) * (own[1] + own[3]) + areas.min() - overlap
                weights.append(ratio.sqrt())
                losses.append(-(overlap / union).log())
                chosen = F.binary_cross_entropy_with_logits(centerness[row, column], weights[-1])
                centerness_losses.append(chosen)
    weight = torch.stack(weights)
    assert len(weights) > 30
    torch.testing.assert_close(found["loss_box_reg"], (weight * torch.stack(losses)).sum() / weight.sum())
    torch.testing.assert_close(found["loss_centerness"], torch.stack(centerness_losses).mean())
    sum(found.values()).backward()  # type: ignore[union-attr]
    assert all(parameter.grad is not None for parameter in detector.parameters())
    empty = losses_of(detector.losses(maps, SHAPE, [SHAPE], targets_of([0])))
    assert empty["loss_box_reg"] == 0 and empty["loss_cls"].isfinite()


# --- what a detector promises -----------------------------------------------------------------------------------------


@every
@pytest.mark.parametrize("counts", [[2, 3], [0, 2], [0, 0]], ids=str)
def test_every_parameter_learns_in_every_step(name: str, counts: list[int]) -> None:
    detector = DETECTORS[name]()
    said = detector.losses(detector.pyramid(Body().maps(images_of(2))), SHAPE, [SHAPE] * 2, targets_of(counts))
    assert all(value.shape == () and value.isfinite() for value in said.values())
    sum(losses_of(said).values()).backward()  # type: ignore[union-attr]
    gradients = [one.grad for one in detector.parameters()]
    assert all(one is not None and one.isfinite().all() for one in gradients)


@pytest.fixture
def no_values() -> Iterator[None]:
    """Tensors without values: what asks for one on the host, or keeps as many rows as are true, fails."""
    _cached_anchors.cache_clear()
    with FakeTensorMode():
        yield
    _cached_anchors.cache_clear()


@pytest.mark.usefixtures("no_values")
@pytest.mark.parametrize(
    "make",
    [DETECTORS["fcos"], *(partial(DETECTORS["retinanet"], box_loss=loss) for loss in ("smooth_l1", "giou", "ciou"))],
    ids=["fcos", "retinanet", "retinanet-giou", "retinanet-ciou"],
)
def test_no_step_waits_for_the_device(make: Callable[..., Detector]) -> None:
    detector = make()
    maps = [torch.rand(2, level.channels, 96 // level.stride, 160 // level.stride) for level in LEVELS]
    targets = [Target(torch.rand(count, 4), torch.ones(count, dtype=torch.int64)) for count in (2, 0)]
    said = detector.losses(detector.pyramid(maps), SHAPE, [SHAPE] * 2, targets)
    sum(losses_of(said).values()).backward()  # type: ignore[union-attr]
    assert all(one.grad is not None for one in detector.parameters())


@every
@torch.no_grad()
def test_training_mode_changes_nothing(name: str) -> None:
    torch.manual_seed(0)
    detector, maps = DETECTORS[name](), Body().maps(images_of(2))
    both = []
    for training in (True, False):
        detector.train(training)
        losses = detector.losses(detector.pyramid(maps), SHAPE, [SHAPE] * 2, targets_of([2, 3]))
        both.append((losses, detector.detect(detector.pyramid(maps), SHAPE, [SHAPE] * 2)))
    assert both[0][0] == both[1][0]
    assert all(torch.equal(*values) for values in zip(both[0][1][0][:3], both[1][1][0][:3], strict=True))


@every
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_half_precision_computes_losses_and_boxes_in_full(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    detector, maps, targets = DETECTORS[name](), Body().maps(images_of(2)), targets_of([2, 3])
    learned(detector)
    full = detector.losses(detector.pyramid(maps), SHAPE, [SHAPE] * 2, targets)
    with torch.autocast("cpu", dtype):
        half = detector.losses(detector.pyramid(maps), SHAPE, [SHAPE] * 2, targets)
        found = detector.detect(detector.pyramid(maps), SHAPE, [SHAPE] * 2)
    for key, value in losses_of(half).items():
        assert value.dtype == torch.float32
        assert float(value.detach()) == pytest.approx(float(full[key].detach()), rel=0.03)
    assert found[0].boxes.dtype == found[0].scores.dtype == torch.float32


@every
@torch.no_grad()
def test_objects_lie_in_their_image_best_first_and_not_too_many(name: str) -> None:
    torch.manual_seed(0)
    detector = DETECTORS[name](score_threshold=0.0, max_detections=7)
    learned(detector)
    sizes = [(96, 160), (50, 90)]
    for one, (height, width) in zip(
        detector.detect(detector.pyramid(Body().maps(images_of(2))), SHAPE, sizes), sizes, strict=True
    ):
        assert len(one.boxes) == detector.max_detections == 7
        assert one.boxes.amin() >= 0 and one.boxes[:, 2].amax() <= width and one.boxes[:, 3].amax() <= height
        assert one.scores.tolist() == sorted(one.scores.tolist(), reverse=True)


@every
def test_a_few_steps_learn_squares(name: str) -> None:
    """Bright squares on dark ground, one of each class by its colour."""
    torch.manual_seed(0)
    images = torch.zeros(2, 3, *SHAPE)
    boxes = torch.tensor([[16.0, 16, 56, 56], [80, 32, 120, 72]])
    for image in range(2):
        for number, (x, y, right, below) in enumerate(boxes.int().tolist()):
            images[image, (number + image) % 3, y:below, x:right] = 1
    targets = [Target(boxes, torch.tensor([image, image + 1])) for image in range(2)]
    body, detector = Body(), DETECTORS[name](norm="group")
    optimizer = torch.optim.AdamW([*body.parameters(), *detector.parameters()], lr=3e-3)
    for _ in range(40):
        optimizer.zero_grad()
        said = detector.losses(detector.pyramid(body.maps(images)), SHAPE, [SHAPE] * 2, targets)
        sum(losses_of(said).values()).backward()  # type: ignore[union-attr]
        optimizer.step()
    assert float(said["fg_accuracy"]) > 0.95
    with torch.no_grad():
        found = detector.detect(detector.pyramid(body.maps(images)), SHAPE, [SHAPE] * 2)
    for image, one in enumerate(found):
        order = one.labels[:2].argsort()
        assert one.labels[:2][order].tolist() == [image, image + 1]
        assert (one.boxes[:2][order] - boxes).abs().max() < 6


# --- rules ------------------------------------------------------------------------------------------------------------


def points_of(*strides: int, side: int = 128) -> list[Tensor]:
    half = torch.tensor([-0.5, -0.5, 0.5, 0.5])
    return [grid_anchors((half * one)[None], (side // one, side // one), one, 0.5) for one in strides]


def learners(points: list[Tensor], boxes: list[list[float]], radius: float = 1.5) -> list[list[list[float]]]:
    """For each object the points (x, y, stride) that learn it; its label is its place in the list."""
    goals = assign_points(points, [Target(torch.tensor(boxes), torch.arange(len(boxes)))], radius)
    anchors = torch.cat(points)
    for number, box in enumerate(boxes):
        assert (goals.boxes[0][goals.classes[0] == number] == torch.tensor(box)).all()
    where = torch.stack([anchors[:, [0, 2]].mean(1), anchors[:, [1, 3]].mean(1), anchors[:, 2] - anchors[:, 0]], 1)
    return [where[goals.classes[0] == number].tolist() for number in range(len(boxes))]


def test_points_near_the_centre_learn() -> None:
    found = learners(points_of(8, 16), [[0.0, 0, 40, 40]])
    assert found == [[[x, y, 8] for y in (12, 20, 28) for x in (12, 20, 28)]]
    assert len(learners(points_of(8, 16), [[0.0, 0, 40, 40]], radius=9)[0]) == 25


def test_points_outside_learn_nothing_however_near() -> None:
    assert learners(points_of(8, 16), [[17.0, 17, 23, 23]]) == [[[20, 20, 8]]]
    assert learners(points_of(8, 16), [[21.0, 21, 23, 23]]) == [[]]


def test_the_smaller_of_two_objects_is_learned() -> None:
    large, small = learners(points_of(8, 16), [[0.0, 0, 40, 40], [8, 8, 32, 24]])
    assert small == [[x, y, 8] for y in (12, 20) for x in (12, 20, 28)]
    assert large == [[x, 28, 8] for x in (12, 20, 28)]


def test_levels_are_for_distances_of_four_to_eight_strides() -> None:
    # The farthest side of the one in the middle is 64 away from the point at 68: both levels learn it.
    (found,) = learners(points_of(8, 16), [[4.0, 4, 128, 128]], radius=0.6)
    assert {stride for *_, stride in found} == {8, 16}
    (larger,) = learners(points_of(8, 16, 32), [[0.0, 0, 128, 128]])
    assert {stride for *_, stride in larger} == {16}
    (coarsest,) = learners(points_of(8, 16), [[0.0, 0, 128, 128]], radius=0.6)
    assert {stride for *_, stride in coarsest} == {16}


def test_centerness_is_that_of_the_paper() -> None:
    anchors = torch.tensor([[-2.0, 1, 6, 9], [1, 1, 9, 9], [20, 0, 28, 8]])
    boxes = torch.tensor([0.0, 0, 10, 10]).expand(1, 3, 4)
    assert centerness_targets(anchors, boxes).tolist() == [[pytest.approx(0.5), 1, 0]]


def test_the_best_pairs_of_a_level_are_found_by_their_places() -> None:
    generator = torch.Generator().manual_seed(0)
    logits, centerness = torch.randn(2, 50, 4, generator=generator), torch.randn(2, 50, generator=generator)
    anchors = torch.arange(50.0)[:, None].expand(-1, 4)
    level = HeadOutput(logits, torch.zeros(2, 50, 4), anchors, centerness)
    found = top_candidates(level, lambda codes, anchors: codes + anchors, 9)
    whole = (logits.sigmoid() * centerness.sigmoid()[..., None]).sqrt().flatten(1).topk(9)
    torch.testing.assert_close(found.scores, whole.values)
    assert torch.equal(found.labels, whole.indices % 4)
    assert torch.equal(found.boxes[..., 0], (whole.indices // 4).float())


def test_levels_lie_one_behind_the_other() -> None:
    logits = torch.arange(5.0).view(1, 5, 1)
    first, second = split_levels(logits, logits.expand(-1, -1, 4), [torch.zeros(3, 4), torch.ones(2, 4)])
    assert first.logits.flatten().tolist() == [0, 1, 2] and second.deltas[0, :, 0].tolist() == [3, 4]


def test_of_a_class_the_better_of_two_boxes_is_kept_and_what_is_no_number_shows() -> None:
    boxes = torch.tensor([[[0.0, 0, 20, 20], [0, 0, 20, 19], [0, 0, 20, 19], [5, 5, 30, 30]]])
    found = Candidates(torch.tensor([[0.9, 0.8, 0.7, 0.05]]), torch.tensor([[0, 0, 1, 1]]), boxes)
    (one,) = suppress([found], [(16, 40)], 0.05, 0.5, 10)
    assert one.labels.tolist() == [0, 1] and one.boxes[0].tolist() == [0, 0, 20, 16]
    (broken,) = suppress([found._replace(scores=found.scores / 0)], [(16, 40)], 0.05, 0.5, 10)
    assert isinstance(broken, Detections) and not broken.scores.isfinite().any()


def test_the_right_class_may_be_as_likely_as_another() -> None:
    logits = torch.tensor([[[1.0, 1, 0], [0, 2, 1], [5, 0, 0]]])
    assert is_top1(logits, torch.tensor([[1, 2, -1]])).tolist() == [[True, False, False]]


@pytest.mark.parametrize(("norm", "layers"), [("group", 10), ("none", 0)])
def test_norms_of_the_head(norm: str, layers: int) -> None:
    found = DETECTORS["fcos"](norm=norm, num_convs=5)
    assert sum(isinstance(one, nn.GroupNorm) for one in found.modules()) == layers
    retinanet = DETECTORS["retinanet"](norm=norm)
    assert sum(isinstance(one, nn.GroupNorm) for one in retinanet.modules()) == (8 if layers else 0)


def test_anchors_of_retinanet_are_those_of_the_paper() -> None:
    detector = DETECTORS["retinanet"]()
    assert isinstance(detector, RetinaNet)
    maps = [torch.zeros(1, 1, 1, 1)] * 5
    areas = torch.stack([(one[:, 2:] - one[:, :2]).prod(1).sqrt() for one in detector.grid(maps)])
    expected = [[32 * 2**level * 2 ** (third / 3) for third in range(3) for _ in range(3)] for level in range(5)]
    torch.testing.assert_close(areas, torch.tensor(expected))


@pytest.mark.parametrize(
    ("name", "keys", "complaint"),
    [
        ("fcos", {"neck": partial(fpn_p3_p7_from_p5, channels=40)}, "32 groups, which do not divide the 40 channels"),
        ("retinanet", {"background_iou": 0.6}, r"background_iou \(0.6\) must not be above foreground_iou \(0.5\)"),
        ("retinanet", {"anchor_sizes": [8.0, 16.0]}, "2 lists for 5 levels"),
    ],
    ids=["channels", "thresholds", "sizes"],
)
def test_what_does_not_go_together_is_reported(name: str, keys: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        DETECTORS[name](**keys)


def test_other_pyramids_will_do() -> None:
    levels = [Level(4, 4), *LEVELS]
    detector = Fcos(levels, FACTS, neck=partial(fpn, channels=32))
    maps = [torch.rand(1, level.channels, 128 // level.stride, 128 // level.stride) for level in levels]
    said = detector.losses(detector.pyramid(maps), (128, 128), [(128, 128)], targets_of([3]))
    assert math.isfinite(float(said["loss_cls"].detach()))


# --- many processes ---------------------------------------------------------------------------------------------------

BATCHES = {"even": [5, 0, 8, 1], "odd": [0, 0, 9], "one for all": [4], "nothing": [0, 0, 0, 0]}


class Learner(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.body, self.detector = Body(), DETECTORS[name]()
        self.body.fpn.requires_grad_(False)

    def forward(self, images: Tensor, targets: list[Target]) -> dict[str, Tensor]:
        return self.detector.losses(
            self.detector.pyramid(self.body.maps(images)), SHAPE, [SHAPE] * len(images), targets
        )


def first_step(name: str, counts: list[int], rank: int = 0, world: int = 1) -> dict[str, float]:
    """What a step of a global batch tells, and the norm of its gradient, as in engine/step.py."""
    torch.manual_seed(0)
    learner = Learner(name)
    trained = DistributedDataParallel(learner) if world > 1 else learner
    row = GlobalBatch(step=0, epoch=0, first=0, count=len(counts))
    mine = list(row.share(rank, world))
    targets = targets_of(counts)
    said = trained(images_of(len(counts))[mine], [targets[one] for one in mine])
    weight = len(mine) * world / row.num_processed(world)
    (weight * sum(losses_of(said).values())).backward()
    norm = torch.stack([one.grad.norm() for one in learner.parameters() if one.grad is not None]).norm()
    means = torch.stack([value.detach().float() * weight for value in said.values()])
    if world > 1:
        dist.all_reduce(means)
    return {**dict(zip(said, (means / world).tolist(), strict=True)), "grad_norm": float(norm)}


def evaluated(name: str, rank: int) -> float:
    """The losses of a batch that only this process has; the others do not take part."""
    torch.manual_seed(0)
    learner = Learner(name)
    if rank:
        return 0.0
    with torch.no_grad():
        return float(sum(losses_of(learner(images_of(2), targets_of([3, 1]))).values()))


def together(world: int, folder: str) -> None:
    """Become as many processes, and have each write what it found."""
    rank = 0
    children: list[int] = []
    while rank == 0 and len(children) < world - 1:
        children.append(os.fork())
        rank = 0 if children[-1] else len(children)
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=world, timeout=timedelta(seconds=60)
    )
    found: dict[str, Any] = {
        f"{name} {batch}": first_step(name, counts, rank, world)
        for name in DETECTORS
        for batch, counts in BATCHES.items()
    }
    found |= {name: evaluated(name, rank) for name in DETECTORS}
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()
    if rank:
        os._exit(0)
    assert not any(os.waitpid(child, 0)[1] for child in children)


@pytest.fixture(scope="module")
def on_two(warm_server: Server, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two processes found."""
    folder = tmp_path_factory.mktemp("processes")
    warm_server.run(code=f"from {__name__} import together; together(2, {str(folder)!r})", seconds=200)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@every
@pytest.mark.parametrize("batch", BATCHES)
def test_a_step_means_the_same_on_two_processes(on_two: list[dict[str, Any]], name: str, batch: str) -> None:
    alone = first_step(name, BATCHES[batch])
    exact = {key: value for key, value in alone.items() if name == "fcos" or key != "fg_accuracy"}
    for one in on_two:
        found = one[f"{name} {batch}"]
        assert {key: found[key] for key in exact} == pytest.approx(exact, rel=1e-5, abs=1e-7)


@every
def test_an_evaluation_waits_for_no_other_process(on_two: list[dict[str, Any]], name: str) -> None:
    assert on_two[0][name] == pytest.approx(evaluated(name, 0), rel=1e-6)
