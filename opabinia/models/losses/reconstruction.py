"""Losses of networks that fill in what they did not see of an image."""

from __future__ import annotations

from torch import Tensor


def patchify(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Images (B x C x H x W) to the values of their patches (B x N x h·w·C), row by row, channels last in each.

    Args:
        images: whose sides are multiples of the patches'.
        size: height h and width w of a patch.
    """
    count, channels, height, width = images.shape
    down, across = height // size[0], width // size[1]
    cut = images.reshape(count, channels, down, size[0], across, size[1])
    return cut.permute(0, 2, 4, 3, 5, 1).reshape(count, down * across, -1)


def unpatchify(patches: Tensor, grid: tuple[int, int], size: tuple[int, int]) -> Tensor:
    """What :func:`patchify` made (B x N x h·w·C), back to images (B x C x H x W).

    Args:
        patches: row by row.
        grid: patches down and across.
        size: height h and width w of a patch.
    """
    (down, across), (height, width) = grid, size
    cut = patches.reshape(len(patches), down, across, height, width, -1)
    return cut.permute(0, 5, 1, 3, 2, 4).reshape(len(patches), -1, down * height, across * width)


def standardised(patches: Tensor, eps: float = 1e-6) -> Tensor:
    """Patches (B x N x P) of mean 0 and variance 1 each (He et al. 2022, MAE, section 4.1: normalised pixels)."""
    patches = patches.float()
    centred = patches - patches.mean(-1, keepdim=True)
    return centred / (patches.var(-1, keepdim=True) + eps).sqrt()


def masked_error(filled: Tensor, patches: Tensor, mask: Tensor) -> Tensor:
    """The mean squared error on hidden patches, those that were seen left out (He et al. 2022, MAE, section 3).

    Args:
        filled: what was said of all patches (B x N x P).
        patches: what they are (B x N x P).
        mask: which were hidden (bool, B x N), at least one.
    """
    each = (filled.float() - patches.float()).square().mean(-1)
    return (each * mask).sum() / mask.sum()
