"""NPID, instance discrimination with a memory (Wu et al. 2018)."""

from __future__ import annotations

from typing import Literal, Unpack

import torch
from torch import Tensor, nn

from opabinia.config import register
from opabinia.contracts import BackbonePart, Batch, Clock, Count, DatasetInfo, Fraction, Hook, Positive
from opabinia.evaluation.representation.collapse import spread
from opabinia.models.feature_queue import MemoryBank
from opabinia.models.losses.contrastive import estimate_log_normalizer, info_nce, memory_nce
from opabinia.runtime.collectives import gather_batch
from opabinia.runtime.processes import broadcast_from_rank_zero
from opabinia.tasks.selfsup.base import SelfSupervised, SharedOptions, forward_by_size
from opabinia.tasks.step_hooks import AfterStep


@register.task(name="npid")
class NPID(SelfSupervised):
    """NPID, instance discrimination: classify each image against a memory bank of embeddings of all images.

    Wu et al. 2018, Unsupervised Feature Learning via Non-Parametric Instance Discrimination. Images need
    their index: ``data.train.source: {name: indexed, source: ...}``. The paper has one view per image; of several each
    one is trained, and the memory bank keeps the last one.

    All images of a batch are compared with the same negatives, sampled in each step, which is one matrix product; VISSL
    samples negatives for each image. In both an image's own entry may be among them.

    Args:
        backbone: maps images to vectors.
        projection: width of the projections.
        loss: ``nce`` classifies each entry by itself as the image's own or not, as the paper does; ``info_nce`` is a
            softmax over all entries (VISSL's ``cross_entropy``).
        negatives: entries of the memory bank that a step samples (the paper's 4,096; VISSL's default is 16,000).
        temperature: divides cosines.
        momentum: fraction of an image's entry that an update keeps.
        evaluators: who judges the embeddings; null takes ``knn`` where every image has one label.
        mean: channel means of images in 0..1; null: see :func:`opabinia.models.layers.build_normalization`.
        std: channel standard deviations, likewise.
    """

    requires_full_batch = True
    has_validation_loss = False

    log_normalizer: Tensor

    def __init__(
        self,
        dataset_info: DatasetInfo,
        /,
        *,
        backbone: BackbonePart,
        projection: Count = 128,
        loss: Literal["nce", "info_nce"] = "nce",
        negatives: Count = 4096,
        temperature: Positive = 0.07,
        momentum: Fraction = 0.5,
        **options: Unpack[SharedOptions],
    ) -> None:
        super().__init__(dataset_info, backbone, **options)
        self.projector = nn.Linear(self.backbone.out_channels, projection)
        self.memory = MemoryBank(dataset_info.samples, projection)
        # The first batch estimates it; afterwards it is constant (section 3.2).
        self.register_buffer("log_normalizer", torch.tensor(torch.nan))
        self.loss, self.negatives = loss, negatives
        self.temperature, self.momentum = temperature, momentum
        self._newest: tuple[Tensor, Tensor, Tensor] | None = None

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        """Return ``loss`` and ``std``, the spread of projections: 1 even, 0 collapsed.

        Raises:
            DataMismatch: the batch has no indices of images.
        """
        views, indices = self.views(batch, min_count=1), self.image_indices(batch)
        negatives = self._sample_negatives(views[0].device)
        vectors = torch.cat(forward_by_size(lambda images: self.projector(self.backbone(images)), views))
        queries, indices = gather_batch(vectors, indices.repeat(len(views)), batch["id"] * len(views))
        log_normalizer = self._current_log_normalizer(queries, indices, negatives)
        self._newest = indices, queries.detach(), log_normalizer
        return {"loss": self._compare(queries, indices, negatives, log_normalizer), "std": spread(queries)}

    def _sample_negatives(self, device: torch.device) -> Tensor:
        """Return entries of the memory bank to compare with (K x D), the same on every process."""
        sampled = torch.randint(self.dataset_info.samples, (self.negatives,), device=device)
        broadcast_from_rank_zero([sampled])
        return self.memory.vectors[sampled]

    def _current_log_normalizer(self, queries: Tensor, indices: Tensor, negatives: Tensor) -> Tensor:
        """Return the logarithm of the normalizer: that of the first batch, estimated if this is the first."""
        keys = self.memory.vectors[indices]
        estimate = estimate_log_normalizer(queries, keys, negatives, self.dataset_info.samples, self.temperature)
        return torch.where(self.log_normalizer.isfinite(), self.log_normalizer, estimate)

    def _compare(self, queries: Tensor, indices: Tensor, negatives: Tensor, log_normalizer: Tensor) -> Tensor:
        """Return the loss of queries (B x D) of the images with these indices."""
        keys = self.memory.vectors[indices]
        if self.loss == "nce":
            return memory_nce(queries, keys, negatives, log_normalizer, self.dataset_info.samples, self.temperature)
        return info_nce(queries, keys, negatives, self.temperature)

    def hooks(self, dataset_info: DatasetInfo) -> list[Hook]:
        """Return the update of the memory bank."""
        return [AfterStep(self._update_memory)]

    def _update_memory(self) -> None:
        if self._newest is not None:
            (indices, queries, log_normalizer), self._newest = self._newest, None
            self.memory.update(indices, queries, self.momentum)
            self.log_normalizer.copy_(log_normalizer)
