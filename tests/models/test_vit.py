from typing import Any

import pytest
import timm as timm_library
import torch
from timm.layers.pos_embed import resample_abs_pos_embed

from opabinia.contracts import DataMismatch
from opabinia.models.backbones import timm as backbones
from opabinia.models.backbones.vit import vit


def timm(**keys: Any) -> Any:
    return backbones.timm(3, **keys)


def make_vit(**keys: Any) -> Any:
    torch.manual_seed(0)
    return vit(3, **{"model": "test_vit", "image_size": (64, 32), **keys}).eval()


@pytest.mark.parametrize(
    ("stride", "grid"), [(None, (16, 8)), (16, (16, 8)), (12, (21, 10)), ((16, 12), (16, 10)), ((8, 16), (31, 8))]
)
def test_patches_overlap(stride: Any, grid: tuple[int, int]) -> None:
    """TransReID uses a stride of 12: 21 x 10 patches."""
    with torch.device("meta"):
        net: Any = vit(3, model="test_vit", image_size=(256, 128), stride=stride).eval()
        images = torch.empty(2, 3, 256, 128)
        assert tuple(net.feature_maps(images).shape) == (2, 64, *grid)
        assert tuple(net(images).shape) == (2, 64)
    assert net.model.pos_embed.shape[1] == 1 + grid[0] * grid[1]


@torch.no_grad()
def test_without_overlap_it_matches_timm() -> None:
    reference = timm_library.create_model("test_vit", num_classes=0, img_size=(64, 32), dynamic_img_size=False).eval()
    net, images = make_vit(), torch.rand(2, 3, 64, 32)
    net.model.load_state_dict(reference.state_dict())
    torch.testing.assert_close(net(images), reference(images))
    torch.testing.assert_close(net(images), reference.forward_features(images)[:, 0], msg="the normed class token")


@torch.no_grad()
def test_a_token_is_the_projection_of_its_patch() -> None:
    net, images = make_vit(stride=(8, 12)), torch.rand(2, 3, 64, 32)
    layer = net.model.patch_embed
    rows, columns = layer.grid_size
    assert (rows, columns) == (7, 2)
    tokens = layer(images)
    for row, column in ((0, 0), (0, 1), (3, 1), (6, 0)):
        patch = images[:, :, 8 * row : 8 * row + 16, 12 * column : 12 * column + 16]
        torch.testing.assert_close(
            tokens[:, row * columns + column], layer.proj(patch).flatten(1), atol=1e-5, rtol=1e-4
        )


def test_position_embeddings_are_resized_from_those_of_the_model() -> None:
    torch.manual_seed(0)
    expected = resample_abs_pos_embed(timm(model="test_vit").model.pos_embed, [7, 3], [10, 10])
    assert torch.equal(make_vit(stride=8).model.pos_embed, expected)


def test_dropout_rates_are_passed_to_the_model() -> None:
    net = make_vit(drop_path=0.2, dropout=0.3, attention_dropout=0.4)
    blocks = net.model.blocks
    assert blocks[-1].drop_path1.drop_prob == pytest.approx(0.2)
    assert (net.model.pos_drop.p, blocks[0].attn.proj_drop.p, blocks[0].mlp.drop1.p) == (0.3, 0.3, 0.3)
    assert blocks[0].attn.attn_drop.p == 0.4
    assert make_vit().model.blocks[-1].drop_path1.drop_prob == pytest.approx(0.1), "FastReID's default"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"model": "resnet18"}, "^model: timm's 'resnet18' is no plain vision transformer"),
        ({"model": "vit_base_mci_224"}, "^model: timm's 'vit_base_mci_224' is no plain"),
        ({"model": "vit_base_patch16_siglip_224"}, "is no plain vision transformer with a class token"),
        ({"model": "vit_smal"}, r"^model: timm [\d.]+ has no 'vit_smal'"),
        ({"stride": 17}, "^stride: at most the size of the patches, 16 x 16, not 17 x 17"),
        ({"stride": (16, 20)}, "^stride: at most"),
        ({"image_size": (64, 8)}, "^image_size: no patch of 16 x 16 fits into 64 x 8"),
    ],
)
def test_invalid_options_raise(keys: dict[str, Any], message: str) -> None:
    with torch.device("meta"), pytest.raises(ValueError, match=message):
        vit(3, **{"model": "vit_tiny_patch16_224", "image_size": (256, 128), **keys})


def test_images_of_another_size_are_refused() -> None:
    with pytest.raises(DataMismatch, match=r"images of 64 x 32 \(its image_size\), not 32 x 64"):
        make_vit()(torch.rand(1, 3, 32, 64))
