"""Layers that decoders share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from opabinia.contracts import Level
from opabinia.models.necks import norm_factory

DecoderNorm = Literal["batch", "group"]
"""Norm after the convolutions of a decoder; ``group`` has 32 groups and does not depend on the batch."""


def conv_block(in_channels: int, out_channels: int, kernel_size: int, norm: DecoderNorm) -> nn.Sequential:
    """Return a convolution without bias that keeps the size, its norm and a ReLU.

    Raises:
        ValueError: the channels are not divisible into the groups of the norm.
    """
    make_norm = norm_factory(norm, out_channels)
    assert make_norm is not None
    conv = nn.Conv2d(in_channels, out_channels, kernel_size, padding=kernel_size // 2, bias=False)
    return nn.Sequential(conv, make_norm(out_channels), nn.ReLU())


def resize_like(maps: Tensor, other: Tensor) -> Tensor:
    """Resize maps (B x M x h x w) bilinearly to the height and width of another tensor."""
    return F.interpolate(maps, size=other.shape[-2:], mode="bilinear", align_corners=False)


class GridAverage(nn.Module):
    """Average pooling to a grid of ``size`` x ``size`` cells (B x M x h x w to B x M x size x size), as
    ``nn.AdaptiveAvgPool2d``, whose backward pass is not deterministic on GPUs: by two matrix products.

    Args:
        size: rows and columns.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, maps: Tensor) -> Tensor:
        """Return the mean of each cell."""
        height, width = maps.shape[-2:]
        with torch.autocast(maps.device.type, enabled=False):
            columns = maps.float() @ self._weights(width, maps.device).T
            cells = columns.transpose(-2, -1) @ self._weights(height, maps.device).T
        return cells.transpose(-2, -1).to(maps.dtype)

    def _weights(self, side: int, device: torch.device) -> Tensor:
        """Return the weight of each position in each cell (size x side); cell i goes from floor(i * side / size) to
        ceil((i + 1) * side / size)."""
        cells, positions = (torch.arange(count, device=device) for count in (self.size, side))
        first, end = cells * side // self.size, -(-(cells + 1) * side // self.size)
        inside = (positions >= first[:, None]) & (positions < end[:, None])
        return inside / inside.sum(1, keepdim=True)

    def extra_repr(self) -> str:
        """The size."""
        return f"{self.size}"


def check_strides(levels: Sequence[Level], name: str) -> None:
    """Check that the feature maps end with levels of the strides 4, 8, 16 and 32.

    Raises:
        ValueError: they do not.
    """
    strides = [level.stride for level in levels]
    if strides[-4:] != [4, 8, 16, 32]:
        given = ", ".join(map(str, strides))
        raise ValueError(
            f"{name} needs feature maps of strides 4, 8, 16, 32, and the backbone gives {given}; take a backbone that "
            "has them (ResNet, ConvNeXt, Swin), or the decoder linear for a plain vision transformer"
        )
