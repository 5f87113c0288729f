"""Requests of batches: which samples of a source a process reads for a batch, from any step on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby, islice
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from opabinia.contracts import GlobalBatch, Indices, Plan
from opabinia.data.sampling.batches import evaluation_batches
from opabinia.data.sampling.epoch_order import Order


class Request(NamedTuple):
    """The samples of one batch that this process reads.

    Attributes:
        global_batch: the global batch.
        positions: of this process's samples in the epoch (int64, B).
        indices: of the same samples in the source (int64, B).
    """

    global_batch: GlobalBatch
    positions: Indices
    indices: Indices


Requests = Callable[[int], Iterable[Request]]
"""Returns all requests from a step on."""

_POSITIONS_PER_LOOKUP = 4096


def training_requests(plan: Plan, orders: Callable[[int], Order], rank: int, world: int) -> Requests:
    """Return this process's share of every batch of ``plan``; ``orders`` returns the order of an epoch."""

    def requests(start: int) -> Iterator[Request]:
        planned_batches = map(plan.global_batch, range(start, plan.total_steps))
        for epoch, batches in groupby(planned_batches, attrgetter("epoch")):
            order, count = orders(epoch), 1
            # Looking up thousands of positions takes hardly longer than looking up one.
            while chunk := list(islice(batches, count)):
                positions = [planned.first + _array(planned.rank_range(rank, world)) for planned in chunk]
                count = max(1, _POSITIONS_PER_LOOKUP // len(positions[0]))
                indices, first = order(np.concatenate(positions)), 0
                for planned, local in zip(chunk, positions, strict=True):
                    yield Request(planned, local, indices[first : first + len(local)])
                    first += len(local)

    return requests


def evaluation_requests(samples: int, batch_size: int, rank: int, world: int) -> Requests:
    """Return whole batches in the order of the source: one pass, in which each sample is read by exactly one
    process."""

    def requests(start: int) -> Iterator[Request]:
        for global_batch in evaluation_batches(samples, batch_size, rank, world):
            if global_batch.step >= start:
                positions = global_batch.first + _array(range(global_batch.count))
                yield Request(global_batch, positions, positions)

    return requests


def _array(numbers: range) -> Indices:
    return np.arange(numbers.start, numbers.stop, dtype=np.int64)
