"""Poolings against the numbers of FastReID, and where those of half precision or extremes would fail."""

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from opabinia.models.pooling import Average, AverageMax, ClippedAverage, Gem, GemLearned, Max, generalised_mean

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
kinds = pytest.mark.parametrize("pooling", OURS.values(), ids=OURS)


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
    means = [generalised_mean(maps, p) for p in (1.0, 2.0, 8.0, 64.0)]
    assert all((low < high).all() for low, high in pairwise(means))
    torch.testing.assert_close(means[0], Average(2)(maps))
    torch.testing.assert_close(means[-1], Max(2)(maps), atol=0.1, rtol=0)


def test_the_power_is_learned_from_zeros_too() -> None:
    pooling = GemLearned(2)
    pooling(torch.tensor([[[[0.0, 0, 1, 3]]]])).sum().backward()
    (power,) = pooling.parameters()
    assert power.grad is not None
    step = 1e-3
    higher, lower = (generalised_mean(torch.tensor([[[[0.0, 0, 1, 3]]]]), 3 + sign * step) for sign in (1, -1))
    assert power.grad.item() == pytest.approx(((higher - lower) / (2 * step)).item(), rel=1e-2)
    assert math.isfinite(power.grad.item())
