"""Ranks of large worlds without machines: batch shares, sampler positions, shards of parameters and checkpoints,
memory.

Those with a process group run in a process of their own (``main`` below).
"""

from __future__ import annotations

import json
from concurrent.futures import ProcessPoolExecutor
from itertools import accumulate
from multiprocessing import get_context
from typing import Any

import numpy as np
import pytest
import torch

from opabinia.contracts import GlobalBatch
from opabinia.data.sampling.batches import ConstantPlan
from opabinia.data.sampling.epoch_order import EpochSampler
from opabinia.data.sampling.requests import evaluation_requests, training_requests
from opabinia.runtime.durations import Duration
from tests.faults.programs import Server

WORLDS = (8, 64, 512)
SHARDED = (8, 64)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("count", [512, 1000, 4096])
def test_shares_are_those_of_the_arithmetic(world: int, count: int) -> None:
    shares = [GlobalBatch(0, 0, 0, count).rank_range(rank, world) for rank in range(world)]
    sizes = [count // world + (number < count % world) for number in range(world)]
    assert sorted((len(share) for share in shares), reverse=True) == sizes
    assert [share.start for share in shares] == [0, *accumulate(len(share) for share in shares[:-1])]


def test_small_batches_go_to_every_rank() -> None:
    global_batch = GlobalBatch(0, 0, 0, 100)
    assert all(global_batch.rank_range(rank, 512) == range(100) for rank in (0, 1, 511))


@pytest.mark.parametrize("world", WORLDS)
def test_positions_of_all_ranks_are_those_of_one(world: int) -> None:
    plan, sampler = ConstantPlan(5000, 1024, Duration(2, "ep")), EpochSampler(5000, 0)
    together = [training_requests(plan, sampler.order, rank, world)(7) for rank in range(world)]
    for (global_batch, _, expected), *parts in zip(
        training_requests(plan, sampler.order, 0, 1)(7), *together, strict=True
    ):
        assert {part.global_batch for part in parts} == {global_batch}
        np.testing.assert_array_equal(np.concatenate([part.indices for part in parts]), expected)


@pytest.mark.parametrize("world", WORLDS)
def test_evaluation_reads_each_sample_once(world: int) -> None:
    requests = [request for rank in range(world) for request in evaluation_requests(5003, 16, rank, world)(0)]
    assert sorted(np.concatenate([request.indices for request in requests]).tolist()) == list(range(5003))


# --- FSDP -------------------------------------------------------------------------------------------------------------


def as_rank(rank: int, world: int) -> dict[str, Any]:
    """Shard a small vision transformer as a rank of a world; the last rank trains a step, too."""
    from opabinia.engine.checkpointing.sharded import local_shards
    from tests.engine.fake_world import CPU, classifier, fake_world, fsdp, local, sharded_step

    torch.set_num_threads(1)
    with fake_world(rank, world):
        task = classifier("vit_tiny_patch16_224").to_empty(device=CPU)
        shapes = {name: list(param.shape) for name, param in task.named_parameters()}
        fsdp(task, [task], CPU)
        shards, offsets = local_shards({"model": task.state_dict()}, rank == 0)
        return {
            "rank": rank,
            "shapes": shapes,
            "shards": {name: list(local(param).shape) for name, param in task.named_parameters()},
            "saved": {name: [list(shards["model"][name].shape), offsets["model"][name]] for name in shards["model"]},
            "peak": sharded_step(classifier("vit_tiny_patch16_224"), 2) if rank == world - 1 else None,
        }


def main() -> None:
    """Print what ranks of several worlds hold, each computed by a process of its own: torch caches the rank."""
    from tests.engine.fake_world import classifier, sharded_step

    with ProcessPoolExecutor(1, get_context("fork")) as pool:
        alone = pool.submit(sharded_step, classifier("vit_tiny_patch16_224"), 2).result()
    ranks = {}
    for world in SHARDED:
        ranks[world] = []
        for rank in (0, 1, world - 1):
            with ProcessPoolExecutor(1, get_context("fork")) as pool:
                ranks[world].append(pool.submit(as_rank, rank, world).result())
    print(json.dumps({"alone": alone, "ranks": ranks}))


@pytest.fixture(scope="module")
def sharded(warm_server: Server) -> dict[str, Any]:
    """The output of :func:`main`."""
    result: dict[str, Any] = json.loads(warm_server.run(function=f"{__name__}:main", seconds=200).out)
    return result


@pytest.mark.parametrize("world", SHARDED)
def test_sharding_checkpoints_and_memory(world: int, sharded: dict[str, Any]) -> None:
    for rank in sharded["ranks"][str(world)]:
        for name, shape in rank["shapes"].items():
            rows, each = shape[0], -(-shape[0] // world)  # as torch.chunk divides them
            start = min(rows, each * rank["rank"])
            own = min(rows, start + each) - start
            assert rank["shards"][name] == [own, *shape[1:]]
            expected = [[own, *shape[1:]], [start, *[0] * (len(shape) - 1)]] if own else None
            assert rank["saved"].get(name) == expected
    peak, alone = rank["peak"], sharded["alone"]
    for category in ("parameters", "optimizer"):
        assert peak[category] < alone[category] / world * 2 + 2**18
    assert sum(peak.values()) < sum(alone.values())
