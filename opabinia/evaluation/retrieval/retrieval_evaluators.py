"""Evaluators that search: queries in a gallery, or every image among all others."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain, zip_longest
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from opabinia.config import register
from opabinia.contracts import Batch, Count, DataMismatch, DatasetInfo, Fraction, NonNegative, Predictions
from opabinia.evaluation.representation.feature_bank import Batches, joined, rows_of
from opabinia.evaluation.retrieval.distances import Distances, FeatureDistances, Metric, smallest
from opabinia.evaluation.retrieval.ranking import Indices, Matches, Ranking, masked, rank
from opabinia.evaluation.retrieval.retrieval import RANKS, Variant, recall, source_of
from opabinia.evaluation.retrieval.verification import roc_of
from opabinia.evaluation.retrieval.whitening import whitening

log = logging.getLogger("opabinia")


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
        self.device = torch.device("cpu")

    def update(self, predictions: Predictions, batch: Batch) -> None:
        """Keep a batch: ``predictions["embedding"]`` (B x D), ``batch["label"]``; ``camera`` and ``query`` where they
        are there."""
        features, labels = predictions["embedding"].detach(), batch["label"].cpu().numpy()
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
            raise DataMismatch(
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


_CURVE, _WORST, _OTHERS = 50, 100, 10
"""Of the details: places of the CMC curve, and queries that are shown."""

_ROC = {1e-4: "tpr@fpr=1e-4", 1e-3: "tpr@fpr=1e-3", 1e-2: "tpr@fpr=1e-2"}


@register.evaluator
class Retrieval(_Accumulator):
    """Scores of queries that are looked for in a gallery: ``mAP``, ``rank1`` ..., ``mINP``; see
    :func:`opabinia.evaluation.retrieval.retrieval.evaluate`.

    With re-ranking the same again as ``rerank_mAP`` ..., with query expansion as ``qe_mAP`` ..., with both also
    ``qe_rerank_mAP`` ...; with ``roc`` ``tpr@fpr=1e-4``, ``1e-3`` and ``1e-2``.

    The table (``details``) has the number of queries and of gallery images, and the hundred worst queries with their
    AP, the place of their first match and the ten images found first; and so for some
    others, from the worst to the best.

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
        dataset_info: DatasetInfo,
        /,
        *,
        metric: Metric = "cosine",
        ranks: Sequence[Count] = RANKS,
        rerank: Rerank | None = None,
        query_expansion: Expansion | None = None,
        roc: bool = False,
    ) -> None:
        super().__init__()
        if not dataset_info.queries:
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
        query, gallery, matches = _sides(seen, torch.from_numpy(seen.features).to(self.device))
        scores: dict[str, float] = {}
        for prefix, way in self._ways.items():
            ranking = rank(source_of(query, gallery, self._metric, *way), matches)
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
        query, gallery, matches = _sides(seen, torch.from_numpy(seen.features).to(self.device))
        if self._last is None or self._last[0] is not states:
            self._last = states, rank(FeatureDistances(query, gallery, self._metric), matches)
        ranking = self._last[1]
        order = np.argsort(ranking.average_precisions, kind="stable")
        ids = np.array(seen.ids, dtype=object)
        names = ids[seen.queries], ids[~seen.queries]

        def told(places: NDArray[Any]) -> list[dict[str, Any]]:
            queries = ranking.queries[places]
            distances = FeatureDistances(query[torch.from_numpy(queries)], gallery, self._metric)
            rows = zip(queries.tolist(), places.tolist(), _shown(distances, matches.only(queries), 10), strict=True)
            return [
                {
                    "query": names[0][number],
                    "AP": float(ranking.average_precisions[place]),
                    "first_match": int(ranking.firsts[place]),
                    "nearest": [names[1][column] for column in columns],
                    "right": [bool(matches.gallery_ids[c] == matches.query_ids[number]) for c in columns],
                }
                for number, place, columns in rows
            ]

        return {
            "retrieval": {
                "queries": len(ranking.queries),
                "queries_without_match": ranking.left_out,
                "gallery": len(gallery),
                "cmc": [ranking.rank(k) for k in range(1, min(_CURVE, len(gallery)) + 1)],
                "worst": told(order[:_WORST]),
                "others": told(order[np.linspace(0, len(order) - 1, min(_OTHERS, len(order))).astype(int)]),
            }
        }


def _sides(seen: _Seen, features: Tensor) -> tuple[Tensor, Tensor, Matches]:
    """Features of the queries and of the gallery, and what matches."""
    queries = seen.queries
    if not 0 < queries.sum() < len(queries):
        raise DataMismatch(
            f"{queries.sum()} of {len(queries)} images are marked as query; retrieval needs queries and a gallery. "
            "Where every image is looked for among all others, the evaluator is `recall`"
        )
    cameras = (None, None) if seen.cameras is None else (seen.cameras[queries], seen.cameras[~queries])
    query, gallery = (features[torch.from_numpy(part).to(features.device)] for part in (queries, ~queries))
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
    see :func:`opabinia.evaluation.retrieval.retrieval.recall`.

    Args:
        facts: of the data.
        metric: how features are compared; euclidean and squared_euclidean rank alike.
        ks: of the shares of images with a match among the k nearest (those of Stanford Online Products).
    """

    def __init__(
        self, dataset_info: DatasetInfo, /, *, metric: Metric = "cosine", ks: Sequence[Count] = (1, 10, 100, 1000)
    ) -> None:
        super().__init__()
        if dataset_info.queries:
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
        found = self._recall(torch.from_numpy(seen.features).to(self.device), seen.labels)
        return {name: found[name] for name in self.better}


@register.evaluator
class InstanceRetrieval(_Accumulator):
    """Scores of finding the same thing in other pictures: ``instance_mAP`` and ``instance_rank1``, and the same of
    embeddings that were not whitened, ``instance_plain_mAP`` and ``instance_plain_rank1``.

    Embeddings of length 1 are whitened with what the training data teaches, brought to length 1 again and compared by
    cosine; AP is the area of trapezoids under precision over recall (VISSL's rule, and that of Oxford and Paris). Where
    the data tells queries they are looked for in the rest, without images of their own camera; otherwise every image
    among all others.

    Args:
        facts: of the data.
        components: how many directions are kept at most (VISSL's 512).
    """

    def __init__(self, dataset_info: DatasetInfo, /, *, components: Count = 512) -> None:
        super().__init__()
        self._apart, self._components = dataset_info.queries, components
        self._bank: Batches = []
        self.better = dict.fromkeys((f"instance_{way}{of}" for way in ("", "plain_") for of in ("mAP", "rank1")), "max")

    def learn(self, predictions: Predictions, batch: Batch) -> None:
        """Keep training samples, whose directions are learned: ``predictions["embedding"]`` (B x D)."""
        self._bank.append(rows_of(predictions, batch))

    def state(self) -> Any:
        """The batches of this process: to learn from, and to search."""
        return self._bank, self._batches

    def compute(self, states: Sequence[Any]) -> dict[str, float]:
        """Scores of all processes' images.

        Raises:
            Unfit: there are no training samples, an embedding is not finite, or no image has a match.
        """
        bank, seen = joined([one for one, _ in states]), self._joined([one for _, one in states])
        if seen is None:
            return {}
        if bank is None:
            raise DataMismatch("instance_retrieval: there are no training samples to learn the whitening from")
        plain, known = (F.normalize(torch.from_numpy(one.features), dim=1) for one in (seen, bank))
        ways = {"": whitening(known, self._components)(plain), "plain_": plain}
        found = [self._scores(way, seen, features.to(self.device)) for way, features in ways.items()]
        return found[0] | found[1]

    def _scores(self, way: str, seen: _Seen, features: Tensor) -> dict[str, float]:
        query, gallery, matches = _sides(seen, features) if self._apart else _all_sides(seen, features)
        ranking = rank(FeatureDistances(query, gallery), matches)
        return {
            f"instance_{way}mAP": float(ranking.trapezoids.mean()),
            f"instance_{way}rank1": ranking.rank(1),
        }


def _all_sides(seen: _Seen, features: Tensor) -> tuple[Tensor, Tensor, Matches]:
    """Every image as a query among all others: as if each came from a camera of its own, only itself is junk."""
    itself = np.arange(len(seen.labels))
    return features, features, Matches(seen.labels, seen.labels, itself, itself)
