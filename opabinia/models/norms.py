"""Replacements for batch norm: synchronized over processes, over parts of a batch, frozen, and group norm."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from opabinia.runtime.processes import autograd_group, world_size

Norm = TypeVar("Norm", bound=_NormBase)
AnyModule = TypeVar("AnyModule", bound=nn.Module)


class SyncBatchNorm(_BatchNorm):
    """Synchronized batch norm: statistics over the batches of all processes, each value with the same weight however
    large a process's batch is. On GPUs and CPUs alike; torch's works on GPUs only, and its host waits for the GPU in
    every norm."""

    def _check_input_dim(self, input: Tensor) -> None: ...

    def forward(self, input: Tensor) -> Tensor:
        """B x C x ... of any size."""
        is_alone = not self.training or world_size() == 1
        output: Tensor = super().forward(input) if is_alone else _synchronize(self, input, autograd_group())
        return output


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _synchronize(norm: _BatchNorm, input: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Run ``norm`` in training mode with the statistics of all processes of a group."""
    mean, variance, count = _global_statistics(input.detach(), group)
    if norm.track_running_stats and norm.running_mean is not None and norm.running_var is not None:
        momentum = _count_batch(norm)
        norm.running_mean.lerp_(mean.to(norm.running_mean.dtype), momentum)
        unbiased = variance * (count / (count - 1).clamp(min=1))
        norm.running_var.lerp_(unbiased.to(norm.running_var.dtype), momentum)
    output: Tensor = _Normalize.apply(input, norm.weight, norm.bias, mean, variance, count, norm.eps, group)
    return output


def _count_batch(norm: _BatchNorm) -> float:
    """Count a batch and return the weight of its statistics in the running ones."""
    assert norm.num_batches_tracked is not None
    norm.num_batches_tracked.add_(1)
    return 1 / float(norm.num_batches_tracked) if norm.momentum is None else norm.momentum


def _global_statistics(input: Tensor, group: dist.ProcessGroup) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean and variance (biased) of each channel over the processes of a group, and the number of values."""
    channels = input.shape[1]
    # The kernels of GPUs return statistics of half precision in single precision; those of CPUs do not.
    values = input if input.is_cuda or input.dtype == torch.float64 else input.float()
    local = torch.zeros(2 * channels + 1, dtype=torch.float64, device=input.device)
    if input.numel():
        local[:channels], local[channels:-1] = torch.batch_norm_update_stats(values, None, None, 0.0)
        local[-1].fill_(input.numel() // channels)
    gathered = [torch.empty_like(local) for _ in range(dist.get_world_size(group))]
    dist.all_gather(gathered, local, group=group)
    means, variances, counts = torch.split(torch.stack(gathered), [channels, channels, 1], dim=1)
    fractions = counts / counts.sum()
    mean = (means * fractions).sum(0)
    variance = ((variances + (means - mean) ** 2) * fractions).sum(0)
    dtype = torch.promote_types(input.dtype, torch.float32)  # statistics need single precision
    return mean.to(dtype), variance.to(dtype), counts.sum().to(dtype)


class _Normalize(torch.autograd.Function):
    """(x - mean) / deviation * weight + bias, where mean and deviation depend on the x of all processes of a group
    (Ioffe and Szegedy 2015, section 3). The kernels are those of batch norm in evaluation."""

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor,
        variance: Tensor,
        count: Tensor,
        eps: float,
        group: dist.ProcessGroup,
    ) -> Tensor:
        scale = torch.ones_like(mean) if weight is None else weight.to(mean.dtype)
        shift = torch.zeros_like(mean) if bias is None else bias.to(mean.dtype)
        ctx.save_for_backward(input, scale, mean, variance, count)
        ctx.eps, ctx.group = eps, group
        return F.batch_norm(input, mean, variance, scale, shift, eps=eps)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        input, scale, mean, variance, count = ctx.saved_tensors
        gradient = gradients[0]
        of_weight = of_bias = torch.zeros_like(mean)
        if input.numel():
            # The sums over the batch of gradient * normalized, and of the gradient.
            _, of_weight, of_bias = torch.ops.aten.native_batch_norm_backward(
                gradient, input, scale, mean, variance, None, None, False, ctx.eps, [False, True, True]
            )
        sums = torch.stack([of_weight, of_bias])
        dist.all_reduce(sums, group=ctx.group)
        of_deviation, of_mean = sums / count
        factor = scale * torch.rsqrt(variance + ctx.eps)
        # factor * (gradient - of_mean - normalized * of_deviation)
        correction = F.batch_norm(input, mean, variance, -factor * of_deviation, -factor * of_mean, eps=ctx.eps)
        result = torch.addcmul(correction, gradient, factor.view(1, -1, *[1] * (input.ndim - 2)))
        _, needs_weight, needs_bias, *others = ctx.needs_input_grad
        parameters = of_weight if needs_weight else None, of_bias if needs_bias else None
        return result.to(input.dtype), *parameters, *(None for _ in others)


class GhostBatchNorm(_BatchNorm):
    """Normalizes each part of a process's batch separately (Hoffer et al. 2017, section 4), or the batches of a group
    of processes jointly.

    Sample i belongs to part i mod ``splits``, so that the sizes of parts differ by at most one sample. There are fewer
    parts where one would have a single value. There is one set of running statistics, which moves towards the mean over
    the parts: names and shapes in a checkpoint are those of a batch norm, for any number of parts.

    The sub-batch norm of multigrid training (Wu et al. 2020, section 3.4; SlowFast's ``SubBatchNorm3d``) keeps running
    statistics of every part and merges them for evaluation: the mean of the means; the mean of the variances plus the
    variance of the (running) means. Compared with it, one set with momentum a, after t steps of k parts, gives:

    - the same outputs in training, the same mean and the same mean of the variances: these are linear in the statistics
      of the parts;
    - an estimate of the variance of the running means, which is not a function of one set: it depends on the direction
      in which the means of the parts differ in each step. With ``spread``, each step adds
      a^2 (1 + (1 - a)^(2t - 1)) / (2 - a) times the variance of this step's means. This is exact after one step, where
      all parts started alike, and later the expectation if the parts of different steps are independent. It tends to
      a / (2 - a) of the variance of means, a nineteenth at 0.1.

    Attributes:
        splits: number of parts; it may change at any time.
        spread: add the variance between the means of the parts to the running variance, as above. Without it (as in
            FastReID) the running variance is that of a batch norm that sees the parts as batches.
        group: processes that share their statistics and have no parts; None: this process has its own.
    """

    splits: int = 1
    spread: bool = False
    group: dist.ProcessGroup | None = None

    def _check_input_dim(self, input: Tensor) -> None: ...

    def forward(self, input: Tensor) -> Tensor:
        """B x C x ... of any size."""
        if self.training and self.group is not None:
            joint: Tensor = _synchronize(self, input, self.group)
            return joint
        min_size = 1 if math.prod(input.shape[2:]) > 1 else 2
        splits = min(self.splits, len(input) // min_size)
        if not self.training or splits < 2 or self.running_mean is None or self.running_var is None:
            whole: Tensor = super().forward(input)
            return whole
        momentum = _count_batch(self)
        means, variances = self.running_mean.repeat(splits, 1), self.running_var.repeat(splits, 1)
        if len(input) % splits:
            output = torch.empty_like(input)
            for part in range(splits):
                statistics = means[part], variances[part], self.weight, self.bias
                output[part::splits] = F.batch_norm(input[part::splits], *statistics, True, momentum, self.eps)
        else:
            output = self._forward_even_parts(input, means, variances, momentum)
        self.running_mean.copy_(means.mean(0))
        self.running_var.copy_(variances.mean(0))
        if self.spread and momentum:  # the running means moved by ``momentum`` times the difference of the parts' means
            self.running_var.add_(self._spread_weight() * (means / momentum).var(0, correction=0))
        return output

    def _spread_weight(self) -> Tensor:
        """Return the weight of the variance of this batch's means in the running variance, without a device sync."""
        assert self.num_batches_tracked is not None and self.running_var is not None
        steps = self.num_batches_tracked.to(self.running_var.dtype)
        if self.momentum is None:  # a mean over all steps: the first step's contribution decays as 1 / t, as it should
            return (steps == 1).to(steps.dtype)
        return self.momentum**2 / (2 - self.momentum) * (1 + (1 - self.momentum) ** (2 * steps - 1))

    def _forward_even_parts(self, input: Tensor, means: Tensor, variances: Tensor, momentum: float) -> Tensor:
        """Normalize parts of equal size in one call: channel c of part i becomes channel i * C + c of a smaller
        batch."""
        splits = len(means)
        weight, bias = (self.weight.repeat(splits), self.bias.repeat(splits)) if self.affine else (None, None)
        statistics = means.view(-1), variances.view(-1), weight, bias
        if input.is_contiguous():
            stacked = input.view(-1, means.numel(), *input.shape[2:])
            return F.batch_norm(stacked, *statistics, True, momentum, self.eps).view(input.shape)
        # Channels last: the same with the channels behind the pixels, so that this stays the memory format.
        parts = torch.unflatten(input.movedim(1, -1), 0, (-1, splits))
        stacked = parts.movedim(1, -2).flatten(-2).movedim(-1, 1)
        output = F.batch_norm(stacked, *statistics, True, momentum, self.eps).movedim(1, -1)
        return torch.unflatten(output, -1, (splits, -1)).movedim(-2, 1).flatten(0, 1).movedim(-1, 1)


class CurrentStream:
    """The stream of images that a network reads at the moment.

    Attributes:
        name: name of the stream.
    """

    def __init__(self, name: str) -> None:
        self.name = name


class StreamBatchNorm(_BatchNorm):
    """Batch norm with running statistics for each stream of images, and one set of parameters: images of different
    datasets share a network, but not their means (Li et al. 2018, Adaptive Batch Normalization).

    The statistics of the first stream have the names of a batch norm; those of the others are
    ``streams.NAME.running_mean`` and so on.
    """

    current: CurrentStream
    streams: nn.ModuleDict

    def _check_input_dim(self, input: Tensor) -> None: ...

    def forward(self, input: Tensor) -> Tensor:
        """B x C x ... of any size."""
        if self.current.name not in self.streams:
            first: Tensor = super().forward(input)
            return first
        stream = self.streams[self.current.name]
        assert isinstance(stream, nn.BatchNorm1d)
        momentum = _count_batch(stream) if self.training else 0.0
        statistics = stream.running_mean, stream.running_var, self.weight, self.bias
        return F.batch_norm(input, *statistics, self.training, momentum, self.eps)


class FrozenBatchNorm(_NormBase):
    """Normalizes by fixed statistics and weights. It is not a ``_BatchNorm``, so that synchronization and precise batch
    norm skip it."""

    def forward(self, input: Tensor) -> Tensor:
        """B x C x ... of any size."""
        return F.batch_norm(input, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)


class GroupNorm(nn.GroupNorm):
    """torch's group norm; a group of a single value gives the bias also in a batch of one, where torch refuses."""

    def forward(self, input: Tensor) -> Tensor:
        """B x C x ... of any size."""
        return torch.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)


# --- with timm's activations ----------------------------------------------------------------------------------------


class _WithAct(nn.Module):
    """A norm with the dropout and the activation that some of timm's norms include."""

    drop: nn.Module
    act: nn.Module

    def forward(self, input: Tensor) -> Tensor:
        """B x C x ... of any size."""
        output: Tensor = self.act(self.drop(super().forward(input)))
        return output


class SyncBatchNormAct(_WithAct, SyncBatchNorm):
    """See :class:`SyncBatchNorm` and :class:`_WithAct`."""


class GhostBatchNormAct(_WithAct, GhostBatchNorm):
    """See :class:`GhostBatchNorm` and :class:`_WithAct`."""


class StreamBatchNormAct(_WithAct, StreamBatchNorm):
    """See :class:`StreamBatchNorm` and :class:`_WithAct`."""


class FrozenBatchNormAct(_WithAct, FrozenBatchNorm):
    """See :class:`FrozenBatchNorm` and :class:`_WithAct`."""


class GroupNormAct(_WithAct, GroupNorm):
    """See :class:`GroupNorm` and :class:`_WithAct`."""


WITH_ACT: dict[Any, Any] = {
    SyncBatchNorm: SyncBatchNormAct,
    GhostBatchNorm: GhostBatchNormAct,
    StreamBatchNorm: StreamBatchNormAct,
    FrozenBatchNorm: FrozenBatchNormAct,
    GroupNorm: GroupNormAct,
}
"""The norms of each kind that end with dropout and activation."""


# --- conversion of models -------------------------------------------------------------------------------------------


def convert_sync_batch_norm(model: nn.Module) -> None:
    """Replace every batch norm within a model by a synchronized one with its parameters and statistics.

    Raises:
        ValueError: some have statistics for each stream.
    """
    if any(isinstance(module, StreamBatchNorm) for module in model.modules()):
        raise ValueError("batch norms with statistics for each stream (task.norms: stream) cannot be synchronized")
    _replace(model, lambda norm: _convert(norm, SyncBatchNorm))


def convert_ghost_batch_norm(model: nn.Module, splits: int) -> None:
    """Replace every batch norm within a model by a :class:`GhostBatchNorm` with its parameters and statistics.

    Args:
        splits: number of parts of a process's batch.
    """

    def convert(norm: _BatchNorm) -> nn.Module:
        ghost = _convert(norm, GhostBatchNorm)
        ghost.splits = splits
        return ghost

    _replace(model, convert)


def split_batch_norms(model: nn.Module, splits: int, group: dist.ProcessGroup | None = None) -> int:
    """Let every batch norm within a model normalize ``splits`` parts of the batch separately, or the batches of a group
    of processes jointly: the sub-batch norm of multigrid training (Wu et al. 2020, section 3.4); see
    :class:`GhostBatchNorm`.

    The first call replaces the batch norms, so make it before anything refers to them (EMA, DDP, compilation);
    ``splits`` can be 1 then. Later calls only set the number. Parameters and statistics keep their names, shapes and
    identity, so that optimizers, EMA and checkpoints are not affected. Synchronized and frozen norms stay.

    Args:
        splits: number of parts of a process's batch: at least 1.
        group: processes that share their statistics, with ``splits`` 1. None: each process has its own.

    Returns:
        the number of norms that were set.

    Raises:
        ValueError: ``splits`` is below 1, or above 1 together with a group.

    Example: a batch of 64 clips per process where the norms were made for 8 has ``split_batch_norms(model, 8)``.
    """
    if splits < 1:
        raise ValueError(f"splits: must be at least 1, not {splits}")
    if splits > 1 and group is not None:
        raise ValueError(f"splits: must be 1 when several processes share their statistics, not {splits}")
    convert_ghost_batch_norm(model, splits)
    norms = [module for module in model.modules() if isinstance(module, GhostBatchNorm)]
    for norm in norms:
        norm.splits, norm.spread, norm.group = splits, True, group
    return len(norms)


def freeze_batch_norms(model: nn.Module, *, trained_weights: bool = False) -> None:
    """Replace every batch norm within a model by a :class:`FrozenBatchNorm` with its statistics and its parameters.

    Args:
        model: a network.
        trained_weights: the parameters are still trained (MMDetection's ``norm_eval``).
    """
    _replace(model, lambda norm: _convert(norm, FrozenBatchNorm).requires_grad_(trained_weights))


def convert_stream_batch_norm(model: nn.Module, streams: Sequence[str], current: CurrentStream) -> None:
    """Replace every batch norm with running statistics within a model by a :class:`StreamBatchNorm` with its
    parameters; all streams begin with its statistics.

    Args:
        model: a network.
        streams: their names.
        current: the stream that the network reads.
    """

    def convert(norm: _BatchNorm) -> nn.Module:
        if not norm.track_running_stats:
            return norm
        converted = _convert(norm, StreamBatchNorm)
        converted.current = current
        converted.streams = nn.ModuleDict()
        for stream in streams[1:]:
            statistics = nn.BatchNorm1d(norm.num_features, norm.eps, norm.momentum, affine=False)
            statistics.load_state_dict({name: getattr(norm, name) for name in statistics.state_dict()})
            converted.streams[stream] = statistics
        return converted

    _replace(model, convert)


GROUPS = 32
"""Channel groups of a group norm (Wu and He 2018, section 4)."""


def convert_group_norm(model: nn.Module) -> None:
    """Replace every batch norm within a model by a group norm with its parameters (Wu and He 2018).

    Raises:
        ValueError: the channels are not divisible by :data:`GROUPS`.
    """

    def convert(norm: _BatchNorm) -> nn.Module:
        kind = WITH_ACT[GroupNorm] if hasattr(norm, "act") else GroupNorm
        return _copy_attributes(norm, kind(GROUPS, norm.num_features, norm.eps, norm.affine))

    _replace(model, convert)


def _replace(model: nn.Module, convert: Callable[[_BatchNorm], nn.Module]) -> None:
    """Replace all batch norms that are neither synchronized nor ghost batch norms, nor have streams."""
    others = (SyncBatchNorm, nn.SyncBatchNorm, GhostBatchNorm, StreamBatchNorm)
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, _BatchNorm) and not isinstance(child, others):
                setattr(module, name, convert(child))


def _convert(norm: _BatchNorm, kind: Callable[..., Norm]) -> Norm:
    """Make a norm of a kind with the parameters, statistics, activation and options of ``norm``."""
    make: Any = kind
    make = WITH_ACT[make] if hasattr(norm, "act") else make
    converted: Norm = make(norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats)
    return _copy_attributes(norm, converted, "running_mean", "running_var", "num_batches_tracked")


def _copy_attributes(norm: _BatchNorm, converted: AnyModule, *statistics: str) -> AnyModule:
    """Share parameters, activation, mode and the named statistics of ``norm`` with its replacement."""
    for name in ("weight", "bias", "drop", "act", *statistics):
        if hasattr(norm, name):
            setattr(converted, name, getattr(norm, name))
    return converted.train(norm.training)
