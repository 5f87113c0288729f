"""Shuffling of sharded datasets: a few shards are read at a time, and their samples shuffled together."""

from __future__ import annotations

import numpy as np

from opabinia.config import register
from opabinia.contracts import Count, Indices, Source
from opabinia.data.sampling.permutation import Order, Permutation
from opabinia.runtime.seeds import DRAW, ORDER, hash32


@register.sampler
class ShardShuffle:
    """Every sample once per epoch, from a few shards at a time.

    Shards are shuffled in each epoch; consecutive ones form a pool, whose samples are shuffled together. So only the
    shards of one pool are read at a time, while the samples of a batch come from all of them. Pools have the same
    number of shards, plus or minus one.

    Args:
        source: has ``shards``, the number of samples of each shard in order (int64), like the source ``shards``.
        seed: of the run.
        batch_size: not used.
        pool_size: maximum number of shards in a pool. More shards are closer to a full shuffle.

    Raises:
        ValueError: the source has no shards.
    """

    def __init__(self, source: Source, seed: int, batch_size: int, /, *, pool_size: Count = 16) -> None:
        if source.info.shards is None:
            raise ValueError(f"shard_shuffle needs the source 'shards'; a {type(source).__name__} has none")
        self._counts = np.asarray(source.info.shards, dtype=np.int64)
        self._starts = np.cumsum(self._counts) - self._counts
        self._samples = int(self._counts.sum())
        self._seed, self._pool_size = seed, pool_size

    def __len__(self) -> int:
        return self._samples

    def order(self, epoch: int) -> Order:
        """Takes one pass over the shards; then each position is found by binary search."""
        key = hash32(ORDER, self._seed, epoch)
        shards = Permutation(len(self._counts), key)(np.arange(len(self._counts)))
        ends = np.cumsum(self._counts[shards])  # where each shard ends, in positions
        offsets = self._starts[shards] - ends + self._counts[shards]  # index in the source minus position
        count = -(-len(shards) // self._pool_size)
        borders = np.concatenate([[0], ends])[np.arange(count + 1) * len(shards) // max(1, count)]

        def indices(positions: Indices) -> Indices:
            positions = np.asarray(positions, dtype=np.int64)
            if positions.size and not (positions.min() >= 0 and positions.max() < self._samples):
                raise IndexError(f"positions {positions.min()} to {positions.max()} of an order of {self._samples}")
            pools = np.searchsorted(borders, positions, "right") - 1
            shuffled = np.empty(positions.shape, dtype=np.int64)
            for pool in {*pools.ravel().tolist()}:  # a batch has one or two
                in_pool = pools == pool
                start, end = borders[pool : pool + 2].tolist()
                permutation = Permutation(end - start, hash32(DRAW, key, pool))
                shuffled[in_pool] = start + permutation(positions[in_pool] - start)
            return shuffled + offsets[np.searchsorted(ends, shuffled, "right")]

        return indices
