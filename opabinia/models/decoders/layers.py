"""Layers that decoders share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

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


def check_strides(levels: Sequence[Level], needed: Sequence[int], name: str) -> None:
    """Check that the feature maps end with levels of these strides.

    Raises:
        ValueError: they do not.
    """
    strides = [level.stride for level in levels]
    if strides[-len(needed) :] != list(needed):
        wanted, given = (", ".join(map(str, values)) for values in (needed, strides))
        raise ValueError(
            f"{name} needs feature maps of strides {wanted}, and the backbone gives {given}; take a backbone that has "
            "them (ResNet, ConvNeXt, Swin), or the decoder linear for a plain vision transformer"
        )
