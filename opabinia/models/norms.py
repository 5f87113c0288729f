"""Norms in the place of batch norms: over all processes, over parts of a batch, frozen, over groups of channels."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from opabinia.runtime.processes import world_size

Norm = TypeVar("Norm", bound=_NormBase)
Successor = TypeVar("Successor", bound=nn.Module)


class SyncBatchNorm(_BatchNorm):
    """Mean and variance of a channel over the batches of all processes, each value counting once, however many each
    process has. For CPUs: torch's works on GPUs only."""

    def _check_input_dim(self, input: Tensor) -> None: ...

    def forward(self, input: Tensor) -> Tensor:
        """B x C x ... of any size."""
        if not self.training or world_size() == 1:
            output: Tensor = super().forward(input)
            return output
        return _over_processes(self, input, None)


def _over_processes(norm: _BatchNorm, input: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """``norm`` in training, with the statistics of the batches of all processes of a group; None: of all there are."""
    values = input.float()  # as torch's: statistics of half precision are none
    mean, variance, count = _moments(values, group)
    if norm.track_running_stats and norm.running_mean is not None and norm.running_var is not None:
        share = _share_of_newest(norm)
        norm.running_mean.lerp_(mean, share)
        norm.running_var.lerp_(variance * (count / (count - 1).clamp(min=1)), share)
    normalised: Tensor = _Normalise.apply(values, mean, torch.rsqrt(variance + norm.eps), count, group)
    if norm.weight is not None:
        normalised = normalised * _by_channel(norm.weight, input) + _by_channel(norm.bias, input)
    return normalised.to(input.dtype)


def _share_of_newest(norm: _BatchNorm) -> float:
    """How much the statistics of a batch count in the running ones, this batch being counted."""
    assert norm.num_batches_tracked is not None
    norm.num_batches_tracked.add_(1)
    return 1 / float(norm.num_batches_tracked) if norm.momentum is None else norm.momentum


def _by_channel(values: Tensor, like: Tensor) -> Tensor:
    return values.view(1, -1, *[1] * (like.ndim - 2))


def _moments(input: Tensor, group: dist.ProcessGroup | None) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and variance (biased) of each channel over the processes of a group, and of how many values."""
    values = input.detach().transpose(0, 1).flatten(1)
    values = values if values.is_cuda else values.double()  # which GPUs are slow at
    count, channels = values.shape[1], values.shape[0]
    own = torch.zeros(2 * channels + 1, dtype=torch.float64, device=values.device)
    own[-1].fill_(count)
    if count:
        variance, mean = torch.var_mean(values, dim=1, correction=0)
        own[:channels], own[channels:-1] = mean, variance
    found = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(found, own, group=group)
    means, variances, counts = torch.split(torch.stack(found), [channels, channels, 1], dim=1)
    share = counts / counts.sum()
    mean = (means * share).sum(0)
    variance = ((variances + (means - mean) ** 2) * share).sum(0)
    return mean.to(input.dtype), variance.to(input.dtype), counts.sum().to(input.dtype)


class _Normalise(torch.autograd.Function):
    """(x - mean) / deviation, mean and deviation being functions of the x of all processes of a group (Ioffe and
    Szegedy 2015, section 3)."""

    @staticmethod
    def forward(
        ctx: Any, input: Tensor, mean: Tensor, inverse: Tensor, count: Tensor, group: dist.ProcessGroup | None
    ) -> Tensor:
        normalised = (input - _by_channel(mean, input)) * _by_channel(inverse, input)
        ctx.save_for_backward(normalised, inverse, count)
        ctx.group = group
        return normalised

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None]:
        normalised, inverse, count = ctx.saved_tensors
        gradient = gradients[0]
        over = [dim for dim in range(gradient.ndim) if dim != 1]
        sums = torch.stack([gradient.sum(over), (gradient * normalised).sum(over)])
        dist.all_reduce(sums, group=ctx.group)
        of_mean, of_deviation = (_by_channel(part / count, gradient) for part in sums)
        found = _by_channel(inverse, gradient) * (gradient - of_mean - normalised * of_deviation)
        return found, None, None, None, None


class GhostBatchNorm(_BatchNorm):
    """Normalises each part of the batch of a process by itself (Hoffer et al. 2017, section 4); or the batches of some
    processes together.

    Sample i is in part i mod ``splits``, so that parts differ by one sample at most. There are fewer parts where one
    would have a single value. The running statistics are one set, and move towards their mean over parts: names and
    shapes in a checkpoint are those of a batch norm, for any number of parts.

    The sub-batch norm of multigrid training (Wu et al. 2020, section 3.4; SlowFast's ``SubBatchNorm3d``) keeps running
    statistics of every part and joins them for evaluation: the mean of the means; the mean of the variances plus the
    variance of the (running) means. What comes of one set instead, of momentum a, after t steps of k parts:

    - outputs in training, the mean and the mean of the variances are the same: they are linear in the statistics of the
      parts;
    - the variance of the running means is no function of one set: it depends on which parts lay apart in which
      direction in each step. With ``spread`` each step adds a^2 (1 + (1 - a)^(2t - 1)) / (2 - a) times the variance of
      this step's means. That is the same after one step, where all parts began alike, and after more of them its
      expectation, where parts of one step have nothing to do with those of another. It tends to a / (2 - a) of the
      variance of means, a nineteenth at 0.1.

    Attributes:
        splits: how many parts; it may change at any time.
        spread: the running variance counts how far the means of parts lie apart, too, as above. Without it (as in
            FastReID) it is what a batch norm would have that sees the parts as batches.
        group: processes whose batches have their statistics together, and no parts; None: this process has its own.
    """

    splits: int = 1
    spread: bool = False
    group: dist.ProcessGroup | None = None

    def _check_input_dim(self, input: Tensor) -> None: ...

    def forward(self, input: Tensor) -> Tensor:
        """B x C x ... of any size."""
        if self.training and self.group is not None:
            return _over_processes(self, input, self.group)
        least = 1 if math.prod(input.shape[2:]) > 1 else 2
        splits = min(self.splits, len(input) // least)
        if not self.training or splits < 2 or self.running_mean is None or self.running_var is None:
            whole: Tensor = super().forward(input)
            return whole
        share = _share_of_newest(self)
        means, variances = self.running_mean.repeat(splits, 1), self.running_var.repeat(splits, 1)
        if len(input) % splits:
            output = torch.empty_like(input)
            for part in range(splits):
                own = means[part], variances[part], self.weight, self.bias
                output[part::splits] = F.batch_norm(input[part::splits], *own, True, share, self.eps)
        else:
            output = self._in_one_pass(input, means, variances, share)
        self.running_mean.copy_(means.mean(0))
        self.running_var.copy_(variances.mean(0))
        if self.spread and share:  # the running means moved by ``share`` times what the parts' own means differ in
            self.running_var.add_(self._share_of_spread() * (means / share).var(0, correction=0))
        return output

    def _share_of_spread(self) -> Tensor:
        """How much the variance of this batch's means counts in the running variance; on the device, unread."""
        assert self.num_batches_tracked is not None and self.running_var is not None
        steps = self.num_batches_tracked.to(self.running_var.dtype)
        if self.momentum is None:  # a mean over all steps: what the first one adds stays as 1 / t, which is enough
            return (steps == 1).to(steps.dtype)
        return self.momentum**2 / (2 - self.momentum) * (1 + (1 - self.momentum) ** (2 * steps - 1))

    def _in_one_pass(self, input: Tensor, means: Tensor, variances: Tensor, share: float) -> Tensor:
        """Parts of one size: channel c of part i goes as channel i * C + c of a batch of fewer samples."""
        splits = len(means)
        joined = input.reshape(-1, means.numel(), *input.shape[2:])
        weight, bias = (self.weight.repeat(splits), self.bias.repeat(splits)) if self.affine else (None, None)
        own = means.view(-1), variances.view(-1), weight, bias
        output = F.batch_norm(joined, *own, True, share, self.eps).view(input.shape)
        return output if input.is_contiguous() else torch.empty_like(input).copy_(output)  # as channels last as it was


class FrozenBatchNorm(_NormBase):
    """Normalises by the statistics and weights it has, and learns nothing; what synchronises or measures batch norms
    passes it over."""

    def forward(self, input: Tensor) -> Tensor:
        """B x C x ... of any size."""
        return F.batch_norm(input, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)


class GroupNorm(nn.GroupNorm):
    """torch's; a group of a single value gives the bias in a batch of one, too, which torch refuses there only."""

    def forward(self, input: Tensor) -> Tensor:
        """B x C x ... of any size."""
        return torch.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)


# --- with timm's activations ----------------------------------------------------------------------------------------


class _WithAct(nn.Module):
    """A norm with the dropout and the activation that timm keeps within some of its norms."""

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


class FrozenBatchNormAct(_WithAct, FrozenBatchNorm):
    """See :class:`FrozenBatchNorm` and :class:`_WithAct`."""


class GroupNormAct(_WithAct, GroupNorm):
    """See :class:`GroupNorm` and :class:`_WithAct`."""


# --- in place of batch norms ----------------------------------------------------------------------------------------


def synchronise(model: nn.Module) -> None:
    """Put a synchronised norm in the place of every batch norm within a model, with its parameters and statistics."""
    plain: type[_BatchNorm] = SyncBatchNorm
    with_act: type[_BatchNorm] = SyncBatchNormAct
    if next(model.parameters()).is_cuda:
        from timm.layers.norm_act import SyncBatchNormAct as OnGpu

        plain, with_act = nn.SyncBatchNorm, OnGpu
    _replace(model, lambda norm: _successor(norm, plain, with_act))


def ghost(model: nn.Module, splits: int) -> None:
    """Put a norm over parts of the batch in the place of every batch norm within a model, with its parameters and
    statistics.

    Args:
        splits: how many parts a process makes of its batch.
    """

    def made(norm: _BatchNorm) -> nn.Module:
        other = _successor(norm, GhostBatchNorm, GhostBatchNormAct)
        other.splits = splits
        return other

    _replace(model, made)


def split_norms(model: nn.Module, splits: int, group: dist.ProcessGroup | None = None) -> int:
    """Have every batch norm within a model normalise ``splits`` parts of the batch by themselves from now on, or the
    batches of some processes together: the sub-batch norm of multigrid training (Wu et al. 2020, section 3.4); see
    :class:`GhostBatchNorm`.

    The first call puts other norms in the place of batch norms, so it comes before anything holds on to them (an
    average, several processes, compilation); 1 will do for ``splits`` then. Later calls only set the number. Parameters
    and statistics are the same ones throughout, by names and shapes, so that optimizers, averages and checkpoints know
    nothing of it, and weights go into the model without such norms and come back. Synchronised and frozen norms stay.

    Args:
        splits: how many parts a process makes of its batch: at least 1.
        group: processes that take their statistics together; ``splits`` is 1 then. None: each takes its own.

    Returns:
        how many norms have it.

    Raises:
        ValueError: there are to be no parts, or parts over several processes.

    Example: a batch of 64 clips a process where the norms were made for 8 has ``split_norms(model, 8)``.
    """
    if splits < 1:
        raise ValueError(f"splits: a batch has at least 1 part, not {splits}")
    if splits > 1 and group is not None:
        raise ValueError(f"splits: batches of several processes together have 1 part, not {splits}")
    ghost(model, splits)
    norms = [module for module in model.modules() if isinstance(module, GhostBatchNorm)]
    for norm in norms:
        norm.splits, norm.spread, norm.group = splits, True, group
    return len(norms)


def freeze(model: nn.Module) -> None:
    """Put a norm that learns nothing in the place of every batch norm within a model, with its parameters, which are
    no longer trained, and its statistics."""
    _replace(model, lambda norm: _successor(norm, FrozenBatchNorm, FrozenBatchNormAct).requires_grad_(False))


def group(model: nn.Module, groups: int = 32) -> None:
    """Put a group norm in the place of every batch norm within a model, with its parameters (Wu and He 2018).

    Args:
        groups: of the channels of a norm; 32 in the paper, section 4.

    Raises:
        ValueError: channels cannot be divided into as many groups.
    """

    def made(norm: _BatchNorm) -> nn.Module:
        kind = GroupNormAct if hasattr(norm, "act") else GroupNorm
        return _moved(norm, kind(groups, norm.num_features, norm.eps, norm.affine))

    _replace(model, made)


def _replace(model: nn.Module, made: Callable[[_BatchNorm], nn.Module]) -> None:
    """Put what is made of them in the place of all batch norms that are neither synchronised nor of parts."""
    others = (SyncBatchNorm, nn.SyncBatchNorm, GhostBatchNorm)
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, _BatchNorm) and not isinstance(child, others):
                setattr(module, name, made(child))


def _successor(norm: _BatchNorm, plain: type[Norm], with_act: type[Norm]) -> Norm:
    """One of these kinds with all that ``norm`` has."""
    kind = with_act if hasattr(norm, "act") else plain
    other = kind(norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats)
    return _moved(norm, other, "running_mean", "running_var", "num_batches_tracked")


def _moved(norm: _BatchNorm, other: Successor, *statistics: str) -> Successor:
    """``other`` with parameters, activation and mode of ``norm``, and these statistics."""
    for name in ("weight", "bias", "drop", "act", *statistics):
        if hasattr(norm, name):
            setattr(other, name, getattr(norm, name))
    return other.train(norm.training)
