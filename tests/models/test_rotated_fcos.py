"""Rotated FCOS: equals FCOS for upright objects; assignment and coding of rotated ones by hand."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from opabinia.contracts import DatasetInfo, Level, Target
from opabinia.contracts.rotated_boxes import aligned_iou, box_corners, upright_boxes
from opabinia.models.detectors.fcos import Fcos, assign_points, box_distances
from opabinia.models.detectors.rotated_fcos import RotatedFcos, decode_rotated
from opabinia.models.detectors.suppression import Candidates, suppress
from opabinia.models.necks import fpn_p3_p7_from_p5
from tests.models.test_rotated_boxes import random_boxes

LEVELS = [Level(8, 8), Level(8, 16), Level(8, 32)]
INFO = DatasetInfo(samples=8, classes=("a", "b"), boxes=True, oriented=True)
NECK: Any = partial(fpn_p3_p7_from_p5, channels=32)
SHAPE = (64, 96)


def make_detector(**keys: Any) -> RotatedFcos:
    torch.manual_seed(0)
    return RotatedFcos(LEVELS, INFO, neck=NECK, num_convs=1, **keys)


def make_maps(count: int) -> list[Tensor]:
    draw = torch.Generator().manual_seed(1)
    return [torch.rand(count, 8, 64 // stride, 96 // stride, generator=draw) for stride in (8, 16, 32)]


def make_target(boxes: Tensor) -> Target:
    return Target(boxes, torch.arange(len(boxes)) % 2)


UPRIGHT = torch.tensor([[30.0, 30, 41, 25, 0], [70, 40, 20, 45, 0], [60, 20, 9, 9, 0]])


def test_upright_objects_have_the_losses_of_fcos() -> None:
    rotated: Any = make_detector()
    nn.init.zeros_(rotated.head["angle"].weight)
    fcos = Fcos(LEVELS, INFO, neck=NECK, num_convs=1, level_factors=True, weight_boxes=True, box_loss="iou")
    missing = fcos.load_state_dict(rotated.state_dict(), strict=False)
    assert set(missing.unexpected_keys) == {"head.angle.weight", "head.angle.bias", "head.angle_scale.0"}
    maps, targets = make_maps(2), [make_target(UPRIGHT), make_target(UPRIGHT[:0])]
    losses = rotated.losses(rotated.pyramid(maps), SHAPE, [SHAPE] * 2, targets)
    flat = [target._replace(boxes=upright_boxes(target.boxes)) for target in targets]
    expected = fcos.losses(fcos.pyramid(maps), SHAPE, [SHAPE] * 2, flat)
    assert expected["num_pos_anchors"] > 5
    torch.testing.assert_close(losses, expected, rtol=1e-4, atol=1e-5)
    sum(value for name, value in losses.items() if "loss" in name).backward()
    assert all(param.grad is not None for param in rotated.parameters())
    assert rotated.head["angle"].weight.grad.abs().sum() > 0
    empty = rotated.losses(rotated.pyramid(maps), SHAPE, [SHAPE] * 2, [make_target(UPRIGHT[:0])] * 2)
    assert empty["loss_box_reg"] == 0 and all(value.isfinite() for value in empty.values())


def test_points_are_assigned_in_the_frame_of_the_object() -> None:
    """A narrow diagonal object has the points on its diagonal, up to 1.5 strides from its center along its sides."""
    points = torch.tensor([[x, y, x + 8, y + 8] for y in range(0, 64, 8) for x in range(0, 96, 8)]).float()
    box = torch.tensor([[36.0, 36, 60, 6, -45]])  # from the upper left to the lower right
    assigned = assign_points([points], [make_target(box)], 1.5)
    centers = (points[assigned.classes[0] >= 0][:, :2] + 4).tolist()
    assert centers == [[28, 28], [36, 36], [44, 44]]
    assert len(assign_points([points], [make_target(box)], None).classes[0].nonzero()) == 96 - 5


def test_decoding_inverts_encoding() -> None:
    boxes = random_boxes(9).float()
    points = torch.cat([boxes[:, :2] - 1, boxes[:, :2] + 7], 1)  # of stride 8, near the centers
    encoded = torch.cat([box_distances(points, boxes) / 8, torch.deg2rad(boxes[:, 4:])], 1)
    torch.testing.assert_close(decode_rotated(encoded, points), boxes, rtol=1e-4, atol=1e-3)


@torch.no_grad()
def random_detector() -> tuple[RotatedFcos, list[Tensor]]:
    """Return a detector with random boxes of all angles, and feature maps of two images."""
    detector: Any = make_detector(prior_probability=0.4, nms_threshold=0.2, pre_nms_topk=20, max_detections=9).eval()
    nn.init.normal_(detector.head["angle"].weight, std=0.3)
    nn.init.constant_(detector.head["regression_head"].bbox_reg.bias, 1)
    return detector, detector.pyramid(make_maps(2))


@torch.no_grad()
def test_detections() -> None:
    detector, maps = random_detector()
    for image in detector.detect(maps, SHAPE, [SHAPE] * 2):
        assert len(image.scores) > 3 and (image.boxes[:, 2] >= image.boxes[:, 3]).all()
        assert image.boxes[:, 4].abs().max() > 5
        for label in (0, 1):
            boxes_of_label = image.boxes[image.labels == label].double()
            assert (aligned_iou(box_corners(boxes_of_label), boxes_of_label[:, None]) > 0.2).sum() == len(
                boxes_of_label
            )
    outside = Candidates(torch.tensor([[0.9]]), torch.tensor([[1]]), torch.tensor([[[-20.0, -5, 90, 30, 70]]]))
    assert torch.equal(suppress([outside], [SHAPE], 0.1, 0.1, 5)[0].boxes, outside.boxes[0]), "they are not clipped"
