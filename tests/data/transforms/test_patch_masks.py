"""Patch masks: number and position of masked patches, and blocks."""

from typing import Any

import pytest
import torch
from torchvision import tv_tensors

from opabinia.data.transforms.patch_masks import block_patch_mask, random_patch_mask


def sample(height: int = 64, width: int = 96) -> dict[str, Any]:
    return {"image": tv_tensors.Image(torch.zeros(3, height, width, dtype=torch.uint8)), "id": "one"}


def masked_patches(**keys: Any) -> torch.Tensor:
    mask: torch.Tensor = block_patch_mask(sample(224, 224), patch_size=16, **keys)["patch_mask"]
    return mask


@pytest.mark.parametrize(("ratio", "masked"), [(0.75, 18), (0.6, 14), (0.0, 0), (1.0, 24)])
def test_the_ratio_is_masked_exactly(ratio: float, masked: int) -> None:
    torch.manual_seed(0)
    results = [random_patch_mask(sample(), patch_size=16, mask_ratio=ratio) for _ in range(20)]
    masks = torch.stack([result["patch_mask"] for result in results])
    assert masks.dtype == torch.bool and masks.shape == (20, 24) and masks.sum(1).tolist() == [masked] * 20
    assert results[0]["id"] == "one" and results[0]["image"].shape == (3, 64, 96)
    assert masked in (0, 24) or masks.any(0).all(), "every patch is masked once"
    assert int(random_patch_mask(sample(224, 224), patch_size=16)["patch_mask"].sum()) == 147, "MAE's"


def test_half_of_the_images_have_no_masked_patches() -> None:
    torch.manual_seed(0)
    nonzero = [share for _ in range(150) if (share := float(masked_patches().float().mean()))]
    assert 52 < len(nonzero) < 98 and min(nonzero) > 0.05 and max(nonzero) <= 0.5
    assert 0.2 < sum(nonzero) / len(nonzero) < 0.35


def test_the_masked_share_is_close_to_the_ratio_and_never_above() -> None:
    torch.manual_seed(1)
    for _ in range(30):
        count = int(masked_patches(mask_ratio=(0.4, 0.4), no_mask_probability=0.0).sum())
        assert 0.35 * 196 < count <= round(0.4 * 196)


def test_patches_are_masked_in_blocks() -> None:
    """A masked patch has more masked neighbors than by chance, and a single block is a rectangle."""
    torch.manual_seed(2)
    options = {"mask_ratio": (0.3, 0.3), "no_mask_probability": 0.0}
    masks = torch.stack([masked_patches(**options) for _ in range(40)]).view(40, 14, 14)
    neighbors = masks[:, :, 1:] & masks[:, :, :-1]
    assert neighbors.float().mean() / masks.float().mean() > 0.7  # 0.3 by chance
    options = {"mask_ratio": (0.25, 0.25), "no_mask_probability": 0.0, "min_num_patches": 100, "min_aspect": 1.0}
    block = block_patch_mask(sample(32, 32), patch_size=8, **options)["patch_mask"]  # type: ignore[arg-type]
    rows, columns = block.view(4, 4).nonzero(as_tuple=True)
    assert len(rows) == 4 and rows.max() - rows.min() == columns.max() - columns.min() == 1


@pytest.mark.parametrize("mask", [random_patch_mask, block_patch_mask])
def test_images_without_whole_patches_raise(mask: Any) -> None:
    with pytest.raises(ValueError, match="an image of 64 x 90 cannot be divided into patches of 16 x 16"):
        mask(sample(64, 90), patch_size=16)
    with pytest.raises(ValueError, match="of several views, this belongs to the transforms of a view"):
        mask({"views": (), "id": "one"}, patch_size=16)


def test_invalid_block_options_raise() -> None:
    with pytest.raises(ValueError, match="the minimum comes first"):
        block_patch_mask(sample(), patch_size=8, mask_ratio=(0.5, 0.1))
    with pytest.raises(ValueError, match="min_aspect"):
        block_patch_mask(sample(), patch_size=8, min_aspect=0.0)
