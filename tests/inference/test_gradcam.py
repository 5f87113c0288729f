"""Grad-CAM heat maps of convolutional and transformer backbones."""

import pytest
import torch
from torch import Tensor, nn

from opabinia.inference.gradcam import grad_cam_heatmap, last_feature_map_layer, token_grid
from opabinia.models.backbones.timm import timm

BACKBONES = {
    "test_resnet": ((64, 96), "model.layer4"),
    "test_efficientnet": ((64, 96), "model.bn2"),
    "mobilenetv3_small_050": ((64, 96), "model.blocks"),  # its last convolution follows the pooling
    "test_convnext": ((64, 96), "model.norm_pre"),
    "test_vit": ((160, 160), "model.blocks.5.norm1"),  # a class token: later layers do not mix tokens
    "test_vit2": ((160, 160), "model.norm"),  # pooled tokens
    "mixer_s32_224": ((224, 224), "model.norm"),
}


@pytest.mark.parametrize(
    ("model", "size", "layer"), [(name, *values) for name, values in BACKBONES.items()], ids=BACKBONES
)
def test_the_layer_of_the_last_feature_maps(model: str, size: tuple[int, int], layer: str) -> None:
    torch.manual_seed(0)
    net = timm(3, model=model).eval()
    images = torch.rand(2, 3, *size).requires_grad_()

    def score() -> Tensor:
        scores: Tensor = net(images)[:, 0]
        return scores

    assert last_feature_map_layer(net, score, size) == layer
    grads = [parameter.grad for parameter in net.parameters()]
    heatmap = grad_cam_heatmap(net, layer, score, size)
    assert heatmap.shape == (2, *size) and heatmap.min() >= 0 and heatmap.max() <= 1
    assert [parameter.grad for parameter in net.parameters()] == grads == [None] * len(grads)


class Redness(nn.Module):
    """Scores how much more red than blue an image is."""

    def __init__(self) -> None:
        super().__init__()
        self.colors = nn.Conv2d(3, 2, 4, stride=4, bias=False)
        self.colors.weight.data.zero_()
        self.colors.weight.data[0, 0] = self.colors.weight.data[1, 2] = 1.0
        self.activation = nn.ReLU(inplace=True)

    def forward(self, images: Tensor) -> Tensor:
        red, blue = self.activation(self.colors(images)).mean((2, 3)).unbind(1)
        return red - blue


@pytest.mark.parametrize("layer", ["colors", "activation"])
@pytest.mark.parametrize("frozen", [False, True], ids=["learning", "frozen"])
def test_the_heat_map_marks_pixels_that_increase_the_score(layer: str, frozen: bool) -> None:
    net = Redness().eval().requires_grad_(not frozen)
    images = torch.zeros(1, 3, 32, 32)
    images[0, 0, 16:28, 16:28] = 1.0
    images[0, 2, 4:16, 4:16] = 1.0
    floats = images.clone().requires_grad_()
    assert last_feature_map_layer(net, lambda: net(floats), (32, 32)) == "activation"
    heatmap = grad_cam_heatmap(net, layer, lambda: net(images), (32, 32))[0]
    assert heatmap[19:25, 19:25].min() == 1, "the red patch"
    assert heatmap[:14, :14].max() == 0, "the blue patch lowers the score"


def test_a_model_without_feature_maps_is_an_error() -> None:
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
def test_the_token_grid_has_the_aspect_ratio_of_the_image(
    count: int, size: tuple[int, int], grid: tuple[int, int]
) -> None:
    assert token_grid(count, size) == grid
