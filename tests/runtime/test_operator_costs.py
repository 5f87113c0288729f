"""Live bytes by category, conditions on fake tensors, FLOPs and traffic of operators."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from opabinia.runtime.operator_costs import OperatorCosts

MIB = 2**20


def test_bytes_are_counted_until_tensors_are_freed() -> None:
    costs = OperatorCosts()
    weights = torch.ones(MIB, dtype=torch.uint8)
    costs.add([weights, weights[:10]], "parameters")
    with costs:
        first = weights + 1
        second = first.view(2, -1) + 1  # a view is no memory
        del first
        costs.category = "temporaries"
        third = second + 1
    assert costs.live == {"parameters": MIB, "activations": MIB, "temporaries": MIB}
    assert costs.peak.total() == 3 * MIB
    costs.add([third], "gradients")
    assert costs.live["temporaries"] == 0 and costs.live["gradients"] == MIB
    old = torch.ones(MIB, dtype=torch.uint8)  # counted when it is used
    with costs:
        old.add_(1)
        small = torch.ones(1)
    assert costs.live["others"] == MIB and small.numel() == 1
    assert costs.live["temporaries"] == 512, "rounded up"


@pytest.mark.parametrize("fake", [False, True])
def test_peak_of_a_backward_pass(fake: bool) -> None:
    costs = OperatorCosts()
    mode = FakeTensorMode()
    with mode if fake else torch.enable_grad():
        weight = torch.zeros(256, 256, requires_grad=True)
        with costs:
            (torch.ones(1024, 256) @ weight).relu().sum().backward()
    # At once: the input, and the product with either the output of relu or that with its gradient; the weights.
    assert 3 * MIB <= costs.peak.total() <= 3 * MIB + 2**19


def test_fake_values_that_decide_are_errors() -> None:
    costs = OperatorCosts()
    with FakeTensorMode(), costs:
        assert torch.zeros(3).sum().item() == 1.0
        assert bool((torch.zeros(3) > 1).any())
        with pytest.raises(DataDependentOutputException):
            torch.zeros(3, dtype=torch.long).sum().item()


def test_operators() -> None:
    costs = OperatorCosts()
    with costs:
        (torch.ones(8, 16, dtype=torch.bfloat16) @ torch.ones(16, 4, dtype=torch.bfloat16)).view(-1)
    *_, product = costs.operators
    assert (product.name, product.dtype, product.flops) == ("aten.mm", "bfloat16", 2 * 8 * 16 * 4)
    assert product.traffic == 2 * (8 * 16 + 16 * 4 + 8 * 4)
