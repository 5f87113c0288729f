"""A billion samples: resuming at any step needs little memory; small orders are compared with lists."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from opabinia.contracts import Clock, Sampler, SourceInfo
from opabinia.data.loader import Request, training_requests
from opabinia.data.sampling.batches import ConstantPlan, evaluation_batches
from opabinia.data.sampling.permutation import EpochSampler, Permutation
from opabinia.data.sampling.shard_order import ShardShuffle
from opabinia.runtime.durations import Duration
from opabinia.runtime.seeds import DRAW, ORDER, hash32

SEED, BATCH = 5, 64


def shuffled(samples: int) -> Sampler:
    return EpochSampler(samples, SEED)


def by_shard(samples: int) -> Sampler:
    """Return a shard shuffle of 100,000 shards, or of shards of uneven sizes if there are fewer samples."""
    counts = np.full(100_000, samples // 100_000) if samples >= 100_000 else uneven(samples)
    source: Any = SimpleNamespace(info=SourceInfo(shards=np.asarray(counts)))
    return ShardShuffle(source, SEED, BATCH, pool_size=3)


def uneven(samples: int) -> list[int]:
    counts = [1 + number * 7 % 11 for number in range(samples)]
    full = [count for count, end in zip(counts, accumulate(counts), strict=True) if end < samples]
    return [*full, samples - sum(full)]


def listed_shuffled(samples: int, epoch: int) -> list[int]:
    permutation = Permutation(samples, hash32(ORDER, SEED, epoch))
    return [int(permutation(np.array([position]))[0]) for position in range(samples)]


def listed_by_shard(samples: int, epoch: int) -> list[int]:
    """Return the order, computed with lists of lists."""
    counts = uneven(samples)
    ends = list(accumulate(counts))
    samples_of_shards = [list(range(end - count, end)) for count, end in zip(counts, ends, strict=True)]
    key = hash32(ORDER, SEED, epoch)
    shuffled_shards = [
        samples_of_shards[shard] for shard in Permutation(len(counts), key)(np.arange(len(counts))).tolist()
    ]
    pools = -(-len(counts) // 3)
    result = []
    for pool in range(pools):
        pool_shards = shuffled_shards[pool * len(counts) // pools : (pool + 1) * len(counts) // pools]
        pool_samples = [sample for shard in pool_shards for sample in shard]
        order = Permutation(len(pool_samples), hash32(DRAW, key, pool))(np.arange(len(pool_samples)))
        result += [pool_samples[position] for position in order.tolist()]
    return result


samplers = pytest.mark.parametrize("make", [shuffled, by_shard])


def after_seek(make: Callable[[int], Sampler], samples: int, rank: int, world: int, batch: int, start: int) -> Request:
    """Return the first request of a process that resumes at step ``start``."""
    sampler = make(samples)
    plan = ConstantPlan(len(sampler), batch, Duration(3, "ep"))
    Clock.at(plan, start)
    return next(iter(training_requests(plan, sampler.order, rank, world)(start)))


@samplers
def test_seeking_in_a_billion_samples_needs_little_memory(make: Callable[[int], Sampler]) -> None:
    samples, world, batch = 10**9, 1024, 32 * 1024
    steps = -(-samples // batch)
    tracemalloc.start()
    try:
        request = after_seek(make, samples, 7, world, batch, steps + steps // 2)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 50e6
    assert (request.global_batch.epoch, request.global_batch.first) == (1, steps // 2 * batch)
    assert request.positions.tolist() == list(range(steps // 2 * batch + 7 * 32, steps // 2 * batch + 8 * 32))
    assert len({*request.indices.tolist()}) == 32 and 0 <= request.indices.min() <= request.indices.max() < samples
    assert request.indices.tolist() == make(samples).order(1)(request.positions).tolist()


@pytest.mark.parametrize(("make", "listed"), [(shuffled, listed_shuffled), (by_shard, listed_by_shard)])
def test_seeking_agrees_with_lists(make: Callable[[int], Sampler], listed: Callable[[int, int], list[int]]) -> None:
    samples, world, batch = 199, 3, 20
    for epoch in (0, 1, 2):
        expected = listed(samples, epoch)
        assert sorted(expected) == list(range(samples))
        for step in range(10):
            indices = [
                after_seek(make, samples, rank, world, batch, 10 * epoch + step).indices for rank in range(world)
            ]
            assert np.concatenate(indices).tolist() == expected[step * batch : (step + 1) * batch]


def test_an_evaluation_of_a_billion_samples_has_few_rows() -> None:
    """Each of 1,024 processes has its own rows; all of them cover all batches."""
    last = -(-(10**9) // 256) - 1
    result = [list(evaluation_batches(10**9, 256, rank, 1024)) for rank in (0, last % 1024)]
    assert [(rows[0].step, rows[1].step, len(rows)) for rows in result] == [
        (0, 1024, last // 1024 + 1),
        (last % 1024, last % 1024 + 1024, last // 1024 + 1),
    ]
    assert result[1][-1].step == last and result[1][-1].first + result[1][-1].count == 10**9
