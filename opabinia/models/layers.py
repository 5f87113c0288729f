"""Small layers shared by tasks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from opabinia.contracts import Preprocessing


class Normalize(nn.Module):
    """Normalise images once, on their device: uint8 is brought to 0..1 first, then ``(x - mean) / std``.

    Args:
        mean, std: per channel, for images in 0..1; one number stands for all channels.
        channels: channels of the images.

    Raises:
        ValueError: another number of values than channels, or a std of 0.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float], channels: int) -> None:
        super().__init__()
        for name, values in (("mean", mean), ("std", std)):
            if len(values) not in (1, channels):
                raise ValueError(
                    f"{name}: {len(values)} values for images of {channels} channels; give {channels} or 1"
                )
        if min(std) <= 0:
            raise ValueError(f"std: every value must be above 0, not {list(std)}")
        # Not saved with the weights: they are config, and a resumed run must obey the config.
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, -1, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """B x C x H x W, uint8 or float in 0..1, to float of mean 0 and deviation 1."""
        if images.dtype == torch.uint8:
            images = images.to(self.mean.dtype) / 255
        return (images - self.mean) / self.std


def normalize_as(
    known: Preprocessing | None, channels: int, mean: Sequence[float] | None = None, std: Sequence[float] | None = None
) -> Normalize:
    """Normalises by what a person says; of what nobody says, by what the weights of a backbone were trained with, or
    else by ImageNet's numbers, for colour, and 0.5."""
    other_mean, other_std = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]) if channels == 3 else ([0.5], [0.5])
    return Normalize(
        mean or (known.mean if known else other_mean), std or (known.std if known else other_std), channels
    )


class BNNeck(nn.BatchNorm1d):
    """Batch norm without a shift between features and classifier (Luo et al. 2019, section 3.5), so that features are
    spread around the origin. The shift stays in the weights, as 0, and is not trained.

    Args:
        features: width of the vectors.
    """

    def __init__(self, features: int) -> None:
        super().__init__(features)
        self.bias.requires_grad_(False)
