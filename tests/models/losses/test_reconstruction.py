import pytest
import torch

from opabinia.models.losses.reconstruction import masked_mse, normalize_patches, patchify


@pytest.mark.parametrize("size", [(4, 4), (2, 8)])
def test_patches_are_in_row_major_order(size: tuple[int, int]) -> None:
    images = torch.arange(2 * 3 * 8 * 16, dtype=torch.float32).view(2, 3, 8, 16)
    patches = patchify(images, size)
    columns = 16 // size[1]
    assert patches.shape == (2, 8 // size[0] * columns, size[0] * size[1] * 3)
    second_row = images[1, :, size[0] : 2 * size[0], : size[1]]
    assert torch.equal(patches[1, columns], second_row.permute(1, 2, 0).flatten())
    assert torch.equal(patches.flatten(1).sort().values, images.flatten(1).sort().values), "each pixel once"


def test_patches_are_normalized_separately() -> None:
    patches = torch.randn(2, 3, 12) * torch.tensor([1.0, 20, 0.1])[None, :, None] + 7
    normalized = normalize_patches(patches)
    torch.testing.assert_close(normalized.mean(-1), torch.zeros(2, 3), atol=1e-4, rtol=0)
    torch.testing.assert_close(normalized.var(-1), torch.ones(2, 3), atol=1e-3, rtol=0)
    assert normalize_patches(torch.full((1, 1, 4), 3.0)).abs().max() == 0, "a patch of one colour is finite"


def test_only_masked_patches_count() -> None:
    patches = torch.zeros(2, 3, 2)
    reconstructed = torch.tensor([[[1.0, 3], [100, 100], [0, 0]], [[100, 100], [100, 100], [2, 0]]])
    mask = torch.tensor([[True, False, True], [False, False, True]])
    assert float(masked_mse(reconstructed, patches, mask)) == pytest.approx((5 + 0 + 2) / 3)
