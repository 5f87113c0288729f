"""Retrieval: how well the same thing is found again in a gallery. Its evaluators stand in ``searches.py``.

What makes a result the same every time stands in ``distances.py``, the rules of ranking in ``ranking.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from opabinia.contracts import DataMismatch
from opabinia.evaluation.retrieval import query_expansion as expansion
from opabinia.evaluation.retrieval.distances import (
    Array,
    Distances,
    FeatureDistances,
    MatrixDistances,
    Metric,
    as_features,
    distances,
    nearest,
)
from opabinia.evaluation.retrieval.ranking import Indices, Listed, Matches, Ranking, as_column, masked, rank

__all__ = [
    "distances",
    "evaluate",
    "evaluate_distances",
    "evaluate_lists",
    "nearest",
    "random_galleries",
    "recall",
    "revisited",
    "single_shot",
]

Variant = Literal["zhong", "fastreid"]
RANKS = (1, 5, 10)


def evaluate(
    query_features: Array,
    gallery_features: Array,
    query_ids: Array,
    gallery_ids: Array,
    query_cameras: Array | None = None,
    gallery_cameras: Array | None = None,
    *,
    metric: Metric = "cosine",
    ranks: Sequence[int] = RANKS,
    rerank: Variant | Mapping[str, Any] | None = None,
    query_expansion: Mapping[str, Any] | None = None,
    block: int | None = None,
) -> dict[str, float]:
    """How well queries find their identity in a gallery (Zheng et al. 2015, Market-1501).

    For each query the gallery is put in order of distance, without images of the query's identity from its own camera.
    AP is the mean over the matches of the precision at each (neither interpolated nor a trapezoid), INP the number of
    matches over the place of the last (Ye et al. 2021). Queries without a match are in no mean. Of equal distances the
    image that comes first in the gallery is nearer; images with the same features bit by bit are at the same distance.

    Args:
        query_features: Q x D, numpy or torch; products are computed where the query features lie.
        gallery_features: G x D.
        query_ids: identities, Q: whole numbers or texts.
        gallery_ids: identities, G. Those that no query has are distractors.
        query_cameras: cameras, Q. Without cameras every image of the identity is a match.
        gallery_cameras: cameras, G.
        metric: ``cosine``, or Euclidean; its square, which is what FastReID calls euclidean, ranks alike.
        ranks: k of the shares of queries with a match among the k nearest.
        rerank: by common neighbours: the name of a variant or the keywords of
            :func:`opabinia.evaluation.retrieval.rerank.k_reciprocal`.
        query_expansion: before all else: the keywords of :func:`opabinia.evaluation.retrieval.query_expansion.alpha`.
        block: how many queries' distances are held at once; rounded up to tiles of 1,024 queries, fewer of a gallery
            above 131,072. It changes the memory that is needed, and no bit of the result.

    Returns: ``mAP``, ``rank1`` ... and ``mINP`` as fractions of 1; ``queries``, how many are in the means, and
    ``queries_without_match``, how many are not.

    Raises:
        ValueError: shapes do not fit, a feature is not finite, or no query has a match.

    Example: a query, and a gallery in which the 1st and the 4th nearest are its own: mAP (1 + 2/4) / 2 = 0.75, rank1 1,
    mINP 2/4 = 0.5.
    """
    matches = Matches(query_ids, gallery_ids, query_cameras, gallery_cameras)
    source = source_of(query_features, gallery_features, metric, rerank, query_expansion)
    return rank(source, matches, block).scores(_checked(ranks))


def evaluate_distances(
    distances: Array,
    query_ids: Array,
    gallery_ids: Array,
    query_cameras: Array | None = None,
    gallery_cameras: Array | None = None,
    *,
    ranks: Sequence[int] = RANKS,
    block: int | None = None,
) -> dict[str, float]:
    """The same from distances (Q x G) that are there already; see :func:`evaluate`."""
    matches = Matches(query_ids, gallery_ids, query_cameras, gallery_cameras)
    return rank(MatrixDistances(distances), matches, block).scores(_checked(ranks))


def source_of(
    query: Array,
    gallery: Array,
    metric: Metric,
    rerank: Variant | Mapping[str, Any] | None,
    query_expansion: Mapping[str, Any] | None,
) -> Distances:
    """Where distances come from: features as they are, expanded, or re-ranked; see :func:`evaluate`."""
    if query_expansion is not None:
        query, gallery = expansion.alpha(query, gallery, **query_expansion)
    if rerank is None:
        return FeatureDistances(query, gallery, metric)
    from opabinia.evaluation.retrieval.rerank import k_reciprocal

    keys = {"variant": rerank} if isinstance(rerank, str) else dict(rerank)
    kind = "cosine" if metric == "cosine" else "euclidean"
    return k_reciprocal(as_features("query", query), as_features("gallery", gallery), **{"metric": kind, **keys})


def _checked(ranks: Sequence[int]) -> Sequence[int]:
    if any(k < 1 for k in ranks):
        raise ValueError(f"ranks count from 1, not {min(ranks)}")
    return ranks


# --- answers in lists -------------------------------------------------------------------------------------------------


def evaluate_lists(
    distances: Array, positives: Sequence[Sequence[int]], junk: Sequence[Sequence[int]] | None = None
) -> dict[str, float]:
    """How well buildings are found again whose pictures are listed for each query (Philbin et al. 2007, Oxford; 2008,
    Paris).

    Args:
        distances: Q x G.
        positives: places in the gallery of what is to be found, for each query. Queries without any are in no mean.
        junk: places of what is taken out of the ranking (hardly visible; the query itself).

    Returns: ``mAP``, from the areas of trapezoids under precision over recall, not from means of precisions as in
    :func:`evaluate`; ``queries``, how many are in it, and ``queries_without_match``, how many are not.

    Raises:
        ValueError: lists do not fit the distances, or no query has anything to find.

    Example: of two positives the first and the fourth found: (1 + (1/3 + 2/4) / 2) / 2 = 0.7083.
    """
    ranking = rank(MatrixDistances(distances), Listed(positives, junk))
    return {
        "mAP": float(ranking.trapezoids.mean()),
        "queries": len(ranking.queries),
        "queries_without_match": ranking.left_out,
    }


def revisited(
    distances: Array, easy: Sequence[Sequence[int]], hard: Sequence[Sequence[int]], junk: Sequence[Sequence[int]]
) -> dict[str, float]:
    """The three protocols of the revisited Oxford and Paris (Radenović et al. 2018, section 3.3): in ``mAP_easy`` what
    is hard is junk, in ``mAP_medium`` both are to be found, in ``mAP_hard`` what is easy is junk.

    Args:
        distances: Q x G.
        easy, hard, junk: places in the gallery, for each query.

    Raises:
        ValueError: see :func:`evaluate_lists`.
    """
    neither = [(*one, *other) for one, other in zip(hard, junk, strict=True)]
    both = [(*one, *other) for one, other in zip(easy, hard, strict=True)]
    nor_easy = [(*one, *other) for one, other in zip(easy, junk, strict=True)]
    protocols = {"easy": (easy, neither), "medium": (both, junk), "hard": (hard, nor_easy)}
    return {f"mAP_{name}": evaluate_lists(distances, *lists)["mAP"] for name, lists in protocols.items()}


# --- galleries with one image of each identity ------------------------------------------------------------------------


def single_shot(
    query_features: Array,
    gallery_features: Array,
    query_ids: Array,
    gallery_ids: Array,
    query_cameras: Array | None = None,
    gallery_cameras: Array | None = None,
    *,
    metric: Metric = "cosine",
    ranks: Sequence[int] = RANKS,
    seed: int = 0,
    repeats: int = 10,
    block: int | None = None,
) -> dict[str, float]:
    """Mean scores over random galleries with one image of each identity (the protocol of CUHK03, Li et al. 2014).

    In each repeat the gallery is shuffled, and the first image of each identity is taken; of the query's own identity
    the first that is not from its camera, so that a query has a match in all repeats or in none.

    Args:
        query_features, gallery_features, query_ids, gallery_ids, query_cameras, gallery_cameras, metric, ranks, block:
            see :func:`evaluate`.
        seed: of the shuffles; repeat r draws from (seed, r).
        repeats: how many galleries.

    Returns: as :func:`evaluate`. With one match a query its AP and its INP are the same, 1 over the place.

    Raises:
        ValueError: see :func:`evaluate`; or there are no repeats.
    """
    if repeats < 1:
        raise ValueError(f"repeats is to be at least 1, not {repeats}")
    matches = Matches(query_ids, gallery_ids, query_cameras, gallery_cameras)
    source = FeatureDistances(query_features, gallery_features, metric)
    matches.fit(source)
    orders = [np.random.default_rng((seed, number)).permutation(source.gallery) for number in range(repeats)]
    places: list[Indices] = []
    queries: list[int] = []
    for one in masked(source, matches, block):
        rows = [row for row, columns in enumerate(one.matches) if len(columns)]
        queries += [one.queries[row] for row in rows]
        columns = [one.matches[row] for row in rows]
        numbers = matches.query_ids[list(one.queries)][rows]
        found = [_one_each(one.distances[rows], columns, numbers, matches.gallery_ids, order) for order in orders]
        places.append(np.stack(found, axis=1))
    if not queries:
        raise matches.none_left()
    flat = np.concatenate(places).reshape(-1)
    # Every repeat is a query of its own with one match; all have the same weight in the mean.
    ranking = Ranking(np.repeat(queries, repeats), flat, np.ones_like(flat), source.queries - len(queries))
    return ranking.scores(_checked(ranks)) | {"queries": len(queries)}


def _one_each(
    distances: Tensor, matches: Sequence[Indices], query_ids: Indices, gallery_ids: Indices, order: Indices
) -> Indices:
    """Place of the query's own image among the first images of the other identities in ``order``, one a row."""
    turn = np.argsort(order)
    own = torch.tensor([columns[turn[columns].argmin()] for columns in matches], device=distances.device)[:, None]
    others = one_of_each(gallery_ids, order)
    shown = torch.from_numpy(others).to(distances.device)
    different = torch.from_numpy(gallery_ids[others] != query_ids[:, None]).to(distances.device)
    value, far = distances.gather(1, own), distances[:, shown]
    nearer = ((far < value) | ((far == value) & (shown < own))) & different
    found: Indices = nearer.sum(1).cpu().numpy() + 1
    return found


def one_of_each(ids: Indices, order: Indices) -> Indices:
    """Of each identity the image that comes first in ``order``; ascending.

    Args:
        ids: N.
        order: a permutation of 0 to N - 1.
    """
    first = np.unique(ids[order], return_index=True)[1]
    return np.sort(order[first])


def random_galleries(
    features: Array,
    ids: Array,
    *,
    metric: Metric = "cosine",
    ranks: Sequence[int] = RANKS,
    seed: int = 0,
    repeats: int = 10,
    block: int | None = None,
) -> dict[str, float]:
    """Mean scores when one random image of each identity is the gallery and all the others are queries (the protocol of
    VehicleID, Liu et al. 2016).

    Args:
        features: N x D.
        ids: identities, N.
        metric, ranks, block: see :func:`evaluate`.
        seed: of the choice; repeat r draws from (seed, r).
        repeats: how many galleries.

    Raises:
        ValueError: see :func:`evaluate`; or there are no repeats.
    """
    if repeats < 1:
        raise ValueError(f"repeats is to be at least 1, not {repeats}")
    numbers, rows = as_column("ids", ids), as_features("image", features)
    if len(numbers) != len(rows):
        raise ValueError(f"there are {len(rows)} images, but {len(numbers)} ids")
    found = []
    for number in range(repeats):
        shown = np.zeros(len(numbers), dtype=bool)
        shown[one_of_each(numbers, np.random.default_rng((seed, number)).permutation(len(numbers)))] = True
        query, gallery = (rows[torch.from_numpy(part).to(rows.device)] for part in (~shown, shown))
        found.append(evaluate(query, gallery, numbers[~shown], numbers[shown], metric=metric, ranks=ranks, block=block))
    return {name: sum(one[name] for one in found) / repeats for name in found[0]}


# --- every image a query ----------------------------------------------------------------------------------------------


def recall(
    features: Array,
    ids: Array,
    ks: Sequence[int] = (1, 10, 100, 1000),
    *,
    metric: Metric = "cosine",
    block: int | None = None,
) -> dict[str, float]:
    """How well each image finds its identity among all others (Song et al. 2016, Stanford Online Products).

    Args:
        features: N x D.
        ids: identities, N. Images whose identity has no other are in no mean; they are in the gallery.
        ks: of Recall@k, the share of images with a match among the k nearest.
        metric: see :func:`evaluate`.
        block: see :func:`evaluate`.

    Returns: ``recall1`` ...; ``r_precision``, which share of the R nearest is right, R being the number of matches;
    ``mAP@R``, the mean over these R of the precision at each that is right (Musgrave et al. 2020, section 3.2);
    ``mAP``; and ``queries`` and ``queries_without_match``.

    Raises:
        ValueError: see :func:`evaluate`.
    """
    itself = np.arange(len(ids))  # as if every image came from a camera of its own, nothing but itself is junk
    matches = Matches(ids, ids, itself, itself)
    if len(np.unique(matches.query_ids)) == len(itself):
        raise DataMismatch(f"none of the {len(itself)} images has another one of its identity to find")
    ranking = rank(FeatureDistances(features, features, metric), matches, block)
    return {
        **{f"recall{k}": ranking.rank(k) for k in _checked(ks)},
        "r_precision": ranking.among_first(np.ones(len(ranking.places))),
        "mAP@R": ranking.among_first(ranking.precisions),
        "mAP": float(ranking.average_precisions.mean()),
        "queries": len(ranking.queries),
        "queries_without_match": ranking.left_out,
    }
