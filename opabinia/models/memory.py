"""Features of earlier batches, to compare those of the present one with."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class FeatureQueue(nn.Module):
    """The newest features of training, with their identities; they are saved with the model (He et al. 2020, MoCo).

    On many processes it is to be given the batch of all of them, so that each holds the same.

    Args:
        width: D.
        size: K; how many it holds (FastReID's QUEUE_SIZE is 8192).

    Attributes:
        features: K x D, float32, each of length 1; 0 where a place is empty.
        labels: int64, K; -1 where a place is empty.
        pointer: int64; the place that is filled next.
    """

    features: Tensor
    labels: Tensor
    pointer: Tensor

    def __init__(self, width: int, size: int = 8192) -> None:
        super().__init__()
        self.register_buffer("features", torch.zeros(size, width))
        self.register_buffer("labels", torch.full((size,), -1))
        self.register_buffer("pointer", torch.tensor(0))

    @torch.no_grad()
    def enqueue(self, features: Tensor, labels: Tensor) -> None:
        """Put a batch in the place of the oldest ones.

        Args:
            features: B x D, of any length; B may be larger than the queue, which then keeps the last K.
            labels: int64, B.
        """
        size = len(self.labels)
        places = (self.pointer + torch.arange(len(labels), device=self.pointer.device)) % size
        newest = slice(-size, None)  # no place is written twice: which one stays would be left to chance
        self.features.index_copy_(0, places[newest], F.normalize(features[newest].float(), dim=1))
        self.labels.index_copy_(0, places[newest], labels[newest])
        self.pointer.add_(len(labels)).remainder_(size)
