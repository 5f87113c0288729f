"""Claim: re-ranking 6,000 features takes a quarter of NumPy's time; 93,820 fit in 8 GiB.

The references are Zhong's function and FastReID's evaluator step by step as published: dense N x N matrices, a
whole sort of every row (Zhong's; FastReID searches for k1), and loops over rows. Both get the same features, of
identities with about 15 images each, and both have two threads. The memory is that of MSMT17's size, with features of
256 dimensions to shorten the products: 2,048 dimensions take 8 times as long and 0.6 GiB more.
Run: ``python benchmarks/rerank.py``, or with names of its parts.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from opabinia.evaluation.retrieval.rerank import Reranked, Variant, k_reciprocal

QUERIES, GALLERY, WIDTH = 1_000, 5_000, 2_048
MSMT_QUERIES, MSMT_GALLERY, MSMT_WIDTH = 11_659, 82_161, 256
K1, K2, LAMBDA = 20, 6, 0.3
ROUNDS = 5

Matrix = NDArray[np.float32]


def identities(count: int, width: int) -> Tensor:
    """Return features in random order: about 15 per identity, as far from its center as centers are from each other."""
    draw = torch.Generator().manual_seed(0)
    centers = torch.randn(count // 15, width, generator=draw)
    features = torch.randn(count, width, generator=draw)
    for few in torch.arange(count).split(10_000):
        features[few] += centers[torch.randint(len(centers), (len(few),), generator=draw)]
    return features


# --- the other side: dense ------------------------------------------------------------------------------------------


def squared_distances(features: Tensor) -> Matrix:
    unit = normalize(features)
    return (2 - 2 * unit @ unit.T).clamp_(min=0).numpy()


def zhong(squared: Matrix, queries: int) -> Matrix:
    distances = np.transpose(squared / squared.max(0))
    ranks = np.argsort(distances).astype(np.int32)
    weights = dense_weights(distances, ranks, K1 + 1)
    return ((1 - LAMBDA) * dense_jaccard(weights, ranks, queries) + LAMBDA * distances[:queries])[:, queries:]


def evaluator(squared: Matrix, queries: int) -> Matrix:
    """FastReID's re-ranking, whose result is only used for the rows of queries; it searches with faiss."""
    ranks = torch.from_numpy(squared).topk(K1, largest=False).indices.numpy()
    weights = dense_weights(squared, ranks, K1)
    return ((1 - LAMBDA) * dense_jaccard(weights, ranks, queries) + LAMBDA * squared[:queries] / 2)[:, queries:]


def dense_weights(distances: Matrix, ranks: NDArray[Any], near: int) -> Matrix:
    half = int(np.around(K1 / 2)) + 1

    def mutual(row: int, k: int) -> NDArray[Any]:
        forward = ranks[row, :k]
        return forward[np.where(ranks[forward, :k] == row)[0]]

    weights = np.zeros_like(distances)
    for row in range(len(distances)):
        members = expanded = mutual(row, near)
        for candidate in members:
            neighbors = mutual(candidate, half)
            if len(np.intersect1d(neighbors, members)) > 2 / 3 * len(neighbors):
                expanded = np.append(expanded, neighbors)
        expanded = np.unique(expanded)
        values = np.exp(-distances[row, expanded])
        weights[row, expanded] = values / values.sum()
    return weights


def dense_jaccard(weights: Matrix, ranks: NDArray[Any], queries: int) -> Matrix:
    means = np.zeros_like(weights)
    for row in range(len(weights)):
        means[row] = weights[ranks[row, :K2]].mean(0)
    columns = [np.where(means[:, column] != 0)[0] for column in range(len(means))]
    distances = np.zeros((queries, len(means)), dtype=np.float32)
    for row in range(queries):
        shared = np.zeros(len(means), dtype=np.float32)
        for column in np.where(means[row] != 0)[0]:
            rows = columns[column]
            shared[rows] += np.minimum(means[row, column], means[rows, column])
        distances[row] = 1 - shared / (2 - shared)
    return distances


# --- both sides in turn ---------------------------------------------------------------------------------------------


def whole(features: Tensor, variant: Variant) -> Matrix:
    reranked = k_reciprocal(features[:QUERIES], features[QUERIES:], k1=K1, k2=K2, lambda_value=LAMBDA, variant=variant)
    return reranked.distances(0, QUERIES).numpy()


def dense(features: Tensor, steps: Callable[[Matrix, int], Matrix]) -> Matrix:
    return steps(squared_distances(features), QUERIES)


def speed() -> None:
    features = identities(QUERIES + GALLERY, WIDTH)
    print(f"{QUERIES:,} queries, {GALLERY:,} in the gallery, {WIDTH:,} dimensions, k1 {K1}, k2 {K2};")
    print(f"the fastest of {ROUNDS} rounds in turn, until the distances of the queries to the gallery are there")
    compare("zhong, from features", partial(dense, features, zhong), partial(whole, features, "zhong"))
    compare("fastreid, from features", partial(dense, features, evaluator), partial(whole, features, "fastreid"))
    product = min(timed(lambda: squared_distances(features))[0] for _ in range(ROUNDS))
    print(f"  {'product of all with all':<25} {product:6.2f} s")


def compare(label: str, theirs: Callable[[], Matrix], ours: Callable[[], Matrix]) -> None:
    ours()  # warm up
    pairs = [(timed(theirs), timed(ours)) for _ in range(ROUNDS)]
    slow, fast = (min(seconds for seconds, _ in side) for side in zip(*pairs, strict=True))
    difference = max(np.abs(dense_result[1] - our_result[1]).max() for dense_result, our_result in pairs)
    print(
        f"  {label:<25} NumPy {slow:6.2f} s   opabinia {fast:5.2f} s   ratio {slow / fast:5.1f} x   "
        f"they differ by {difference:.0e} at most",
        flush=True,
    )


def timed(work: Callable[[], Matrix]) -> tuple[float, Matrix]:
    start = perf_counter()
    result = work()
    return perf_counter() - start, result


# --- memory ---------------------------------------------------------------------------------------------------------


def memory_zhong() -> None:
    memory("zhong")


def memory_fastreid() -> None:
    memory("fastreid")


def memory(variant: Variant) -> None:
    features = identities(MSMT_QUERIES + MSMT_GALLERY, MSMT_WIDTH)
    query, gallery = features[:MSMT_QUERIES], features[MSMT_QUERIES:]
    before = peak()
    times = [perf_counter()]
    reranked: Reranked = k_reciprocal(query, gallery, k1=K1, k2=K2, lambda_value=LAMBDA, variant=variant)
    times.append(perf_counter())
    for start in range(0, MSMT_QUERIES, 256):
        reranked.distances(start, start + 256)
    times.append(perf_counter())
    lists, distances = (last - first for first, last in pairwise(times))
    print(f"MSMT17's {MSMT_QUERIES:,} queries and {MSMT_GALLERY:,} in the gallery, {MSMT_WIDTH} dimensions, {variant}")
    print(f"  peak {peak():.2f} GiB, of which {before:.2f} GiB before re-ranking (libraries, features)")
    print(
        f"  {lists:.0f} s for lists and weights, {distances:.0f} s for the distances of all queries to all the gallery"
    )


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


PARTS = (speed, memory_zhong, memory_fastreid)


def main() -> None:
    torch.set_num_threads(2)
    names = {part.__name__: part for part in PARTS}
    if sys.argv[1:]:
        for name in sys.argv[1:]:
            names[name]()
        return
    # Waiting threads sleep: on a busy machine, spinning threads would slow down our side, which has them.
    environment = os.environ | {"OMP_WAIT_POLICY": "passive"}
    for name in names:
        subprocess.run([sys.executable, __file__, name], check=True, env=environment)


if __name__ == "__main__":
    main()
