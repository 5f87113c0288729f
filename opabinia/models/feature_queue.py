"""Vectors of earlier batches, to compare those of the present one with."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from opabinia.contracts import Memory


class VectorQueue(Memory):
    """The newest vectors of training; they are saved with the model (He et al. 2020, MoCo).

    On many processes it is to be given the batch of all of them, so that each holds the same.

    Args:
        width: D.
        size: K; how many it holds.
        drawn: whether it begins with vectors of random directions, as in MoCo's code; else empty places are 0.

    Attributes:
        features: K x D, float32, each of length 1.
        pointer: int64; the place that is filled next.
    """

    features: Tensor
    pointer: Tensor

    def __init__(self, width: int, size: int, *, drawn: bool = False) -> None:
        super().__init__()
        features = F.normalize(torch.randn(size, width), dim=1) if drawn else torch.zeros(size, width)
        self.register_buffer("features", features)
        self.register_buffer("pointer", torch.tensor(0))

    @torch.no_grad()
    def push(self, features: Tensor) -> Tensor:
        """Put a batch in the place of the oldest ones.

        Args:
            features: B x D, of any length; B may be larger than the queue, which then keeps the last K.

        Returns:
            Where those that stay were put (int64, at most K).
        """
        size = len(self.features)
        places = (self.pointer + torch.arange(len(features), device=self.pointer.device)) % size
        newest = slice(-size, None)  # no place is written twice: which one stays would be left to chance
        self.features.index_copy_(0, places[newest], F.normalize(features[newest].float(), dim=1))
        self.pointer.add_(len(features)).remainder_(size)
        return places[newest]


class FeatureQueue(VectorQueue):
    """The newest features with their identities.

    Args:
        width: D.
        size: K; how many it holds (FastReID's QUEUE_SIZE is 8192).

    Attributes:
        labels: int64, K; -1 where a place is empty.
    """

    labels: Tensor

    def __init__(self, width: int, size: int = 8192) -> None:
        super().__init__(width, size)
        self.register_buffer("labels", torch.full((size,), -1))

    @torch.no_grad()
    def enqueue(self, features: Tensor, labels: Tensor) -> None:
        """Put a batch (B x D; int64, B) in the place of the oldest ones; see :meth:`push`."""
        places = self.push(features)
        self.labels.index_copy_(0, places, labels[-len(self.labels) :])


class MemoryBank(Memory):
    """A vector for every image of the training data, saved with the model (Wu et al. 2018, NPID, section 3.1).

    On many processes it is to be given the batch of all of them, so that each holds the same. It takes 4 D bytes an
    image: 656 MB for ImageNet at 128.

    Args:
        samples: N; images of the training data.
        width: D.

    Attributes:
        vectors: N x D, float32, each of length 1; of random directions until an image was seen.
    """

    vectors: Tensor

    def __init__(self, samples: int, width: int) -> None:
        super().__init__()
        self.register_buffer("vectors", F.normalize(torch.randn(samples, width), dim=1))

    @torch.no_grad()
    def renew(self, indices: Tensor, vectors: Tensor, momentum: float) -> None:
        """Mix a batch into the vectors of its images, and bring them back to length 1.

        Args:
            indices: of the images (int64, B); of one that is there twice the last one counts.
            vectors: B x D, of any length; one that is not finite changes nothing.
            momentum: share of the old vectors.

        Example: (0.6, 0.8) and a new (2, 1) at 0.5 become (0.7678, 0.6407).
        """
        old, new = self.vectors[indices], F.normalize(vectors.float(), dim=1)
        mixed = F.normalize(momentum * old + (1 - momentum) * new, dim=1)
        mixed = torch.where(vectors.isfinite().all(1, keepdim=True), mixed, old)
        # All places of one image write the same: which of them writes last would be left to chance.
        numbers = torch.arange(len(indices), device=indices.device)
        last = torch.where(indices[:, None] == indices, numbers, -1).amax(1)
        self.vectors.index_copy_(0, indices, mixed[last])
