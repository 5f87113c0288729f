"""Whether embeddings form groups, and whether these are the classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opabinia.config import register
from opabinia.contracts import EMBEDDING, Batch, Count, DataMismatch, DatasetInfo, Predictions
from opabinia.evaluation.representation.feature_bank import Batches, joined, normalised, refuse_unlabelled, rows_of


def contingency(clusters: NDArray[Any], labels: NDArray[Any], classes: int) -> NDArray[np.int64]:
    """How many samples of each class are in each cluster (clusters x classes).

    Args:
        clusters: their number for each of N samples, from 0.
        labels: class numbers, N.
        classes: how many there are.
    """
    table = np.zeros((int(clusters.max()) + 1, classes), np.int64)
    np.add.at(table, (clusters, labels), 1)
    return table


def purity(table: NDArray[np.int64]) -> float:
    """Share of samples that are of the class most frequent in their cluster.

    Example: clusters that hold [3, 1] and [2, 2] of two classes: (3 + 2) / 8 = 0.625.
    """
    return float(table.max(1).sum() / table.sum())


def matched(table: NDArray[np.int64]) -> float:
    """Share of samples that are of the class of their cluster, each class standing for one cluster at most, so that the
    share is largest (the accuracy of clustering; found by the Hungarian method).

    Example: clusters that hold [3, 1] and [3, 1] of two classes: (3 + 1) / 8 = 0.5.
    """
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(table, maximize=True)
    return float(table[rows, columns].sum() / table.sum())


@register.evaluator(name="clusters")
class Clusters:
    """How well k-means on the set's embeddings finds the classes, without having seen a label: ``nmi`` (normalised
    mutual information), ``ari`` (adjusted Rand index: 0 by chance), ``purity`` and ``matched``; see the functions of
    these names, and scikit-learn.

    The table (``details``): of each cluster how many samples it has of each class.

    Args:
        facts: of the data.
        k: clusters; null takes as many as there are classes.
        normalize: compare by cosine; otherwise by distance.
        starts: of these attempts the one with the smallest distances counts.
        seed: of what they begin with.

    Raises:
        ValueError: images have no classes, or several.
    """

    layers = (EMBEDDING,)

    def __init__(
        self,
        dataset_info: DatasetInfo,
        /,
        *,
        k: Count | None = None,
        normalize: bool = True,
        starts: Count = 10,
        seed: int = 0,
    ) -> None:
        refuse_unlabelled("clusters", dataset_info)
        self._classes, self._k = dataset_info.classes, k or len(dataset_info.classes)
        self._normalize, self._starts, self._seed = normalize, starts, seed
        self._batches: Batches = []
        self._table = np.zeros((0, len(dataset_info.classes)), np.int64)
        self.better = dict.fromkeys(("nmi", "ari", "purity", "matched"), "max")

    def update(self, predictions: Predictions, batch: Batch) -> None:
        """Keep a batch: ``predictions["embedding"]`` (B x D) and ``batch["label"]``."""
        self._batches.append(rows_of(predictions, batch))

    def state(self) -> Batches:
        """The batches of this process."""
        return self._batches

    def compute(self, states: Sequence[Batches]) -> dict[str, float]:
        """The four numbers.

        Raises:
            Unfit: there are fewer samples than clusters, or an embedding is not finite.
        """
        from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score  # most runs need none of it

        rows = joined(states)
        if rows is None:
            return {}
        labels = rows.known_labels()
        if len(labels) < self._k:
            raise DataMismatch(f"clusters: {len(labels)} samples are fewer than {self._k} clusters; lower k")
        found = self._found(rows.features)
        self._table = contingency(found, labels, len(self._classes))
        return {
            "nmi": float(normalized_mutual_info_score(labels, found)),
            "ari": float(adjusted_rand_score(labels, found)),
            "purity": purity(self._table),
            "matched": matched(self._table),
        }

    def details(self, states: Sequence[Batches]) -> dict[str, Any]:
        """The table, largest clusters first, in plain values."""
        rows = [dict(zip(self._classes, counts, strict=True)) for counts in self._table.tolist()]
        full = [{name: count for name, count in row.items() if count} for row in rows]
        table = [{"samples": sum(row.values()), "classes": row} for row in full]
        return {"clusters": sorted(table, key=lambda row: -sum(row["classes"].values()))} if table else {}

    def _found(self, features: NDArray[np.float32]) -> NDArray[np.int64]:
        """The number of each sample's cluster."""
        from sklearn.cluster import KMeans
        from threadpoolctl import threadpool_limits

        vectors = normalised(features) if self._normalize else features
        means = KMeans(self._k, n_init=self._starts, random_state=self._seed)
        with threadpool_limits(1):  # its threads add in the order in which they come
            numbers: NDArray[np.int64] = means.fit_predict(vectors).astype(np.int64)
        return numbers
