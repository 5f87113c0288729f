"""Gradient clipping: works on non-empty lists of tensors (foreach kernels) and never waits for the device."""

from __future__ import annotations

from math import inf

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial


def global_norm(gradients: list[Tensor], p: float = 2.0) -> Tensor:
    """Return the p-norm (also infinity) of all gradients taken as one vector."""
    # get_total_norm sorts tensors by device and dtype first, which takes longer than the norm of a small model.
    norm = torch.linalg.vector_norm(_norms(gradients, p), p)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def clip_each(gradients: list[Tensor], limit: float, p: float = 2.0) -> None:
    """Scale down every gradient whose own p-norm exceeds ``limit`` (detectron2's clip type "norm")."""
    factors = limit / (_norms(gradients, p) + 1e-6)
    torch._foreach_mul_(gradients, list(factors.clamp_(max=1.0).unbind()))


def _norms(gradients: list[Tensor], p: float) -> Tensor:
    """Return the p-norm of each gradient (N), of shards (DTensor) that of the whole gradient."""
    first = gradients[0]
    if p != inf or not isinstance(first, DTensor):
        return torch.stack(torch._foreach_norm(gradients, p))
    # A parameter with fewer rows than there are ranks has empty shards, of which torch computes no maximum.
    shards = [gradient.to_local() for gradient in gradients if isinstance(gradient, DTensor)]
    norms = torch._foreach_norm([shard if shard.numel() else shard.new_zeros(1) for shard in shards], p)
    return DTensor.from_local(torch.stack(norms), first.device_mesh, [Partial("max")])
