"""Which patches of an image a vision transformer is not to see: ``patch_mask`` (bool, N, row by row) in the sample."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from opabinia.config import register
from opabinia.contracts import Count, Fraction, Sample


@register.transform
def random_patches(sample: Sample, /, *, patch_size: Count, ratio: Fraction = 0.75) -> Sample:
    """Hide patches here and there: of every image of one size exactly as many (He et al. 2022, MAE, section 3).

    It stands behind what changes the image's size.

    Args:
        patch_size: side of the backbone's patches in pixels.
        ratio: share of the patches that is hidden, to the nearest whole one; the paper's.

    Raises:
        ValueError: the image cannot be cut into such patches.

    Example: of an image of 224 x 224 in patches of 16, 147 of 196 are hidden.
    """
    down, across = _grid(sample, patch_size)
    mask = torch.zeros(down * across, dtype=torch.bool)
    mask[torch.randperm(len(mask))[: round(ratio * len(mask))]] = True
    return {**sample, "patch_mask": mask}


@register.transform
def block_patches(
    sample: Sample,
    /,
    *,
    patch_size: Count,
    ratio: tuple[Fraction, Fraction] = (0.1, 0.5),
    none: Fraction = 0.5,
    smallest: Count = 4,
    aspect: Fraction = 0.3,
) -> Sample:
    """Hide patches in blocks (Bao et al. 2022, BEiT, algorithm 1), with iBOT's drawing of how many (Zhou et al. 2022,
    section 4 and appendix).

    It stands behind what changes the image's size; among views it belongs to the first ones.

    Args:
        patch_size: side of the backbone's patches in pixels.
        ratio: least and largest share of the patches that is hidden, drawn evenly for each image; what is hidden comes
            close to it, and is never more.
        none: how often nothing is hidden.
        smallest: patches of a block, where there is room for as many.
        aspect: smallest height of a block over its width; the largest is one over it, and it is drawn evenly on a
            logarithmic scale.

    Raises:
        ValueError: the image cannot be cut into such patches, the ratios do not ascend, or the aspect is 0.
    """
    if ratio[0] > ratio[1]:
        raise ValueError(f"ratio: the least share comes first, not {list(ratio)}")
    if aspect == 0:
        raise ValueError("aspect: above 0")
    down, across = _grid(sample, patch_size)
    mask = torch.zeros(down, across, dtype=torch.bool)
    if _between(0, 1) >= none:
        most = round(_between(*ratio) * down * across)
        while (rest := most - int(mask.sum())) and _hide_block(mask, rest, smallest, aspect):
            pass
    return {**sample, "patch_mask": mask.flatten()}


_DRAWS = 10
"""So often a block is drawn anew that hides too much, or nothing new."""


def _hide_block(mask: Tensor, most: int, smallest: int, aspect: float) -> bool:
    """Hide one more block in a mask (h x w), in place, and at most so many patches; whether one was found."""
    for _ in range(_DRAWS):
        area = _between(min(smallest, most), most)
        tall = math.exp(_between(math.log(aspect), -math.log(aspect)))
        height, width = max(1, round(math.sqrt(area * tall))), max(1, round(math.sqrt(area / tall)))
        if height > mask.shape[0] or width > mask.shape[1]:
            continue
        top = int(torch.randint(mask.shape[0] - height + 1, ()))
        left = int(torch.randint(mask.shape[1] - width + 1, ()))
        block = mask[top : top + height, left : left + width]
        if 0 < int((~block).sum()) <= most:
            block.fill_(True)
            return True
    return False


def _between(low: float, high: float) -> float:
    return low + (high - low) * float(torch.rand(()))


def _grid(sample: Sample, patch_size: int) -> tuple[int, int]:
    """Patches down and across."""
    height, width = sample["image"].shape[-2:]
    if height % patch_size or width % patch_size:
        raise ValueError(
            f"patch_size: an image of {height} x {width} cannot be cut into patches of {patch_size} x {patch_size}; "
            "the transforms before this one are to bring it to a multiple"
        )
    return height // patch_size, width // patch_size
