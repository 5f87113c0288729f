"""Batch normalisation over all processes."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from opabinia.runtime.processes import world_size


class SyncBatchNorm(_BatchNorm):
    """Mean and variance of a channel over the batches of all processes, each value counting once, however many each
    process has. For CPUs: torch's works on GPUs only."""

    def _check_input_dim(self, input: Tensor) -> None: ...

    def forward(self, input: Tensor) -> Tensor:
        """B x C x ... of any size."""
        if not self.training or world_size() == 1:
            output: Tensor = super().forward(input)
            return output
        values = input.float()  # as torch's: statistics of half precision are none
        mean, variance, count = _moments(values)
        if self.track_running_stats and self.running_mean is not None and self.running_var is not None:
            assert self.num_batches_tracked is not None
            self.num_batches_tracked.add_(1)
            share = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
            self.running_mean.lerp_(mean, share)
            self.running_var.lerp_(variance * count / max(count - 1, 1), share)
        normalised: Tensor = _Normalise.apply(values, mean, torch.rsqrt(variance + self.eps), count)
        if self.weight is not None:
            normalised = normalised * _by_channel(self.weight, input) + _by_channel(self.bias, input)
        return normalised.to(input.dtype)


class SyncBatchNormAct(SyncBatchNorm):
    """With the dropout and the activation that timm keeps within some of its norms."""

    drop: nn.Module
    act: nn.Module

    def forward(self, input: Tensor) -> Tensor:
        """B x C x ... of any size."""
        output: Tensor = self.act(self.drop(super().forward(input)))
        return output


def synchronise(model: nn.Module) -> None:
    """Put a synchronised norm in the place of every batch norm within a model, with its parameters and statistics."""
    if next(model.parameters()).is_cuda:
        from timm.layers.norm_act import convert_sync_batchnorm

        convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
        return
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, _BatchNorm) and not isinstance(child, SyncBatchNorm):
                setattr(module, name, _synchronised(child))


def _synchronised(norm: _BatchNorm) -> SyncBatchNorm:
    kind = SyncBatchNormAct if hasattr(norm, "act") else SyncBatchNorm
    other = kind(norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats)
    for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"):
        setattr(other, name, getattr(norm, name))
    for name in ("drop", "act"):
        if hasattr(norm, name):
            setattr(other, name, getattr(norm, name))
    return other.train(norm.training)


def _by_channel(values: Tensor, like: Tensor) -> Tensor:
    return values.view(1, -1, *[1] * (like.ndim - 2))


def _moments(input: Tensor) -> tuple[Tensor, Tensor, int]:
    """Mean and variance (biased) of each channel over all processes, and of how many values."""
    values = input.detach().transpose(0, 1).flatten(1).double()
    count, channels = values.shape[1], values.shape[0]
    own = torch.zeros(2 * channels + 1, dtype=torch.float64)
    own[-1] = count
    if count:
        variance, mean = torch.var_mean(values, dim=1, correction=0)
        own[:channels], own[channels:-1] = mean, variance
    found = [torch.empty_like(own) for _ in range(world_size())]
    dist.all_gather(found, own)
    means, variances, counts = torch.split(torch.stack(found), [channels, channels, 1], dim=1)
    share = counts / counts.sum()
    mean = (means * share).sum(0)
    variance = ((variances + (means - mean) ** 2) * share).sum(0)
    return mean.to(input.dtype), variance.to(input.dtype), int(counts.sum())


class _Normalise(torch.autograd.Function):
    """(x - mean) / deviation, mean and deviation being functions of the x of all processes (Ioffe and Szegedy 2015,
    section 3)."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, mean: Tensor, inverse: Tensor, count: int) -> Tensor:
        normalised = (input - _by_channel(mean, input)) * _by_channel(inverse, input)
        ctx.save_for_backward(normalised, inverse)
        ctx.count = count
        return normalised

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        normalised, inverse = ctx.saved_tensors
        gradient = gradients[0]
        over = [dim for dim in range(gradient.ndim) if dim != 1]
        sums = torch.stack([gradient.sum(over), (gradient * normalised).sum(over)])
        dist.all_reduce(sums)
        of_mean, of_deviation = (_by_channel(part / ctx.count, gradient) for part in sums)
        return _by_channel(inverse, gradient) * (gradient - of_mean - normalised * of_deviation), None, None, None
