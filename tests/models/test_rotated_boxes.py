"""Rotated boxes: comparison with torchvision, detectron2's known values, polygon clipping and point grids."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torchvision.ops import batched_nms, box_iou
from torchvision.transforms.v2.functional import convert_bounding_box_format

from opabinia.contracts.rotated_boxes import (
    aligned_iou,
    box_axes,
    box_corners,
    intersection_areas,
    long_edge_boxes,
    mirror_boxes,
    rotated_intersections,
    scale_boxes,
    to_box_frame,
    upright_boxes,
)
from opabinia.models.detectors.suppression import box_nms, rotated_nms
from opabinia.models.losses.boxes import iou_loss, rotated_iou_loss
from tests.host_waits import HostWaits

Point = tuple[float, float]


def random_boxes(count: int, seed: int = 0, area: float = 100) -> Tensor:
    """Return boxes of all angles, many of which overlap (float64, N x 5)."""
    values = torch.rand(count, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return values * torch.tensor([area, area, 60, 60, 720]) + torch.tensor([0, 0, 1, 1, -360])


def clipped_area(polygon: list[Point], box: list[Point]) -> float:
    """Return the area of a convex polygon within a rectangle, clipped side by side (Sutherland and Hodgman 1974)."""
    for (ax, ay), (bx, by) in zip(box, box[1:] + box[:1], strict=True):
        distances = [(bx - ax) * (y - ay) - (by - ay) * (x - ax) for x, y in polygon]
        clipped: list[Point] = []
        for index, (x, y) in enumerate(polygon):
            here, before, (px, py) = distances[index], distances[index - 1], polygon[index - 1]
            if here * before < 0:
                share = before / (before - here)
                clipped.append((px + share * (x - px), py + share * (y - py)))
            if here >= 0:
                clipped.append((x, y))
        polygon = clipped
    pairs = zip(polygon, polygon[1:] + polygon[:1], strict=True)
    return abs(sum(x * v - u * y for (x, y), (u, v) in pairs)) / 2


def clipped_iou(first: Tensor, second: Tensor) -> float:
    """Return the IoU of two boxes (5 each)."""
    polygons = [[(x, y) for x, y in box_corners(box).tolist()] for box in (first, second)]
    shared = clipped_area(*polygons)
    return shared / (float(first[2:4].prod() + second[2:4].prod()) - shared)


def test_corners_match_torchvision() -> None:
    boxes = random_boxes(20)
    expected = convert_bounding_box_format(boxes.clone(), old_format="CXCYWHR", new_format="XYXYXYXY")
    torch.testing.assert_close(box_corners(boxes), expected.view(-1, 4, 2))
    corners = to_box_frame(box_corners(boxes), boxes[:, None])
    torch.testing.assert_close(corners.abs(), (boxes[:, None, 2:4] / 2).expand(-1, 4, -1))


def test_intersections() -> None:
    first, second = random_boxes(12), random_boxes(15, seed=1)
    shared = rotated_intersections(first, box_corners(second))
    assert (shared > 0).sum() > 20 and (shared == 0).any()
    torch.testing.assert_close(shared, rotated_intersections(second, box_corners(first)).t())
    areas = first[:, None, 2:4].prod(2) + second[:, 2:4].prod(1) - shared
    expected = [[clipped_iou(box, reference) for reference in second] for box in first]
    torch.testing.assert_close(shared / areas, torch.tensor(expected, dtype=torch.float64))
    flat, upright = first.index_fill(1, torch.tensor([4]), 0), second.index_fill(1, torch.tensor([4]), 0)
    overlaps = aligned_iou(box_corners(upright), flat[:, None])
    torch.testing.assert_close(overlaps, box_iou(upright_boxes(flat), upright_boxes(upright)))
    assert rotated_intersections(first[:0], box_corners(second)).shape == (0, 15)
    concave = torch.tensor([[0.0, 0], [4, 4], [0, 2], [-4, 4]])
    assert intersection_areas(concave, torch.tensor([0.0, 2, 2, 8, 90])) == pytest.approx(6)
    grid = torch.cartesian_prod(*[torch.arange(-60, 160, 0.5, dtype=torch.float64)] * 2)
    inside = [(to_box_frame(grid, box).abs() <= box[2:4] / 2).all(1) for box in (first[0], second[4])]
    assert float((inside[0] & inside[1]).sum() / 4) == pytest.approx(float(shared[0, 4]), rel=0.02)


def test_detectron2s_known_values() -> None:
    """Values of reported bugs, from detectron2's tests/structures/test_rotated_boxes.py."""
    narrow, wide = [2563.74462890625, 2174.70336914062], [214.0950012207031, 115.1183471679687]
    pairs = [
        ([0.5, 0.5, 1, 1, 0], [0.25, 0.5, 0.5, 1, 0], 0.5),
        ([565, 565, 10, 10, 0], [565, 565, 10, 8.3, 0], 0.83),
        ([296.66201, 458.73883, 23.51573, 47.677, 0.08795], [296.66201, 458.73882, 23.51573, 47.67702, 0.087951], 1),
        ([narrow[0], 1436.79016, narrow[1], *wide], [narrow[0], 1436.79028, 2174.70288, 214.09495, 115.118355], 1),
        ([160, 153, 230, 23, -37], [-1.117407639806935e17, 1.3858420478349148e18, 1000, 1000, 1612], 0),
        ([0, 0, 2, 2, 0], [0, 0, 2, 2, 45], 0.5**0.5),
    ]
    for first, second, expected in pairs:
        for box, reference in ((first, second), (second, first)):
            iou = aligned_iou(box_corners(torch.tensor(box).float()), torch.tensor(reference).float())
            assert float(iou) == pytest.approx(expected, abs=1e-5)


def test_suppression_is_greedy() -> None:
    boxes, draw = random_boxes(150, seed=2, area=300), torch.Generator().manual_seed(0)
    scores, labels = torch.rand(150, generator=draw), torch.randint(0, 3, (150,), generator=draw)
    overlaps = aligned_iou(box_corners(boxes), boxes[:, None])
    for threshold in (0.05, 0.3):
        kept: list[int] = []
        for index in scores.argsort(descending=True).tolist():
            if not any(labels[index] == labels[other] and overlaps[index, other] > threshold for other in kept):
                kept.append(index)
        with HostWaits() as waits:
            indices = rotated_nms(boxes.float(), scores, labels, threshold)
        assert indices.tolist() == kept
        assert set(waits.calls) == {"nonzero", "equal", "mask index"}
        assert waits.calls["nonzero"] == waits.calls["mask index"] == 1
    assert len(rotated_nms(boxes[:0], scores[:0], labels[:0], 0.1)) == 0


@pytest.mark.parametrize("count", [0, 40, 1001])
def test_upright_boxes_are_suppressed_as_by_torchvision(count: int) -> None:
    boxes, draw = upright_boxes(random_boxes(count)).float(), torch.Generator().manual_seed(0)
    scores, labels = torch.rand(count, generator=draw), torch.randint(0, 3, (count,), generator=draw)
    assert torch.equal(box_nms(boxes, scores, labels, 0.3), batched_nms(boxes, scores, labels, 0.3))


def test_resized_and_mirrored_boxes() -> None:
    boxes = random_boxes(20)
    longer = long_edge_boxes(boxes)
    assert (longer[:, 2] >= longer[:, 3]).all() and (longer[:, 4] >= -90).all() and (longer[:, 4] < 90).all()
    torch.testing.assert_close(aligned_iou(box_corners(longer), boxes), torch.ones(20).double())
    doubled_scale = torch.tensor([2.0, 2.0]).double()
    torch.testing.assert_close(
        aligned_iou(box_corners(boxes) * 2, scale_boxes(boxes, doubled_scale)), torch.ones(20).double()
    )
    stretched = scale_boxes(longer, torch.tensor([2.0, 1.0]).double())
    torch.testing.assert_close(stretched[:, 2:4].prod(1), 2 * longer[:, 2:4].prod(1))
    along = box_axes(longer[:, 4])[0] * torch.tensor([2.0, 1.0])
    torch.testing.assert_close(stretched[:, 2], longer[:, 2] * along.norm(dim=1))
    mirrored = box_corners(boxes) * torch.tensor([-1, 1]) + torch.tensor([50, 0])
    torch.testing.assert_close(aligned_iou(mirrored, mirror_boxes(boxes, 50)), torch.ones(20).double())


def test_the_loss_has_the_right_gradients() -> None:
    boxes = random_boxes(6)
    targets = boxes + torch.rand(6, 5, generator=torch.Generator().manual_seed(1)).double() * 5
    assert torch.autograd.gradcheck(lambda values: rotated_iou_loss(values, targets), boxes.requires_grad_())
    flat, upright = boxes.detach().index_fill(1, torch.tensor([4]), 0), targets.index_fill(1, torch.tensor([4]), 0)
    expected = iou_loss(upright_boxes(flat), upright_boxes(upright), "iou")
    torch.testing.assert_close(rotated_iou_loss(flat, upright), expected, atol=1e-5, rtol=0)
    empty = torch.tensor([[5.0, 5, 0, 0, 0], [5, 5, 3, 0, 0], [900, 5, 3, 3, 0]]).requires_grad_()
    rotated_iou_loss(empty, torch.tensor([5.0, 5, 3, 3, 0])).sum().backward()
    assert empty.grad is not None and empty.grad.isfinite().all()
