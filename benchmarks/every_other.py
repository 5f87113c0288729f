"""A sampler for benchmarks with partly labelled data: disjoint halves of a dataset."""

from __future__ import annotations

import numpy as np

from opabinia import register
from opabinia.contracts import Indices, Source
from opabinia.data.sampling.epoch_order import Permutation
from opabinia.runtime.seeds import ORDER, hash32


@register.sampler
class EveryOther:
    """The samples with even or odd indices.

    Args:
        source: any.
        seed: of the run.
        batch_size: not used.
        first: index of the first sample: 0 or 1.
        samples: use only so many of the dataset; null: all.
    """

    def __init__(
        self, source: Source, seed: int, batch_size: int, /, *, first: int = 0, samples: int | None = None
    ) -> None:
        self._indices, self._seed = np.arange(first, samples or len(source), 2), seed

    def __len__(self) -> int:
        return len(self._indices)

    def order(self, epoch: int):  # type: ignore[no-untyped-def]
        """Return each of the samples once, shuffled."""
        shuffled = Permutation(len(self), hash32(ORDER, self._seed, epoch))

        def indices(positions: Indices) -> Indices:
            return self._indices[shuffled(positions)]

        return indices
