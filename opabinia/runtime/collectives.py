"""Differentiable collectives: gather tensors of all ranks so that gradients flow back to the rank they come from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from opabinia.runtime.device import move_tensor
from opabinia.runtime.processes import all_reduce_mean, autograd_group, collective_device, rank, world_size

_is_local = False
_counted = 1.0


@contextmanager
def local_batches() -> Iterator[None]:
    """Inside, :func:`gather_batch` and :func:`gather_rows` return what they are given: in evaluation each batch belongs
    to one rank, and ranks have different numbers of batches."""
    global _is_local
    _is_local = True
    try:
        yield
    finally:
        _is_local = False


@contextmanager
def counted_samples(fraction: float) -> Iterator[None]:
    """Inside, the samples of this rank count with this factor in :func:`mean_over_samples`.

    Args:
        fraction: fraction of samples that count in the loss, the others being repetitions of them. If it is 0,
            samples of this rank count only where no rank has others.
    """
    global _counted
    before, _counted = _counted, _counted * max(fraction, 1e-12)
    try:
        yield
    finally:
        _counted = before


@torch.compiler.disable  # type: ignore[untyped-decorator]
def gather_batch(features: Tensor, labels: Tensor, ids: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Return features (with gradients) and labels of the global batch, each sample once.

    If a batch has fewer samples than there are ranks, every rank has all of them (``contracts.GlobalBatch.share``):
    then those of rank 0 are returned. Results are bitwise identical on all ranks.

    The gradient of a rank's rows is the sum over ranks of the gradients of the gathered rows. So a loss of them that
    every rank computes with a weight of ``n * world / (sum of all n)`` for its n samples has, after the mean over ranks
    (DDP), the gradient that a single process would have.

    Args:
        features: n x D, of this rank.
        labels: n.
        ids: ids of the samples, by which copies of a batch are recognized.
    """
    all_features, all_labels = _gather_unique((features, labels), ids)
    return all_features, all_labels


@torch.compiler.disable  # type: ignore[untyped-decorator]
def gather_rows(rows: Tensor, ids: Sequence[str]) -> Tensor:
    """Return the rows (n x ...) of the global batch, each sample once; see :func:`gather_batch`."""
    (all_rows,) = _gather_unique((rows,), ids)
    return all_rows


@torch.compiler.disable  # type: ignore[untyped-decorator]
def shuffle_between_ranks(rows: Tensor, seed: int) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Shuffle rows between all ranks; every rank gets as many as it gave. No gradients flow.

    Args:
        rows: n x ..., of this rank.
        seed: seed of the order; the same on every rank.

    Returns:
        The shuffled rows of this rank, and a function that takes their outputs (n x ...) and returns the outputs of
        this rank's own rows, in their original order.
    """
    counts = [len(rows)] if world_size() == 1 else _counts(rows, ())[0]
    order = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(seed))
    order = move_tensor(order, rows.device)  # or indexing would wait for the device
    first = sum(counts[: rank()])
    rank_rows = slice(first, first + len(rows))

    def gather_all(tensor: Tensor) -> Tensor:
        return tensor if len(counts) == 1 else _gather(tensor, counts)

    def unshuffle(outputs: Tensor) -> Tensor:
        return gather_all(outputs.detach())[order.argsort()[rank_rows]]

    return gather_all(rows.detach())[order[rank_rows]], unshuffle


@torch.compiler.disable  # type: ignore[untyped-decorator]
def mean_over_samples(total: Tensor, samples: int) -> Tensor:
    """Divide a sum over the samples of this rank by their number.

    With gradients enabled, sum and number are those of the global batch, so that a loss divided by the result counts as
    in a single process; otherwise those of this rank, because in evaluation ranks have different numbers of batches.
    The host does not wait for the device, and no gradient flows.

    Args:
        total: the sum, on the device (0-d).
        samples: their number, at least 1.

    Example: 6 in 3 samples on one rank and 2 in 1 sample on the other are 2 on both.
    """
    count = total.new_full((), samples, dtype=torch.float32)
    if world_size() == 1 or not torch.is_grad_enabled():
        return total.detach().float() / count
    # In double precision, which GPUs of Apple lack; only a single process runs on them.
    both = torch.stack([total.detach().double(), count.double()])
    (both,) = all_reduce_mean([both * _counted])
    return (both[0] / both[1]).float()


def _gather_unique(tensors: Sequence[Tensor], ids: Sequence[str]) -> Sequence[Tensor]:
    """Gather tensors that have a row for each of ``ids``, each sample once."""
    if _is_local or world_size() == 1:
        return tensors
    counts, are_copies = _counts(tensors[0], ids)
    gathered = [_gather(tensor, counts) for tensor in tensors]
    return [tensor[: counts[0]] for tensor in gathered] if are_copies else gathered


def _counts(tensor: Tensor, ids: Iterable[str]) -> tuple[list[int], bool]:
    """The number of rows of each rank, and whether all ranks have the same few samples.

    They are exchanged on the host if there is a backend for it, so that nothing waits for the device.
    """
    world = world_size()
    digest = blake2b("\0".join(ids).encode(), digest_size=7).digest()
    count_and_digest = torch.tensor([len(tensor), int.from_bytes(digest)], device=collective_device())
    gathered = count_and_digest.new_empty(world, 2)
    dist.all_gather(list(gathered), count_and_digest)
    rows: list[list[int]] = gathered.tolist()
    return [count for count, _ in rows], all(row == rows[0] for row in rows) and rows[0][0] < world


def _gather(tensor: Tensor, counts: list[int]) -> Tensor:
    gathered: Tensor = _Gather.apply(tensor, counts)
    return gathered


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, counts: list[int]) -> Tensor:
        first = sum(counts[: rank()])
        ctx.rank_rows = slice(first, first + len(tensor))
        padded = tensor.new_zeros(max(counts), *tensor.shape[1:])
        padded[: len(tensor)] = tensor
        gathered = [torch.empty_like(padded) for _ in counts]
        ctx.group = autograd_group()
        dist.all_gather(gathered, padded, group=ctx.group)
        return torch.cat([rows[:count] for rows, count in zip(gathered, counts, strict=True)])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        # Summed in full precision; as a copy, because others may hold this gradient, too.
        whole = gradient.to(torch.promote_types(gradient.dtype, torch.float32), copy=True).contiguous()
        dist.all_reduce(whole, group=ctx.group)
        return whole[ctx.rank_rows].to(gradient.dtype), None
