"""DeepCluster v2 (Caron et al. 2018; 2020)."""

from __future__ import annotations

from typing import cast

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
    EvaluatorPart,
    Hook,
    Memory,
    Phase,
    Positive,
    Run,
)
from opabinia.evaluation.representation.collapse import spread
from opabinia.models.feature_queue import MemoryBank
from opabinia.models.losses.clustering import evenness, spherical_kmeans
from opabinia.models.projectors import mlp
from opabinia.models.prototypes import cosines
from opabinia.runtime.collectives import gather_batch
from opabinia.runtime.processes import broadcast_from_rank_zero, rank
from opabinia.runtime.seeds import CLUSTER, hash32, seed_model
from opabinia.tasks.selfsup.base import SelfSupervised, in_few_passes
from opabinia.tasks.selfsup.update_queue import Remember


class Clusters(Memory):
    """The clusters that the images of the training data fall to; they are saved with the model.

    Args:
        samples: N; images of the training data.
        width: D.
        count: K.

    Attributes:
        centroids: K x D, each of length 1.
        labels: of each image (int64, N); -1 where nobody knows yet.
        entropy: of how many images fall to each cluster, over log K; 1 where all have as many (0-d).
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
    def renew(self, vectors: Tensor, known: Tensor, iterations: int, seed: int) -> None:
        """Cluster anew; centroids begin at vectors that are drawn.

        Args:
            vectors: of every image (N x D), each of length 1.
            known: numbers of the images that have one (int64, at least K).
            iterations: how often centroids move.
            seed: of the draw.
        """
        count = len(self.centroids)
        drawn = torch.randperm(len(known), generator=torch.Generator().manual_seed(seed))[:count]
        own = vectors[known]
        centroids, labels = spherical_kmeans(own, own[drawn.to(own.device)], iterations)
        self.centroids.copy_(centroids)
        self.labels.fill_(-1).index_copy_(0, known, labels)
        # Sums of a GPU may differ in their last bits from process to process, and labels with them.
        broadcast_from_rank_zero([self.centroids, self.labels])
        self.entropy.copy_(evenness(torch.bincount(self.labels[known], minlength=count)))

    def forward(self, embeddings: Tensor, indices: Tensor, temperature: float) -> Tensor:
        """Mean cross entropy (0-d) of embeddings (M x D, each of length 1) and the clusters of the images that they are
        of (int64, M); 0 where nobody knows a cluster."""
        logits = cosines(embeddings, self.centroids) / temperature
        return F.cross_entropy(logits, self.labels[indices], ignore_index=-1, reduction="sum") / len(logits)


@register.task(name="deepcluster")
class DeepCluster(SelfSupervised):
    """Images are to be told apart by the clusters that they fell to at the beginning of the epoch.

    DeepCluster v2: Caron et al. 2020, Unsupervised Learning of Visual Features by Contrasting Cluster Assignments,
    appendix D, after Caron et al. 2018. Clustered are the embeddings of all images as they were seen in the epoch
    before; before the first epoch all images go through the network once, with views drawn anew. Images are known by
    their number: ``data.train.source: {name: numbered, source: ...}``. One that has not been seen yet
    (``data.drop_last``, a sampler that leaves images out) has no cluster, and no loss. A single view of an image will
    do.

    Each process keeps all embeddings: 4 x ``projection`` bytes an image, 656 MB for ImageNet, for each assigning view.

    Args:
        backbone: images to vectors.
        hidden: width of the projector's hidden layer; null takes the backbone's.
        projection: width of what is clustered.
        prototypes: how many clusters there are; each number is a clustering of its own, begun with other images. Their
            losses are averaged.
        assign: of how many views, the first ones, embeddings are kept; clusterings take them in turn (the authors' code
            has 2, VISSL 1).
        temperature: divides cosines.
        iterations: of k-means.
        evaluators: who judges the embeddings; null takes ``knn`` where every image has one label.
        mean: of the images in 0..1, per channel or one for all; null takes what a pretrained backbone knows, otherwise
            ImageNet's for colour.
        std: their standard deviation, likewise.

    Raises:
        ValueError: there are no prototypes.
    """

    seen: Tensor

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
        evaluators: list[EvaluatorPart] | None = None,
        mean: list[float] | None = None,
        std: list[float] | None = None,
    ) -> None:
        super().__init__(dataset_info, backbone(dataset_info.channels), mean, std, evaluators)
        if not prototypes:
            raise ValueError("prototypes: at least one clustering is needed, such as [3000]")
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
        """``loss``; ``std``, how far embeddings are spread (1 evenly, 0 collapsed); ``entropy`` of how many images fall
        to each cluster (1: as many to each).

        Raises:
            Unfit: the images have no numbers.
        """
        views = self.views(batch, least=self.assign)
        if "index" not in batch:
            raise DataMismatch(
                "DeepCluster knows images by their numbers, and batches have none; say data.train.source: {name: "
                "numbered, source: ...}"
            )
        embeddings = in_few_passes(lambda images: self.projector(self.backbone(images)), views)
        embeddings = [F.normalize(one.float(), dim=1) for one in embeddings]
        kept = torch.stack(embeddings[: self.assign], 1).detach()
        everybody, numbers = gather_batch(kept, batch["index"], batch["id"])
        self._keep(everybody, numbers, clock)
        everything, indices = torch.cat(embeddings), batch["index"].repeat(len(views))
        losses = [head(everything, indices, self.temperature) for head in self.heads]
        return {
            "loss": torch.stack(losses).mean(),
            "std": spread(everybody[:, 0]),
            "entropy": torch.stack([cast("Clusters", head).entropy for head in self.heads]).mean(),
        }

    def _keep(self, embeddings: Tensor, indices: Tensor, clock: Clock) -> None:
        """A step's batch may come in pieces; what was left behind by a step before is let go."""
        if clock.step != self._step:
            self._newest, self._step = [], clock.step
        self._newest.append((embeddings, indices))

    @torch.no_grad()
    def remember(self) -> None:
        """Put the newest embeddings into the memory; those that are not finite change nothing."""
        for embeddings, indices in self._newest:
            for view, memory in enumerate(self.memories):
                cast("MemoryBank", memory).renew(indices, embeddings[:, view], momentum=0.0)
            finite = embeddings.isfinite().flatten(1).all(1)
            self.seen.index_copy_(0, indices, self.seen[indices] | finite)
        self._newest = []

    def cluster(self, epoch: int) -> None:
        """Cluster what is in the memory; ``epoch`` decides where it begins, the same on every process.

        Raises:
            Unfit: there are more clusters than images.
        """
        known = self.seen.nonzero().flatten()
        self.refuse_few_to_cluster(len(known))
        for number, head in enumerate(self.heads):
            memory = cast("MemoryBank", self.memories[number % self.assign])
            cast("Clusters", head).renew(memory.vectors, known, self.iterations, hash32(CLUSTER, epoch, number))

    def refuse_few_to_cluster(self, images: int) -> None:
        """Tell that there are more clusters than images.

        Raises:
            Unfit: so it is.
        """
        if images < max(self.prototypes):
            raise DataMismatch(
                f"task.prototypes: {max(self.prototypes)} clusters cannot be made of {images} images; take a fraction "
                "of the images"
            )

    def hooks(self, dataset_info: DatasetInfo) -> list[Hook]:
        """Every epoch begins with clusters of its own; after every step the memory takes the step's embeddings."""
        return [ClusterAnew(self), Remember(self.remember)]


class ClusterAnew(Hook):
    """Clusters the memory when a training epoch begins; a run that is resumed within one goes on with its clusters."""

    def __init__(self, task: DeepCluster) -> None:
        self._task = task

    def before_phase(self, run: Run, phase: Phase) -> None:
        """Cluster, at the very beginning after every image was seen once."""
        if phase.kind != "train" or run.clock.epoch_step:
            return
        if not run.clock.step:
            self._task.refuse_few_to_cluster(len(self._task.seen))
            self._see_all(run)
        self._task.cluster(run.clock.epoch)

    @torch.no_grad()
    def _see_all(self, run: Run) -> None:
        """One pass over the training data, with the task in the state of training, as in VISSL."""
        for number, batch in enumerate(run.batches("train", run.clock.steps_per_epoch)):
            seed_model(0, -1, number, rank(), self._task.seen.device)
            batch["views"] = batch.get("views", ())[: self._task.assign]
            self._task(batch, run.clock)
            self._task.remember()
