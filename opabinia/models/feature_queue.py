"""Memories of embeddings of earlier batches: queues, and a bank with one entry per image."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from opabinia.contracts import Memory


class VectorQueue(Memory):
    """A first-in-first-out queue of embeddings, saved with the model (He et al. 2020, MoCo).

    With several processes, push the batch gathered from all of them, so that each holds the same queue.

    Args:
        width: D.
        size: K, its capacity.
        random_init: begin with vectors of random directions, as in MoCo's code; otherwise empty slots are 0.

    Attributes:
        features: K x D, float32, each of length 1.
        pointer: int64, the next slot to fill.
    """

    features: Tensor
    pointer: Tensor

    def __init__(self, width: int, size: int, *, random_init: bool = False) -> None:
        super().__init__()
        features = F.normalize(torch.randn(size, width), dim=1) if random_init else torch.zeros(size, width)
        self.register_buffer("features", features)
        self.register_buffer("pointer", torch.tensor(0))

    @torch.no_grad()
    def push(self, features: Tensor) -> Tensor:
        """Replace the oldest vectors by a batch.

        Args:
            features: B x D, of any length; of a batch larger than the queue the last K are kept.

        Returns:
            the slots of the vectors that were kept (int64, at most K).
        """
        size = len(self.features)
        slots = (self.pointer + torch.arange(len(features), device=self.pointer.device)) % size
        newest = slice(-size, None)  # writing a slot twice would be nondeterministic
        self.features.index_copy_(0, slots[newest], F.normalize(features[newest].float(), dim=1))
        self.pointer.add_(len(features)).remainder_(size)
        return slots[newest]


class FeatureQueue(VectorQueue):
    """A queue of embeddings with their identities.

    Args:
        width: D.
        size: K, its capacity (FastReID's QUEUE_SIZE is 8192).

    Attributes:
        labels: int64, K; -1 for empty slots.
    """

    labels: Tensor

    def __init__(self, width: int, size: int = 8192) -> None:
        super().__init__(width, size)
        self.register_buffer("labels", torch.full((size,), -1))

    @torch.no_grad()
    def enqueue(self, features: Tensor, labels: Tensor) -> None:
        """Replace the oldest entries by a batch (B x D; int64, B); see :meth:`push`."""
        slots = self.push(features)
        self.labels.index_copy_(0, slots, labels[-len(self.labels) :])


class MemoryBank(Memory):
    """One embedding per training image, saved with the model (Wu et al. 2018, NPID, section 3.1).

    With several processes, update it with the batch gathered from all of them, so that each holds the same bank. It
    takes 4 D bytes per image: 656 MB for ImageNet with D = 128.

    Args:
        samples: N, the number of training images.
        width: D.

    Attributes:
        vectors: N x D, float32, each of length 1; of random directions until the image is seen.
    """

    vectors: Tensor

    def __init__(self, samples: int, width: int) -> None:
        super().__init__()
        self.register_buffer("vectors", F.normalize(torch.randn(samples, width), dim=1))

    @torch.no_grad()
    def update(self, indices: Tensor, vectors: Tensor, momentum: float) -> None:
        """Average a batch into the entries of its images, and normalize these to length 1.

        Args:
            indices: indices of the images (int64, B); for one that occurs twice the last vector counts.
            vectors: B x D, of any length; vectors that are not finite are ignored.
            momentum: weight of the old entries.

        Example: (0.6, 0.8) and a new (2, 1) at 0.5 become (0.7678, 0.6407).
        """
        old, new = self.vectors[indices], F.normalize(vectors.float(), dim=1)
        updated = F.normalize(momentum * old + (1 - momentum) * new, dim=1)
        updated = torch.where(vectors.isfinite().all(1, keepdim=True), updated, old)
        # All rows of one image write the same values: the order of writes would be nondeterministic.
        rows = torch.arange(len(indices), device=indices.device)
        last = torch.where(indices[:, None] == indices, rows, -1).amax(1)
        self.vectors.index_copy_(0, indices, updated[last])
