"""Which patches are hidden: how many, where, and in blocks."""

from typing import Any

import pytest
import torch
from torchvision import tv_tensors

from opabinia.data.transforms.patch_masks import block_patches, random_patches


def sample(height: int = 64, width: int = 96) -> dict[str, Any]:
    return {"image": tv_tensors.Image(torch.zeros(3, height, width, dtype=torch.uint8)), "id": "one"}


@pytest.mark.parametrize(("ratio", "hidden"), [(0.75, 18), (0.6, 14), (0.0, 0), (1.0, 24)])
def test_exactly_a_share_is_hidden(ratio: float, hidden: int) -> None:
    masks = []
    for seed in range(20):
        torch.manual_seed(seed)
        found = random_patches(sample(), patch_size=16, ratio=ratio)
        assert found["patch_mask"].dtype == torch.bool and found["patch_mask"].shape == (24,)
        assert int(found["patch_mask"].sum()) == hidden
        assert found["id"] == "one" and found["image"].shape == (3, 64, 96)
        masks.append(found["patch_mask"])
    assert hidden in (0, 24) or torch.stack(masks).any(0).all(), "every place has its turn"


def test_as_many_as_in_the_paper() -> None:
    assert int(random_patches(sample(224, 224), patch_size=16)["patch_mask"].sum()) == 147


def test_half_of_the_images_hide_nothing_the_others_a_share() -> None:
    torch.manual_seed(0)
    shares = [float(block_patches(sample(224, 224), patch_size=16)["patch_mask"].float().mean()) for _ in range(300)]
    some = [share for share in shares if share]
    assert 110 < len(some) < 190
    assert max(some) <= 0.5 and 0.2 < sum(some) / len(some) < 0.35 and min(some) > 0.05


def test_what_is_hidden_comes_close_to_the_share_and_is_never_more() -> None:
    torch.manual_seed(1)
    for _ in range(50):
        mask = block_patches(sample(224, 224), patch_size=16, ratio=(0.4, 0.4), none=0.0)["patch_mask"]
        assert 0.35 * 196 < int(mask.sum()) <= round(0.4 * 196)


def test_patches_are_hidden_in_blocks() -> None:
    """A hidden patch has more hidden neighbours than it would have by chance, and one block is a rectangle."""
    torch.manual_seed(2)
    masks = torch.stack(
        [
            block_patches(sample(224, 224), patch_size=16, ratio=(0.3, 0.3), none=0.0)["patch_mask"].view(14, 14)
            for _ in range(40)
        ]
    )
    beside = masks[:, :, 1:] & masks[:, :, :-1]
    assert beside.float().mean() / masks.float().mean() > 0.7  # 0.3 by chance
    whole = block_patches(sample(32, 32), patch_size=8, ratio=(0.25, 0.25), none=0.0, smallest=100, aspect=1.0)
    rows, columns = whole["patch_mask"].view(4, 4).nonzero(as_tuple=True)
    assert len(rows) == 4 and rows.max() - rows.min() == columns.max() - columns.min() == 1


def test_the_same_seed_hides_the_same() -> None:
    def drawn(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        mask: torch.Tensor = block_patches(sample(), patch_size=8, none=0.0)["patch_mask"]
        return mask

    assert torch.equal(drawn(3), drawn(3)) and not torch.equal(drawn(3), drawn(4))


@pytest.mark.parametrize("hide", [random_patches, block_patches])
def test_an_image_that_cannot_be_cut_is_told(hide: Any) -> None:
    with pytest.raises(ValueError, match="an image of 64 x 90 cannot be cut into patches of 16 x 16"):
        hide(sample(64, 90), patch_size=16)


def test_ratios_ascend() -> None:
    with pytest.raises(ValueError, match="the least share comes first"):
        block_patches(sample(), patch_size=8, ratio=(0.5, 0.1))
    with pytest.raises(ValueError, match="aspect"):
        block_patches(sample(), patch_size=8, aspect=0.0)
