"""Gradient clipping: works on non-empty lists of tensors (foreach kernels) and never waits for the device."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor


def global_norm(gradients: list[Tensor], p: float = 2.0) -> Tensor:
    """Return the p-norm (also infinity) of all gradients taken as one vector."""
    # get_total_norm sorts tensors by device and dtype first, which takes longer than the norm of a small model.
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients, p)), p)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def clip_each(gradients: list[Tensor], limit: float, p: float = 2.0) -> None:
    """Scale down every gradient whose own p-norm exceeds ``limit`` (detectron2's clip type "norm")."""
    factors = limit / (torch.stack(torch._foreach_norm(gradients, p)) + 1e-6)
    torch._foreach_mul_(gradients, list(factors.clamp_(max=1.0).unbind()))


def clip_values(gradients: list[Tensor], lower: float | None, upper: float | None) -> None:
    """Clamp every element of the gradients to [``lower``, ``upper``]; None leaves that side open."""
    if lower is not None:
        torch._foreach_clamp_min_(gradients, lower)
    if upper is not None:
        torch._foreach_clamp_max_(gradients, upper)
