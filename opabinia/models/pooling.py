"""Poolings: feature maps (B x M x h x w) to one vector each (B x M), float32 whatever the maps are in."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from opabinia.config import register
from opabinia.contracts import Positive

LEAST = 1e-6
"""What smaller activations count as in a generalised mean, so that powers and their gradients exist (FastReID)."""


def generalised_mean(maps: Tensor, p: float | Tensor) -> Tensor:
    """Mean of x^p over all places, to the power 1/p (B x M). From p = 1, the mean of what is positive, it goes to the
    maximum as p grows.

    Args:
        maps: B x M x h x w; values below 1e-6 count as 1e-6.
        p: above 0; a tensor of one number can be learned.

    Example: 1, 2, 3, 4 with p = 3 give 2.924.
    """
    # In half precision the cube of 41 is infinite already.
    return maps.float().clamp(min=LEAST).pow(p).mean((2, 3)).pow(1 / p)


class Pooling(nn.Module):
    """The base of all.

    Args:
        channels: M.
    """

    def __init__(self, channels: int, /) -> None:
        super().__init__()
        self.channels = channels

    def forward(self, maps: Tensor) -> Tensor:
        """B x M x h x w to B x M, float32."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        """How many channels."""
        return f"{self.channels}"


@register.pooling
class Average(Pooling):
    """The mean over all places. Example: 1, 2, 3, 4 give 2.5."""

    def forward(self, maps: Tensor) -> Tensor:
        return maps.mean((2, 3), dtype=torch.float32)


@register.pooling
class Max(Pooling):
    """The largest value of all places. Example: 1, 2, 3, 4 give 4."""

    def forward(self, maps: Tensor) -> Tensor:
        return maps.amax((2, 3)).float()


@register.pooling
class AverageMax(Pooling):
    """Mean and largest value, added up. Example: 1, 2, 3, 4 give 6.5."""

    def forward(self, maps: Tensor) -> Tensor:
        return maps.mean((2, 3), dtype=torch.float32) + maps.amax((2, 3)).float()


@register.pooling
class ClippedAverage(Pooling):
    """The mean over all places, brought to 0..1 where it lies outside. Example: 0.5, 0.9, 2 and 3 give 1."""

    def forward(self, maps: Tensor) -> Tensor:
        return maps.mean((2, 3), dtype=torch.float32).clamp(0, 1)


@register.pooling
class Gem(Pooling):
    """Generalised mean with a fixed power (Radenović et al. 2018, section III-B).

    Args:
        p: the power: 1 is the mean of what is positive; the larger, the nearer to the maximum. Their p is learned and
            starts at 3, FastReID's is 3.
    """

    def __init__(self, channels: int, /, *, p: Positive = 3.0) -> None:
        super().__init__(channels)
        self.p = p

    def forward(self, maps: Tensor) -> Tensor:
        return generalised_mean(maps, self.p)

    def extra_repr(self) -> str:
        """How many channels, and the power."""
        return f"{super().extra_repr()}, p={self.p:g}"


@register.pooling
class GemLearned(Pooling):
    """Generalised mean whose power is learned, one for all channels (Radenović et al. 2018, section III-B).

    Args:
        p: the power to begin with.
    """

    def __init__(self, channels: int, /, *, p: Positive = 3.0) -> None:
        super().__init__(channels)
        self.p = nn.Parameter(torch.full((1,), float(p)))

    def forward(self, maps: Tensor) -> Tensor:
        return generalised_mean(maps, self.p)


register.pooling.leave_out("fast_average", "average is as fast")
