"""Losses of masked image modeling."""

from __future__ import annotations

from torch import Tensor


def patchify(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Split images (B x C x H x W) into the values of their patches (B x N x h·w·C), row by row, channels last in each.

    Args:
        images: with sides that are multiples of the patches'.
        size: height h and width w of a patch.
    """
    count, channels, height, width = images.shape
    rows, columns = height // size[0], width // size[1]
    blocks = images.reshape(count, channels, rows, size[0], columns, size[1])
    return blocks.permute(0, 2, 4, 3, 5, 1).reshape(count, rows * columns, -1)


def normalize_patches(patches: Tensor) -> Tensor:
    """Normalize each patch (B x N x P) to mean 0 and variance 1 (He et al. 2022, MAE, section 4.1: normalized
    pixels)."""
    patches = patches.float()
    centered = patches - patches.mean(-1, keepdim=True)
    return centered / (patches.var(-1, keepdim=True) + 1e-6).sqrt()


def masked_mse(predicted: Tensor, patches: Tensor, mask: Tensor) -> Tensor:
    """Mean squared error over the masked patches (He et al. 2022, MAE, section 3).

    Args:
        predicted: for all patches (B x N x P).
        patches: targets (B x N x P).
        mask: True for masked patches (bool, B x N), at least one.
    """
    errors = (predicted.float() - patches.float()).square().mean(-1)
    return (errors * mask).sum() / mask.sum()
