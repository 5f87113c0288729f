"""MoCo v2 (He et al. 2020; Chen et al. 2020)."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from opabinia.config import register
from opabinia.contracts import (
    BackbonePart,
    Batch,
    Clock,
    Count,
    DataMismatch,
    DatasetInfo,
    EvaluatorPart,
    Fraction,
    Hook,
    Positive,
)
from opabinia.evaluation.representation.collapse import spread
from opabinia.models.feature_queue import VectorQueue
from opabinia.models.losses.contrastive import info_nce
from opabinia.models.norms import GhostBatchNorm, SyncBatchNorm
from opabinia.runtime.collectives import gather_rows, shuffle_between_ranks
from opabinia.runtime.processes import world_size
from opabinia.runtime.seeds import DEALT, hash32
from opabinia.tasks.selfsup.base import SelfSupervised
from opabinia.tasks.selfsup.momentum_teacher import Follow, Teacher
from opabinia.tasks.selfsup.update_queue import Remember


@register.task(name="moco")
class MoCo(SelfSupervised):
    """One view is to be told by what a slowly following teacher makes of the other one, among the views of many earlier
    images, which a queue holds.

    He et al. 2020, Momentum Contrast for Unsupervised Visual Representation Learning; Chen et al. 2020, Improved
    Baselines with Momentum Contrastive Learning, whose projector and temperature are the defaults.

    Batch norms could tell the two views of an image by the company they were in. So on many processes the teacher sees
    the images dealt anew among them, and what it makes of them is dealt back (section 3.3, shuffling BN). With batch
    norms that see all processes the company is always the same, and nothing is dealt; nor is it on one process, unless
    the backbone has ghost batch norms, whose parts take the place of processes (``backbone: {name: resnet, norm: ghost,
    ghost_splits: 8}``): the queue holds vectors of other batches than the two views, and batch norms could tell which.

    Args:
        backbone: images to vectors.
        hidden: width of the projector's hidden layer; null takes the backbone's.
        projection: width of what is compared.
        queue: how many vectors it holds, of any number from a batch on: the oldest make room for the newest, whether
            batches divide it or not. At first they are drawn, from the run's seed.
        momentum: share of the teacher that a step keeps.
        temperature: divides cosines; 0.07 in the first version.
        evaluators: who judges the embeddings; null takes ``knn`` where every image has one label.
        mean: of the images in 0..1, per channel or one for all; null takes what a pretrained backbone knows, otherwise
            ImageNet's for colour.
        std: their standard deviation, likewise.
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
        queue: Count = 65536,
        momentum: Fraction = 0.999,
        temperature: Positive = 0.2,
        evaluators: list[EvaluatorPart] | None = None,
        mean: list[float] | None = None,
        std: list[float] | None = None,
    ) -> None:
        super().__init__(dataset_info, backbone(dataset_info.channels), mean, std, evaluators)
        width = self.backbone.out_channels
        hidden = hidden or width
        self.projector = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(inplace=True), nn.Linear(hidden, projection))
        self.teacher = Teacher(backbone=self.backbone, projector=self.projector)
        self.queue = VectorQueue(projection, queue, drawn=True)
        self.momentum, self.temperature = momentum, temperature
        self._newest: Tensor | None = None

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        """``loss``, and ``std``, how far the teacher's projections are spread: 1 evenly, 0 collapsed.

        Raises:
            Unfit: the batch of all processes is larger than the queue.
        """
        one, other = self.views(batch, 2)
        keys = self._keys(other, clock)
        self._newest = everybody = gather_rows(keys, batch["id"])
        if len(everybody) > len(self.queue.features):
            raise DataMismatch(
                f"queue: MoCo's holds {len(self.queue.features)} vectors, and a batch has {len(everybody)}; a queue is "
                "to be many times as long as a batch: raise task.queue"
            )
        queries = self.projector(self.backbone(one))
        loss = info_nce(queries, keys, self.queue.features, self.temperature)
        return {"loss": loss, "std": spread(everybody)}

    def hooks(self, dataset_info: DatasetInfo) -> list[Hook]:
        """After every step the teacher follows and the queue takes the step's keys."""
        return [Follow(self.teacher, [self.backbone, self.projector], self.momentum), Remember(self._enqueue)]

    def _keys(self, images: Tensor, clock: Clock) -> Tensor:
        """What the teacher makes of the images (B x D)."""
        keys: Tensor
        if self._norms_differ:
            dealt, back = shuffle_between_ranks(images, hash32(DEALT, clock.step))
            keys = back(self.teacher(dealt))
        else:
            keys = self.teacher(images)
        return keys

    @cached_property
    def _norms_differ(self) -> bool:
        """Whether a batch norm sees a part of the batch only."""
        batch_norms = [module for module in self.teacher.modules() if isinstance(module, _BatchNorm)]
        if world_size() == 1:
            return any(isinstance(norm, GhostBatchNorm) for norm in batch_norms)
        return not all(isinstance(norm, SyncBatchNorm | nn.SyncBatchNorm) for norm in batch_norms)

    def _enqueue(self) -> None:
        if self._newest is not None:
            keys, self._newest = self._newest, None
            # After a step that was left out; a vector of zeros is as far from all images.
            self.queue.push(torch.where(keys.isfinite().all(1, keepdim=True), keys, 0))
