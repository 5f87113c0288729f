"""The shard shuffle: its pools of shards."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opabinia.contracts import Sample, Sampler, Source, SourceInfo
from opabinia.data.sampling.shard_order import shard_shuffle
from opabinia.data.sources import Synthetic


class Sharded(Source):
    """The attributes of a source that the sampler uses."""

    def __init__(self, counts: Sequence[int]) -> None:
        self.info = SourceInfo(shards=np.array(counts, dtype=np.int64))
        self.shard_of = np.repeat(np.arange(len(counts)), counts)

    def __len__(self) -> int:
        return len(self.shard_of)

    def __getitem__(self, index: int) -> Sample:
        raise NotImplementedError


BATCH = 16
UNEVEN = Sharded([7, 1, 30, 4, 12, 9, 9, 2, 5, 11])


def epoch(sampler: Sampler, number: int = 0) -> list[int]:
    return sampler.order(number)(np.arange(len(sampler))).tolist()


sharded = st.lists(st.integers(1, 12), min_size=1, max_size=12).map(Sharded)


@given(sharded, st.integers(0, 2**31 - 1), st.integers(1, 14), st.integers(0, 100))
def test_each_sample_occurs_once_per_epoch(source: Sharded, seed: int, pool_size: int, number: int) -> None:
    sampler = shard_shuffle(source, seed, BATCH, pool_size=pool_size)
    assert sorted(epoch(sampler, number)) == list(range(len(source)))


@pytest.mark.parametrize(
    ("pool_size", "pools"), [(1, [1] * 10), (3, [2, 3, 2, 3]), (4, [3, 3, 4]), (10, [10]), (16, [10])]
)
def test_pools_of_shards_are_read_in_turn(pool_size: int, pools: list[int]) -> None:
    """All samples of a pool precede those of the next; the shards are divided evenly among the pools."""
    source = Sharded([30] * 10)
    shards = source.shard_of[epoch(shard_shuffle(source, 5, BATCH, pool_size=pool_size))]
    shards_of_pools = np.split(shards, np.cumsum(pools)[:-1] * 30)
    assert [len({*pool.tolist()}) for pool in shards_of_pools] == pools


def test_the_samples_of_a_batch_come_from_all_shards_of_the_pool() -> None:
    source = Sharded([100] * 8)
    for number in range(5):
        shards = source.shard_of[epoch(shard_shuffle(source, 0, BATCH, pool_size=4), number)]
        for start in range(0, 800, 50):
            assert len({*shards[start : start + 50].tolist()}) == 4
        runs = [len(list(run)) for _, run in groupby(shards.tolist())]
        assert np.mean(runs) < 1.5  # 4 shards drawn at random: 1.33


@pytest.mark.parametrize("position", [-1, 90])
def test_a_position_out_of_range_raises(position: int) -> None:
    with pytest.raises(IndexError, match="of an order of 90"):
        shard_shuffle(UNEVEN, 0, BATCH).order(0)(np.array([0, position]))


def test_a_source_without_shards_raises() -> None:
    with pytest.raises(ValueError, match="shard_shuffle needs the source 'shards'; a Synthetic has none"):
        shard_shuffle(Synthetic(), 0, BATCH)
