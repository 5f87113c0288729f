"""The heat lies where the score comes from, whatever the backbone is made of."""

import pytest
import torch
from torch import Tensor, nn

from opabinia.inference.gradcam import grad_cam_heatmap, last_feature_map_layer, token_grid
from opabinia.models.backbones.timm import timm

BACKBONES = {
    "test_resnet": ((64, 96), "model.layer4"),
    "test_efficientnet": ((64, 96), "model.bn2"),
    "mobilenetv3_small_050": ((64, 96), "model.blocks"),  # its last convolution stands behind the pooling
    "test_convnext": ((64, 96), "model.norm_pre"),
    "test_vit": ((160, 160), "model.blocks.5.norm1"),  # a class token: what follows mixes no tokens any more
    "test_vit2": ((160, 160), "model.norm"),  # pooled tokens
    "mixer_s32_224": ((224, 224), "model.norm"),
}


@pytest.mark.parametrize(("model", "size", "layer"), [(name, *rest) for name, rest in BACKBONES.items()], ids=BACKBONES)
def test_the_deepest_maps_are_found(model: str, size: tuple[int, int], layer: str) -> None:
    torch.manual_seed(0)
    net = timm(3, model=model).eval()
    images = torch.rand(2, 3, *size).requires_grad_()

    def score() -> Tensor:
        found: Tensor = net(images)[:, 0]
        return found

    assert last_feature_map_layer(net, score, size) == layer
    before = [parameter.grad for parameter in net.parameters()]
    found = grad_cam_heatmap(net, layer, score, size)
    assert found.shape == (2, *size) and found.min() >= 0 and found.max() <= 1
    assert [parameter.grad for parameter in net.parameters()] == before == [None] * len(before)


class Redness(nn.Module):
    """How much more red than blue there is."""

    def __init__(self) -> None:
        super().__init__()
        self.colours = nn.Conv2d(3, 2, 4, stride=4, bias=False)
        self.colours.weight.data.zero_()
        self.colours.weight.data[0, 0] = self.colours.weight.data[1, 2] = 1.0
        self.activation = nn.ReLU(inplace=True)

    def forward(self, images: Tensor) -> Tensor:
        red, blue = self.activation(self.colours(images)).mean((2, 3)).unbind(1)
        return red - blue


@pytest.mark.parametrize("layer", ["colours", "activation"])
@pytest.mark.parametrize("frozen", [False, True], ids=["learning", "frozen"])
def test_the_heat_is_where_the_score_comes_from(layer: str, frozen: bool) -> None:
    net = Redness().eval().requires_grad_(not frozen)
    images = torch.zeros(1, 3, 32, 32)
    images[0, 0, 16:28, 16:28] = 1.0
    images[0, 2, 4:16, 4:16] = 1.0
    floats = images.clone().requires_grad_()
    assert last_feature_map_layer(net, lambda: net(floats), (32, 32)) == "activation"
    found = grad_cam_heatmap(net, layer, lambda: net(images), (32, 32))[0]
    assert found[19:25, 19:25].min() == 1, "the red patch"
    assert found[:14, :14].max() == 0, "the blue one speaks against it"


def test_a_score_without_maps_is_reported() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 2))
    images = torch.rand(1, 3, 2, 2).requires_grad_()
    with pytest.raises(ValueError, match="has no feature maps"):
        last_feature_map_layer(net, lambda: net(images)[:, 0], (2, 2))
    net = nn.Sequential(nn.Conv2d(3, 4, 1))
    with pytest.raises(ValueError, match="does not depend on '0'"):
        grad_cam_heatmap(net, "0", lambda: net(images)[:, 0].detach().mean((1, 2)), (2, 2))


@pytest.mark.parametrize(
    ("count", "size", "grid"),
    [(196, (224, 224), (14, 14)), (210, (256, 128), (21, 10)), (128, (256, 128), (16, 8)), (50, (32, 64), (5, 10))],
)
def test_tokens_lie_as_the_image_does(count: int, size: tuple[int, int], grid: tuple[int, int]) -> None:
    assert token_grid(count, size) == grid
