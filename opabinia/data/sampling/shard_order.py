"""The order of an epoch over shards: a few of them at a time, shuffled inside and among each other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from opabinia.config import register
from opabinia.contracts import Count, Indices, Source
from opabinia.data.sampling.permutation import Order, Permutation
from opabinia.runtime.seeds import DRAW, ORDER, hash32


@register.sampler
class ByShard:
    """Every sample once an epoch, from a few shards at a time.

    Shards come in a new order in each epoch; each few that follow each other in it are a pool, whose samples are
    shuffled together. So only the shards of one pool are being read at a time, while the samples of a batch come from
    all of them. Pools are of one size, give or take a shard.

    Args:
        source: tells its ``shards``, the number of samples of each in its order (int64), as the source ``shards`` does.
        seed: of the run.
        batch_size: plays no part here.
        mixed: shards of a pool, at most.

    Raises:
        ValueError: the source has no shards.
    """

    def __init__(self, source: Source, seed: int, batch_size: int, /, *, mixed: Count = 16) -> None:
        shards = getattr(source, "shards", None)
        if shards is None:
            raise ValueError(f"by_shard needs the source 'shards'; a {type(source).__name__} has none")
        self._counts = np.asarray(shards, dtype=np.int64)
        self._starts = np.cumsum(self._counts) - self._counts
        self._samples = int(self._counts.sum())
        self._seed, self._mixed = seed, mixed

    def __len__(self) -> int:
        return self._samples

    def order(self, epoch: int) -> Order:
        """A pass over the shards; then each position is found in the logarithm of their number."""
        key = hash32(ORDER, self._seed, epoch)
        turn = Permutation(len(self._counts), key)(np.arange(len(self._counts)))
        ends = np.cumsum(self._counts[turn])
        # What is added to a place among the shards in their turn, to be one among those of the source.
        moves = self._starts[turn] - ends + self._counts[turn]
        pools = -(-len(turn) // self._mixed)
        borders = np.concatenate([[0], ends])[np.arange(pools + 1) * len(turn) // max(1, pools)]
        return _Pooled(key, borders, ends, moves)


@dataclass(frozen=True)
class _Pooled:
    """The order of one epoch.

    Attributes:
        key: of the epoch.
        borders: where pools begin and end, in positions (int64, pools + 1).
        ends: where each shard ends among the shards in their turn (int64, shards).
        moves: from there to the source (int64, shards).
    """

    key: int
    borders: Indices
    ends: Indices
    moves: Indices

    def __call__(self, positions: Indices) -> Indices:
        positions = np.asarray(positions, dtype=np.int64)
        if positions.size and not (positions.min() >= 0 and positions.max() < self.borders[-1]):
            raise IndexError(f"positions {positions.min()} to {positions.max()} of an order of {self.borders[-1]}")
        pools = np.searchsorted(self.borders, positions, "right") - 1
        places = np.empty(positions.shape, dtype=np.int64)
        for pool in {*pools.ravel().tolist()}:  # of a batch one or two
            here = pools == pool
            start, end = self.borders[pool : pool + 2].tolist()
            shuffled = Permutation(end - start, hash32(DRAW, self.key, pool))
            places[here] = start + shuffled(positions[here] - start)
        return places + self.moves[np.searchsorted(self.ends, places, "right")]
