"""SwAV (Caron et al. 2020)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Unpack, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from opabinia.config import register
from opabinia.contracts import BackbonePart, Batch, Clock, Count, DatasetInfo, Fraction, Hook, NonNegative, Positive
from opabinia.evaluation.representation.collapse import spread
from opabinia.models.feature_queue import VectorQueue as VectorQueue
from opabinia.models.losses.clustering import (
    assign_prototypes,
    normalized_entropy,
    prototype_potentials,
    swapped_prediction,
)
from opabinia.models.projectors import mlp
from opabinia.models.prototypes import Prototypes
from opabinia.runtime.durations import Duration
from opabinia.tasks.selfsup.base import SelfSupervised, SharedOptions, forward_by_size, gather_views
from opabinia.tasks.selfsup.momentum_teacher import MomentumTeacher
from opabinia.tasks.step_hooks import AfterStep, FreezeFirstSteps

Scores = tuple[Tensor, ...]
"""Cosines of vectors with the prototypes of one head: B x K for each view."""


@register.section(name="swav_queue")
@dataclass(frozen=True, kw_only=True)
class SwavQueue:
    """Embeddings of earlier batches that take part in balancing, if batches are small relative to the number of
    prototypes (Caron et al. 2020, section 4.3 and appendix A.6).

    Args:
        length: number of images, of all processes; it need not be a multiple of the batch size. The paper's 3,840 are
            15 batches of 256.
        start: time from which it is used, once it is full.
    """

    length: Count = 3840
    start: Duration = Duration(15, "ep")


@register.task(name="swav")
class SwAV(SelfSupervised):
    """SwAV: predict the prototype assignments of one view from the others, with balanced assignments.

    Caron et al. 2020, Unsupervised Learning of Visual Features by Contrasting Cluster Assignments. The first views give
    the assignments, all views predict. Assignments are balanced over the batch of all processes; the paper's batch
    norms are synchronized, too: ``train.sync_batch_norm``.

    Args:
        backbone: maps images to vectors.
        hidden: width of the projector's hidden layer; null takes the backbone's.
        projection: width of the projections.
        prototypes: number of prototypes of each head; losses of several heads are averaged.
        assign: number of views, the first ones, that give assignments.
        temperature: divides the cosines of predictions.
        epsilon: divides the cosines of assignments; smaller values make them sharper and less balanced.
        iterations: of Sinkhorn-Knopp.
        power: null: all prototypes get equal shares of the samples; otherwise the i-th gets one in proportion to
            ``i ** -power`` (VISSL).
        hard: initial period in which each sample is assigned to a single prototype (VISSL).
        freeze: initial period in which prototypes are frozen (appendix A.1; the authors' code has 313 steps, an epoch
            of ImageNet in batches of 4,096).
        queue: earlier embeddings that take part in balancing; null: none.
        momentum: fraction of a momentum teacher that a step keeps; the teacher's prototypes and embeddings give the
            assignments (VISSL's swav_momentum_loss, 0.99). null: the network itself gives them.
        evaluators: of the embeddings; null takes ``knn`` if every image has one label.
        mean: channel means of images in 0..1; null: see :func:`opabinia.models.layers.build_normalization`.
        std: channel standard deviations, likewise.

    Raises:
        ValueError: there are no prototypes.
    """

    requires_full_batch = True

    def __init__(
        self,
        dataset_info: DatasetInfo,
        /,
        *,
        backbone: BackbonePart,
        hidden: Count | None = None,
        projection: Count = 128,
        prototypes: list[Count] = [3000],  # noqa: B006 (never changed)
        assign: Count = 2,
        temperature: Positive = 0.1,
        epsilon: Positive = 0.05,
        iterations: Count = 3,
        power: NonNegative | None = None,
        hard: Duration = Duration(0, "it"),
        freeze: Duration = Duration(1, "ep"),
        queue: SwavQueue | None = None,
        momentum: Fraction | None = None,
        **options: Unpack[SharedOptions],
    ) -> None:
        super().__init__(dataset_info, backbone, **options)
        width = self.backbone.out_channels
        self.projector = mlp([width, hidden or width, projection])
        self.prototypes = Prototypes(projection, prototypes)
        self.queues = nn.ModuleList(VectorQueue(projection, queue.length) for _ in range(assign) if queue)
        if momentum is not None:
            self.teacher = MomentumTeacher(
                momentum, backbone=self.backbone, projector=self.projector, prototypes=self.prototypes
            )
        self.assign, self.temperature, self.epsilon = assign, temperature, epsilon
        self.momentum = momentum
        self.iterations, self.power = iterations, power
        self._hard, self._freeze, self._queue = hard, freeze, queue
        self._newest: list[Tensor] = []

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        """Return ``loss``; ``std``, the spread of embeddings (1 even, 0 collapsed); ``entropy`` of the shares of the
        prototypes without balancing (1: equal shares)."""
        views = self.views(batch, min_count=max(self.assign, 2))
        embeddings = self._embed(self, views)
        scores = self._scores(self, embeddings)
        with torch.no_grad():
            source = self if self.momentum is None else self.teacher
            own = embeddings if source is self else self._embed(source, views[: self.assign])
            gathered = gather_views([vectors.detach() for vectors in own[: self.assign]], batch["id"])
            own_scores = scores if source is self else self._scores(source, own)
            scores_of_all = self._scores(source, self._with_queue(gathered, clock))
        self._newest = gathered
        hard = clock.step < clock.steps(self._hard)
        heads = zip(scores, own_scores, scores_of_all, strict=True)
        losses = [self._loss(*head_scores, hard) for head_scores in heads]
        count = len(gathered[0])
        shares = [(first[:count] / self.epsilon).softmax(1).mean(0) for first, *_ in scores_of_all]
        return {
            "loss": torch.stack(losses).mean(),
            "std": spread(gathered[0]),
            "entropy": torch.stack([normalized_entropy(share) for share in shares]).mean(),
        }

    @staticmethod
    def _embed(network: nn.Module, views: Sequence[Tensor]) -> list[Tensor]:
        """Return the embedding of each view (B x D, of length 1), by this task or its teacher."""
        backbone, projector = network.get_submodule("backbone"), network.get_submodule("projector")
        embeddings = forward_by_size(lambda images: cast(Tensor, projector(backbone(images))), views)
        return [F.normalize(vectors.float(), dim=1) for vectors in embeddings]

    @staticmethod
    def _scores(network: nn.Module, views: Sequence[Tensor]) -> list[Scores]:
        """Return cosines of each view (B x D) with the prototypes of each head, of this task or its teacher."""
        return list(zip(*map(network.get_submodule("prototypes"), views), strict=True))

    def _loss(self, scores: Scores, own_scores: Scores, scores_of_all: Scores, hard: bool) -> Tensor:
        """Return the loss of one head.

        Args:
            scores: of this process's views.
            own_scores: of its assigning views, by the network that assigns; others may follow.
            scores_of_all: of the assigning views of all processes and the queue.
            hard: each sample is assigned to a single prototype.
        """
        assignments = []
        for local, balanced in zip(own_scores, scores_of_all, strict=False):
            potentials = prototype_potentials(balanced, self.epsilon, self.iterations, self.power)
            assignments.append(assign_prototypes(local, potentials, self.epsilon, hard=hard))
        return swapped_prediction(scores, assignments, self.temperature)

    def _with_queue(self, embeddings: list[Tensor], clock: Clock) -> list[Tensor]:
        """Return the embeddings of each assigning view (N x D), followed by those of the queue once it is in use."""
        queue = self._queue
        if queue is None or clock.step < clock.steps(queue.start) or clock.samples < queue.length:
            return embeddings
        pairs = zip(embeddings, self.queues, strict=True)
        return [torch.cat([vectors, held.get_buffer("features")]) for vectors, held in pairs]

    def update_queues(self) -> None:
        """Push the newest batch into the queues; embeddings that are not finite become zero, equally similar to every
        prototype."""
        newest, self._newest = self._newest, []
        for queue, embeddings in zip(self.queues, newest, strict=False):
            assert isinstance(queue, VectorQueue)
            finite = embeddings.isfinite().all(1, keepdim=True)
            queue.push(torch.where(finite, embeddings, 0))

    def hooks(self, dataset_info: DatasetInfo) -> list[Hook]:
        """Return hooks that freeze prototypes at first, normalize them, and update queues and teacher."""
        return [
            FreezeFirstSteps(self.prototypes, self._freeze),
            AfterStep(self.prototypes.normalize),
            AfterStep(self.update_queues),
            *super().hooks(dataset_info),
        ]
