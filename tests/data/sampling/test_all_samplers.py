"""What holds for every sampler: its golden order, and batches with any number of processes, from any step on."""

import tracemalloc
from collections.abc import Callable
from itertools import chain
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from opabinia.contracts import Clock, Indices, RaggedArray, Sample, Sampler, Source, SourceInfo
from opabinia.data.sampling.batches import ConstantPlan, evaluation_batches
from opabinia.data.sampling.detection_samplers import aspect_ratio_batches, repeat_factor
from opabinia.data.sampling.epoch_order import EpochSampler
from opabinia.data.sampling.identity_samplers import balanced_identities, identities, mixed_identities
from opabinia.data.sampling.requests import training_requests
from opabinia.data.sampling.samplers import balanced, mixed_sources, repeated, subset, weighted
from opabinia.data.sampling.shard_order import shard_shuffle
from opabinia.runtime.durations import Duration

SAMPLES, BATCH = 60, 12


class Everything(Source):
    """All attributes of a source that samplers use."""

    def __init__(self) -> None:
        random = np.random.default_rng(0)
        self.info = SourceInfo(
            classes=tuple("abcdef"),
            labels=random.integers(0, 6, SAMPLES),
            cameras=random.integers(0, 3, SAMPLES),
            starts=(0, 20, 30),
            sizes=random.integers(10, 50, (SAMPLES, 2)),
            present=RaggedArray(np.unique(random.integers(0, 6, number % 4)) for number in range(SAMPLES)),
            shards=np.array([7, 1, 20, 4, 12, 9, 7]),
        )

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Sample:
        raise NotImplementedError


SOURCE = Everything()
SAMPLERS: dict[str, tuple[Callable[[int], Sampler], list[int]]] = {
    "epoch": (lambda seed: EpochSampler(SAMPLES, seed), [8, 12, 9, 15, 53, 17, 1, 48, 39, 31, 25, 6]),
    "weighted": (
        lambda seed: weighted(SOURCE, seed, BATCH, weighting="sqrt"),
        [23, 51, 51, 41, 18, 21, 19, 37, 37, 57, 20, 26],
    ),
    "balanced": (
        lambda seed: balanced(SOURCE, seed, BATCH, length=23),
        [12, 57, 39, 53, 17, 56, 37, 4, 50, 34, 15, 50],
    ),
    "mixed_sources": (
        lambda seed: mixed_sources(SOURCE, seed, BATCH, weights=[1, 1, 2], length=47),
        [58, 18, 34, 44, 23, 41, 26, 21, 56, 16, 20, 38],
    ),
    "repeated": (lambda seed: repeated(SOURCE, seed, BATCH), [8, 8, 8, 12, 12, 12, 9, 9, 9, 15, 15, 15]),
    "subset": (
        lambda seed: subset(SOURCE, seed, BATCH, num_samples=29),
        [39, 42, 48, 14, 11, 27, 18, 8, 29, 43, 56, 59],
    ),
    "shards": (
        lambda seed: shard_shuffle(SOURCE, seed, BATCH, pool_size=3),
        [18, 57, 53, 13, 9, 17, 14, 19, 12, 58, 56, 20],
    ),
    "identities": (
        lambda seed: identities(SOURCE, seed, BATCH, instances=3),
        [2, 13, 46, 57, 15, 45, 40, 56, 38, 6, 43, 44],
    ),
    "balanced_identities": (
        lambda seed: balanced_identities(SOURCE, seed, BATCH, instances=3),
        [25, 33, 14, 42, 7, 41, 9, 22, 28, 38, 39, 24],
    ),
    "mixed_identities": (
        lambda seed: mixed_identities(SOURCE, seed, BATCH, weights=[2, 1, 1], domain="camera", instances=3, length=36),
        [22, 57, 22, 29, 9, 21, 17, 2, 1, 5, 32, 36],
    ),
    "aspect_ratio": (
        lambda seed: aspect_ratio_batches(SOURCE, seed, 6),
        [23, 38, 27, 22, 40, 10, 34, 19, 24, 21, 18, 45],
    ),
    "repeat_factor": (
        lambda seed: repeat_factor(SOURCE, seed, 6, threshold=0.9),
        [15, 31, 57, 15, 21, 27, 45, 34, 33, 7, 33, 18],
    ),
    "aspect_ratio of repeat_factor": (
        lambda seed: aspect_ratio_batches(SOURCE, seed, 6, sampler=lambda *args: repeat_factor(*args, threshold=0.9)),
        [0, 3, 5, 49, 6, 46, 42, 51, 9, 28, 53, 26],
    ),
}


def epoch(sampler: Sampler, number: int = 0) -> Indices:
    return sampler.order(number)(np.arange(len(sampler)))


@pytest.mark.parametrize(("make", "golden"), SAMPLERS.values(), ids=SAMPLERS)
def test_the_order_never_changes_and_depends_on_seed_and_epoch(
    make: Callable[[int], Sampler], golden: list[int]
) -> None:
    """Another order would change the data of every existing run. Any position can be looked up alone."""
    np.random.seed(1)
    state = np.random.get_state()[1].tolist()  # type: ignore[index]
    sampler = make(3)
    expected, order = epoch(sampler, 2), sampler.order(2)
    assert expected[:12].tolist() == golden and expected.dtype == np.int64
    other = sampler.order(7)
    for position in range(0, len(sampler), 5):
        assert order(np.array(position)) == expected[position] and other(np.array(position)).shape == ()
    even = len(sampler) // 2 * 2
    assert order(np.zeros((0, 2), dtype=np.int64)).shape == (0, 2)
    assert order(np.arange(even)[::-1].reshape(2, -1)).ravel().tolist() == expected[:even][::-1].tolist()
    assert (
        epoch(make(3), 2).tolist() == expected.tolist() not in (epoch(sampler, 3).tolist(), epoch(make(4), 2).tolist())
    )
    assert np.random.get_state()[1].tolist() == state  # type: ignore[index]


@pytest.mark.parametrize(("make", "golden"), SAMPLERS.values(), ids=SAMPLERS)
def test_batches_are_the_same_with_any_number_of_processes_and_from_any_step(
    make: Callable[[int], Sampler], golden: list[int]
) -> None:
    sampler = make(11)
    plan = ConstantPlan(len(sampler), BATCH, Duration(3, "ep"))

    def batches(rank: int = 0, world: int = 1, start: int = 0) -> list[list[int]]:
        return [request.indices.tolist() for request in training_requests(plan, sampler.order, rank, world)(start)]

    expected = batches()
    assert list(chain(*expected)) == np.concatenate([epoch(sampler, number) for number in range(3)]).tolist()
    for world in (2, 3, 4):
        for batch, *parts in zip(expected, *(batches(rank, world) for rank in range(world)), strict=True):
            assert list(chain(*parts)) == batch * (1 if len(batch) >= world else world)
    assert batches(start=4) == expected[4:]


# --- a billion samples ------------------------------------------------------------------------------------------------

MANY = 10**9


def by_shard() -> Sampler:
    source: Any = SimpleNamespace(info=SourceInfo(shards=np.full(100_000, MANY // 100_000)))
    return shard_shuffle(source, 5, BATCH, pool_size=3)


@pytest.mark.parametrize("make", [lambda: EpochSampler(MANY, 5), by_shard], ids=["shuffled", "by shard"])
def test_seeking_in_a_billion_samples_needs_little_memory(make: Callable[[], Sampler]) -> None:
    world, batch = 1024, 32 * 1024
    steps = -(-MANY // batch)
    tracemalloc.start()
    try:
        sampler, start = make(), steps + steps // 2
        plan = ConstantPlan(len(sampler), batch, Duration(3, "ep"))
        assert Clock.at(plan, start).step == start
        request = next(iter(training_requests(plan, sampler.order, 7, world)(start)))
        assert tracemalloc.get_traced_memory()[1] < 50e6
    finally:
        tracemalloc.stop()
    assert (request.global_batch.epoch, request.global_batch.first) == (1, steps // 2 * batch)
    assert request.positions.tolist() == list(range(steps // 2 * batch + 7 * 32, steps // 2 * batch + 8 * 32))
    assert len({*request.indices.tolist()}) == 32 and 0 <= request.indices.min() <= request.indices.max() < MANY
    assert request.indices.tolist() == make().order(1)(request.positions).tolist()


def test_ranks_enumerate_only_the_batches_that_they_evaluate() -> None:
    last = -(-MANY // 256) - 1
    first_rank, last_rank = (list(evaluation_batches(MANY, 256, rank, 1024)) for rank in (0, last % 1024))
    assert [batch.step for batch in first_rank[:2]] == [0, 1024]
    assert [batch.step for batch in last_rank[:2]] == [last % 1024, last % 1024 + 1024]
    assert len(first_rank) == len(last_rank) == last // 1024 + 1
    assert last_rank[-1].step == last and last_rank[-1].first + last_rank[-1].count == MANY
