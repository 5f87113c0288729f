"""Poolings: feature maps (B x M x h x w) to one vector each (B x M), float32 whatever the maps are in."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from opabinia.config import register
from opabinia.contracts import Count, Positive

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


def rmac_regions(height: int, width: int, levels: int = 3) -> list[tuple[int, int, int, int]]:
    """Squares of several sizes that cover a map evenly (Tolias et al. 2016, section 3.2): left, top, width, height.

    On level l they are ``2 * shorter side / (l + 1)`` wide, and there are l of them along the shorter side; along the
    longer one so many more that those of the first level overlap by about 40%. Levels of less than a place are left
    out.

    Args:
        height, width: of the map, in places.
        levels: from 1 on.

    Example: a map of 4 x 4, two levels: all of it, and four squares of 2 x 2.
    """
    short, long = sorted((height, width))
    more = min(range(1, 7), key=lambda n: abs((short**2 - short * ((long - short) / n)) / short**2 - 0.4))
    down, across = more if height > width else 0, more if width > height else 0
    regions = []
    for level in range(1, levels + 1):
        if side := 2 * short // (level + 1):
            tops, lefts = _spread(height - side, level + down), _spread(width - side, level + across)
            regions += [(left, top, side, side) for top in tops for left in lefts]
    return regions


def _spread(room: int, count: int) -> list[int]:
    """Whole numbers from 0 to ``room`` at even distances."""
    return [room * number // max(1, count - 1) for number in range(count)]


def rmac_descriptors(maps: Tensor, levels: int = 3) -> Tensor:
    """The largest values in each of the R squares of :func:`rmac_regions`, brought to length 1.

    Args:
        maps: B x M x h x w.
        levels: of squares.

    Returns: float32, B x R x M.
    """
    squares = rmac_regions(maps.shape[2], maps.shape[3], levels)
    found = [maps[:, :, top : top + height, left : left + width].amax((2, 3)) for left, top, width, height in squares]
    return F.normalize(torch.stack(found, 1).float(), dim=2)


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


@register.pooling
class Rmac(Pooling):
    """The largest values in squares of several sizes, each square's brought to length 1, added up and brought to
    length 1 again (Tolias et al. 2016, R-MAC); for finding the same thing in other pictures.

    Args:
        levels: of squares (the paper's 3); see :func:`rmac_regions`.
    """

    def __init__(self, channels: int, /, *, levels: Count = 3) -> None:
        super().__init__(channels)
        self.levels = levels

    def forward(self, maps: Tensor) -> Tensor:
        return F.normalize(rmac_descriptors(maps, self.levels).sum(1), dim=1)

    def extra_repr(self) -> str:
        """How many channels, and levels."""
        return f"{super().extra_repr()}, levels={self.levels}"


register.pooling.leave_out("fast_average", "average is as fast")
