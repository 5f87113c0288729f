"""Gradient clipping. Everything works on lists of tensors (foreach kernels) and never waits for the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_


def global_norm(gradients: Sequence[Tensor], p: float = 2.0) -> Tensor:
    """Return the p-norm (also infinity) of all gradients taken as one vector; 0 if there are none."""
    if not gradients:
        return torch.zeros(())
    # get_total_norm sorts tensors by device and dtype first, which takes longer than the norm of a small model.
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(list(gradients), p)), p)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def clip_global(parameters: Sequence[Tensor], norm: Tensor, limit: float) -> None:
    """Scale all gradients by one factor, so that their norm, now ``norm``, is at most ``limit``."""
    clip_grads_with_norm_(parameters, limit, norm)


def clip_each(gradients: Sequence[Tensor], limit: float, p: float = 2.0) -> None:
    """Scale down every gradient whose own p-norm exceeds ``limit`` (detectron2's clip type "norm")."""
    if not gradients:
        return
    norms = torch._foreach_norm(list(gradients), p)
    factors = limit / (torch.stack(norms) + 1e-6)
    torch._foreach_mul_(list(gradients), list(factors.clamp_(max=1.0).unbind()))


def clip_values(gradients: Sequence[Tensor], lower: float | None, upper: float | None) -> None:
    """Clamp every element of the gradients to [``lower``, ``upper``]; None leaves that side open."""
    if not gradients:
        return
    if lower is not None:
        torch._foreach_clamp_min_(list(gradients), lower)
    if upper is not None:
        torch._foreach_clamp_max_(list(gradients), upper)
