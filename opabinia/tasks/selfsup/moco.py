"""MoCo v2 (He et al. 2020; Chen et al. 2020): momentum contrast with a queue of keys."""

from __future__ import annotations

from functools import cached_property
from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from opabinia.config import register
from opabinia.contracts import BackbonePart, Batch, Clock, Count, DataMismatch, DatasetInfo, Fraction, Hook, Positive
from opabinia.evaluation.representation.collapse import spread
from opabinia.models.feature_queue import VectorQueue as VectorQueue
from opabinia.models.losses.contrastive import info_nce
from opabinia.models.norms import GhostBatchNorm, SyncBatchNorm
from opabinia.runtime.collectives import gather_rows, shuffle_between_ranks
from opabinia.runtime.processes import world_size
from opabinia.runtime.seeds import DEALT, hash32
from opabinia.tasks.selfsup.base import SelfSupervised, SharedOptions
from opabinia.tasks.selfsup.momentum_teacher import MomentumTeacher
from opabinia.tasks.step_hooks import AfterStep


@register.task(name="moco")
class MoCo(SelfSupervised):
    """MoCo v2: contrast one view with a momentum teacher's key of the other one and a queue of earlier keys.

    He et al. 2020, Momentum Contrast for Unsupervised Visual Representation Learning; Chen et al. 2020, Improved
    Baselines with Momentum Contrastive Learning, whose projector and temperature are the defaults.

    Batch norm statistics could reveal which two views belong together. So with several processes the teacher sees the
    images shuffled among them, and its outputs are shuffled back (section 3.3, shuffling BN). Synchronized batch norms
    need no shuffling. On one process it takes ghost batch norms, whose splits act as processes (``backbone: {name:
    resnet, norm: ghost, ghost_splits: 8}``).

    Args:
        backbone: maps images to vectors.
        hidden: width of the projector's hidden layer; null takes the backbone's.
        projection: width of the projections.
        queue: number of keys, at least a batch; the newest replace the oldest, and the length need not be a multiple of
            the batch size. Initial keys are random, from the run's seed.
        momentum: fraction of the teacher that a step keeps.
        temperature: divides cosines; 0.07 in the first version.
        evaluators: of the embeddings; null takes ``knn`` if every image has one label.
        mean: channel means of images in 0..1; null: see :func:`opabinia.models.layers.build_normalization`.
        std: channel standard deviations, likewise.
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
        queue: Count = 65536,
        momentum: Fraction = 0.999,
        temperature: Positive = 0.2,
        **options: Unpack[SharedOptions],
    ) -> None:
        super().__init__(dataset_info, backbone, **options)
        width = self.backbone.out_channels
        hidden = hidden or width
        self.projector = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(inplace=True), nn.Linear(hidden, projection))
        self.teacher = MomentumTeacher(momentum, backbone=self.backbone, projector=self.projector)
        self.queue = VectorQueue(projection, queue, random_init=True)
        self.temperature = temperature
        self._newest: Tensor | None = None

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        """Return ``loss`` and ``std``, the spread of the teacher's projections: 1 even, 0 collapsed.

        Raises:
            DataMismatch: the batch of all processes is larger than the queue.
        """
        query_view, key_view = self.views(batch, 2)
        if self.training and self._norms_differ:
            shuffled, unshuffle = shuffle_between_ranks(key_view, hash32(DEALT, clock.step))
            keys = unshuffle(self.teacher(shuffled))
        else:
            keys = self.teacher(key_view)
        self._newest = all_keys = gather_rows(keys, batch["id"])
        if len(all_keys) > len(self.queue.features):
            raise DataMismatch(
                f"queue: it holds {len(self.queue.features)} keys, and a batch has {len(all_keys)}; a queue must be "
                "many times as long as a batch: raise task.queue"
            )
        loss = info_nce(self.projector(self.backbone(query_view)), keys, self.queue.features, self.temperature)
        return {"loss": loss, "std": spread(all_keys)}

    def hooks(self, dataset_info: DatasetInfo) -> list[Hook]:
        """Return the updates of teacher and queue."""
        return [*super().hooks(dataset_info), AfterStep(self._enqueue)]

    @cached_property
    def _norms_differ(self) -> bool:
        """Whether a batch norm sees only a part of the batch."""
        batch_norms = [module for module in self.teacher.modules() if isinstance(module, _BatchNorm)]
        if world_size() == 1:
            return any(isinstance(norm, GhostBatchNorm) for norm in batch_norms)
        return not all(isinstance(norm, SyncBatchNorm | nn.SyncBatchNorm) for norm in batch_norms)

    def _enqueue(self) -> None:
        if self._newest is not None:
            keys, self._newest = self._newest, None
            # A skipped step leaves keys that are not finite; a zero vector has the same similarity to all images.
            self.queue.push(torch.where(keys.isfinite().all(1, keepdim=True), keys, 0))
