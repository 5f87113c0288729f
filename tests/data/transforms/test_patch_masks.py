"""Patch masks: number and position of masked patches, and blocks."""

from typing import Any

import pytest
import torch
from torchvision import tv_tensors

from opabinia.data.transforms.patch_masks import block_patch_mask, random_patch_mask


def sample(height: int = 64, width: int = 96) -> dict[str, Any]:
    return {"image": tv_tensors.Image(torch.zeros(3, height, width, dtype=torch.uint8)), "id": "one"}


@pytest.mark.parametrize(("ratio", "masked"), [(0.75, 18), (0.6, 14), (0.0, 0), (1.0, 24)])
def test_the_ratio_is_masked_exactly(ratio: float, masked: int) -> None:
    masks = []
    for seed in range(20):
        torch.manual_seed(seed)
        result = random_patch_mask(sample(), patch_size=16, mask_ratio=ratio)
        assert result["patch_mask"].dtype == torch.bool and result["patch_mask"].shape == (24,)
        assert int(result["patch_mask"].sum()) == masked
        assert result["id"] == "one" and result["image"].shape == (3, 64, 96)
        masks.append(result["patch_mask"])
    assert masked in (0, 24) or torch.stack(masks).any(0).all(), "every patch is masked for some seed"


def test_the_number_of_masked_patches_is_that_of_the_paper() -> None:
    assert int(random_patch_mask(sample(224, 224), patch_size=16)["patch_mask"].sum()) == 147


def test_half_of_the_images_have_no_masked_patches() -> None:
    torch.manual_seed(0)
    shares = [float(block_patch_mask(sample(224, 224), patch_size=16)["patch_mask"].float().mean()) for _ in range(300)]
    nonzero_shares = [share for share in shares if share]
    assert 110 < len(nonzero_shares) < 190
    assert (
        max(nonzero_shares) <= 0.5
        and 0.2 < sum(nonzero_shares) / len(nonzero_shares) < 0.35
        and min(nonzero_shares) > 0.05
    )


def test_the_masked_share_is_close_to_the_ratio_and_never_above() -> None:
    torch.manual_seed(1)
    for _ in range(50):
        mask = block_patch_mask(sample(224, 224), patch_size=16, mask_ratio=(0.4, 0.4), no_mask_probability=0.0)[
            "patch_mask"
        ]
        assert 0.35 * 196 < int(mask.sum()) <= round(0.4 * 196)


def test_patches_are_masked_in_blocks() -> None:
    """A masked patch has more masked neighbors than by chance, and a single block is a rectangle."""
    torch.manual_seed(2)
    masks = torch.stack(
        [
            block_patch_mask(sample(224, 224), patch_size=16, mask_ratio=(0.3, 0.3), no_mask_probability=0.0)[
                "patch_mask"
            ].view(14, 14)
            for _ in range(40)
        ]
    )
    neighbors = masks[:, :, 1:] & masks[:, :, :-1]
    assert neighbors.float().mean() / masks.float().mean() > 0.7  # 0.3 by chance
    single_block = block_patch_mask(
        sample(32, 32),
        patch_size=8,
        mask_ratio=(0.25, 0.25),
        no_mask_probability=0.0,
        min_num_patches=100,
        min_aspect=1.0,
    )
    rows, columns = single_block["patch_mask"].view(4, 4).nonzero(as_tuple=True)
    assert len(rows) == 4 and rows.max() - rows.min() == columns.max() - columns.min() == 1


def test_the_same_seed_gives_the_same_mask() -> None:
    def drawn(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        mask: torch.Tensor = block_patch_mask(sample(), patch_size=8, no_mask_probability=0.0)["patch_mask"]
        return mask

    assert torch.equal(drawn(3), drawn(3)) and not torch.equal(drawn(3), drawn(4))


@pytest.mark.parametrize("mask", [random_patch_mask, block_patch_mask])
def test_an_image_that_cannot_be_divided_raises(mask: Any) -> None:
    with pytest.raises(ValueError, match="an image of 64 x 90 cannot be divided into patches of 16 x 16"):
        mask(sample(64, 90), patch_size=16)


def test_invalid_block_options_raise() -> None:
    with pytest.raises(ValueError, match="the minimum comes first"):
        block_patch_mask(sample(), patch_size=8, mask_ratio=(0.5, 0.1))
    with pytest.raises(ValueError, match="min_aspect"):
        block_patch_mask(sample(), patch_size=8, min_aspect=0.0)


@pytest.mark.parametrize("mask", [block_patch_mask, random_patch_mask])
def test_samples_with_views_raise(mask: Any) -> None:
    with pytest.raises(ValueError, match="of several views, this belongs to the transforms of a view"):
        mask({"views": (), "id": "one"}, patch_size=16)
