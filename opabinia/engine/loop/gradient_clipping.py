"""Keeping gradients within bounds. All work on whole lists of tensors, without waiting for the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_


def global_norm(gradients: Sequence[Tensor], p: float = 2.0) -> Tensor:
    """The p-norm (infinity too) of all gradients taken as one vector; 0 when there are none."""
    if not gradients:
        return torch.zeros(())
    # get_total_norm sorts tensors by device and type first, which takes longer than the norm of a small model.
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(list(gradients), p)), p)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def clip_global(parameters: Sequence[Tensor], norm: Tensor, limit: float) -> None:
    """Scale all gradients by the same factor so that their norm, which is ``norm`` now, does not exceed ``limit``."""
    clip_grads_with_norm_(parameters, limit, norm)


def clip_each(gradients: Sequence[Tensor], limit: float, p: float = 2.0) -> None:
    """Scale down each gradient on its own whose p-norm exceeds ``limit`` (what detectron2 calls "norm")."""
    if not gradients:
        return
    norms = torch._foreach_norm(list(gradients), p)
    factors = limit / (torch.stack(norms) + 1e-6)
    torch._foreach_mul_(list(gradients), list(factors.clamp_(max=1.0).unbind()))


def clip_values(gradients: Sequence[Tensor], lower: float | None, upper: float | None) -> None:
    """Cut every value of the gradients off at ``lower`` and ``upper``; None leaves that side open."""
    if not gradients:
        return
    if lower is not None:
        torch._foreach_clamp_min_(list(gradients), lower)
    if upper is not None:
        torch._foreach_clamp_max_(list(gradients), upper)
