"""Layers shared by tasks: image normalization, and the batch norm neck of re-identification."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from opabinia.contracts import Preprocessing, Sizes
from opabinia.runtime.device import move_tensor

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Normalize(nn.Module):
    """Normalize images on their device: scale uint8 to 0..1, then ``(x - mean) / std``.

    Args:
        mean, std: per channel, for images in 0..1; a single number applies to all channels.
        channels: channels of the images.

    Attributes:
        channels_last: return images in the channels-last memory format (``train.channels_last``).

    Raises:
        ValueError: the number of values is neither 1 nor ``channels``, or a std is not positive.
    """

    mean: Tensor
    std: Tensor
    channels_last: bool = False

    def __init__(self, mean: Sequence[float], std: Sequence[float], channels: int) -> None:
        super().__init__()
        for name, values in (("mean", mean), ("std", std)):
            if len(values) not in (1, channels):
                raise ValueError(
                    f"{name}: {len(values)} values for images of {channels} channels; give {channels} or 1"
                )
        if min(std) <= 0:
            raise ValueError(f"std: every value must be above 0, not {list(std)}")
        # Not saved with the weights: these values are config, and a resumed run must obey its config.
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, -1, 1, 1), persistent=False)

    def forward(self, images: Tensor, sizes: Sizes | Tensor | None = None) -> Tensor:
        """B x C x H x W, uint8 or float in 0..1, to float of about zero mean and unit variance.

        Args:
            images: B x C x H x W.
            sizes: height and width of each image of a padded batch, as numbers or a tensor (int64, B x 2); padding, to
                the right and at the bottom, becomes 0 as in detectron2. None: there is none.
        """
        size = tuple(images.shape[-2:])
        padded = isinstance(sizes, Tensor) or any(image_size != size for image_size in sizes or ())
        area = image_area(size, sizes, images.device) if padded and sizes is not None else None
        # The copy that changes the type changes the layout, too.
        layout = torch.channels_last if self.channels_last else torch.preserve_format
        if images.dtype == torch.uint8:
            images = images.to(self.mean.dtype, memory_format=layout) / 255
        elif self.channels_last:
            images = images.to(memory_format=layout)
        normalized = (images - self.mean) / self.std
        return normalized if area is None else normalized * area


def image_area(shape: Sequence[int], sizes: Sizes | Tensor, device: torch.device) -> Tensor:
    """Return which pixels of a padded batch of height and width ``shape`` belong to images (bool, B x 1 x H x W)."""
    ends = sizes if isinstance(sizes, Tensor) else move_tensor(torch.tensor(sizes), device)
    height, width = (torch.arange(side, device=device) for side in shape)
    return ((height < ends[:, :1])[:, :, None] & (width < ends[:, 1:])[:, None, :]).unsqueeze(1)


def default_normalization(channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and std of images in 0..1 for backbones without pretrained weights: ImageNet's for color images,
    0.5 for others."""
    return (IMAGENET_MEAN, IMAGENET_STD) if channels == 3 else ((0.5,), (0.5,))


def build_normalization(
    preprocessing: Preprocessing | None,
    channels: int,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> Normalize:
    """Build the :class:`Normalize` of a task.

    Args:
        preprocessing: preprocessing of the backbone's pretrained weights; None without such.
        channels: channels of the images.
        mean, std: the task's options, for images in 0..1: one number per channel, or one for all. None takes the values
            that the backbone was pretrained with; without those, :func:`default_normalization`.
    """
    default = (preprocessing.mean, preprocessing.std) if preprocessing else default_normalization(channels)
    return Normalize(mean or default[0], std or default[1], channels)


class BNNeck(nn.BatchNorm1d):
    """Batch norm without a trainable bias between features and classifier (Luo et al. 2019, section 3.5), so that
    features are distributed around the origin. The bias stays in the state dict, as 0.

    Args:
        features: length of the vectors.
    """

    def __init__(self, features: int) -> None:
        super().__init__(features)
        self.bias.requires_grad_(False)
