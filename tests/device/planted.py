"""A loss with a defect that a CPU does not show; a plug-in of the runs in ``test_planted.py``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import adaptive_max_pool2d, cross_entropy

from opabinia.config import register

Defect = Literal["item", "host tensor", "float64", "nondeterministic", "half precision", "generator"]


@register.loss
def planted(logits: Tensor, targets: Tensor, /, *, defect: Defect) -> Tensor:
    """Cross entropy with a defect.

    Args:
        defect: its kind.
    """
    return cross_entropy(logits + 0 * DEFECTS[defect](logits), targets)


def wait_for_a_number(logits: Tensor) -> Tensor:
    return logits * min(1.0, logits.abs().max().item())


def add_a_tensor_of_the_host(logits: Tensor) -> Tensor:
    return logits + torch.zeros(logits.shape[1])


def sum_in_float64(logits: Tensor) -> Tensor:
    return logits.sum(dtype=torch.float64).float()


def pool_with_a_nondeterministic_gradient(logits: Tensor) -> Tensor:
    return adaptive_max_pool2d(logits[None, None], 1).sum()


def invert_in_half_precision(logits: Tensor) -> Tensor:
    return torch.linalg.pinv(torch.eye(2, dtype=torch.bfloat16, device=logits.device)).sum()


def draw_from_a_generator_of_the_host(logits: Tensor) -> Tensor:
    return torch.rand(logits.shape, device=logits.device, generator=torch.Generator().manual_seed(0))


DEFECTS: dict[Defect, Callable[[Tensor], Tensor]] = {
    "item": wait_for_a_number,
    "host tensor": add_a_tensor_of_the_host,
    "float64": sum_in_float64,
    "nondeterministic": pool_with_a_nondeterministic_gradient,
    "half precision": invert_in_half_precision,
    "generator": draw_from_a_generator_of_the_host,
}
