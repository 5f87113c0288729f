"""Shuffling of sharded datasets: a few shards are read at a time, and their samples shuffled together."""

from __future__ import annotations

import numpy as np

from opabinia.config import register
from opabinia.contracts import Count, Indices, Sampler, Source
from opabinia.data.sampling.epoch_order import Order, OrderSampler, Permutation, check_positions
from opabinia.runtime.seeds import DRAW, ORDER, hash32


@register.sampler
def shard_shuffle(source: Source, seed: int, batch_size: int, /, *, pool_size: Count = 16) -> Sampler:
    """Every sample once per epoch, from a few shards at a time.

    Shards are shuffled in each epoch; consecutive ones form a pool, whose samples are shuffled together. So only the
    shards of one pool are read at a time, while the samples of a batch come from all of them. Pools have the same
    number of shards, plus or minus one. An order takes one pass over the shards; then each position is found by binary
    search.

    Args:
        source: has ``shards``, the number of samples of each shard in order (int64), like the source ``shards``.
        seed: of the run.
        batch_size: not used.
        pool_size: maximum number of shards in a pool. More shards are closer to a full shuffle.

    Raises:
        ValueError: the source has no shards.
    """
    if source.info.shards is None:
        raise ValueError(f"shard_shuffle needs the source 'shards'; a {type(source).__name__} has none")
    counts = np.asarray(source.info.shards, dtype=np.int64)
    starts, samples = np.cumsum(counts) - counts, int(counts.sum())

    def order(epoch: int) -> Order:
        key = hash32(ORDER, seed, epoch)
        shards = Permutation(len(counts), key)(np.arange(len(counts)))
        ends = np.cumsum(counts[shards])  # where each shard ends, in positions
        offsets = starts[shards] - ends + counts[shards]  # index in the source minus position
        pools = -(-len(shards) // pool_size)
        borders = np.concatenate([[0], ends])[np.arange(pools + 1) * len(shards) // max(1, pools)]

        def indices(positions: Indices) -> Indices:
            positions = check_positions(positions, samples)
            pool_of = np.searchsorted(borders, positions, "right") - 1
            shuffled = np.empty(positions.shape, dtype=np.int64)
            for pool in {*pool_of.ravel().tolist()}:  # a batch has one or two
                in_pool = pool_of == pool
                start, end = borders[pool : pool + 2].tolist()
                permutation = Permutation(end - start, hash32(DRAW, key, pool))
                shuffled[in_pool] = start + permutation(positions[in_pool] - start)
            return shuffled + offsets[np.searchsorted(ends, shuffled, "right")]

        return indices

    return OrderSampler(samples, order)
