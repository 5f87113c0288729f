"""Poolings: golden values of FastReID and VISSL, half precision and edge cases."""

import json
import math
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
POOLINGS: dict[str, nn.Module] = {
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
ALL = {**POOLINGS, "rmac": Rmac(2)}
every_pooling = pytest.mark.parametrize("pooling", ALL.values(), ids=ALL)


@every_pooling
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_pooled_in_float32(pooling: nn.Module, dtype: torch.dtype) -> None:
    """The cube of 300 exceeds the range of float16, and so does the sum over the feature map."""
    maps = (300 * torch.rand(2, 3, 16, 16)).to(dtype).requires_grad_()
    pooled = pooling(maps)
    assert pooled.dtype == torch.float32
    torch.testing.assert_close(pooled, pooling(maps.detach().float()))
    pooled.sum().backward()
    assert maps.grad is not None
    assert maps.grad.isfinite().all()


def test_the_power_has_a_finite_gradient_with_zeros() -> None:
    pooling = GemLearned(2)
    pooling(torch.tensor([[[[0.0, 0, 1, 3]]]])).sum().backward()
    (power,) = pooling.parameters()
    assert power.grad is not None
    step = 1e-3
    higher, lower = (generalized_mean(torch.tensor([[[[0.0, 0, 1, 3]]]]), 3 + sign * step) for sign in (1, -1))
    assert power.grad.item() == pytest.approx(((higher - lower) / (2 * step)).item(), rel=1e-2)
    assert math.isfinite(power.grad.item())


def test_a_learned_power_is_not_read_for_the_description() -> None:
    assert repr(GemLearned(2).to("meta")) == "GemLearned(2)" and repr(Gem(2, p=6.5)) == "Gem(2, p=6.5)"


RMAC: dict[str, Any] = json.loads((Path(__file__).parent.parent / "golden" / "selfsup" / "rmac.json").read_text())
SIZES: list[tuple[int, int, int]] = [tuple(size) for size in RMAC["inputs"]["HWL"]]  # type: ignore[misc]


@pytest.mark.parametrize("number", range(len(SIZES)))
def test_rmac_regions_match_vissl(number: int) -> None:
    assert [list(region) for region in rmac_regions(*SIZES[number])] == RMAC["outputs"]["regions_xywh"][number]


def test_rmac_matches_vissl() -> None:
    maps = (torch.arange(1, 49) % 7).float().reshape(1, 2, 4, 6)
    descriptors = rmac_descriptors(maps, RMAC["inputs"]["levels"])
    torch.testing.assert_close(descriptors, torch.tensor(RMAC["outputs"]["descriptors"]), atol=1e-5, rtol=1e-5)
    pooled = Rmac(2, levels=RMAC["inputs"]["levels"])(maps)
    torch.testing.assert_close(pooled, nn.functional.normalize(descriptors.sum(1), dim=1))


def test_rmac_of_a_long_map_has_regions_that_overlap_by_about_40_percent() -> None:
    assert rmac_regions(4, 10, 1) == [(left, 0, 4, 4) for left in (0, 2, 4, 6)]
    assert rmac_regions(10, 4, 1) == [(0, top, 4, 4) for top in (0, 2, 4, 6)]
