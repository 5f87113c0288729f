"""Losses that tell views of one image from all other images."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import torch
import torch.nn.functional as F
from torch import Tensor


def nt_xent(views: Sequence[Tensor], temperature: float = 0.1) -> Tensor:
    """Normalised temperature-scaled cross entropy (Chen et al. 2020, SimCLR, equation 1), the mean over all anchors.

    A view of an image is to be nearer to the other view than views of other images are. Of V views every ordered pair
    counts, with the V - 1 others of the same image left out of the negatives (VISSL's multi-crop SimCLR).

    Args:
        views: vectors of each view (B x D), of any length; B of at least 2, two views or more.
        temperature: divides cosines; SimCLR's 0.1 for large batches, 0.5 for small ones.

    Example: golden case ``vissl_simclr``: three images in four dimensions at 0.5 give 2.05588.
    """
    vectors = [F.normalize(view.float(), dim=1) for view in views]
    everything = torch.cat(vectors)
    count = len(vectors[0])
    same = torch.eye(count, dtype=torch.bool, device=everything.device).repeat(1, len(vectors))
    losses = []
    for one, other in permutations(range(len(vectors)), 2):
        logits = vectors[one] @ everything.T / temperature
        positive = (vectors[one] * vectors[other]).sum(1, keepdim=True) / temperature
        negatives = logits.masked_fill(same, -torch.inf)
        losses.append(torch.cat([positive, negatives], 1).logsumexp(1) - positive.squeeze(1))
    return torch.stack(losses).mean()
