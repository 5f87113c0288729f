"""Clusters of embeddings compared with the classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opabinia.config import register
from opabinia.contracts import EMBEDDING, Count, DataMismatch, DatasetInfo
from opabinia.evaluation.representation.feature_bank import EmbeddingEvaluator, Rows, check_labels, normalize_rows


def contingency(clusters: NDArray[Any], labels: NDArray[Any], num_classes: int) -> NDArray[np.int64]:
    """Return the number of samples of each class in each cluster (clusters x classes).

    Args:
        clusters: cluster of each of N samples, from 0.
        labels: class labels, N.
        num_classes: number of classes.
    """
    table = np.zeros((int(clusters.max()) + 1, num_classes), np.int64)
    np.add.at(table, (clusters, labels), 1)
    return table


def purity(table: NDArray[np.int64]) -> float:
    """Return the share of samples that are of the most frequent class of their cluster.

    Example: clusters that hold [3, 1] and [2, 2] of two classes: (3 + 2) / 8 = 0.625.
    """
    return float(table.max(1).sum() / table.sum())


def matched_accuracy(table: NDArray[np.int64]) -> float:
    """Return the clustering accuracy: the share of samples of the class of their cluster, with classes assigned to at
    most one cluster each so that the share is largest (Hungarian method).

    Example: clusters that hold [3, 1] and [3, 1] of two classes: (3 + 1) / 8 = 0.5.
    """
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(table, maximize=True)
    return float(table[rows, columns].sum() / table.sum())


@register.evaluator(name="clustering")
class Clustering(EmbeddingEvaluator):
    """Agreement of k-means clusters of the evaluated embeddings with the classes, without training on labels: ``nmi``
    (normalized mutual information), ``ari`` (adjusted Rand index, 0 by chance), ``purity`` and ``matched`` (clustering
    accuracy); see :func:`purity`, :func:`matched_accuracy` and scikit-learn.

    The table (``details``): the number of samples of each class in each cluster.

    Args:
        dataset_info: facts about the data.
        k: number of clusters; null takes the number of classes.
        normalize: compare by cosine; otherwise by distance.
        n_init: number of initializations; the one with the smallest distances counts.
        seed: seed of the initializations.

    Raises:
        ValueError: images have no classes, or several labels.
    """

    layers = (EMBEDDING,)

    def __init__(
        self,
        dataset_info: DatasetInfo,
        /,
        *,
        k: Count | None = None,
        normalize: bool = True,
        n_init: Count = 10,
        seed: int = 0,
    ) -> None:
        super().__init__()
        check_labels("clustering", dataset_info)
        self._classes, self._k = dataset_info.classes, k or len(dataset_info.classes)
        self._normalize, self._n_init, self._seed = normalize, n_init, seed
        self._table = np.zeros((0, len(dataset_info.classes)), np.int64)
        self.better = dict.fromkeys(("nmi", "ari", "purity", "matched"), "max")

    def _scores(self, rows: Rows) -> dict[str, float]:
        """Return the four scores.

        Raises:
            DataMismatch: there are fewer samples than clusters.
        """
        from sklearn.cluster import KMeans  # slow to import, and most runs do not need it
        from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
        from threadpoolctl import threadpool_limits

        labels = rows.known_labels()
        if len(labels) < self._k:
            raise DataMismatch(f"clustering: {len(labels)} samples are fewer than {self._k} clusters; lower k")
        vectors = normalize_rows(rows.features) if self._normalize else rows.features
        with threadpool_limits(1):  # several threads add numbers in varying order
            means = KMeans(self._k, n_init=self._n_init, random_state=self._seed)
            clusters = means.fit_predict(vectors).astype(np.int64)
        self._table = contingency(clusters, labels, len(self._classes))
        return {
            "nmi": float(normalized_mutual_info_score(labels, clusters)),
            "ari": float(adjusted_rand_score(labels, clusters)),
            "purity": purity(self._table),
            "matched": matched_accuracy(self._table),
        }

    def details(self, states: Sequence[Any]) -> dict[str, Any]:
        """Return the table, largest clusters first."""
        if not len(self._table):
            return {}
        order = np.argsort(-self._table.sum(1), kind="stable")
        rows = [
            {name: count for name, count in zip(self._classes, counts, strict=True) if count}
            for counts in self._table[order].tolist()
        ]
        return {"clusters": [{"samples": sum(row.values()), "classes": row} for row in rows]}
