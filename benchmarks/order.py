"""Claim: a batch's samples are found anywhere in a shuffled epoch in well under a millisecond, without an array.

Compared with the usual way, ``np.random.permutation(n)`` kept for the epoch. Run: ``python benchmarks/order.py``.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from time import perf_counter

import numpy as np

from opabinia.data.sampling.epoch_order import Indices, Permutation

BATCH = 4096
FITS = 10_000_000
HUGE = 1_000_000_000


def seconds(work: Callable[[], object], repeats: int) -> float:
    """Return the fastest of ``repeats``: other work on the machine only adds time."""
    times = []
    for _ in range(repeats):
        start = perf_counter()
        work()
        times.append(perf_counter() - start)
    return min(times)


def peak_bytes(work: Callable[[], object]) -> int:
    tracemalloc.start()
    work()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def middle(n: int) -> Indices:
    return np.arange(n // 2, n // 2 + BATCH)


def by_arithmetic(n: int) -> Indices:
    return Permutation(n, key=1)(middle(n))


def by_array(n: int) -> Indices:
    return np.random.permutation(n)[middle(n)]


def whole_epoch_by_arithmetic(n: int) -> None:
    permutation = Permutation(n, key=1)
    for first in range(0, n, BATCH):
        permutation(np.arange(first, min(first + BATCH, n)))


def main() -> None:
    by_arithmetic(HUGE)  # warm up
    print(f"{BATCH:,} positions in the middle of a shuffled epoch, from nothing (as after a resume)")
    row("arithmetic", HUGE, seconds(lambda: by_arithmetic(HUGE), 50), peak_bytes(lambda: by_arithmetic(HUGE)))
    arithmetic, array = seconds(lambda: by_arithmetic(FITS), 50), seconds(lambda: by_array(FITS), 3)
    row("arithmetic", FITS, arithmetic, peak_bytes(lambda: by_arithmetic(FITS)))
    row("np.random.permutation", FITS, array, peak_bytes(lambda: by_array(FITS)))
    print(f"  ratio {array / arithmetic:,.0f} x\n")
    print("A whole epoch, the price of it (spread over all batches)")
    arithmetic, array = seconds(lambda: whole_epoch_by_arithmetic(FITS), 1), seconds(lambda: by_array(FITS), 3)
    print(f"  arithmetic {arithmetic:.2f} s, np.random.permutation {array:.2f} s, at n = {FITS:,}")
    print(f"  that is {arithmetic / FITS * 1e9:.0f} ns a sample")


def row(name: str, n: int, time: float, memory: int) -> None:
    print(f"  {name:<22} n = {n:>13,}  {time * 1e3:10.3f} ms  {memory / 2**20:8.2f} MiB")


if __name__ == "__main__":
    main()
