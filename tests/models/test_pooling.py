"""Poolings against the numbers of FastReID, and where those of half precision or extremes would fail."""

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from opabinia.models.pooling import (
    Average,
    AverageMax,
    ClippedAverage,
    Gem,
    GemLearned,
    Max,
    Rmac,
    generalized_mean,
    rmac_descriptors,
    rmac_regions,
)

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parent.parent / "golden" / "fastreid" / "pooling.json").read_text())
OURS: dict[str, nn.Module] = {
    "GlobalAvgPool": Average(2),
    "FastGlobalAvgPool": Average(2),
    "GlobalMaxPool": Max(2),
    "AdaptiveAvgMaxPool": AverageMax(2),
    "ClipGlobalAvgPool": ClippedAverage(2),
    "GeneralizedMeanPooling": Gem(2),
    "GeneralizedMeanPoolingP": GemLearned(2),
    "GeneralizedMeanPooling norm=1": Gem(2, p=1),
    "GeneralizedMeanPooling norm=6.5": Gem(2, p=6.5),
}
ALL = {**OURS, "rmac": Rmac(2)}
kinds = pytest.mark.parametrize("pooling", ALL.values(), ids=ALL)


@pytest.mark.parametrize("name", GOLDEN["outputs"])
def test_golden(name: str) -> None:
    maps = torch.tensor(GOLDEN["inputs"]["x"])
    expected = torch.tensor([GOLDEN["outputs"][name]])
    torch.testing.assert_close(OURS[name](maps), expected, atol=GOLDEN["tolerance"], rtol=0)


@kinds
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_pooled_in_single(pooling: nn.Module, dtype: torch.dtype) -> None:
    """The cube of 300 does not fit into a half float, nor does the sum of the map."""
    maps = (300 * torch.rand(2, 3, 16, 16)).to(dtype).requires_grad_()
    pooled = pooling(maps)
    assert pooled.dtype == torch.float32
    torch.testing.assert_close(pooled, pooling(maps.detach().float()))
    pooled.sum().backward()
    assert maps.grad is not None
    assert maps.grad.isfinite().all()


@kinds
def test_nothing_is_changed_in_place(pooling: nn.Module) -> None:
    maps = torch.randn(2, 3, 4, 4)
    before = maps.clone()
    pooling(maps)
    assert torch.equal(maps, before)


def test_a_generalised_mean_lies_between_mean_and_maximum() -> None:
    maps = torch.rand(4, 8, 6, 6)
    means = [generalized_mean(maps, p) for p in (1.0, 2.0, 8.0, 64.0)]
    assert all((low < high).all() for low, high in pairwise(means))
    torch.testing.assert_close(means[0], Average(2)(maps))
    torch.testing.assert_close(means[-1], Max(2)(maps), atol=0.1, rtol=0)


def test_the_power_is_learned_from_zeros_too() -> None:
    pooling = GemLearned(2)
    pooling(torch.tensor([[[[0.0, 0, 1, 3]]]])).sum().backward()
    (power,) = pooling.parameters()
    assert power.grad is not None
    step = 1e-3
    higher, lower = (generalized_mean(torch.tensor([[[[0.0, 0, 1, 3]]]]), 3 + sign * step) for sign in (1, -1))
    assert power.grad.item() == pytest.approx(((higher - lower) / (2 * step)).item(), rel=1e-2)
    assert math.isfinite(power.grad.item())


RMAC: dict[str, Any] = json.loads((Path(__file__).parent.parent / "golden" / "selfsup" / "rmac.json").read_text())
SIZES: list[tuple[int, int, int]] = [tuple(one) for one in RMAC["inputs"]["HWL"]]  # type: ignore[misc]


@pytest.mark.parametrize("number", range(len(SIZES)))
def test_vissls_squares(number: int) -> None:
    assert [list(one) for one in rmac_regions(*SIZES[number])] == RMAC["outputs"]["regions_xywh"][number]


def test_vissls_rmac() -> None:
    maps = (torch.arange(1, 49) % 7).float().reshape(1, 2, 4, 6)
    squares = rmac_descriptors(maps, RMAC["inputs"]["levels"])
    torch.testing.assert_close(squares, torch.tensor(RMAC["outputs"]["descriptors"]), atol=1e-5, rtol=1e-5)
    pooled = Rmac(2, levels=RMAC["inputs"]["levels"])(maps)
    torch.testing.assert_close(pooled, nn.functional.normalize(squares.sum(1), dim=1))


@pytest.mark.parametrize("height", [1, 2, 5, 14])
@pytest.mark.parametrize("width", [1, 3, 7, 31])
@pytest.mark.parametrize("levels", [1, 3, 6])
def test_squares_lie_in_the_map_and_cover_it(height: int, width: int, levels: int) -> None:
    squares = rmac_regions(height, width, levels)
    covered = torch.zeros(height, width)
    for left, top, wide, tall in squares:
        assert 0 <= left <= left + wide <= width and 0 <= top <= top + tall <= height and wide == tall > 0
        covered[top : top + tall, left : left + wide] += 1
    assert max(height, width) > 7 * min(height, width) or covered.all(), "further apart than seven squares reach"
