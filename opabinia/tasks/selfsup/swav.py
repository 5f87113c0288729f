"""SwAV (Caron et al. 2020)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from opabinia.config import register
from opabinia.contracts import (
    BackbonePart,
    Batch,
    Clock,
    Count,
    DatasetInfo,
    EvaluatorPart,
    Hook,
    NonNegative,
    Positive,
    Run,
)
from opabinia.evaluation.representation.collapse import spread
from opabinia.models.feature_queue import VectorQueue
from opabinia.models.losses.clustering import assigned, evening, evenness, sinkhorn, swapped_prediction
from opabinia.models.projectors import mlp
from opabinia.models.prototypes import Prototypes
from opabinia.runtime.durations import Duration
from opabinia.tasks.selfsup.base import SelfSupervised, in_few_passes, of_all_processes
from opabinia.tasks.selfsup.freeze_first import FreezeAtFirst
from opabinia.tasks.selfsup.update_queue import Remember

Scores = tuple[Tensor, ...]
"""Cosines of vectors with the prototypes of one head: B x K for each view."""


@register.section(name="swav_queue")
@dataclass(frozen=True, kw_only=True)
class Queue:
    """Embeddings of earlier batches that assignments are evened out with, where batches are small beside the number of
    prototypes (Caron et al. 2020, section 4.3 and appendix A.6).

    Args:
        length: images it holds, of all processes; any number, whether or not the batch divides it. The paper's 3,840
            are 15 batches of 256.
        start: from then on it is used, if it is full.
    """

    length: Count = 3840
    start: Duration = Duration(15, "ep")


@register.task(name="swav")
class SwAV(SelfSupervised):
    """Views of an image are to predict which prototypes the other views fall to, samples being spread evenly over them.

    Caron et al. 2020, Unsupervised Learning of Visual Features by Contrasting Cluster Assignments. The first views give
    the assignments, all views predict. Assignments are those of the batch of all processes; the paper's batch norms see
    all of them, too: ``train.sync_batch_norm``.

    Args:
        backbone: images to vectors.
        hidden: width of the projector's hidden layer; null takes the backbone's.
        projection: width of what is compared with prototypes.
        prototypes: how many there are; of several heads, for each. Losses of heads are averaged.
        assign: how many views, the first ones, give assignments.
        temperature: divides the cosines of predictions.
        epsilon: divides those of assignments; the smaller, the sharper and the less even they are.
        iterations: of evening out.
        power: null: prototypes are to have even shares of the samples; else the i-th has one in proportion to
            ``i ** -power`` (VISSL).
        hard: for so long from the beginning on each sample is assigned to a single prototype (VISSL).
        freeze: for so long prototypes stay as they were drawn (appendix A.1; the authors' code has 313 steps, which are
            an epoch of ImageNet in batches of 4,096).
        queue: earlier batches that assignments are evened out with; null: none.
        evaluators: who judges the embeddings; null takes ``knn`` where every image has one label.
        mean: of the images in 0..1, per channel or one for all; null takes what a pretrained backbone knows, otherwise
            ImageNet's for colour.
        std: their standard deviation, likewise.

    Raises:
        ValueError: there are no prototypes.
    """

    whole_batches = True

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
        queue: Queue | None = None,
        evaluators: list[EvaluatorPart] | None = None,
        mean: list[float] | None = None,
        std: list[float] | None = None,
    ) -> None:
        super().__init__(dataset_info, backbone(dataset_info.channels), mean, std, evaluators)
        width = self.backbone.out_channels
        self.projector = mlp([width, hidden or width, projection])
        self.prototypes = Prototypes(projection, prototypes)
        self.queues = nn.ModuleList(VectorQueue(projection, queue.length) for _ in range(assign) if queue)
        self.assign, self.temperature, self.epsilon = assign, temperature, epsilon
        self.iterations, self.power = iterations, power
        self._hard, self._freeze, self._queue = hard, freeze, queue
        self._newest: list[Tensor] = []

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        """``loss``; ``std``, how far embeddings are spread (1 evenly, 0 collapsed); ``entropy`` of the shares that
        prototypes would have if nothing were evened out (1: even ones)."""
        views = self.views(batch, least=max(self.assign, 2))
        embeddings = in_few_passes(lambda images: self.projector(self.backbone(images)), views)
        embeddings = [F.normalize(one.float(), dim=1) for one in embeddings]
        everybody = of_all_processes([one.detach() for one in embeddings[: self.assign]], batch["id"])
        self._newest = everybody
        scores = self._scores(embeddings)
        with torch.no_grad():
            scores_of_all = self._scores(self._with_queue(everybody, clock))
        hard = clock.step < clock.steps(self._hard)
        losses = [self._loss(*of_head, hard) for of_head in zip(scores, scores_of_all, strict=True)]
        shares = [sinkhorn(first[: len(everybody[0])], self.epsilon, 0).mean(0) for first, *_ in scores_of_all]
        return {
            "loss": torch.stack(losses).mean(),
            "std": spread(everybody[0]),
            "entropy": torch.stack([evenness(one) for one in shares]).mean(),
        }

    def _scores(self, views: Sequence[Tensor]) -> list[Scores]:
        """Cosines of each view (B x D) with the prototypes of each head."""
        return list(zip(*map(self.prototypes, views), strict=True))

    def _loss(self, scores: Scores, scores_of_all: Scores, hard: bool) -> Tensor:
        """Of one head: this process's views, and the assigning ones of all processes and of the queue."""
        assignments = [
            assigned(own, evening(seen, self.epsilon, self.iterations, self.power), self.epsilon, hard=hard)
            for own, seen in zip(scores, scores_of_all, strict=False)
        ]
        return swapped_prediction(scores, assignments, self.temperature)

    def _with_queue(self, everybody: list[Tensor], clock: Clock) -> list[Tensor]:
        """The embeddings of each assigning view (N x D), and behind them those of the queue, if it is time for it."""
        queue = self._queue
        if queue is None or clock.step < clock.steps(queue.start) or clock.samples < queue.length:
            return everybody
        return [torch.cat([one, held.get_buffer("features")]) for one, held in zip(everybody, self.queues, strict=True)]

    def remember(self) -> None:
        """Put the newest batch into the queues; in the place of an embedding that is not finite stands zero, which is
        as near to every prototype."""
        newest, self._newest = self._newest, []
        for queue, embeddings in zip(self.queues, newest, strict=False):
            assert isinstance(queue, VectorQueue)
            finite = embeddings.isfinite().all(1, keepdim=True)
            queue.push(torch.where(finite, embeddings, 0))

    def hooks(self, dataset_info: DatasetInfo) -> list[Hook]:
        """Prototypes rest at first, and keep their length; the queue takes the batch of every step."""
        return [
            FreezeAtFirst(self.prototypes, self._freeze),
            KeepOnSphere(self.prototypes),
            Remember(self.remember),
        ]


class KeepOnSphere(Hook):
    """Normalises prototypes after every optimizer step."""

    def __init__(self, prototypes: Prototypes) -> None:
        self._prototypes = prototypes

    def after_step(self, run: Run) -> None:
        """Normalise."""
        self._prototypes.normalise()
