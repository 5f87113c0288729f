"""A billion samples: resuming at any step needs little memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from opabinia.contracts import Clock, Sampler, SourceInfo
from opabinia.data.loader import training_requests
from opabinia.data.sampling.batches import ConstantPlan, evaluation_batches
from opabinia.data.sampling.permutation import EpochSampler
from opabinia.data.sampling.shard_order import shard_shuffle
from opabinia.runtime.durations import Duration

SEED, BATCH = 5, 64


def shuffled(samples: int) -> Sampler:
    return EpochSampler(samples, SEED)


def by_shard(samples: int) -> Sampler:
    """Return a shuffle of 100,000 shards."""
    source: Any = SimpleNamespace(info=SourceInfo(shards=np.full(100_000, samples // 100_000)))
    return shard_shuffle(source, SEED, BATCH, pool_size=3)


@pytest.mark.parametrize("make", [shuffled, by_shard])
def test_seeking_in_a_billion_samples_needs_little_memory(make: Callable[[int], Sampler]) -> None:
    samples, world, batch = 10**9, 1024, 32 * 1024
    steps = -(-samples // batch)
    tracemalloc.start()
    try:
        sampler, start = make(samples), steps + steps // 2
        plan = ConstantPlan(len(sampler), batch, Duration(3, "ep"))
        assert Clock.at(plan, start).step == start
        request = next(iter(training_requests(plan, sampler.order, 7, world)(start)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 50e6
    assert (request.global_batch.epoch, request.global_batch.first) == (1, steps // 2 * batch)
    assert request.positions.tolist() == list(range(steps // 2 * batch + 7 * 32, steps // 2 * batch + 8 * 32))
    assert len({*request.indices.tolist()}) == 32 and 0 <= request.indices.min() <= request.indices.max() < samples
    assert request.indices.tolist() == make(samples).order(1)(request.positions).tolist()


def test_an_evaluation_of_a_billion_samples_has_few_rows() -> None:
    """Each of 1,024 processes has its own rows; all of them cover all batches."""
    last = -(-(10**9) // 256) - 1
    result = [list(evaluation_batches(10**9, 256, rank, 1024)) for rank in (0, last % 1024)]
    assert [(rows[0].step, rows[1].step, len(rows)) for rows in result] == [
        (0, 1024, last // 1024 + 1),
        (last % 1024, last % 1024 + 1024, last // 1024 + 1),
    ]
    assert result[1][-1].step == last and result[1][-1].first + result[1][-1].count == 10**9
