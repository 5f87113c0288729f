"""Layers of segmentation decoders."""

import pytest
import torch
from torch import nn

from opabinia.models.decoders.layers import GridAverage


@pytest.mark.parametrize("shape", [(6, 6), (16, 11), (7, 12), (2, 5)])
@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_a_grid_of_averages_is_adaptive_average_pooling(size: int, shape: tuple[int, int]) -> None:
    maps = torch.randn(2, 3, *shape, generator=torch.Generator().manual_seed(0))
    results = []
    for pool in (GridAverage(size), nn.AdaptiveAvgPool2d(size)):
        inputs = maps.clone().requires_grad_()
        output = pool(inputs)
        output.square().sum().backward()
        results.append((output, inputs.grad))
    torch.testing.assert_close(*results)


def test_a_grid_of_averages_keeps_the_dtype() -> None:
    maps = torch.ones(1, 2, 5, 5, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        output = GridAverage(3)(maps)
    assert output.dtype == torch.bfloat16 and output.unique().tolist() == [1]
