"""Verification: are two images of the same identity?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from opabinia.evaluation.retrieval.distances import (
    Array,
    Distances,
    FeatureDistances,
    MatrixDistances,
    Metric,
    as_features,
)
from opabinia.evaluation.retrieval.ranking import Matches, as_column, indices_of, masked

FPRS = (1e-4, 1e-3, 1e-2)
"""Shares of wrong acceptances that FastReID reports at."""


def roc(
    query_features: Array,
    gallery_features: Array,
    query_ids: Array,
    gallery_ids: Array,
    query_cameras: Array | None = None,
    gallery_cameras: Array | None = None,
    *,
    metric: Metric = "cosine",
    fprs: Sequence[float] = FPRS,
    block: int | None = None,
) -> dict[float, float]:
    """Which share of the pairs of the *same* identity is accepted when at most a share f of the others is.

    A pair is a query and a gallery image; it is accepted when its distance is below a threshold. For each f the largest
    threshold is taken that accepts at most f of the pairs of different identities, exactly and not the nearest point of
    a curve. Junk (same identity, same camera) is in no pair. Queries without a match are in pairs: nobody is to be
    taken for them.

    FastReID looks at the same pairs, but its positive class are those of *different* identities, and it takes the
    nearest point: its numbers mean something else.

    Args:
        query_features, gallery_features, query_ids, gallery_ids, query_cameras, gallery_cameras, metric, block: see
            :func:`opabinia.evaluation.retrieval.retrieval.evaluate`.
        fprs: f, 0 to 1. ``max(fprs)`` of the distances are held: 40 MB of MSMT17's at 0.01.

    Raises:
        ValueError: see :func:`opabinia.evaluation.retrieval.retrieval.evaluate`; or every pair is of the same identity.
    """
    matches = Matches(query_ids, gallery_ids, query_cameras, gallery_cameras)
    return roc_of(FeatureDistances(query_features, gallery_features, metric), matches, fprs, block)


def roc_of_distances(
    distances: Array,
    query_ids: Array,
    gallery_ids: Array,
    query_cameras: Array | None = None,
    gallery_cameras: Array | None = None,
    *,
    fprs: Sequence[float] = FPRS,
    block: int | None = None,
) -> dict[float, float]:
    """The same from distances (Q x G) that are there already; see :func:`roc`.

    Example: distances [[0.1, 0.2, 0.3, 0.4]], the first and the third of the query's identity: at f = 0 a half.
    """
    return roc_of(
        MatrixDistances(distances), Matches(query_ids, gallery_ids, query_cameras, gallery_cameras), fprs, block
    )


def roc_of(source: Distances, matches: Matches, fprs: Sequence[float], block: int | None = None) -> dict[float, float]:
    """The same of any distances; see :func:`roc`."""
    if not fprs or not all(0 <= f <= 1 for f in fprs):
        raise ValueError(f"fprs are to be shares from 0 to 1, not {list(fprs)}")
    matches.fit(source)
    others = _pairs_of_others(matches)
    # So many pairs of different identities may pass; the next nearest of them must not.
    allowed = [int(f * others + 1e-9) for f in fprs]
    smallest = _Smallest(max(allowed) + 1)
    same: list[Tensor] = []
    for one in masked(source, matches, block):
        where = indices_of(one.matches, one.distances.device)
        same.append(one.distances[where].cpu())
        one.distances[where] = torch.nan
        smallest.add(one.distances)
    own = torch.cat(same).sort().values if same else torch.empty(0)
    if not len(own):
        raise matches.none_left()
    if not others:
        raise ValueError("every pair is of the same identity: nothing could be accepted wrongly")
    bounds = smallest.sorted()
    limits = [float(bounds[n]) if n < others else torch.inf for n in allowed]
    return {f: float((own < limit).double().mean()) for f, limit in zip(fprs, limits, strict=True)}


def _pairs_of_others(matches: Matches) -> int:
    """Pairs of different identities."""
    total, gallery = 0, len(matches.gallery_ids)
    for query in range(len(matches.query_ids)):
        positives, junk = matches.of(query)
        total += gallery - len(positives) - len(junk)
    return total


class _Smallest:
    """The n smallest of many numbers that come in parts, exactly; at most about 2 n are held."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._parts: list[Tensor] = []
        self._held = 0
        self._limit = torch.inf

    def add(self, values: Tensor) -> None:
        """More of them; NaN is none."""
        self._parts.append(values[values <= self._limit])
        self._held += len(self._parts[-1])
        if self._held > 2 * self._n:
            kept = torch.cat(self._parts).topk(self._n, largest=False, sorted=False).values
            self._parts, self._held, self._limit = [kept], len(kept), float(kept.max())

    def sorted(self) -> Tensor:
        """In order; all of fewer than n, or a few more than n."""
        return torch.cat(self._parts).sort().values


def pairs(
    first_features: Array,
    second_features: Array,
    same: Array,
    *,
    folds: int = 10,
    thresholds: Sequence[float] | None = None,
) -> dict[str, Any]:
    """Accuracy on given pairs, the threshold of each fold being found on the others (the protocol of LFW, Huang et al.
    2007, as FastReID's face project runs it).

    Pairs are the same when their *squared* Euclidean distance is below the threshold; of equally good thresholds the
    first is taken. Folds are contiguous, the first ones larger by one where they do not divide the pairs.

    Args:
        first_features: N x D; of length 1, usually.
        second_features: N x D.
        same: N, whether both are of the same identity.
        folds: number of folds, 2 to N.
        thresholds: those that are tried; by default 0 to 3.99 in steps of 0.01.

    Returns: ``accuracy`` (mean over the folds), ``accuracies`` and ``thresholds`` (of each fold).

    Raises:
        ValueError: shapes do not fit, a feature is not finite, or there are too many or too few folds.
    """
    first, second = as_features("first", first_features), as_features("second", second_features)
    right = as_column("same", same).astype(bool)
    if first.shape != second.shape or len(first) != len(right):
        raise ValueError(f"{tuple(first.shape)}, {tuple(second.shape)} and {len(right)} answers are no pairs")
    if not 2 <= folds <= len(right):
        raise ValueError(f"folds is {folds}; {len(right)} pairs have 2 to {len(right)}")
    found = (first.double() - second.double()).square().sum(1)
    if not found.isfinite().all():
        raise ValueError(f"pair {int((~found.isfinite()).nonzero()[0])} has features that are not finite")
    tried = np.arange(0, 4, 0.01) if thresholds is None else np.asarray(thresholds, dtype=np.float64)
    correct = (found.cpu().numpy() < tried[:, None]) == right
    return _by_fold(correct, tried, folds)


def _by_fold(correct: NDArray[np.bool_], tried: NDArray[np.float64], folds: int) -> dict[str, Any]:
    parts = np.array_split(np.arange(correct.shape[1]), folds)
    total = correct.sum(1)
    best = [int((total - correct[:, part].sum(1)).argmax()) for part in parts]
    accuracies = [float(correct[number, part].mean()) for number, part in zip(best, parts, strict=True)]
    return {
        "accuracy": float(np.mean(accuracies)),
        "accuracies": accuracies,
        "thresholds": [float(tried[number]) for number in best],
    }
