"""The shard shuffle: its order, its pools of shards, and batches with any number of processes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, groupby
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision import tv_tensors

from opabinia.contracts import Sample, Source, SourceInfo
from opabinia.data.loader import BatchReader, Loader, training_requests
from opabinia.data.sampling.batches import ConstantPlan
from opabinia.data.sampling.shard_order import ShardShuffle
from opabinia.data.sources import Synthetic
from opabinia.runtime.durations import Duration

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # 4 workers on 2 cores, on purpose


class Sharded(Source):
    """The attributes of a source that sampler and loader use."""

    def __init__(self, counts: Sequence[int]) -> None:
        self.info = SourceInfo(channels=1, classes=("a",), shards=np.array(counts, dtype=np.int64))
        self.shard_of = np.repeat(np.arange(len(counts)), counts)

    def __len__(self) -> int:
        return len(self.shard_of)

    def __getitem__(self, index: int) -> Sample:
        image = tv_tensors.Image(torch.full((1, 2, 2), index % 256, dtype=torch.uint8))
        return {"image": image, "label": 0, "id": str(index)}


BATCH = 16
UNEVEN = Sharded([7, 1, 30, 4, 12, 9, 9, 2, 5, 11])


def epoch(sampler: ShardShuffle, number: int = 0) -> list[int]:
    return sampler.order(number)(np.arange(len(sampler))).tolist()


sharded = st.lists(st.integers(1, 12), min_size=1, max_size=12).map(Sharded)


def test_the_order_never_changes() -> None:
    """Another order would change the data sequence of every existing run over shards."""
    assert epoch(ShardShuffle(Sharded([3, 2, 4]), 7, BATCH, pool_size=2)) == [3, 4, 0, 6, 2, 5, 7, 1, 8]


@given(sharded, st.integers(0, 2**31 - 1), st.integers(1, 14), st.integers(0, 100))
def test_each_sample_occurs_once_per_epoch(source: Sharded, seed: int, pool_size: int, number: int) -> None:
    sampler = ShardShuffle(source, seed, BATCH, pool_size=pool_size)
    assert sorted(epoch(sampler, number)) == list(range(len(source)))


@given(sharded, st.integers(0, 2**31 - 1), st.integers(1, 14), st.data())
def test_a_single_position_has_the_same_index(source: Sharded, seed: int, pool_size: int, data: st.DataObject) -> None:
    sampler = ShardShuffle(source, seed, BATCH, pool_size=pool_size)
    expected, order = epoch(sampler, 3), sampler.order(3)
    positions = data.draw(st.lists(st.integers(0, len(source) - 1), min_size=1, max_size=20))
    assert order(np.array(positions)).tolist() == [expected[position] for position in positions]
    assert int(order(np.array(positions[0]))) == expected[positions[0]]
    square = order(np.array([positions, positions]))
    assert square.dtype == np.int64 and square.tolist() == [[expected[position] for position in positions]] * 2


def test_the_order_depends_on_seed_and_epoch() -> None:
    first, repeated, other = (
        ShardShuffle(UNEVEN, 3, BATCH),
        ShardShuffle(UNEVEN, 3, BATCH),
        ShardShuffle(UNEVEN, 4, BATCH),
    )
    assert epoch(first, 2) == epoch(repeated, 2)
    assert epoch(first, 2) != epoch(first, 3) and epoch(first, 2) != epoch(other, 2)


@pytest.mark.parametrize(
    ("pool_size", "pools"), [(1, [1] * 10), (3, [2, 3, 2, 3]), (4, [3, 3, 4]), (10, [10]), (16, [10])]
)
def test_pools_of_shards_are_read_in_turn(pool_size: int, pools: list[int]) -> None:
    """All samples of a pool precede those of the next; the shards are divided evenly among the pools."""
    source = Sharded([30] * 10)
    shards = source.shard_of[epoch(ShardShuffle(source, 5, BATCH, pool_size=pool_size))]
    shards_of_pools = np.split(shards, np.cumsum(pools)[:-1] * 30)
    assert [len({*pool.tolist()}) for pool in shards_of_pools] == pools


def test_the_samples_of_a_batch_come_from_all_shards_of_the_pool() -> None:
    source = Sharded([100] * 8)
    for number in range(5):
        shards = source.shard_of[epoch(ShardShuffle(source, 0, BATCH, pool_size=4), number)]
        for start in range(0, 800, 50):
            assert len({*shards[start : start + 50].tolist()}) == 4
        runs = [len(list(run)) for _, run in groupby(shards.tolist())]
        assert np.mean(runs) < 1.5  # 4 shards drawn at random: 1.33


def test_pools_differ_between_epochs() -> None:
    source = Sharded([10] * 8)
    sampler = ShardShuffle(source, 0, BATCH, pool_size=4)
    first = {frozenset(source.shard_of[epoch(sampler, number)[:40]].tolist()) for number in range(20)}
    assert len(first) > 10


@pytest.mark.parametrize("position", [-1, 90])
def test_a_position_out_of_range_raises(position: int) -> None:
    with pytest.raises(IndexError, match="of an order of 90"):
        ShardShuffle(UNEVEN, 0, BATCH).order(0)(np.array([0, position]))


def test_a_source_without_shards_raises() -> None:
    with pytest.raises(ValueError, match="shard_shuffle needs the source 'shards'; a Synthetic has none"):
        ShardShuffle(Synthetic(), 0, BATCH)


# --- in a run ---------------------------------------------------------------------------------------------------------


def batches(world: int, workers: int, start: int = 0) -> list[list[str]]:
    """Return the ids of every global batch from step ``start`` on."""
    sampler = ShardShuffle(UNEVEN, 11, BATCH, pool_size=3)
    plan = ConstantPlan(len(sampler), BATCH, Duration.parse("2ep"))
    slices: list[list[Any]] = []
    for rank in range(world):
        requests = training_requests(plan, sampler.order, rank, world)
        loader = Loader(BatchReader(UNEVEN, rank=rank), requests, num_workers=workers)
        slices.append([batch["id"] for _, batch in loader.iterate(start)])
        loader.close()
    return [list(chain(*parts)) for parts in zip(*slices, strict=True)]


@pytest.fixture(scope="module")
def expected_batches() -> list[list[str]]:
    return batches(world=1, workers=0)


@pytest.mark.parametrize("workers", [0, 1, 4])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_batches_are_the_same_with_any_number_of_processes(
    world: int, workers: int, expected_batches: list[list[str]]
) -> None:
    assert batches(world, workers) == expected_batches


@pytest.mark.parametrize("start", range(0, 12, 3))
def test_batches_resume_at_any_step(start: int, expected_batches: list[list[str]]) -> None:
    assert batches(world=2, workers=0, start=start) == expected_batches[start:]
