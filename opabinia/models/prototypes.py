"""Learned prototypes, which take the place of classes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from opabinia.optim.ema import local_tensors


def cosines(vectors: Tensor, prototypes: Tensor) -> Tensor:
    """Return the cosines (N x K) of vectors (N x D) and prototypes (K x D) of length 1, in float32 under autocast too:
    losses divide them by small temperatures."""
    with torch.autocast(vectors.device.type, enabled=False):
        return F.linear(vectors.float(), prototypes.float())


class Prototypes(nn.Module):
    """Cosines with learned prototypes, for one or several heads with prototypes of their own (Caron et al. 2020, SwAV,
    section 3.1).

    Args:
        width: D.
        counts: number of prototypes of each head.

    Raises:
        ValueError: there is no head.

    Attributes:
        heads: the prototypes (K x D each), of length 1 after :meth:`normalize`.
    """

    def __init__(self, width: int, counts: Sequence[int]) -> None:
        super().__init__()
        if not counts:
            raise ValueError("prototypes: at least one head is needed, such as [3000]")
        self.heads = nn.ParameterList(torch.randn(count, width) for count in counts)
        self.normalize()

    def forward(self, vectors: Tensor) -> list[Tensor]:
        """Vectors of length 1 (N x D) to cosines (N x K) for each head."""
        return [cosines(vectors, head) for head in self.heads]

    @torch.no_grad()
    def normalize(self) -> None:
        """Scale every prototype to length 1."""
        for head in local_tensors(list(self.heads)):
            head.copy_(F.normalize(head, dim=1))
