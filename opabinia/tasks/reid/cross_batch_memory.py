"""Features of earlier batches, which those of the present one are compared with, too."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from opabinia.config import register
from opabinia.contracts import Count, Hook, NonNegative, Positive, Run
from opabinia.models.feature_queue import FeatureQueue
from opabinia.models.losses.metric import memory_loss


@register.section(name="memory")
@dataclass(frozen=True, kw_only=True)
class Memory:
    """A queue of features to compare with, beside those of the batch (He et al. 2020, MoCo, without its second encoder;
    FastReID's meta-architecture of that name).

    Args:
        size: how many features it holds.
        margin: by how much cosines of one identity are to exceed those of different ones.
        gamma: multiplies cosines; the larger, the more the hardest pairs count.
        scale: multiplies ``memory_loss``.
    """

    size: Count = 8192
    margin: NonNegative = 0.25
    gamma: Positive = 32.0
    scale: NonNegative = 1.0


class QueueMemory(nn.Module):
    """The queue, and the loss against it.

    Args:
        settings: see :class:`Memory`.
        width: of the features.
    """

    def __init__(self, settings: Memory, width: int) -> None:
        super().__init__()
        self.settings = settings
        self.queue = FeatureQueue(width, settings.size)
        self._newest: tuple[Tensor, Tensor] | None = None

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        """Loss of the batch of all processes (B x D; int64, B), which :meth:`remember` then puts into the queue."""
        self._newest = features.detach(), labels
        settings, queue = self.settings, self.queue
        loss = memory_loss(features, labels, queue.features, queue.labels, margin=settings.margin, gamma=settings.gamma)
        return settings.scale * loss

    def remember(self) -> None:
        """Put the newest batch into the queue; places of features that are not finite stay empty."""
        if self._newest is None:
            return
        (features, labels), self._newest = self._newest, None
        finite = features.isfinite().all(1)
        self.queue.enqueue(torch.where(finite[:, None], features, 0), torch.where(finite, labels, -1))


class Remember(Hook):
    """Fills the queue once per optimizer step: a forward pass that is done again, or for no step, changes nothing."""

    def __init__(self, memory: QueueMemory) -> None:
        self._memory = memory

    def after_step(self, run: Run) -> None:
        """Put the features of the step into the queue."""
        self._memory.remember()
