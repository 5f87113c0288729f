"""A billion samples: going on anywhere takes little memory, by the same code that is compared with lists here."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import numpy as np
import pytest

from opabinia.contracts import Clock, Sampler
from opabinia.data.loader import Request, training_requests
from opabinia.data.sampling.batches import ConstantPlan, evaluation_rows
from opabinia.data.sampling.permutation import EpochSampler, Permutation
from opabinia.data.sampling.shard_order import ShardShuffle
from opabinia.runtime.durations import Duration
from opabinia.runtime.seeds import DRAW, ORDER, hash32

SEED, BATCH = 5, 64


class Sharded:
    def __init__(self, shards: Any) -> None:
        self.shards = shards


def shuffled(samples: int) -> Sampler:
    return EpochSampler(samples, SEED)


def by_shard(samples: int) -> Sampler:
    """In 100,000 shards where there are so many samples, else in some of uneven sizes."""
    counts = np.full(100_000, samples // 100_000) if samples >= 100_000 else uneven(samples)
    source: Any = Sharded(counts)
    return ShardShuffle(source, SEED, BATCH, pool_size=3)


def uneven(samples: int) -> list[int]:
    counts = [1 + number * 7 % 11 for number in range(samples)]
    full = [count for count, end in zip(counts, accumulate(counts), strict=True) if end < samples]
    return [*full, samples - sum(full)]


def listed_shuffled(samples: int, epoch: int) -> list[int]:
    permutation = Permutation(samples, hash32(ORDER, SEED, epoch))
    return [int(permutation(np.array([position]))[0]) for position in range(samples)]


def listed_by_shard(samples: int, epoch: int) -> list[int]:
    """With lists of lists."""
    counts = uneven(samples)
    ends = list(accumulate(counts))
    members = [list(range(end - count, end)) for count, end in zip(counts, ends, strict=True)]
    key = hash32(ORDER, SEED, epoch)
    in_turn = [members[shard] for shard in Permutation(len(counts), key)(np.arange(len(counts))).tolist()]
    pools = -(-len(counts) // 3)
    result = []
    for pool in range(pools):
        some = in_turn[pool * len(counts) // pools : (pool + 1) * len(counts) // pools]
        of_pool = [sample for shard in some for sample in shard]
        order = Permutation(len(of_pool), hash32(DRAW, key, pool))(np.arange(len(of_pool)))
        result += [of_pool[place] for place in order.tolist()]
    return result


samplers = pytest.mark.parametrize("make", [shuffled, by_shard])


def after_seek(make: Callable[[int], Sampler], samples: int, rank: int, world: int, batch: int, start: int) -> Request:
    """What a process reads first that goes on at step ``start``."""
    sampler = make(samples)
    plan = ConstantPlan(len(sampler), batch, Duration(3, "ep"))
    Clock.at(plan, start)
    return next(iter(training_requests(plan, sampler.order, rank, world)(start)))


@samplers
def test_seeking_in_a_billion_samples_takes_little_memory(make: Callable[[int], Sampler]) -> None:
    samples, world, batch = 10**9, 1024, 32 * 1024
    steps = -(-samples // batch)
    tracemalloc.start()
    try:
        request = after_seek(make, samples, 7, world, batch, steps + steps // 2)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 50e6
    assert (request.row.epoch, request.row.first) == (1, steps // 2 * batch)
    assert request.positions.tolist() == list(range(steps // 2 * batch + 7 * 32, steps // 2 * batch + 8 * 32))
    assert len({*request.indices.tolist()}) == 32 and 0 <= request.indices.min() <= request.indices.max() < samples
    assert request.indices.tolist() == make(samples).order(1)(request.positions).tolist()


@pytest.mark.parametrize(("make", "listed"), [(shuffled, listed_shuffled), (by_shard, listed_by_shard)])
def test_seeking_finds_what_a_list_holds(
    make: Callable[[int], Sampler], listed: Callable[[int, int], list[int]]
) -> None:
    samples, world, batch = 199, 3, 20
    for epoch in (0, 1, 2):
        whole = listed(samples, epoch)
        assert sorted(whole) == list(range(samples))
        for step in range(10):
            of_batch = [
                after_seek(make, samples, rank, world, batch, 10 * epoch + step).indices for rank in range(world)
            ]
            assert np.concatenate(of_batch).tolist() == whole[step * batch : (step + 1) * batch]


def test_an_evaluation_of_a_billion_samples_is_few_rows() -> None:
    """Of 1,024 processes each has its own; together they have all batches."""
    last = -(-(10**9) // 256) - 1
    result = [list(evaluation_rows(10**9, 256, rank, 1024)) for rank in (0, last % 1024)]
    assert [(rows[0].step, rows[1].step, len(rows)) for rows in result] == [
        (0, 1024, last // 1024 + 1),
        (last % 1024, last % 1024 + 1024, last // 1024 + 1),
    ]
    assert result[1][-1].step == last and result[1][-1].first + result[1][-1].count == 10**9
