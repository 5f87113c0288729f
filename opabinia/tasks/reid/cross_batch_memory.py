"""Cross-batch memory: features of earlier batches that those of the current batch are compared with, too."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from opabinia.config import register
from opabinia.contracts import Count, NonNegative, Positive
from opabinia.models.feature_queue import FeatureQueue
from opabinia.models.losses.metric import cross_batch_memory_loss


@register.section(name="cross_batch_memory")
@dataclass(frozen=True, kw_only=True)
class CrossBatchMemory:
    """A queue of features to compare with, beside those of the batch (Wang et al. 2020, Cross-batch memory; He et al.
    2020, MoCo, without its second encoder; FastReID's meta-architecture of that name).

    Args:
        size: number of features in the queue.
        margin: by how much cosines of one identity must exceed those of different ones.
        gamma: multiplies cosines; larger values weight the hardest pairs more.
        scale: multiplies ``memory_loss``.
    """

    size: Count = 8192
    margin: NonNegative = 0.25
    gamma: Positive = 32.0
    scale: NonNegative = 1.0


class QueueMemory(nn.Module):
    """The feature queue and the loss against it.

    Args:
        settings: see :class:`CrossBatchMemory`.
        width: of the features.
    """

    def __init__(self, settings: CrossBatchMemory, width: int) -> None:
        super().__init__()
        self.settings = settings
        self.queue = FeatureQueue(width, settings.size)
        self._pending: tuple[Tensor, Tensor] | None = None

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of the batch of all processes (B x D; int64, B); :meth:`update` then enqueues the batch."""
        self._pending = features.detach(), labels
        settings, queue = self.settings, self.queue
        loss = cross_batch_memory_loss(
            features, labels, queue.features, queue.labels, margin=settings.margin, gamma=settings.gamma
        )
        return settings.scale * loss

    def update(self) -> None:
        """Enqueue the newest batch; slots of features that are not finite stay empty."""
        if self._pending is None:
            return
        (features, labels), self._pending = self._pending, None
        finite = features.isfinite().all(1)
        self.queue.enqueue(torch.where(finite[:, None], features, 0), torch.where(finite, labels, -1))
