"""Poolings: feature maps (B x M x h x w) to one vector each (B x M), float32 whatever the dtype of the feature maps."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from opabinia.config import register
from opabinia.contracts import Count, Positive

MIN_ACTIVATION = 1e-6
"""Lower bound of activations in a generalized mean, so that powers and their gradients exist (FastReID)."""


def generalized_mean(maps: Tensor, p: float | Tensor) -> Tensor:
    """Mean of x^p over all positions, to the power 1/p (B x M): from the mean of the positive part at p = 1 towards the
    maximum as p grows.

    Args:
        maps: B x M x h x w; values below 1e-6 count as 1e-6.
        p: above 0; a tensor of one number can be learned.

    Example: 1, 2, 3, 4 with p = 3 give 2.924.
    """
    # In half precision the cube of 41 is infinite already.
    return maps.float().clamp(min=MIN_ACTIVATION).pow(p).mean((2, 3)).pow(1 / p)


def rmac_regions(height: int, width: int, levels: int = 3) -> list[tuple[int, int, int, int]]:
    """Return squares of several sizes that cover a feature map evenly (Tolias et al. 2016, section 3.2): left, top,
    width, height.

    Squares of level l have sides of ``2 * shorter side / (l + 1)``, and there are l of them along the shorter side;
    along the longer one there are more, such that those of the first level overlap by about 40%. Levels with sides
    below 1 are skipped.

    Args:
        height, width: height and width of the feature map.
        levels: from 1 on.

    Example: a feature map of 4 x 4, two levels: the whole, and four squares of 2 x 2.
    """

    def offsets(room: int, count: int) -> list[int]:
        return [room * index // max(1, count - 1) for index in range(count)]

    short, long = sorted((height, width))
    extra = min(range(1, 7), key=lambda n: abs((short**2 - short * ((long - short) / n)) / short**2 - 0.4))
    extra_rows, extra_columns = extra if height > width else 0, extra if width > height else 0
    regions = []
    for level in range(1, levels + 1):
        if side := 2 * short // (level + 1):
            tops, lefts = offsets(height - side, level + extra_rows), offsets(width - side, level + extra_columns)
            regions += [(left, top, side, side) for top in tops for left in lefts]
    return regions


def rmac_descriptors(maps: Tensor, levels: int = 3) -> Tensor:
    """Return the maximum over each of the R squares of :func:`rmac_regions`, normalized to length 1.

    Args:
        maps: B x M x h x w.
        levels: number of levels of squares.

    Returns: float32, B x R x M.
    """
    squares = rmac_regions(maps.shape[2], maps.shape[3], levels)
    maxima = [maps[:, :, top : top + height, left : left + width].amax((2, 3)) for left, top, width, height in squares]
    return F.normalize(torch.stack(maxima, 1).float(), dim=2)


class Pooling(nn.Module):
    """Base class of poolings.

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
        """The number of channels."""
        return f"{self.channels}"


@register.pooling
class Average(Pooling):
    """Mean over all positions. Example: 1, 2, 3, 4 give 2.5."""

    def forward(self, maps: Tensor) -> Tensor:
        return maps.mean((2, 3), dtype=torch.float32)


@register.pooling
class Max(Pooling):
    """Maximum over all positions. Example: 1, 2, 3, 4 give 4."""

    def forward(self, maps: Tensor) -> Tensor:
        return maps.amax((2, 3)).float()


@register.pooling
class AverageMax(Pooling):
    """Sum of mean and maximum. Example: 1, 2, 3, 4 give 6.5."""

    def forward(self, maps: Tensor) -> Tensor:
        return maps.mean((2, 3), dtype=torch.float32) + maps.amax((2, 3)).float()


@register.pooling
class ClippedAverage(Pooling):
    """Mean over all positions, clipped to 0..1. Example: 0.5, 0.9, 2 and 3 give 1."""

    def forward(self, maps: Tensor) -> Tensor:
        return maps.mean((2, 3), dtype=torch.float32).clamp(0, 1)


@register.pooling
class Gem(Pooling):
    """Generalized mean pooling (GeM) with a fixed exponent (Radenović et al. 2018, section III-B).

    Args:
        p: the exponent: 1 is the mean of the positive part; larger values approach the maximum. The paper learns it
            from 3 on; FastReID's is 3.
    """

    p: float | nn.Parameter

    def __init__(self, channels: int, /, *, p: Positive = 3.0) -> None:
        super().__init__(channels)
        self.p = p

    def forward(self, maps: Tensor) -> Tensor:
        return generalized_mean(maps, self.p)

    def extra_repr(self) -> str:
        """The number of channels, and the exponent unless it is learned: its value can be on a GPU, or elsewhere."""
        return super().extra_repr() + ("" if isinstance(self.p, nn.Parameter) else f", p={self.p:g}")


@register.pooling
class GemLearned(Gem):
    """Generalized mean pooling (GeM) with one learned exponent for all channels (Radenović et al. 2018, section III-B).

    Args:
        p: initial exponent.
    """

    def __init__(self, channels: int, /, *, p: Positive = 3.0) -> None:
        super().__init__(channels)
        self.p = nn.Parameter(torch.full((1,), float(p)))


@register.pooling
class Rmac(Pooling):
    """Regional maximum activations (Tolias et al. 2016, R-MAC), for instance retrieval: the maxima over squares of
    several sizes, each normalized to length 1, summed and normalized again.

    Args:
        levels: number of levels of squares (3 in the paper); see :func:`rmac_regions`.
    """

    def __init__(self, channels: int, /, *, levels: Count = 3) -> None:
        super().__init__(channels)
        self.levels = levels

    def forward(self, maps: Tensor) -> Tensor:
        return F.normalize(rmac_descriptors(maps, self.levels).sum(1), dim=1)

    def extra_repr(self) -> str:
        """The number of channels, and the levels."""
        return f"{super().extra_repr()}, levels={self.levels}"


register.pooling.mark_unsupported("fast_average", "average is as fast")
