"""Tensors of all processes in one, as if they had been computed here: gradients find their way back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from opabinia.runtime.processes import all_reduce_mean, meeting_place, rank, world_size


@torch.compiler.disable  # type: ignore[untyped-decorator]
def gather_with_gradient(tensor: Tensor) -> Tensor:
    """Rows of all processes, in the order of ranks, on every process; on one process the tensor itself.

    The gradient of a process's rows is the sum over processes of the gradients of what was gathered. So a loss that
    every process computes of it, each with a weight of ``n * world / (sum of all n)`` for its n samples, has after
    the mean over processes (DDP) the gradient that one process would have.

    Args:
        tensor: n x ...; n may differ from process to process, the rest may not.
    """
    if world_size() == 1:
        return tensor
    counts, _ = _counts(tensor, ())
    return _gathered(tensor, counts)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def gather_batch(features: Tensor, labels: Tensor, ids: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Features, through which gradients flow, and labels of the batch of all processes, each sample once.

    Of a batch with fewer samples than there are processes each has all (``contracts.Row.share``): then those of the
    first count. Every process gets the same numbers to the last bit.

    Args:
        features: n x D, of this process.
        labels: n.
        ids: of the samples, by which copies of a batch are known.
    """
    everybody, everybodys = _each_once((features, labels), ids)
    return everybody, everybodys


@torch.compiler.disable  # type: ignore[untyped-decorator]
def gather_rows(rows: Tensor, ids: Sequence[str]) -> Tensor:
    """As :func:`gather_batch`, of rows alone (n x ...)."""
    (everybody,) = _each_once((rows,), ids)
    return everybody


@torch.compiler.disable  # type: ignore[untyped-decorator]
def shuffle_between_ranks(rows: Tensor, seed: int) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Rows of all processes in a random order, as many to each process as it gave.

    No gradients flow.

    Args:
        rows: n x ..., of this process.
        seed: of the order; the same on every process.

    Returns:
        The rows that fell to this process, and a function that takes what was made of them (n x ...) and gives what
        every process's own rows became, in their order.
    """
    counts = [len(rows)] if world_size() == 1 else _counts(rows, ())[0]
    order = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(seed))
    order = order.to(rows.device, non_blocking=True)  # or indexing would wait for the device
    first = sum(counts[: rank()])
    own = slice(first, first + len(rows))

    def everybodys(given: Tensor) -> Tensor:
        return given if len(counts) == 1 else _gathered(given, counts)

    def back(made: Tensor) -> Tensor:
        return everybodys(made.detach())[order.argsort()[own]]

    return everybodys(rows.detach())[order[own]], back


@torch.compiler.disable  # type: ignore[untyped-decorator]
def per_sample(total: Tensor, samples: int) -> Tensor:
    """A sum over the samples of this process, divided by their number: that of the batch of all processes, where it is
    learned from; else of this process's batch, because then each has as many batches as fall to it.

    A loss that is divided by it counts as on one process. Nobody waits for the device, and no gradient flows.

    Args:
        total: a number, on the device (0-d).
        samples: how many; at least 1.

    Example: 6 in 3 samples here and 2 in 1 sample there are 2 in each.
    """
    both = torch.stack([total.detach().double(), total.new_full((), samples, dtype=torch.float64)])
    if torch.is_grad_enabled():
        (both,) = all_reduce_mean([both])
    return (both[0] / both[1]).float()


def _each_once(tensors: Sequence[Tensor], ids: Sequence[str]) -> Sequence[Tensor]:
    """Rows of all processes, each sample once, of tensors that have a row for each of ``ids``."""
    if world_size() == 1:
        return tensors
    counts, copies = _counts(tensors[0], ids)
    everything = [_gathered(one, counts) for one in tensors]
    return [one[: counts[0]] for one in everything] if copies else everything


def _counts(tensor: Tensor, ids: Iterable[str]) -> tuple[list[int], bool]:
    """How many rows each process has, and whether all have the same few samples.

    Numbers meet on the host where there is a backend for it, so that nobody waits for the device.
    """
    world = world_size()
    digest = blake2b("\0".join(ids).encode(), digest_size=7).digest()
    own = torch.tensor([len(tensor), int.from_bytes(digest)], device=meeting_place())
    everybody = own.new_empty(world, 2)
    dist.all_gather(list(everybody), own)
    rows: list[list[int]] = everybody.tolist()
    return [count for count, _ in rows], all(row == rows[0] for row in rows) and rows[0][0] < world


def _gathered(tensor: Tensor, counts: list[int]) -> Tensor:
    whole: Tensor = _Gather.apply(tensor, counts)
    return whole


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, counts: list[int]) -> Tensor:
        first = sum(counts[: rank()])
        ctx.own = slice(first, first + len(tensor))
        padded = tensor.new_zeros(max(counts), *tensor.shape[1:])
        padded[: len(tensor)] = tensor
        everybody = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(everybody, padded)
        return torch.cat([rows[:count] for rows, count in zip(everybody, counts, strict=True)])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        # Added up in full precision; as a copy, because others may hold this gradient, too.
        whole = gradient.to(torch.promote_types(gradient.dtype, torch.float32), copy=True).contiguous()
        dist.all_reduce(whole)
        return whole[ctx.own].to(gradient.dtype), None
