"""Anchors, matching, box coding and losses: golden values of detectron2, torchvision's functions, by hand."""

import json
import math
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor
from torchvision.models.detection._utils import BoxCoder

from opabinia.models.detectors.anchors import AnchorGrid, _cached_anchors, cell_anchors, grid_anchors
from opabinia.models.detectors.regions import assign_levels
from opabinia.models.losses.boxes import box_regression_loss, decode_boxes, encode_boxes, iou_loss
from opabinia.models.losses.focal import focal_loss
from opabinia.models.losses.matching import match_anchors

GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "golden" / "detection" / "anchors.json").read_text(encoding="utf-8")
)


def assert_close(actual: Tensor, expected: Any, tolerance: float = 1e-4) -> None:
    torch.testing.assert_close(actual, torch.as_tensor(expected).to(actual), atol=tolerance, rtol=0)


# --- anchors ----------------------------------------------------------------------------------------------------------


def test_cell_anchors_match_detectron2() -> None:
    golden = GOLDEN["cells"]
    cells = cell_anchors([golden["size"]], golden["ratios"])
    assert_close(cells, golden["corners"], 1e-5)
    assert_close(grid_anchors(cells, (2, 3), 4, offset=0.5)[0], golden["first_at_stride_4_offset_0.5"])


def test_anchors_are_ordered_by_size_then_ratio() -> None:
    sizes = (cell_anchors([8, 16, 32], [0.5, 1, 2])[:, 2:] * 2).prod(1).sqrt()
    assert_close(sizes, [8, 8, 8, 16, 16, 16, 32, 32, 32])


@pytest.mark.parametrize("offset", [0, 0.25, 0.5])
def test_anchors_are_offset_by_a_fraction_of_the_stride(offset: float) -> None:
    anchors = grid_anchors(cell_anchors([10], [1, 4]), (2, 3), 8, offset).view(2, 3, 2, 4)
    assert_close((anchors[1, 2, 0, :2] + anchors[1, 2, 0, 2:]) / 2, [8 * (2 + offset), 8 * (1 + offset)])
    assert_close(anchors[0, 0, 1], [8 * offset - 2.5, 8 * offset - 10, 8 * offset + 2.5, 8 * offset + 10])


def test_feature_maps_of_many_sizes_share_few_cached_grids() -> None:
    grid = AnchorGrid([[8, 16]], [0.5, 2.0], [4], offset=0.5)
    cells = cell_anchors([8, 16], [0.5, 2.0])
    _cached_anchors.cache_clear()
    for height in range(9, 17):
        for width in range(17, 33):
            (anchors,) = grid([torch.zeros(1, 1, height, width)])
            assert torch.equal(anchors, grid_anchors(cells, (height, width), 4, 0.5))
    assert _cached_anchors.cache_info().misses == 1


def test_anchors_of_a_traced_graph_are_not_cached() -> None:
    class Head(torch.nn.Module):
        def forward(self, level: Tensor) -> Tensor:
            return AnchorGrid([[37.0]], [1.0], [8])([level])[0]

    level = torch.zeros(1, 4, 5, 6)
    torch.export.export(Head(), (level,), strict=False)
    assert type(Head()(level)) is Tensor


def test_anchors_created_in_inference_mode_can_be_used_in_training() -> None:
    grid, maps = AnchorGrid([[7.5]], [1.0], [4]), [torch.zeros(1, 1, 3, 5)]
    with torch.inference_mode():
        grid(maps)
    codes = torch.zeros(15, 4, requires_grad=True)
    decode_boxes(codes, grid(maps)[0]).sum().backward()  # type: ignore[no-untyped-call]
    assert codes.grad is not None and codes.grad.any()


# --- box coding -------------------------------------------------------------------------------------------------------


def test_box_coding_matches_detectron2() -> None:
    golden = GOLDEN["coding"]
    anchor, box, weights = (
        torch.tensor([golden["anchor"]]).float(),
        torch.tensor([golden["box"]]).float(),
        golden["weights"],
    )
    assert_close(encode_boxes(box, anchor, weights)[0], golden["code"])
    assert_close(decode_boxes(encode_boxes(box, anchor, weights), anchor, weights), box)


@pytest.mark.parametrize("count", [0, 20])
@pytest.mark.parametrize("per_anchor", [1, 3])
def test_decoded_boxes_are_those_of_torchvision(count: int, per_anchor: int) -> None:
    draw, weights = torch.Generator().manual_seed(0), (10.0, 9.0, 5.0, 4.0)
    deltas, corners = 20 * torch.randn(count, 4 * per_anchor, generator=draw), torch.rand(count, 2, 2, generator=draw)
    anchors = 100 * torch.cat([corners.amin(1), corners.amax(1)], 1)
    expected = BoxCoder(weights).decode_single(deltas, anchors)
    assert torch.equal(decode_boxes(deltas, anchors, weights), expected)


def test_decoded_sizes_are_clamped_and_computed_in_float32() -> None:
    anchor = torch.tensor([[0.0, 0, 10, 10]])
    wide = decode_boxes(torch.tensor([[0.0, 0, 50, 0]]).half(), anchor)
    assert wide.dtype == torch.float32
    assert math.log(float(wide[0, 2] - wide[0, 0]) / 10) == pytest.approx(GOLDEN["coding"]["clamp"], abs=1e-5)


# --- matching ---------------------------------------------------------------------------------------------------------


def test_without_objects_all_anchors_are_background() -> None:
    matches = match_anchors(torch.zeros(0, 5), 0.3, 0.7, low_quality=True)
    assert matches.labels.tolist() == matches.indices.tolist() == [0] * 5


def test_an_object_without_overlap_is_not_matched() -> None:
    matches = match_anchors(torch.tensor([[0.0, 0, 0], [0.1, 0, 0.9]]), 0.3, 0.7, low_quality=True)
    assert matches.labels.tolist() == [0, 0, 1]


# --- levels -----------------------------------------------------------------------------------------------------------


def squares(sides: list[float]) -> Tensor:
    return torch.tensor([[5, 7, 5 + side, 7 + side] for side in sides])


def test_levels_are_clamped_and_depend_on_the_area() -> None:
    assert assign_levels(squares([1, 5000]), 3, 4).tolist() == [3, 4]
    flat = torch.tensor([[0.0, 0, 448, 112]])
    assert assign_levels(flat).tolist() == [4]
    assert assign_levels(flat, 0, 9, canonical_size=32, canonical_level=1).tolist() == [3]


# --- losses -----------------------------------------------------------------------------------------------------------


def test_focal_loss_sums_over_classes() -> None:
    logits = torch.tensor([[[0.3, -1.2, 2.0]]])
    by_hand = [0.75 * torch.sigmoid(x) ** 2 * -torch.log(torch.sigmoid(-x)) for x in logits[0, 0]]
    by_hand[1] = 0.25 * torch.sigmoid(-logits[0, 0, 1]) ** 2 * -torch.log(torch.sigmoid(logits[0, 0, 1]))
    assert_close(focal_loss(logits, torch.tensor([[1]]), 0.25, 2.0), [[float(sum(by_hand))]], 1e-6)
    cross_entropy = focal_loss(logits.bfloat16(), torch.tensor([[-1]]), 0.25, 0.0)
    assert cross_entropy.dtype == torch.float32
    assert_close(cross_entropy, 0.75 * torch.nn.functional.softplus(logits).sum(2), 0.02)


def test_smooth_l1_matches_fvcore() -> None:
    golden = GOLDEN["smooth_l1"]
    anchors = torch.tensor([[0.0, 0, 8, 8]] * 2)
    deltas = torch.zeros(2, 4)
    deltas[:, 2] = torch.tensor(golden["errors"])
    assert_close(box_regression_loss(deltas, anchors, anchors, beta=golden["beta"]), golden["losses"], 1e-6)
    assert_close(box_regression_loss(deltas, anchors, anchors), golden["errors"], 1e-6)


@pytest.mark.parametrize("kind", ["giou", "diou", "ciou"])
def test_iou_losses_match_fvcore(kind: Literal["giou", "diou", "ciou"]) -> None:
    anchor, box = (torch.tensor([corners]).float() for corners in GOLDEN["overlap"]["boxes"])
    loss = box_regression_loss(torch.zeros(1, 4, dtype=torch.bfloat16), anchor, box, kind)
    assert loss.dtype == torch.float32
    assert_close(loss, [GOLDEN["overlap"][kind]])


def test_the_iou_loss_is_logarithmic() -> None:
    boxes = torch.tensor([[0.0, 0, 2, 2], [0, 0, 1, 1]], requires_grad=True)
    losses = iou_loss(boxes, torch.tensor([[1.0, 1, 3, 3], [5, 5, 6, 6]]), "iou")
    assert_close(losses.detach(), [math.log(7), -math.log(1e-6)], 1e-5)
    losses.sum().backward()  # type: ignore[no-untyped-call]
    assert boxes.grad is not None and boxes.grad.isfinite().all()
