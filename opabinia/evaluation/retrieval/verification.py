"""Verification of pairs: whether two images are of the same identity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from opabinia.evaluation.retrieval.distances import Array, Distances, as_features
from opabinia.evaluation.retrieval.ranking import Matches, as_column, cell_indices, distance_blocks

_THRESHOLDS = np.arange(0, 4, 0.01)


def roc(source: Distances, matches: Matches, fprs: Sequence[float]) -> dict[float, float]:
    """Return the true positive rate at each false positive rate.

    A pair is a query and a gallery image; it is accepted if its distance is below a threshold. Positives are pairs of
    the *same* identity. For each false positive rate f the largest threshold is taken that accepts at most f of the
    pairs of different identities: exact, not the nearest point of a curve. Junk (same identity, same camera) is in no
    pair. Queries without a match are in negative pairs.

    FastReID looks at the same pairs, but its positives are those of *different* identities, and it takes the nearest
    point: its numbers mean something else.

    Args:
        source: distances of queries and gallery.
        matches: their identities.
        fprs: false positive rates, 0 to 1. ``max(fprs)`` of the distances are held: 40 MB of MSMT17's at 0.01.

    Raises:
        ValueError: sizes do not fit, no query has a match, or all pairs are of the same identity.

    Example: distances [[0.1, 0.2, 0.3, 0.4]], the first and the third of the query's identity: at f = 0 one half.
    """
    if not fprs or not all(0 <= f <= 1 for f in fprs):
        raise ValueError(f"fprs must be rates from 0 to 1, not {list(fprs)}")
    matches.check(source)
    excluded = sum(len(columns) for query in range(source.queries) for columns in matches.of(query))
    negatives = source.queries * source.gallery - excluded
    # This many pairs of different identities may be accepted; the next nearest of them must not.
    allowed = [int(f * negatives + 1e-9) for f in fprs]
    # The smallest distances of such pairs, which arrive in blocks, exactly; at most about twice as many are held.
    count, limit = max(allowed) + 1, torch.inf
    nearest: list[Tensor] = []
    positives: list[Tensor] = []
    for block in distance_blocks(source, matches):
        cells = cell_indices(block.matches, block.distances.device)
        positives.append(block.distances[cells].cpu())
        block.distances[cells] = torch.nan
        nearest.append(block.distances[block.distances <= limit])
        if sum(map(len, nearest)) > 2 * count:
            nearest = [torch.cat(nearest).topk(count, largest=False, sorted=False).values]
            limit = float(nearest[0].max())
    same = torch.cat(positives).sort().values if positives else torch.empty(0)
    if not len(same):
        raise matches.no_match_error()
    if not negatives:
        raise ValueError("all pairs are of the same identity: there are no false positives")
    bounds = torch.cat(nearest).sort().values
    limits = [float(bounds[accepted]) if accepted < negatives else torch.inf for accepted in allowed]
    return {f: float((same < limit).double().mean()) for f, limit in zip(fprs, limits, strict=True)}


def pairs(
    first_features: Array,
    second_features: Array,
    same: Array,
    *,
    folds: int = 10,
) -> dict[str, Any]:
    """Return the accuracy on given pairs, with the threshold of each fold chosen on the others (protocol of LFW, Huang
    et al. 2007, as in FastReID's face project).

    A pair is accepted if its *squared* Euclidean distance is below the threshold; of equally good thresholds (0
    to 3.99 in steps of 0.01) the first is taken. Folds are contiguous; if they do not divide the pairs, the first ones
    have one more.

    Args:
        first_features: N x D; usually of length 1.
        second_features: N x D.
        same: N, whether both are of the same identity.
        folds: number of folds, 2 to N.

    Returns: ``accuracy`` (mean over the folds), ``accuracies`` and ``thresholds`` (of each fold).

    Raises:
        ValueError: shapes do not fit, a feature is not finite, or the number of folds is out of range.
    """
    first, second = as_features("first", first_features), as_features("second", second_features)
    labels = as_column("same", same).astype(bool)
    if first.shape != second.shape or len(first) != len(labels):
        raise ValueError(f"{tuple(first.shape)}, {tuple(second.shape)} and {len(labels)} answers are no pairs")
    if not 2 <= folds <= len(labels):
        raise ValueError(f"folds is {folds}; {len(labels)} pairs have 2 to {len(labels)}")
    distances = (first.double() - second.double()).square().sum(1)
    if not distances.isfinite().all():
        raise ValueError(f"pair {int((~distances.isfinite()).nonzero()[0])} has features that are not finite")
    correct = (distances.cpu().numpy() < _THRESHOLDS[:, None]) == labels
    fold_indices = np.array_split(np.arange(len(labels)), folds)
    total = correct.sum(1)
    best = [int((total - correct[:, fold].sum(1)).argmax()) for fold in fold_indices]
    accuracies = [float(correct[index, fold].mean()) for index, fold in zip(best, fold_indices, strict=True)]
    return {
        "accuracy": float(np.mean(accuracies)),
        "accuracies": accuracies,
        "thresholds": [float(_THRESHOLDS[index]) for index in best],
    }
