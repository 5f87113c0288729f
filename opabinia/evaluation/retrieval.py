"""Retrieval: how well the same thing is found again in a gallery, and the evaluators of it.

What makes a result the same every time stands in ``distances.py``, the rules of ranking in ``ranking.py``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain, zip_longest
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from opabinia.config import register
from opabinia.contracts import Batch, Count, Facts, Fraction, NonNegative, Predictions, Unfit
from opabinia.evaluation import expansion
from opabinia.evaluation.distances import (
    Array,
    Distances,
    FeatureDistances,
    MatrixDistances,
    Metric,
    as_features,
    distances,
    nearest,
    smallest,
)
from opabinia.evaluation.ranking import Indices, Matches, Ranking, as_column, masked, rank
from opabinia.evaluation.verification import roc_of

__all__ = [
    "Expansion",
    "Recall",
    "Rerank",
    "Retrieval",
    "distances",
    "evaluate",
    "evaluate_distances",
    "nearest",
    "random_galleries",
    "recall",
    "single_shot",
]

log = logging.getLogger("opabinia")

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
            :func:`opabinia.evaluation.rerank.k_reciprocal`.
        query_expansion: before all else: the keywords of :func:`opabinia.evaluation.expansion.alpha`.
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
    source = _source(query_features, gallery_features, metric, rerank, query_expansion)
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


def _source(
    query: Array,
    gallery: Array,
    metric: Metric,
    rerank: Variant | Mapping[str, Any] | None,
    query_expansion: Mapping[str, Any] | None,
) -> Distances:
    if query_expansion is not None:
        query, gallery = expansion.alpha(query, gallery, **query_expansion)
    if rerank is None:
        return FeatureDistances(query, gallery, metric)
    from opabinia.evaluation.rerank import k_reciprocal

    keys = {"variant": rerank} if isinstance(rerank, str) else dict(rerank)
    kind = "cosine" if metric == "cosine" else "euclidean"
    return k_reciprocal(as_features("query", query), as_features("gallery", gallery), **{"metric": kind, **keys})


def _checked(ranks: Sequence[int]) -> Sequence[int]:
    if any(k < 1 for k in ranks):
        raise ValueError(f"ranks count from 1, not {min(ranks)}")
    return ranks


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
        raise Unfit(f"none of the {len(itself)} images has another one of its identity to find")
    ranking = rank(FeatureDistances(features, features, metric), matches, block)
    return {
        **{f"recall{k}": ranking.rank(k) for k in _checked(ks)},
        "r_precision": ranking.among_first(np.ones(len(ranking.places))),
        "mAP@R": ranking.among_first(ranking.precisions),
        "mAP": float(ranking.average_precisions.mean()),
        "queries": len(ranking.queries),
        "queries_without_match": ranking.left_out,
    }


# --- evaluators -------------------------------------------------------------------------------------------------------


@register.section(name="rerank")
@dataclass(frozen=True, kw_only=True)
class Rerank:
    """Re-ranking by common neighbours (Zhong et al. 2017).

    Args:
        variant: the authors' own rule, or the one that FastReID's evaluator runs.
        k1: how many nearest neighbours are compared (the paper's 20).
        k2: over how many of them the mean is taken (the paper's 6).
        lambda_value: share of the distance before (the paper's 0.3).
    """

    variant: Variant = "zhong"
    k1: Count = 20
    k2: Count = 6
    lambda_value: Fraction = 0.3


@register.section(name="query_expansion")
@dataclass(frozen=True, kw_only=True)
class Expansion:
    """Alpha query expansion of queries and gallery (Radenović et al. 2019); defaults are FastReID's.

    Args:
        k: neighbours, the image itself included.
        alpha: the larger, the less do far ones count.
        times: how often the whole is done.
    """

    k: Count = 5
    alpha: NonNegative = 3.0
    times: Count = 1


class _Seen(NamedTuple):
    """What a process keeps of a batch; or all batches of all processes, in the order of the data."""

    features: NDArray[np.float32]
    labels: Indices
    cameras: Indices | None
    queries: Indices
    ids: list[str]


class _Accumulator:
    """Keeps embeddings, and puts those of all processes in the order of the data: their batches were dealt in turn."""

    def __init__(self) -> None:
        self._batches: list[_Seen] = []
        self._device = torch.device("cpu")

    def update(self, predictions: Predictions, batch: Batch) -> None:
        """Keep a batch: ``predictions["embedding"]`` (B x D), ``batch["label"]``; ``camera`` and ``query`` where they
        are there."""
        features, labels = predictions["embedding"].detach(), batch["label"].cpu().numpy()
        self._device = features.device
        cameras = batch["camera"].cpu().numpy() if "camera" in batch else None
        queries = torch.as_tensor(batch.get("query", [False] * len(labels))).cpu().numpy().astype(bool)
        self._batches.append(_Seen(features.float().cpu().numpy(), labels, cameras, queries, list(batch["id"])))

    def state(self) -> list[_Seen]:
        """The batches of this process."""
        return self._batches

    @staticmethod
    def _joined(states: Sequence[list[_Seen]]) -> _Seen | None:
        batches = [one for turn in zip_longest(*states) for one in turn if one is not None]
        if not batches:
            return None
        features, labels, cameras, queries, ids = zip(*batches, strict=True)
        known, names = all(one is not None for one in cameras), list(chain(*ids))
        wrong = np.flatnonzero(np.concatenate([~np.isfinite(one).all(1) for one in features]))
        if len(wrong):
            raise Unfit(
                f"{len(wrong)} of {len(names)} embeddings are not finite, the first that of {names[wrong[0]]}; if "
                "all are, the model has diverged"
            )
        return _Seen(
            np.concatenate(features),
            np.concatenate(labels),
            np.concatenate(cameras) if known else None,
            np.concatenate(queries),
            names,
        )


_ROC = {1e-4: "tpr@fpr=1e-4", 1e-3: "tpr@fpr=1e-3", 1e-2: "tpr@fpr=1e-2"}


@register.evaluator
class Retrieval(_Accumulator):
    """Scores of queries that are looked for in a gallery: ``mAP``, ``rank1`` ..., ``mINP``; see
    :func:`opabinia.evaluation.retrieval.evaluate`.

    With re-ranking the same again as ``rerank_mAP`` ..., with query expansion as ``qe_mAP`` ..., with both also
    ``qe_rerank_mAP`` ...; with ``roc`` ``tpr@fpr=1e-4``, ``1e-3`` and ``1e-2``.

    The table (``details``) has the number of queries and of gallery images, and the hundred worst queries with their
    AP, the place of their first match and the ten images found first.

    Args:
        facts: of the data.
        metric: how features are compared; euclidean and squared_euclidean rank alike.
        ranks: k of the shares of queries with a match among the k nearest.
        rerank: re-rank by common neighbours, too; null: do not.
        query_expansion: expand queries and gallery, too; null: do not.
        roc: which share of pairs of the same identity is accepted where 1e-4, 1e-3 and 1e-2 of the others are.

    Raises:
        ValueError: the data has no queries, or nothing else.
    """

    def __init__(
        self,
        facts: Facts,
        /,
        *,
        metric: Metric = "cosine",
        ranks: Sequence[Count] = RANKS,
        rerank: Rerank | None = None,
        query_expansion: Expansion | None = None,
        roc: bool = False,
    ) -> None:
        super().__init__()
        if not facts.queries:
            raise ValueError(
                "retrieval: the data does not tell queries and a gallery; where every image is looked for "
                "among all others, the evaluator is `recall`"
            )
        self._metric: Metric = metric
        self._ranks, self._roc = tuple(ranks), roc
        again = asdict(rerank) if rerank else None
        expanded = asdict(query_expansion) if query_expansion else None
        ways = {"": (None, None), "rerank_": (again, None), "qe_": (None, expanded), "qe_rerank_": (again, expanded)}
        # Each way once, under the first of its names.
        self._ways = {prefix: way for n, (prefix, way) in enumerate(ways.items()) if way not in [*ways.values()][:n]}
        self.better = {f"{prefix}{name}": "max" for prefix in self._ways for name in self._names}
        self.better |= dict.fromkeys(_ROC.values(), "max") if roc else {}
        self._last: tuple[Any, Ranking] | None = None

    @property
    def _names(self) -> list[str]:
        return ["mAP", *(f"rank{k}" for k in self._ranks), "mINP"]

    def compute(self, states: Sequence[list[Any]]) -> dict[str, float]:
        """Scores of all processes' queries in all processes' gallery.

        Raises:
            ValueError: nothing is marked as query, or nothing is not; an embedding is not finite; or no query has a
                match.
        """
        seen = self._joined(states)
        if seen is None:
            return {}
        query, gallery, matches = _sides(seen, self._device)
        scores: dict[str, float] = {}
        for prefix, way in self._ways.items():
            ranking = rank(_source(query, gallery, self._metric, *way), matches)
            found = ranking.scores(self._ranks)
            scores |= {f"{prefix}{name}": found[name] for name in self._names}
            if not prefix:
                self._last = states, ranking
        if self._roc:
            shares = roc_of(FeatureDistances(query, gallery, self._metric), matches, tuple(_ROC))
            scores |= {_ROC[fpr]: share for fpr, share in shares.items()}
        return scores

    def details(self, states: Sequence[list[Any]]) -> dict[str, Any]:
        """The table, in plain values; of the plain ranking."""
        seen = self._joined(states)
        if seen is None:
            return {}
        query, gallery, matches = _sides(seen, self._device)
        if self._last is None or self._last[0] is not states:
            self._last = states, rank(FeatureDistances(query, gallery, self._metric), matches)
        ranking = self._last[1]
        worst = np.argsort(ranking.average_precisions, kind="stable")[:100]
        queries = ranking.queries[worst]
        ids = np.array(seen.ids, dtype=object)
        names = ids[seen.queries], ids[~seen.queries]
        part = matches.only(queries)
        found = _shown(FeatureDistances(query[torch.from_numpy(queries)], gallery, self._metric), part, 10)
        rows = zip(queries.tolist(), worst.tolist(), found, strict=True)
        return {
            "retrieval": {
                "queries": len(ranking.queries),
                "queries_without_match": ranking.left_out,
                "gallery": len(gallery),
                "worst": [
                    {
                        "query": names[0][number],
                        "AP": float(ranking.average_precisions[place]),
                        "first_match": int(ranking.firsts[place]),
                        "nearest": [names[1][column] for column in columns],
                        "right": [bool(matches.gallery_ids[c] == matches.query_ids[number]) for c in columns],
                    }
                    for number, place, columns in rows
                ],
            }
        }


def _sides(seen: _Seen, device: torch.device) -> tuple[Tensor, Tensor, Matches]:
    """Features of the queries and of the gallery, and what matches."""
    queries = seen.queries
    if not 0 < queries.sum() < len(queries):
        raise Unfit(
            f"{queries.sum()} of {len(queries)} images are marked as query; retrieval needs queries and a gallery. "
            "Where every image is looked for among all others, the evaluator is `recall`"
        )
    cameras = (None, None) if seen.cameras is None else (seen.cameras[queries], seen.cameras[~queries])
    query, gallery = (torch.from_numpy(seen.features[part]).to(device) for part in (queries, ~queries))
    return query, gallery, Matches(seen.labels[queries], seen.labels[~queries], *cameras)


def _shown(source: Distances, matches: Matches, k: int) -> Iterator[list[int]]:
    """Places in the gallery of the k nearest images of each query, junk left out."""
    for one in masked(source, matches):
        values, columns = smallest(one.distances.nan_to_num(torch.inf), k)
        for row, kept in zip(columns.tolist(), values.isfinite().tolist(), strict=True):
            yield [column for column, there in zip(row, kept, strict=True) if there]


@register.evaluator
class Recall(_Accumulator):
    """Scores where every image is looked for among all others: ``recall1`` ..., ``r_precision``, ``mAP@R`` and ``mAP``;
    see :func:`opabinia.evaluation.retrieval.recall`.

    Args:
        facts: of the data.
        metric: how features are compared; euclidean and squared_euclidean rank alike.
        ks: of the shares of images with a match among the k nearest (those of Stanford Online Products).
    """

    def __init__(self, facts: Facts, /, *, metric: Metric = "cosine", ks: Sequence[Count] = (1, 10, 100, 1000)) -> None:
        super().__init__()
        if facts.queries:
            log.warning("recall takes every image for query and gallery; `retrieval` keeps apart what the data does")
        self._recall = partial(recall, ks=tuple(ks), metric=metric)
        self.better = {name: "max" for name in (*(f"recall{k}" for k in ks), "r_precision", "mAP@R", "mAP")}

    def compute(self, states: Sequence[list[Any]]) -> dict[str, float]:
        """Scores of all processes' images.

        Raises:
            ValueError: an embedding is not finite, or no image has a match.
        """
        seen = self._joined(states)
        if seen is None:
            return {}
        found = self._recall(torch.from_numpy(seen.features).to(self._device), seen.labels)
        return {name: found[name] for name in self.better}
