"""Retrieval metrics of features or distances; their evaluators are in ``retrieval_evaluators``.

``distances`` explains why results are reproducible, ``ranking`` has the rules of ranking.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from opabinia.contracts import DataMismatch, Indices
from opabinia.evaluation.retrieval.distances import (
    Array,
    Distances,
    FeatureDistances,
    MatrixDistances,
    Metric,
    as_features,
)
from opabinia.evaluation.retrieval.query_expansion import expand_features
from opabinia.evaluation.retrieval.ranking import ListedMatches, Matches, Ranking, as_column, distance_blocks, rank

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
) -> dict[str, float]:
    """Return the metrics of queries that are searched in a gallery (Zheng et al. 2015, Market-1501).

    For each query the gallery is ranked by distance, without images of the query's identity from its own camera. AP is
    the mean over the matches of the precision at each (neither interpolated nor trapezoidal), INP the number of matches
    over the rank of the last (Ye et al. 2021). Queries without a match are in no mean. Among equal distances the image
    that comes first in the gallery is nearer; images with bitwise identical features are at the same distance.

    Args:
        query_features: Q x D, numpy or torch; computation is on the device of the query features.
        gallery_features: G x D.
        query_ids: identities, Q: integers or strings.
        gallery_ids: identities, G. Those without a query are distractors.
        query_cameras: cameras, Q. Without cameras every image of the identity is a match.
        gallery_cameras: cameras, G.
        metric: ``cosine``, or Euclidean; its square, which is FastReID's euclidean, ranks alike.
        ranks: k of the shares of queries with a match among the k nearest.
        rerank: k-reciprocal re-ranking: the name of a variant or the keywords of
            :func:`opabinia.evaluation.retrieval.rerank.k_reciprocal`.
        query_expansion: before ranking: the keywords of
            :func:`opabinia.evaluation.retrieval.query_expansion.expand_features`.

    Returns: ``mAP``, ``rank1`` ... and ``mINP`` as fractions of 1; ``queries``, the number in the means, and
    ``queries_without_match``, the number of others.

    Raises:
        ValueError: shapes do not fit, a feature is not finite, or no query has a match.

    Example: a query whose matches are the 1st and the 4th nearest image: mAP (1 + 2/4) / 2 = 0.75, rank1 1, mINP
    2/4 = 0.5.
    """
    matches = Matches(query_ids, gallery_ids, query_cameras, gallery_cameras)
    source = distances_of(query_features, gallery_features, metric, rerank, query_expansion)
    return rank(source, matches).scores(ranks)


def distances_of(
    query: Array,
    gallery: Array,
    metric: Metric,
    rerank: Variant | Mapping[str, Any] | None,
    query_expansion: Mapping[str, Any] | None,
) -> Distances:
    """Return distances of features, expanded and re-ranked on request; see :func:`evaluate`."""
    if query_expansion is not None:
        query, gallery = expand_features(query, gallery, **query_expansion)
    if rerank is None:
        return FeatureDistances(query, gallery, metric)
    from opabinia.evaluation.retrieval.rerank import k_reciprocal

    options: dict[str, Any] = {"metric": "cosine" if metric == "cosine" else "euclidean"}
    options |= {"variant": rerank} if isinstance(rerank, str) else rerank
    return k_reciprocal(query, gallery, **options)


# --- listed matches ---------------------------------------------------------------------------------------------------


def evaluate_lists(
    distances: Array, positives: Sequence[Sequence[int]], junk: Sequence[Sequence[int]] | None = None
) -> dict[str, float]:
    """Return the metrics of queries whose matches are listed (Philbin et al. 2007, Oxford; 2008, Paris).

    Args:
        distances: Q x G.
        positives: gallery indices of the matches of each query. Queries without any are in no mean.
        junk: gallery indices of the images removed from the ranking (hardly visible; the query itself).

    Returns: ``mAP``, from trapezoidal areas under precision over recall, not from means of precisions as in
    :func:`evaluate`; ``queries``, the number in it, and ``queries_without_match``, the number of others.

    Raises:
        ValueError: lists do not fit the distances, or no query has a match.

    Example: two positives at ranks 1 and 4: (1 + (1/3 + 2/4) / 2) / 2 = 0.7083.
    """
    ranking = rank(MatrixDistances(distances), ListedMatches(positives, junk))
    return {"mAP": float(ranking.trapezoidal_precisions.mean()), **ranking.counts()}


def revisited(
    distances: Array, easy: Sequence[Sequence[int]], hard: Sequence[Sequence[int]], junk: Sequence[Sequence[int]]
) -> dict[str, float]:
    """Return the metrics of the three protocols of the revisited Oxford and Paris (Radenović et al. 2018, section 3.3):
    in ``mAP_easy`` hard images are junk, in ``mAP_medium`` both are positives, in ``mAP_hard`` easy images are junk.

    Args:
        distances: Q x G.
        easy, hard, junk: gallery indices, for each query.

    Raises:
        ValueError: see :func:`evaluate_lists`.
    """

    def union(first: Sequence[Sequence[int]], second: Sequence[Sequence[int]]) -> list[list[int]]:
        return [[*indices, *more] for indices, more in zip(first, second, strict=True)]

    protocols: dict[str, tuple[Sequence[Sequence[int]], Sequence[Sequence[int]]]] = {
        "easy": (easy, union(hard, junk)),
        "medium": (union(easy, hard), junk),
        "hard": (hard, union(easy, junk)),
    }
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
) -> dict[str, float]:
    """Return mean metrics over random galleries with one image of each identity (protocol of CUHK03, Li et al. 2014).

    In each repeat the gallery is shuffled, and the first image of each identity is taken; of the query's own identity
    the first that is not from its camera, so that a query has a match in all repeats or in none.

    Args:
        query_features, gallery_features, query_ids, gallery_ids, query_cameras, gallery_cameras, metric, ranks:
            see :func:`evaluate`.
        seed: seed of the shuffles; repeat r draws from (seed, r).
        repeats: number of galleries.

    Returns: as :func:`evaluate`. With one match per query AP and INP are equal, 1 over the rank.

    Raises:
        ValueError: see :func:`evaluate`; or ``repeats`` is below 1.
    """
    _check_repeats(repeats)
    matches = Matches(query_ids, gallery_ids, query_cameras, gallery_cameras)
    source = FeatureDistances(query_features, gallery_features, metric)
    matches.check(source)
    orders = [np.random.default_rng((seed, number)).permutation(source.gallery) for number in range(repeats)]
    positions: list[Indices] = []
    queries: list[int] = []
    for block in distance_blocks(source, matches):
        rows = [row for row, columns in enumerate(block.matches) if len(columns)]
        queries += [block.queries[row] for row in rows]
        columns = [block.matches[row] for row in rows]
        ids = matches.query_ids[list(block.queries)][rows]
        arguments = block.distances[rows], columns, ids, matches.gallery_ids
        positions.append(np.stack([_single_shot_ranks(*arguments, order) for order in orders], axis=1))
    if not queries:
        raise matches.no_match_error()
    flat = np.concatenate(positions).reshape(-1)
    # Every repeat counts as a query with one match; all have the same weight in the mean.
    ranking = Ranking(np.repeat(queries, repeats), flat, np.ones_like(flat), source.queries - len(queries))
    return ranking.scores(ranks) | {"queries": len(queries)}


def _single_shot_ranks(
    distances: Tensor, matches: Sequence[Indices], query_ids: Indices, gallery_ids: Indices, order: Indices
) -> Indices:
    """Return the rank of the first match of each query in ``order`` among the first images of the other identities."""
    position = np.argsort(order)
    match = torch.tensor([columns[position[columns].argmin()] for columns in matches], device=distances.device)[:, None]
    first = first_of_each(gallery_ids, order)
    columns = torch.from_numpy(first).to(distances.device)
    different = torch.from_numpy(gallery_ids[first] != query_ids[:, None]).to(distances.device)
    value, others = distances.gather(1, match), distances[:, columns]
    nearer = ((others < value) | ((others == value) & (columns < match))) & different
    return nearer.sum(1).cpu().numpy() + 1


def first_of_each(ids: Indices, order: Indices) -> Indices:
    """Return for each identity the image that comes first in ``order``; ascending.

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
) -> dict[str, float]:
    """Return mean metrics when one random image of each identity is the gallery and all others are queries (protocol of
    VehicleID, Liu et al. 2016).

    Args:
        features: N x D.
        ids: identities, N.
        metric, ranks: see :func:`evaluate`.
        seed: seed of the choice; repeat r draws from (seed, r).
        repeats: number of galleries.

    Raises:
        ValueError: see :func:`evaluate`; or ``repeats`` is below 1.
    """
    _check_repeats(repeats)
    identities, rows = as_column("ids", ids), as_features("image", features)
    if len(identities) != len(rows):
        raise ValueError(f"there are {len(rows)} images, but {len(identities)} ids")
    results = []
    for number in range(repeats):
        order = np.random.default_rng((seed, number)).permutation(len(identities))
        shown = np.zeros(len(identities), dtype=bool)
        shown[first_of_each(identities, order)] = True
        query, gallery = (rows[torch.from_numpy(side).to(rows.device)] for side in (~shown, shown))
        ids_of_sides = identities[~shown], identities[shown]
        results.append(evaluate(query, gallery, *ids_of_sides, metric=metric, ranks=ranks))
    return {name: sum(scores[name] for scores in results) / repeats for name in results[0]}


def _check_repeats(repeats: int) -> None:
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, not {repeats}")


# --- every image a query ----------------------------------------------------------------------------------------------


def recall(
    features: Array,
    ids: Array,
    ks: Sequence[int] = (1, 10, 100, 1000),
    *,
    metric: Metric = "cosine",
) -> dict[str, float]:
    """Return the metrics of each image as query against all others (Song et al. 2016, Stanford Online Products).

    Args:
        features: N x D.
        ids: identities, N. Images that are the only one of their identity are in no mean; they are in the gallery.
        ks: numbers k of Recall@k, the share of images with a match among the k nearest.
        metric: see :func:`evaluate`.

    Returns: ``recall1`` ...; ``r_precision``, the share of matches among the R nearest, R being the number of matches;
    ``mAP@R``, the mean over these R of the precision at each match (Musgrave et al. 2020, section 3.2); ``mAP``;
    ``queries`` and ``queries_without_match``.

    Raises:
        ValueError: see :func:`evaluate`.
    """
    return recall_scores(rank_all(features, ids, metric=metric), ks)


def rank_all(features: Array, ids: Array, *, metric: Metric = "cosine") -> Ranking:
    """Rank all other images for each image as query.

    Args:
        features: N x D.
        ids: identities, N.
        metric: see :func:`evaluate`.

    Raises:
        ValueError: see :func:`evaluate`.
    """
    matches = leave_one_out(ids)
    if len(np.unique(matches.query_ids)) == len(matches.query_ids):
        raise DataMismatch(f"none of the {len(ids)} images has another one of its identity to find")
    return rank(FeatureDistances(features, features, metric), matches)


def recall_scores(ranking: Ranking, ks: Sequence[int]) -> dict[str, float]:
    """Return the metrics of :func:`recall` from the ranks of all matches."""
    return {
        **{f"recall{k}": ranking.cmc(k) for k in ks},
        "r_precision": ranking.mean_at_r(np.ones(len(ranking.ranks))),
        "mAP@R": ranking.mean_at_r(ranking.precisions),
        "mAP": float(ranking.average_precisions.mean()),
        **ranking.counts(),
    }


def leave_one_out(ids: Array) -> Matches:
    """Return the matches of every image among all others: each has a camera of its own, so only itself is junk."""
    itself = np.arange(len(ids))
    return Matches(ids, ids, itself, itself)
