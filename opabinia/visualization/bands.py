"""Images with any number of channels as color images, for drawing."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

BANDS = (1, 2, 3)
"""Channels that are drawn as red, green and blue, counted from 1 as GDAL does."""

_LOW, _HIGH = 0.02, 0.98
"""Shares of the pixels that are drawn black and in full brightness at the least: GIS programs stretch so by default."""


def select_bands(image: Tensor, bands: Sequence[int] = BANDS) -> Tensor:
    """Return channels of an image (C x H x W, uint8 or float) as a color or gray image (uint8, 3 or 1 x H x W), each
    stretched from its 2nd to its 98th percentile.

    Args:
        image: the image.
        bands: numbers of three channels, or of one, from 1.

    Raises:
        ValueError: there is no such channel.
    """
    count = image.shape[0]
    if tuple(bands) == BANDS and count < len(bands):  # no one has chosen them
        bands = bands[:1]
    if wrong := [band for band in bands if not 1 <= band <= count]:
        raise ValueError(f"there is no band {wrong[0]}: the images have {count}, counted from 1")
    chosen = image[[band - 1 for band in bands]].float()
    low, high = (_quantile(chosen, share) for share in (_LOW, _HIGH))
    stretched = (chosen - low) / (high - low).clamp(min=torch.finfo(torch.float32).tiny)
    return (stretched.clamp(0, 1) * 255).round().to(torch.uint8)


def _quantile(channels: Tensor, share: float) -> Tensor:
    """Return a quantile of each channel (C x 1 x 1); torch's own function takes 16 million values at most."""
    values = channels.flatten(1).sort(1).values
    return values[:, round(share * (values.shape[1] - 1))].view(-1, 1, 1)
