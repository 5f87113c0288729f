"""CUDA's mixed precision on the CPU: the dtypes of torch's documentation, and only within the block."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from opabinia.runtime.cuda_autocast import cuda_autocast_on_cpu

# Results on CUDA from the documentation of torch.amp ("CUDA Ops that can autocast to float16 / float32").
RULES: dict[str, tuple[Callable[[Tensor], Tensor], torch.dtype]] = {
    "matmul": (lambda x: x @ x, torch.bfloat16),
    "linear": (lambda x: F.linear(x, x), torch.bfloat16),
    "relu": (torch.relu, torch.bfloat16),
    "layer_norm": (lambda x: F.layer_norm(x, (4,)), torch.float32),
    "group_norm": (lambda x: F.group_norm(x, 2), torch.float32),
    "softmax": (lambda x: x.softmax(-1), torch.float32),
    "log_softmax": (lambda x: F.log_softmax(x, -1), torch.float32),
    "sum": (torch.sum, torch.float32),
    "sum of a dimension": (lambda x: x.sum(1), torch.float32),
    "cumsum": (lambda x: x.cumsum(0), torch.float32),
    "power": (lambda x: x**2, torch.float32),
    "exp": (torch.exp, torch.float32),
    "norm": (lambda x: torch.linalg.vector_norm(x), torch.float32),
    "mean": (torch.mean, torch.bfloat16),
    "cross entropy": (lambda x: F.cross_entropy(x, torch.zeros(4, dtype=torch.long)), torch.float32),
    "padding": (lambda x: F.pad(x[None], (1, 1, 1, 1), "reflect"), torch.bfloat16),
}


@pytest.mark.parametrize("name", RULES)
def test_dtypes_of_cuda(name: str) -> None:
    function, expected = RULES[name]
    with cuda_autocast_on_cpu(), torch.autocast("cpu", torch.bfloat16):
        result = function(torch.ones(4, 4, dtype=torch.bfloat16, requires_grad=True))
    assert result.dtype == expected
    result.sum().backward()


def test_cpu_has_its_own_rules_afterwards() -> None:
    with cuda_autocast_on_cpu():
        pass
    half = torch.ones(4, 4, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        assert (half**2).dtype == torch.bfloat16
        assert F.pad(half[None], (1, 1, 1, 1), "reflect").dtype == torch.float32
