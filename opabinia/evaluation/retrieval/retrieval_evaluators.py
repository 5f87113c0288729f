"""Evaluators of retrieval: queries in a gallery, or every image among all others."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from annotated_types import Ge
from torch import Tensor

from opabinia.config import register
from opabinia.contracts import (
    Batch,
    Count,
    DataMismatch,
    DatasetInfo,
    Fraction,
    Indices,
    NonNegative,
    Predictions,
    Resampling,
)
from opabinia.evaluation.representation.feature_bank import Batches, EmbeddingEvaluator, Rows, concatenate, rows_of
from opabinia.evaluation.retrieval.distances import Distances, FeatureDistances, Metric, smallest
from opabinia.evaluation.retrieval.ranking import ListedMatches, Matches, Ranking, distance_blocks, rank
from opabinia.evaluation.retrieval.retrieval import (
    RANKS,
    Variant,
    distances_of,
    leave_one_out,
    random_galleries,
    rank_all,
    recall_scores,
    single_shot,
)
from opabinia.evaluation.retrieval.verification import pairs, roc
from opabinia.evaluation.retrieval.whitening import whitening

log = logging.getLogger("opabinia")

_CMC_RANKS, _MAX_WORST, _MAX_OTHERS, _NEAREST = 50, 100, 10, 10
"""Sizes of the tables: ranks of the CMC curve, worst queries, queries from the worst to the best, images of a query."""

_ROC = {1e-4: "tpr@fpr=1e-4", 1e-3: "tpr@fpr=1e-3", 1e-2: "tpr@fpr=1e-2"}


@register.section(name="rerank")
@dataclass(frozen=True, kw_only=True)
class Rerank:
    """k-reciprocal re-ranking (Zhong et al. 2017).

    Args:
        variant: the authors' code, or that of FastReID's evaluator.
        k1: nearest neighbors of an image (the paper's 20).
        k2: nearest neighbors that weights are averaged over (the paper's 6).
        lambda_value: share of the original distance (the paper's 0.3).
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
        k: neighbors, the image itself included.
        alpha: larger values weight distant neighbors less.
        times: number of repetitions.
    """

    k: Count = 5
    alpha: NonNegative = 3.0
    times: Count = 1


@register.evaluator
class Retrieval(EmbeddingEvaluator):
    """Metrics of queries searched in a gallery: ``mAP``, ``rank1`` ..., ``mINP``; see
    :func:`opabinia.evaluation.retrieval.retrieval.evaluate`.

    With re-ranking the same as ``rerank_mAP`` ..., with query expansion as ``qe_mAP`` ..., with both also
    ``qe_rerank_mAP`` ...; with ``roc`` ``tpr@fpr=1e-4``, ``1e-3`` and ``1e-2``.

    The table (``details``) has the number of queries and of gallery images, and for the hundred worst queries AP, the
    rank of the first match and the ten nearest images; the same for some queries from the worst to the best.

    Args:
        dataset_info: facts about the data.
        metric: distance metric of the features; euclidean and squared_euclidean rank alike.
        ranks: k of the shares of queries with a match among the k nearest.
        rerank: k-reciprocal re-ranking; null: none.
        query_expansion: query expansion of queries and gallery; null: none.
        roc: compute the true positive rates of pairs at false positive rates of 1e-4, 1e-3 and 1e-2.
        precision_at: k of ``precision@k``, see :meth:`opabinia.evaluation.retrieval.ranking.Ranking.precision_at`.

    Raises:
        ValueError: the data is not split into queries and gallery.
    """

    def __init__(
        self,
        dataset_info: DatasetInfo,
        /,
        *,
        metric: Metric = "cosine",
        ranks: Sequence[Count] = RANKS,
        rerank: Rerank | None = None,
        query_expansion: Expansion | None = None,
        roc: bool = False,
        precision_at: Sequence[Count] = (),
    ) -> None:
        super().__init__()
        _check_queries("retrieval", dataset_info)
        self._metric: Metric = metric
        self._ranks, self._roc = tuple(ranks), roc
        self._variants: dict[str, tuple[Rerank | None, Expansion | None]] = {"": (None, None)}
        if rerank:
            self._variants["rerank_"] = (rerank, None)
        if query_expansion:
            self._variants["qe_"] = (None, query_expansion)
        if rerank and query_expansion:
            self._variants["qe_rerank_"] = (rerank, query_expansion)
        self._precision_at = tuple(precision_at)
        self._names = ["mAP", *(f"rank{k}" for k in ranks), "mINP", *(f"precision@{k}" for k in precision_at)]
        self.better = {f"{prefix}{name}": "max" for prefix in self._variants for name in self._names}
        self.better |= dict.fromkeys(_ROC.values(), "max") if roc else {}
        self._ranked: tuple[Rows, Tensor, Tensor, Matches, Ranking] | None = None

    def _scores(self, rows: Rows) -> dict[str, float]:
        """Return the metrics of all processes' queries in all processes' gallery.

        Raises:
            ValueError: all images are queries, or none; or no query has a match.
        """
        query, gallery, matches = _split(rows, torch.from_numpy(rows.features).to(self.device))
        scores: dict[str, float] = {}
        for prefix, options in self._variants.items():
            steps = [asdict(step) if step else None for step in options]
            ranking = rank(distances_of(query, gallery, self._metric, *steps), matches)
            all_scores = ranking.scores(self._ranks)
            all_scores |= {f"precision@{k}": ranking.precision_at(k) for k in self._precision_at}
            scores |= {f"{prefix}{name}": all_scores[name] for name in self._names}
            if not prefix:
                self._ranked = rows, query, gallery, matches, ranking
        if self._roc:
            rates = roc(FeatureDistances(query, gallery, self._metric), matches, tuple(_ROC))
            scores |= {_ROC[fpr]: tpr for fpr, tpr in rates.items()}
        return scores

    def details(self, states: Sequence[Batches]) -> dict[str, Any]:
        """Return the table, of the ranking without re-ranking and expansion."""
        if self._ranked is None:
            return {}
        rows, query, gallery, matches, ranking = self._ranked
        order = np.argsort(ranking.average_precisions, kind="stable")
        ids = np.array(rows.ids, dtype=object)
        query_ids, gallery_ids = ids[rows.queries], ids[~rows.queries]

        def described(positions: Indices) -> list[dict[str, Any]]:
            queries = ranking.queries[positions]
            distances = FeatureDistances(query[torch.from_numpy(queries)], gallery, self._metric)
            nearest = _nearest(distances, matches.select(queries), _NEAREST)
            return [
                {
                    "query": query_ids[number],
                    "AP": float(ranking.average_precisions[position]),
                    "first_match": int(ranking.first_ranks[position]),
                    "nearest": [gallery_ids[column] for column in columns],
                    "right": [bool(matches.gallery_ids[column] == matches.query_ids[number]) for column in columns],
                }
                for number, position, columns in zip(queries.tolist(), positions.tolist(), nearest, strict=True)
            ]

        return {
            "retrieval": {
                **ranking.counts(),
                "gallery": len(gallery),
                "cmc": [ranking.cmc(k) for k in range(1, min(_CMC_RANKS, len(gallery)) + 1)],
                "worst": described(order[:_MAX_WORST]),
                "others": described(order[np.linspace(0, len(order) - 1, min(_MAX_OTHERS, len(order))).astype(int)]),
            }
        }

    def resamplings(self, states: Sequence[Batches]) -> list[Resampling]:
        """Return mAP and ``rank1`` ..., without re-ranking and expansion; the queries of an identity are drawn
        together."""
        if self._ranked is None:
            return []
        *_, matches, ranking = self._ranked
        identities = matches.query_ids[ranking.queries]
        values = {"mAP": ranking.average_precisions} | {f"rank{k}": ranking.first_ranks <= k for k in self._ranks}
        return [Resampling.mean(name, column, "identities", identities) for name, column in values.items()]


def _split(rows: Rows, features: Tensor) -> tuple[Tensor, Tensor, Matches]:
    """Return the features of the queries and of the gallery, and the matches."""
    queries, labels = rows.queries, rows.known_labels()
    if not 0 < queries.sum() < len(queries):
        raise DataMismatch(
            f"{queries.sum()} of {len(queries)} images are queries; retrieval needs queries and a gallery. Where every "
            "image is searched among all others, the evaluator is `recall`"
        )
    cameras = (None, None) if rows.cameras is None else (rows.cameras[queries], rows.cameras[~queries])
    query, gallery = (features[torch.from_numpy(side).to(features.device)] for side in (queries, ~queries))
    return query, gallery, Matches(labels[queries], labels[~queries], *cameras)


def _nearest(source: Distances, matches: Matches, k: int) -> Iterator[list[int]]:
    """Yield the gallery indices of the k nearest images of each query, without junk."""
    for block in distance_blocks(source, matches):
        values, columns = smallest(block.distances.nan_to_num(torch.inf), k)
        for row, finite in zip(columns.cpu(), values.isfinite().cpu(), strict=True):
            yield row[finite].tolist()


@register.evaluator
class RepeatedGallery(EmbeddingEvaluator):
    """Mean metrics over random galleries with one image of each identity: ``single_shot_mAP``,
    ``single_shot_rank1`` ... or ``random_gallery_mAP`` ...

    ``single_shot`` draws them from the gallery of the data (CUHK03, Li et al. 2014), see
    :func:`opabinia.evaluation.retrieval.retrieval.single_shot`; ``random_gallery`` from all images, the others are
    queries (VehicleID, Liu et al. 2016), see :func:`opabinia.evaluation.retrieval.retrieval.random_galleries`.

    Args:
        dataset_info: facts about the data.
        protocol: which of the two.
        metric: distance metric of the features; euclidean and squared_euclidean rank alike.
        ranks: k of the shares of queries with a match among the k nearest.
        repeats: number of galleries.
        seed: seed of their choice.

    Raises:
        ValueError: ``single_shot``, and the data is not split into queries and gallery.
    """

    def __init__(
        self,
        dataset_info: DatasetInfo,
        /,
        *,
        protocol: Literal["single_shot", "random_gallery"] = "single_shot",
        metric: Metric = "cosine",
        ranks: Sequence[Count] = RANKS,
        repeats: Count = 10,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if protocol == "single_shot":
            _check_queries("repeated_gallery with protocol single_shot", dataset_info)
        self._protocol = protocol
        self._options: dict[str, Any] = {"metric": metric, "ranks": tuple(ranks), "seed": seed, "repeats": repeats}
        self.better = {f"{protocol}_{name}": "max" for name in ("mAP", *(f"rank{k}" for k in ranks))}

    def _scores(self, rows: Rows) -> dict[str, float]:
        """Return the metrics of all processes' images.

        Raises:
            ValueError: no query has a match.
        """
        features = torch.from_numpy(rows.features).to(self.device)
        if self._protocol == "random_gallery":
            scores = random_galleries(features, rows.known_labels(), **self._options)
        else:
            query, gallery, matches = _split(rows, features)
            ids = matches.query_ids, matches.gallery_ids
            sides = (rows.queries, ~rows.queries)
            cameras = () if rows.cameras is None else [rows.cameras[side] for side in sides]
            scores = single_shot(query, gallery, *ids, *cameras, **self._options)
        return {name: scores[name.removeprefix(f"{self._protocol}_")] for name in self.better}


def _check_queries(name: str, dataset_info: DatasetInfo) -> None:
    if not dataset_info.queries:
        raise ValueError(
            f"{name}: the data has no queries and gallery; where every image is searched among all others, the "
            "evaluator is `recall`"
        )


@register.evaluator
class Recall(EmbeddingEvaluator):
    """Metrics of every image as query among all others: ``recall1`` ..., ``r_precision``, ``mAP@R`` and ``mAP``; see
    :func:`opabinia.evaluation.retrieval.retrieval.recall`.

    Args:
        dataset_info: facts about the data.
        metric: distance metric of the features; euclidean and squared_euclidean rank alike.
        ks: numbers k of the shares of images with a match among the k nearest (those of Stanford Online Products).
    """

    def __init__(
        self, dataset_info: DatasetInfo, /, *, metric: Metric = "cosine", ks: Sequence[Count] = (1, 10, 100, 1000)
    ) -> None:
        super().__init__()
        if dataset_info.queries:
            log.warning("recall takes every image as query and gallery; `retrieval` uses the split of the data")
        self._metric: Metric = metric
        self._ks = tuple(ks)
        self.better = {name: "max" for name in (*(f"recall{k}" for k in ks), "r_precision", "mAP@R", "mAP")}
        self._ranked: tuple[Indices, Ranking] | None = None

    def _scores(self, rows: Rows) -> dict[str, float]:
        """Return the metrics of all processes' images.

        Raises:
            ValueError: no image has a match.
        """
        features, labels = torch.from_numpy(rows.features).to(self.device), rows.known_labels()
        ranking = rank_all(features, labels, metric=self._metric)
        self._ranked = labels, ranking
        scores = recall_scores(ranking, self._ks)
        return {name: scores[name] for name in self.better}

    def resamplings(self, states: Sequence[Batches]) -> list[Resampling]:
        """Return ``recall1`` ... and mAP; the images of an identity are drawn together."""
        if self._ranked is None:
            return []
        labels, ranking = self._ranked
        identities = labels[ranking.queries]
        values = {f"recall{k}": ranking.first_ranks <= k for k in self._ks} | {"mAP": ranking.average_precisions}
        return [Resampling.mean(name, column, "identities", identities) for name, column in values.items()]


@register.evaluator
class Verification(EmbeddingEvaluator):
    """Accuracy of deciding whether two images show the same identity: ``verification_accuracy``, the mean over folds
    (protocol of LFW); see :func:`opabinia.evaluation.retrieval.verification.pairs`.

    Embeddings are scaled to length 1. Samples 2i and 2i + 1 are a pair, as the source ``image_pairs`` has them.

    Args:
        dataset_info: facts about the data.
        folds: number of folds.
    """

    def __init__(self, dataset_info: DatasetInfo, /, *, folds: Annotated[int, Ge(2)] = 10) -> None:
        super().__init__()
        self.better = {"verification_accuracy": "max"}
        self._folds = folds

    def _scores(self, rows: Rows) -> dict[str, float]:
        """Return the accuracy on all processes' pairs.

        Raises:
            DataMismatch: samples are no pairs, or there are fewer pairs than folds.
        """
        labels, features = rows.known_labels(), F.normalize(torch.from_numpy(rows.features), dim=1)
        count = len(labels) // 2
        if len(labels) % 2 or labels.ndim != 1 or not np.array_equal(labels[0::2], 2 * np.arange(count)):
            raise DataMismatch("verification: consecutive samples must be pairs; the source is image_pairs")
        if count < self._folds:
            raise DataMismatch(f"verification: {count} pairs do not make {self._folds} folds; set `folds`")
        result = pairs(features[0::2], features[1::2], labels[0::2] == labels[1::2], folds=self._folds)
        return {"verification_accuracy": result["accuracy"]}


@register.evaluator
class Revisited(EmbeddingEvaluator):
    """Metrics of the revisited Oxford and Paris datasets (Radenović et al. 2018, section 3.2): ``medium_mAP`` and
    ``hard_mAP``, the same of ``easy``, and ``medium_mP@10``, the precision at 10, likewise.

    ``easy`` matches are the easy images, and hard ones are ignored; ``medium`` both; ``hard`` the hard images, and easy
    ones are ignored. Junk is always ignored; a query without a match is in no mean. AP is the trapezoidal area under
    precision over recall.

    Args:
        dataset_info: facts about the data, which must be that of the source ``revisited``.
        metric: distance metric of the features; euclidean and squared_euclidean rank alike.

    Raises:
        ValueError: the data is not split into queries and gallery.
    """

    def __init__(self, dataset_info: DatasetInfo, /, *, metric: Metric = "cosine") -> None:
        super().__init__()
        _check_queries("revisited", dataset_info)
        self._metric: Metric = metric
        names = (f"{setup}_{name}" for name in ("mAP", "mP@10") for setup in _REVISITED)
        self.better = dict.fromkeys(names, "max")

    def _scores(self, rows: Rows) -> dict[str, float]:
        """Return the metrics of all processes' queries in all processes' gallery.

        Raises:
            DataMismatch: the labels are not those of the source ``revisited``, or no query has a match.
        """
        labels, queries = rows.known_labels(), rows.queries
        if labels.ndim != 2 or labels.shape[1] != queries.sum():
            raise DataMismatch("revisited: a label needs a value for each query; the source is revisited")
        query, gallery = (torch.from_numpy(rows.features[side]).to(self.device) for side in (queries, ~queries))
        relevance = labels[~queries].T
        scores: dict[str, float] = {}
        for setup, (matches, ignored) in _REVISITED.items():
            listed = [
                [np.flatnonzero(np.isin(row, values)).tolist() for row in relevance] for values in (matches, ignored)
            ]
            ranking = rank(FeatureDistances(query, gallery, self._metric), ListedMatches(*listed))
            scores[f"{setup}_mAP"] = float(ranking.trapezoidal_precisions.mean())
            scores[f"{setup}_mP@10"] = ranking.precision_at(10)
        return {name: scores[name] for name in self.better}


_REVISITED = {"medium": ([1, 2], [3]), "hard": ([2], [1, 3]), "easy": ([1], [2, 3])}
"""Labels (1 easy, 2 hard, 3 junk) of the matches and of the ignored images, by setup."""


@register.evaluator
class InstanceRetrieval(EmbeddingEvaluator):
    """Metrics of instance retrieval: ``instance_mAP`` and ``instance_rank1`` of whitened embeddings, and
    ``instance_plain_mAP`` and ``instance_plain_rank1`` of embeddings that are not whitened.

    Embeddings of length 1 are whitened with components learned on the training data, normalized again and compared by
    cosine; AP is the trapezoidal area under precision over recall (rule of VISSL, Oxford and Paris). Queries are
    searched in the gallery, without images of their own camera; in data without queries every image among all others.

    Args:
        dataset_info: facts about the data.
        components: maximum number of directions (VISSL's 512).
    """

    def __init__(self, dataset_info: DatasetInfo, /, *, components: Count = 512) -> None:
        super().__init__()
        self._has_queries, self._components = dataset_info.queries, components
        self._training: Batches = []
        names = (f"instance_{plain}{name}" for plain in ("", "plain_") for name in ("mAP", "rank1"))
        self.better = dict.fromkeys(names, "max")

    def learn(self, predictions: Predictions, batch: Batch) -> None:
        """Add training samples, from which components are learned: ``predictions["embedding"]`` (B x D)."""
        self._training.append(rows_of(predictions, batch))

    def state(self) -> Any:
        """Return the batches of this process: training samples, and images to search."""
        return self._training, self._batches

    def compute(self, states: Sequence[Any]) -> dict[str, float]:
        """Return the metrics of all processes' images.

        Raises:
            DataMismatch: there are no training samples, an embedding is not finite, or no image has a match.
        """
        training, rows = (concatenate(batches) for batches in zip(*states, strict=True))
        if rows is None:
            return {}
        if training is None:
            raise DataMismatch("instance_retrieval: there are no training samples to learn the whitening from")
        plain, known = (F.normalize(torch.from_numpy(side.features), dim=1) for side in (rows, training))
        scores: dict[str, float] = {}
        for prefix, vectors in {"": whitening(known, self._components)(plain), "plain_": plain}.items():
            features = vectors.to(self.device)
            if self._has_queries:
                query, gallery, matches = _split(rows, features)
            else:
                query, gallery, matches = features, features, leave_one_out(rows.known_labels())
            ranking = rank(FeatureDistances(query, gallery), matches)
            scores[f"instance_{prefix}mAP"] = float(ranking.trapezoidal_precisions.mean())
            scores[f"instance_{prefix}rank1"] = ranking.cmc(1)
        return scores
