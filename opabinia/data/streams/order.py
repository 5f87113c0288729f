"""Shares of streams in a batch, and the streams of each step. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import gcd

from opabinia.data.sampling.samplers import apportion
from opabinia.runtime.seeds import DRAW, hash32
from opabinia.runtime.shares import remaining_share
from opabinia.runtime.text import plural

_CYCLE = 100
"""Steps after which alternating streams repeat: shares are multiples of 1 / 100."""


def stream_shares(
    samples: Mapping[str, int], given: Mapping[str, float | None], temperature: float = 1.0
) -> dict[str, float]:
    """Return the share of each stream in the training samples; they sum to 1.

    Streams without a given share divide the rest in proportion to ``samples ** (1 / temperature)``: 1 by size, larger
    values more evenly (Arivazhagan et al. 2019, section 4.2).

    Args:
        samples: number of samples of each stream.
        given: share of each stream, above 0; None: by size.
        temperature: above 0.

    Raises:
        ValueError: see :func:`opabinia.runtime.shares.remaining_share`.
    """
    rest = remaining_share(given)
    known = {name: share for name, share in given.items() if share is not None}
    sizes = {name: samples[name] ** (1 / temperature) for name in samples if name not in known}
    return {name: known[name] if name in known else rest * sizes[name] / sum(sizes.values()) for name in samples}


def divide(total: int, shares: Mapping[str, float]) -> dict[str, int]:
    """Divide a number by shares that sum to 1, at least 1 for each, by largest remainders.

    Raises:
        ValueError: there are more shares than units.

    Example: ``divide(16, {"a": 0.7, "b": 0.2, "c": 0.1})`` is ``{"a": 11, "b": 3, "c": 2}``.
    """
    if total < len(shares):
        raise ValueError(f"{plural(total, 'sample')} cannot be divided among {len(shares)} streams")
    beyond = [max(0.0, total * share - 1) for share in shares.values()]
    counts = apportion(total - len(shares), beyond) if total > len(shares) else [0] * len(shares)
    return {name: 1 + count for name, count in zip(shares, counts, strict=True)}


@dataclass(frozen=True)
class StreamCycle:
    """Which streams take part in each step: a cycle of steps that repeats, so any step is found by arithmetic.

    Attributes:
        steps: names of the streams in each step of the cycle.
    """

    steps: tuple[tuple[str, ...], ...]

    def active(self, step: int) -> tuple[str, ...]:
        """Return the streams that take part in ``step``."""
        return self.steps[step % len(self.steps)]

    def steps_before(self, name: str, step: int) -> int:
        """Return the number of steps before ``step`` in which a stream takes part."""
        cycles, rest = divmod(step, len(self.steps))
        counts = self._counts[name]
        return cycles * counts[-1] + counts[rest]

    @cached_property
    def _counts(self) -> dict[str, list[int]]:
        """Number of steps of each stream before each step of the cycle, and in all of it."""
        counts = {name: [0] for name in dict.fromkeys(name for names in self.steps for name in names)}
        for names in self.steps:
            for name, before in counts.items():
                before.append(before[-1] + (name in names))
        return counts


@dataclass(frozen=True)
class StreamShares:
    """The rule by which streams share batches.

    Attributes:
        shares: of each stream in the samples of a batch or, if they alternate, in the steps; they sum to 1.
        alternate: whether each batch has samples of one stream.
    """

    shares: Mapping[str, float]
    alternate: bool = False

    def batch_sizes(self, batch_size: int) -> dict[str, int]:
        """Return the samples of each stream in a batch with samples of it.

        Raises:
            ValueError: there are more streams than samples.
        """
        return dict.fromkeys(self.shares, batch_size) if self.alternate else divide(batch_size, self.shares)

    def cycle(self, seed: int) -> StreamCycle:
        """Return the streams of each step; ``seed``: of the run."""
        return alternating_cycle(self.shares, seed) if self.alternate else StreamCycle((tuple(self.shares),))


def alternating_cycle(shares: Mapping[str, float], seed: int) -> StreamCycle:
    """Return a cycle in which each step belongs to one stream, those of each spread evenly; ``seed`` shifts them.

    Args:
        shares: of the steps; they sum to 1, and are rounded to hundredths.
        seed: of the run.
    """
    counts = divide(_CYCLE, shares)
    factor = gcd(*counts.values())
    counts = {name: count // factor for name, count in counts.items()}
    shifts = {name: hash32(DRAW, seed, number) / 2**32 for number, name in enumerate(counts)}
    times = [((number + shifts[name]) / count, name) for name, count in counts.items() for number in range(count)]
    return StreamCycle(tuple((name,) for _, name in sorted(times)))
