"""Patch masks for vision transformers: ``patch_mask`` (bool, N, row by row; True is masked) in the sample.

These transforms come after those that change the size of the image.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from opabinia.config import register
from opabinia.contracts import Count, Fraction, Sample


@register.transform
def random_patch_mask(sample: Sample, /, *, patch_size: Count, mask_ratio: Fraction = 0.75) -> Sample:
    """Mask random patches, the same number in every image of one size (He et al. 2022, MAE, section 3).

    Args:
        patch_size: side of the backbone's patches in pixels.
        mask_ratio: share of the patches that is masked, rounded to whole patches (default: the paper's).

    Raises:
        ValueError: the image size is not a multiple of the patch size.

    Example: of an image of 224 x 224 in patches of 16, 147 of 196 are masked.
    """
    rows, columns = _grid(sample, patch_size)
    mask = torch.zeros(rows * columns, dtype=torch.bool)
    mask[torch.randperm(len(mask))[: round(mask_ratio * len(mask))]] = True
    return {**sample, "patch_mask": mask}


@register.transform
def block_patch_mask(
    sample: Sample,
    /,
    *,
    patch_size: Count,
    mask_ratio: tuple[Fraction, Fraction] = (0.1, 0.5),
    no_mask_probability: Fraction = 0.5,
    min_num_patches: Count = 4,
    min_aspect: Fraction = 0.3,
) -> Sample:
    """Mask patches in blocks (Bao et al. 2022, BEiT, algorithm 1); their number is drawn as in iBOT (Zhou et al. 2022,
    section 4 and appendix).

    In multi-view augmentation it belongs to the first views.

    Args:
        patch_size: side of the backbone's patches in pixels.
        mask_ratio: minimum and maximum share of masked patches, drawn uniformly for each image. The result comes close
            to the drawn share and never exceeds it.
        no_mask_probability: probability of masking nothing.
        min_num_patches: minimum number of patches in a block, if so many are left to mask.
        min_aspect: minimum height of a block over its width; the maximum is its inverse, drawn uniformly on a
            logarithmic scale.

    Raises:
        ValueError: the image size is not a multiple of the patch size, the ratios do not ascend, or the aspect is 0.
    """
    if mask_ratio[0] > mask_ratio[1]:
        raise ValueError(f"mask_ratio: the minimum comes first, not {list(mask_ratio)}")
    if min_aspect == 0:
        raise ValueError("min_aspect: must be above 0")
    rows, columns = _grid(sample, patch_size)
    mask = torch.zeros(rows, columns, dtype=torch.bool)
    if _uniform(0, 1) >= no_mask_probability:
        target = round(_uniform(*mask_ratio) * rows * columns)
        while (remaining := target - int(mask.sum())) and _mask_block(mask, remaining, min_num_patches, min_aspect):
            pass
    return {**sample, "patch_mask": mask.flatten()}


_ATTEMPTS = 10


def _mask_block(mask: Tensor, max_patches: int, min_patches: int, min_aspect: float) -> bool:
    """Mask one more block (h x w), in place, of at most ``max_patches`` new patches; return whether one was found."""
    for _ in range(_ATTEMPTS):
        area = _uniform(min(min_patches, max_patches), max_patches)
        aspect = math.exp(_uniform(math.log(min_aspect), -math.log(min_aspect)))
        height, width = max(1, round(math.sqrt(area * aspect))), max(1, round(math.sqrt(area / aspect)))
        if height > mask.shape[0] or width > mask.shape[1]:
            continue
        top = int(torch.randint(mask.shape[0] - height + 1, ()))
        left = int(torch.randint(mask.shape[1] - width + 1, ()))
        block = mask[top : top + height, left : left + width]
        if 0 < int((~block).sum()) <= max_patches:
            block.fill_(True)
            return True
    return False


def _uniform(low: float, high: float) -> float:
    return low + (high - low) * float(torch.rand(()))


def _grid(sample: Sample, patch_size: int) -> tuple[int, int]:
    """Return the number of rows and columns of patches."""
    if "image" not in sample:
        raise ValueError("patches are masked in an image; of several views, this belongs to the transforms of a view")
    height, width = sample["image"].shape[-2:]
    if height % patch_size or width % patch_size:
        raise ValueError(
            f"patch_size: an image of {height} x {width} cannot be divided into patches of {patch_size} x "
            f"{patch_size}; resize or crop it to a multiple before"
        )
    return height // patch_size, width // patch_size
