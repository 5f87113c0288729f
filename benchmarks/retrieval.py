"""Claim: ranking a gallery exactly takes little more than the matrix product of the features, and little memory.

Features are clustered like real ones: 750 identities, each a random direction with noise around it, so that mAP is near
0.8; six cameras. Both sides are float32 on the same threads.

1. Market-1501's size (3,368 queries, 15,913 gallery images, 2,048 dimensions): an evaluation compared with the product
   alone, ``query @ gallery.T``, in turn in many rounds; the ratio is the median over the rounds, each to the product of
   the same round. Target: at most 1.6.
2. The plain way, sorting the gallery for each query (numpy), on every tenth query: the same 337 on both sides.
3. MSMT17's size (11,659 and 82,161): the peak memory of a process during an evaluation, above that with the features
   in memory. Target: under 3 GiB; the matrix of distances alone would take 3.6.

Run: ``python benchmarks/retrieval.py``.
"""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from opabinia.evaluation.retrieval.retrieval import evaluate

MARKET, MSMT17 = (3368, 15_913), (11_659, 82_161)
IDENTITIES, CAMERAS, WIDTH, NOISE = 750, 6, 2048, 3.2
ROUNDS = 11


def images(random: np.random.Generator, centres: Any, count: int) -> tuple[Any, Any, Any]:
    """Return features, identities and cameras."""
    ids = random.integers(0, len(centres), count)
    features = np.empty((count, WIDTH), np.float32)
    for first in range(0, count, 4096):  # in parts, which do not raise the peak memory
        part = ids[first : first + 4096]
        features[first : first + 4096] = centres[part]
        features[first : first + 4096] += NOISE * random.standard_normal((len(part), WIDTH), dtype=np.float32)
    return features, ids, random.integers(0, CAMERAS, count)


def sides(queries: int, gallery: int) -> list[Any]:
    """Return the arguments of :func:`evaluate`."""
    random = np.random.default_rng(0)
    centres = random.standard_normal((IDENTITIES, WIDTH), dtype=np.float32)
    pairs = zip(images(random, centres, queries), images(random, centres, gallery), strict=True)
    return [side for pair in pairs for side in pair]


def seconds(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def in_turn(*works: Callable[[], Any], rounds: int) -> list[list[float]]:
    """Return the seconds of each side, by round; the first round does not count."""
    times = [[seconds(work) for work in works] for _ in range(rounds + 1)]
    return [list(column) for column in zip(*times[1:], strict=True)]


def row(name: str, values: list[float], against: list[float]) -> None:
    spread = f"({min(values):.2f} to {max(values):.2f})"
    ratio = statistics.median(a / b for a, b in zip(values, against, strict=True))
    print(f"  {name:<34} {statistics.median(values):7.2f} s {spread:<16} ratio {ratio:.2f}")


def by_sorting(q: Any, g: Any, qi: Any, gi: Any, qc: Any, gc: Any) -> float:
    """Return the mAP, computed by sorting the gallery for each query."""
    q, g = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (q, g))
    precisions = []
    for distances, identity, camera in zip(1 - q @ g.T, qi, qc, strict=True):
        order = np.argsort(distances)
        right = (gi == identity)[order]
        right = right[~(right & (gc == camera)[order])]
        if right.any():
            precisions.append((right.cumsum() / np.arange(1, len(right) + 1))[right].mean())
    return float(np.mean(precisions))


def market() -> None:
    arguments = sides(*MARKET)
    query, gallery = (torch.from_numpy(array) for array in arguments[:2])
    scores = evaluate(*arguments)
    shown = ", ".join(f"{name} {scores[name]:.3f}" for name in ("mAP", "rank1", "mINP"))
    print(f"Market-1501's size, {torch.get_num_threads()} threads, median of {ROUNDS} rounds in turn; {shown}")
    product, ours = in_turn(lambda: query @ gallery.T, lambda: evaluate(*arguments), rounds=ROUNDS)
    row("the product alone", product, product)
    row("evaluate", ours, product)
    few = [array[::10] if side % 2 == 0 else array for side, array in enumerate(arguments)]
    assert abs(by_sorting(*few) - evaluate(*few)["mAP"]) < 1e-4
    plain, ours = in_turn(lambda: by_sorting(*few), lambda: evaluate(*few), rounds=3)
    print("every tenth query")
    row("evaluate", ours, ours)
    row("sorting the gallery, numpy", plain, ours)


def resident_memory() -> int:
    """Return the resident memory of this process, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def peak_memory() -> int:
    """Return the peak of the resident memory so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def msmt17() -> tuple[float, float, float, float]:
    """In a new process: return GiB above the features, seconds of evaluation and of the product in blocks, and mAP."""
    evaluate(*sides(50, 2000))  # warm up the libraries
    arguments = sides(*MSMT17)
    before = resident_memory()
    began = time.perf_counter()
    scores = evaluate(*arguments)
    elapsed = time.perf_counter() - began
    above = (peak_memory() - before) / 2**30
    query, gallery = (torch.from_numpy(array) for array in arguments[:2])
    alone = seconds(lambda: [part @ gallery.T for part in torch.split(query, 1024)] and None)
    return above, elapsed, alone, scores["mAP"]


def main() -> None:
    market()
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        above, elapsed, alone, score = process.submit(msmt17).result()
    print(f"MSMT17's size; mAP {score:.3f}")
    print(f"  memory above the features   {above:.2f} GiB")
    print(f"  evaluate {elapsed:.1f} s, the product alone {alone:.1f} s")


if __name__ == "__main__":
    main()
