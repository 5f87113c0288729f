"""Pseudo-labels of re-identification: clusters of the teacher's embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import numpy as np
import torch
import torch.nn.functional as F
from annotated_types import Interval
from torch import Tensor

from opabinia.config import register
from opabinia.contracts import (
    Batch,
    Clock,
    Count,
    Hook,
    Indices,
    Positive,
    Predictions,
    PseudoLabeler,
    PseudoLabels,
    Run,
    Source,
    Task,
)
from opabinia.evaluation.retrieval.rerank import jaccard_graph
from opabinia.models.feature_queue import MemoryBank
from opabinia.models.prototypes import cosines
from opabinia.runtime.collectives import gather_batch
from opabinia.runtime.durations import Duration
from opabinia.runtime.log import log
from opabinia.runtime.processes import broadcast_from_rank_zero
from opabinia.tasks.reid.base import Reidentification


@register.pseudo_labels(name="identities")
class IdentityLabels(PseudoLabeler):
    """Pseudo-labels of re-identification: the clusters of images whose embeddings have the same neighbors. Identities
    of the unlabeled images are taken to be others than those of the labeled ones.

    A memory has the teacher's newest embedding of each unlabeled image. From time to time its images are clustered by
    DBSCAN over k-reciprocal Jaccard distances; the loss is the cross entropy of an embedding and the mean embeddings of
    all clusters (Ge et al. 2020, SpCL, section 3.1 without its criterion of reliability; Dai et al. 2021, Cluster
    Contrast), averaged over all unlabeled images. Those that belong to no cluster, or were not seen before, have the
    loss 0. So there is none before the first clustering, and it needs no batches of several images of an identity.

    ``pseudo/precision`` is the purity of the clusters: the share of images whose identity is the most frequent one of
    their cluster. Each process keeps all embeddings: 82 MB for 10,000 images with a width of 2,048.

    Args:
        every: period of the clusterings; take at least the time in which all unlabeled images are seen once. The first
            one follows the warm-up.
        radius: largest distance of images that are neighbors. 0: the same neighbors; 1: none in common.
        min_samples: number of neighbors, itself included, from which on an image and these belong to one cluster. 1:
            an image without neighbors is an identity of its own, as in SpCL.
        k1: number of nearest images that distances are made of; about the number of images of an identity, or more.
        k2: number of nearest images that they are averaged over.
        temperature: divides cosines.

    Raises:
        ValueError: the task is no re-identification, or ``every`` is 0.
    """

    labels: Tensor

    def __init__(
        self,
        task: Task,
        unlabeled: Source,
        /,
        *,
        every: Duration = Duration(1, "ep"),
        radius: Annotated[float, Interval(gt=0, lt=1)] = 0.6,
        min_samples: Count = 4,
        k1: Count = 30,
        k2: Count = 6,
        temperature: Positive = 0.05,
    ) -> None:
        super().__init__()
        if not isinstance(task, Reidentification):
            raise ValueError(f"identities are labels of re-identification; the task is {type(task).__name__}")
        if not every.value:
            raise ValueError("every: the images are clustered at least once; take 1ep")
        self.every, self.temperature = every, temperature
        self._radius, self._min_samples, self._k1, self._k2 = radius, min_samples, k1, k2
        self._true_labels = unlabeled.info.single_labels
        self.memory = MemoryBank(len(unlabeled), task.embedding_width)
        self.memory.vectors.zero_()  # until an image is seen
        # The cluster of each image; -1 where it has none.
        self.register_buffer("labels", torch.full((len(unlabeled),), -1))
        self._clusters, self._purity = 0, 0.0
        self._newest: list[tuple[Tensor, Tensor]] = []

    def forward(self, predictions: Predictions, batch: Batch) -> PseudoLabels:
        """Return ``label`` (int64, B): the cluster of each image, or -1."""
        self._newest.append(gather_batch(predictions["embedding"], batch["index"], batch["id"]))
        labels = self.labels[batch["index"]]
        kept = (labels >= 0).float().mean()
        return PseudoLabels(
            {"label": labels}, kept, None if self._true_labels is None else kept.new_full((), self._purity)
        )

    def loss(self, task: Task, batch: Batch, clock: Clock) -> Tensor:
        """Return the cross entropy of embeddings and clusters (0-d)."""
        if not self._clusters:
            return self.memory.vectors.new_zeros(())
        embeddings = F.normalize(task.features(batch)["embedding"], dim=1)
        logits = cosines(embeddings, self.centroids()) / self.temperature
        return F.cross_entropy(logits, batch["label"], ignore_index=-1, reduction="sum") / len(logits)

    def centroids(self) -> Tensor:
        """Return the mean of the embeddings of each cluster (K x D), of length 1."""
        vectors, rows = self.memory.vectors, self.labels.where(self.labels >= 0, self._clusters)
        sums = vectors.new_zeros(self._clusters + 1, vectors.shape[1]).index_add_(0, rows, vectors)
        return F.normalize(sums[:-1], dim=1)

    def update(self) -> None:
        """Store the embeddings of the newest step, except those that are not finite."""
        for embeddings, indices in self._newest:
            self.memory.update(indices, embeddings, momentum=0.0)
        self._newest = []

    def cluster(self) -> None:
        """Cluster the images that were seen; the same clusters on every process."""
        seen = self.memory.vectors.any(1).nonzero().flatten()
        if not len(seen):
            return
        clusters = cluster_by_neighbors(
            self.memory.vectors[seen], self._radius, self._min_samples, k1=self._k1, k2=self._k2
        )
        self.labels.fill_(-1).index_copy_(0, seen, torch.from_numpy(clusters).to(seen.device))
        # GPU sums may differ in their last bits between processes, and clusters with them.
        broadcast_from_rank_zero([self.labels])
        self.count_clusters()

    def count_clusters(self) -> None:
        """Derive from the clusters their number and purity, and log them."""
        labels = self.labels.cpu().numpy()
        clustered = labels >= 0
        self._clusters = int(labels.max()) + 1
        text = f"{self._clusters} pseudo-identities of {clustered.sum()} of {len(labels)} images"
        if self._true_labels is not None:
            self._purity = purity(labels[clustered], self._true_labels[clustered])
            text += f", purity {self._purity:.3f}"
        log.info("%s", text)

    def hooks(self) -> list[Hook]:
        """Return the update of the memory and the clustering."""
        return [_Clustering(self)]


class _Clustering(Hook):
    """Updates the memory after each step, clusters it from time to time, and saves both."""

    def __init__(self, labeler: IdentityLabels) -> None:
        self._labeler = labeler

    def after_step(self, run: Run) -> None:
        self._labeler.update()
        if run.clock.step % run.clock.steps(self._labeler.every) == 0:
            self._labeler.cluster()

    def tensors(self) -> dict[str, Tensor]:
        return {"vectors": self._labeler.memory.vectors, "labels": self._labeler.labels}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        self._labeler.memory.vectors.copy_(tensors["vectors"])
        self._labeler.labels.copy_(tensors["labels"])
        self._labeler.count_clusters()


def cluster_by_neighbors(vectors: Tensor, radius: float, min_samples: int, *, k1: int, k2: int) -> Indices:
    """Return the cluster of each vector (int64, N), from 0, and -1 for one that belongs to none: DBSCAN (Ester et al.
    1996) over the distances of :func:`opabinia.evaluation.retrieval.rerank.jaccard_graph`.

    Args:
        vectors: N x D.
        radius, min_samples, k1, k2: see :class:`IdentityLabels`.
    """
    from sklearn.cluster import DBSCAN  # slow to import, and most runs do not need it
    from sklearn.neighbors import sort_graph_by_row_values

    graph = sort_graph_by_row_values(jaccard_graph(vectors, radius, k1=k1, k2=k2), warn_when_not_sorted=False)
    clusters = DBSCAN(eps=radius, min_samples=min_samples, metric="precomputed").fit_predict(graph)
    return np.asarray(clusters, dtype=np.int64)


def purity(clusters: Indices, labels: Indices) -> float:
    """Return the share of samples with the most frequent label of their cluster; 0 without samples.

    Args:
        clusters: cluster of each sample (int64, N).
        labels: its label (int64, N).
    """
    pairs, counts = np.unique(np.stack([clusters, labels]), axis=1, return_counts=True)
    largest = np.zeros(pairs[0].max(initial=-1) + 1, dtype=np.int64)
    np.maximum.at(largest, pairs[0], counts)
    return float(largest.sum() / max(1, len(labels)))
