"""DeepCluster v2 (Caron et al. 2018; 2020)."""

from __future__ import annotations

from typing import Unpack, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from opabinia.config import register
from opabinia.contracts import (
    BackbonePart,
    Batch,
    Clock,
    Count,
    DataMismatch,
    DatasetInfo,
    Hook,
    Memory,
    Phase,
    Positive,
    Run,
)
from opabinia.evaluation.representation.collapse import spread
from opabinia.models.feature_queue import MemoryBank
from opabinia.models.losses.clustering import normalized_entropy, spherical_kmeans
from opabinia.models.projectors import mlp
from opabinia.models.prototypes import cosines
from opabinia.runtime.collectives import gather_batch
from opabinia.runtime.processes import broadcast_from_rank_zero, rank
from opabinia.runtime.seeds import CLUSTER, hash32, seed_model
from opabinia.tasks.selfsup.base import SelfSupervised, SharedOptions, forward_by_size
from opabinia.tasks.step_hooks import AfterStep


class Clusters(Memory):
    """A clustering of the training images; it is saved with the model.

    Args:
        samples: N, number of training images.
        width: D.
        count: K, number of clusters.

    Attributes:
        centroids: K x D, each of length 1.
        labels: cluster of each image (int64, N); -1 if unknown.
        entropy: of the cluster sizes, divided by log K; 1 if all are equal (0-d).
    """

    centroids: Tensor
    labels: Tensor
    entropy: Tensor

    def __init__(self, samples: int, width: int, count: int) -> None:
        super().__init__()
        self.register_buffer("centroids", torch.zeros(count, width))
        self.register_buffer("labels", torch.full((samples,), -1))
        self.register_buffer("entropy", torch.tensor(0.0))

    @torch.no_grad()
    def cluster(self, vectors: Tensor, known: Tensor, iterations: int, seed: int) -> None:
        """Cluster by k-means, starting from randomly chosen vectors.

        Args:
            vectors: of every image (N x D), each of length 1.
            known: indices of the images that have a vector (int64, at least K).
            iterations: of k-means.
            seed: of the random choice.
        """
        count = len(self.centroids)
        chosen = torch.randperm(len(known), generator=torch.Generator().manual_seed(seed))[:count]
        vectors = vectors[known]
        centroids, labels = spherical_kmeans(vectors, vectors[chosen.to(vectors.device)], iterations)
        self.centroids.copy_(centroids)
        self.labels.fill_(-1).index_copy_(0, known, labels)
        # GPU sums may differ in their last bits between processes, and labels with them.
        broadcast_from_rank_zero([self.centroids, self.labels])
        self.entropy.copy_(normalized_entropy(torch.bincount(self.labels[known], minlength=count)))

    def forward(self, embeddings: Tensor, indices: Tensor, temperature: float) -> Tensor:
        """Return the mean cross entropy (0-d) of embeddings (M x D, each of length 1) and the clusters of their images
        (indices int64, M); images without a cluster count as 0."""
        logits = cosines(embeddings, self.centroids) / temperature
        return F.cross_entropy(logits, self.labels[indices], ignore_index=-1, reduction="sum") / len(logits)


@register.task(name="deepcluster")
class DeepCluster(SelfSupervised):
    """DeepCluster v2: predict the cluster of each image, recomputed at the beginning of every epoch.

    Caron et al. 2020, Unsupervised Learning of Visual Features by Contrasting Cluster Assignments,
    appendix D, after Caron et al. 2018. The clustering uses the embeddings of all images from the previous epoch;
    before the first epoch all images go through the network once, with new views. Images need their index:
    ``data.train.source: {name: indexed, source: ...}``. Images without an embedding (``data.drop_last``, a sampler
    that omits images) have no cluster and no loss. One view per image is enough.

    Each process keeps all embeddings: 4 x ``projection`` bytes per image, 656 MB for ImageNet, for each assigning view.

    Args:
        backbone: maps images to vectors.
        hidden: width of the projector's hidden layer; null takes the backbone's.
        projection: width of the projections.
        prototypes: number of clusters of each clustering; clusterings start from different images, and their losses
            are averaged.
        assign: number of views, the first ones, whose embeddings are kept; clusterings take them in turn (2 in the
            authors' code, 1 in VISSL).
        temperature: divides cosines.
        iterations: of k-means.
        evaluators: of the embeddings; null takes ``knn`` if every image has one label.
        mean: channel means of images in 0..1; null: see :func:`opabinia.models.layers.build_normalization`.
        std: channel standard deviations, likewise.

    Raises:
        ValueError: there are no prototypes.
    """

    seen: Tensor

    has_validation_loss = False

    def __init__(
        self,
        dataset_info: DatasetInfo,
        /,
        *,
        backbone: BackbonePart,
        hidden: Count | None = None,
        projection: Count = 128,
        prototypes: list[Count] = [3000, 3000, 3000],  # noqa: B006 (never changed)
        assign: Count = 1,
        temperature: Positive = 0.1,
        iterations: Count = 10,
        **options: Unpack[SharedOptions],
    ) -> None:
        super().__init__(dataset_info, backbone, **options)
        if not prototypes:
            raise ValueError("prototypes: at least one clustering is needed, such as [3000]")
        if self.backbone.is_shared:
            raise ValueError("deepcluster clusters all images before each epoch, not a stream of several; take swav")
        width = self.backbone.out_channels
        self.projector = mlp([width, hidden or width, projection])
        self.heads = nn.ModuleList(Clusters(dataset_info.samples, projection, count) for count in prototypes)
        self.memories = nn.ModuleList(MemoryBank(dataset_info.samples, projection) for _ in range(assign))
        self.register_buffer("seen", torch.zeros(dataset_info.samples, dtype=torch.bool))
        self.prototypes, self.assign = prototypes, assign
        self.temperature, self.iterations = temperature, iterations
        self._newest: list[tuple[Tensor, Tensor]] = []
        self._step = -1

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        """Return ``loss``; ``std``, the spread of embeddings (1 even, 0 collapsed); ``entropy`` of the cluster sizes
        (1: equal).

        Raises:
            DataMismatch: the batch has no indices of images.
        """
        views, indices = self.views(batch, min_count=self.assign), self.image_indices(batch)
        embeddings = forward_by_size(lambda images: self.projector(self.backbone(images)), views)
        embeddings = [F.normalize(vectors.float(), dim=1) for vectors in embeddings]
        kept = torch.stack(embeddings[: self.assign], 1).detach()
        gathered, gathered_indices = gather_batch(kept, indices, batch["id"])
        # A step may have several micro-batches; embeddings of an earlier step, which was not finished, are dropped.
        if clock.step != self._step:
            self._newest, self._step = [], clock.step
        self._newest.append((gathered, gathered_indices))
        vectors = torch.cat(embeddings)
        losses = [head(vectors, indices.repeat(len(views)), self.temperature) for head in self.heads]
        return {
            "loss": torch.stack(losses).mean(),
            "std": spread(gathered[:, 0]),
            "entropy": torch.stack([cast("Clusters", head).entropy for head in self.heads]).mean(),
        }

    @torch.no_grad()
    def update_memories(self) -> None:
        """Store the newest embeddings in the memory banks, except those that are not finite."""
        for embeddings, indices in self._newest:
            for view, memory in enumerate(self.memories):
                cast("MemoryBank", memory).update(indices, embeddings[:, view], momentum=0.0)
            finite = embeddings.isfinite().flatten(1).all(1)
            self.seen.index_copy_(0, indices, self.seen[indices] | finite)
        self._newest = []

    def cluster(self, epoch: int) -> None:
        """Cluster the memory banks; ``epoch`` seeds the initial centroids, which are the same on every process.

        Raises:
            DataMismatch: there are more clusters than images.
        """
        known = self.seen.nonzero().flatten()
        self.check_cluster_count(len(known))
        for number, head in enumerate(self.heads):
            memory = cast("MemoryBank", self.memories[number % self.assign])
            cast("Clusters", head).cluster(memory.vectors, known, self.iterations, hash32(CLUSTER, epoch, number))

    def check_cluster_count(self, images: int) -> None:
        """Check that there are no more clusters than images.

        Raises:
            DataMismatch: there are.
        """
        if images < max(self.prototypes):
            raise DataMismatch(
                f"task.prototypes: {max(self.prototypes)} clusters cannot be made of {images} images; use fewer "
                "clusters than images"
            )

    def hooks(self, dataset_info: DatasetInfo) -> list[Hook]:
        """Return hooks that cluster at the beginning of every epoch and update the memory banks after every step."""
        return [Recluster(self), AfterStep(self.update_memories)]


class Recluster(Hook):
    """Cluster when a training epoch begins; a run that resumes within an epoch keeps its clusters."""

    def __init__(self, task: DeepCluster) -> None:
        self._task = task

    @torch.no_grad()
    def before_phase(self, run: Run, phase: Phase) -> None:
        """Cluster; before the first epoch, first compute the embeddings of all images."""
        if phase.kind != "train" or run.clock.epoch_step:
            return
        if not run.clock.step:
            self._task.check_cluster_count(len(self._task.seen))
            # One pass over the training data with the task in training mode, as in VISSL.
            for number, batch in enumerate(run.batches("train", run.clock.steps_per_epoch)):
                seed_model(0, -1, number, rank(), self._task.seen.device)
                batch["views"] = batch.get("views", ())[: self._task.assign]
                self._task(batch, run.clock)
                self._task.update_memories()
        self._task.cluster(run.clock.epoch)
