"""NPID, instance discrimination with a memory (Wu et al. 2018)."""

from __future__ import annotations

from typing import Literal

import torch
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
    Fraction,
    Hook,
    Positive,
)
from opabinia.evaluation.representation.collapse import spread
from opabinia.models.feature_queue import MemoryBank
from opabinia.models.losses.contrastive import info_nce, log_normalizer_of, memory_nce
from opabinia.runtime.collectives import gather_batch
from opabinia.runtime.processes import broadcast_from_rank_zero
from opabinia.tasks.selfsup.base import SelfSupervised, in_few_passes
from opabinia.tasks.selfsup.update_queue import Remember


@register.task(name="npid")
class NPID(SelfSupervised):
    """Every image is a class of its own: one view of it is to be told by what a memory keeps of its earlier views,
    among what it keeps of other images.

    Wu et al. 2018, Unsupervised Feature Learning via Non-Parametric Instance Discrimination. Images are known by their
    number: ``data.train.source: {name: numbered, source: ...}``. The paper makes one view of an image; of several each
    counts, and the memory takes the last one.

    All images of a batch are compared with the same others, drawn anew in each step, which is one product of matrices;
    VISSL draws others for each image. In both an image's own entry may be among them.

    Args:
        backbone: images to vectors.
        projection: width of what is compared.
        loss: ``nce`` asks of each entry alone whether it is the image's own, as the paper does; ``info_nce`` which of
            all entries is (VISSL's ``cross_entropy``).
        negatives: entries of the memory that a step draws (the paper's 4,096; VISSL's default is 16,000).
        temperature: divides cosines.
        momentum: share of an image's entry that stays when the image is seen.
        evaluators: who judges the embeddings; null takes ``knn`` where every image has one label.
        mean: of the images in 0..1, per channel or one for all; null takes what a pretrained backbone knows, otherwise
            ImageNet's for colour.
        std: their standard deviation, likewise.
    """

    whole_batches = True

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
        evaluators: list[EvaluatorPart] | None = None,
        mean: list[float] | None = None,
        std: list[float] | None = None,
    ) -> None:
        super().__init__(dataset_info, backbone(dataset_info.channels), mean, std, evaluators)
        self.projector = nn.Linear(self.backbone.out_channels, projection)
        self.memory = MemoryBank(dataset_info.samples, projection)
        # The first batch estimates it; from then on it stays (section 3.2).
        self.register_buffer("log_normalizer", torch.tensor(torch.nan))
        self.loss, self.negatives = loss, negatives
        self.temperature, self.momentum = temperature, momentum
        self._newest: tuple[Tensor, Tensor, Tensor] | None = None

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        """``loss``, and ``std``, how far projections are spread: 1 evenly, 0 collapsed.

        Raises:
            Unfit: the images have no numbers.
        """
        views = self.views(batch, least=1)
        if "index" not in batch:
            raise DataMismatch(
                "NPID knows images by their numbers, and batches have none; say data.train.source: {name: numbered, "
                "source: ...}"
            )
        others = self.memory.vectors[self._drawn(views[0].device)]
        own = torch.cat(in_few_passes(lambda images: self.projector(self.backbone(images)), views))
        queries, indices = gather_batch(own, batch["index"].repeat(len(views)), batch["id"] * len(views))
        keys = self.memory.vectors[indices]
        estimate = log_normalizer_of(queries, keys, others, self.dataset_info.samples, self.temperature)
        log_normalizer = torch.where(self.log_normalizer.isfinite(), self.log_normalizer, estimate)
        self._newest = indices, queries.detach(), log_normalizer
        if self.loss == "nce":
            loss = memory_nce(queries, keys, others, log_normalizer, self.dataset_info.samples, self.temperature)
        else:
            loss = info_nce(queries, keys, others, self.temperature)
        return {"loss": loss, "std": spread(queries)}

    def hooks(self, dataset_info: DatasetInfo) -> list[Hook]:
        """After every step the memory takes the step's projections."""
        return [Remember(self._renew)]

    def _drawn(self, device: torch.device) -> Tensor:
        """Numbers of the entries to compare with (int64), the same on every process."""
        drawn = torch.randint(self.dataset_info.samples, (self.negatives,), device=device)
        broadcast_from_rank_zero([drawn])
        return drawn

    def _renew(self) -> None:
        if self._newest is not None:
            (indices, queries, log_normalizer), self._newest = self._newest, None
            self.memory.renew(indices, queries, self.momentum)
            self.log_normalizer.copy_(log_normalizer)
