"""Any module can be a backbone: a dry run determines its sizes."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from opabinia.contracts import Backbone, Level
from opabinia.models.backbones.iresnet import iresnet
from opabinia.models.backbones.module import ModuleBackbone, build_backbone
from opabinia.models.backbones.osnet import osnet
from opabinia.models.backbones.shufflenet import shufflenet


def small_net(*after: nn.Module) -> Callable[[int], nn.Module]:
    return lambda channels: nn.Sequential(nn.Conv2d(channels, 6, 3, stride=4), nn.BatchNorm2d(6), *after)


class Pyramid(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 4, stride=4), nn.Conv2d(4, 8, 2, stride=2)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        maps = self.first(images)
        return {"0": maps, "1": self.second(maps)}


def test_feature_maps_are_pooled() -> None:
    net = build_backbone(small_net(), 3)
    images = torch.rand(2, 3, 32, 32)
    assert (net.out_channels, net.map_channels, net.preprocessing, net.clips) == (6, 6, None, False)
    assert torch.allclose(net(images), net.feature_maps(images).mean((2, 3)))


@pytest.mark.parametrize(
    ("net", "width"),
    [
        (partial(iresnet, model="iresnet18", image_size=(64, 32), se=True), 512 * 8),
        (partial(osnet, model="osnet_x0_25", ibn=True), 128),
        (partial(shufflenet, model="shufflenet_v2_x0_5"), 1024),
    ],
    ids=["iresnet", "osnet", "shufflenet"],
)
def test_networks_of_re_identification(net: Callable[[int], Backbone], width: int) -> None:
    backbone = net(1).train()
    vectors = backbone(torch.rand(4, 1, 64, 32))
    assert vectors.shape == (4, width) and backbone.out_channels == width
    vectors.square().sum().backward()
    assert all(param.grad is not None for param in backbone.parameters())


def test_vectors_are_not_pooled() -> None:
    net = build_backbone(small_net(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5)), 1)
    assert (net.out_channels, net.map_channels) == (5, 0)
    assert net(torch.rand(3, 1, 28, 28)).shape == (3, 5)
    with pytest.raises(ValueError, match="Sequential returns vectors, not feature maps"):
        net.feature_maps(torch.rand(1, 1, 28, 28))
    with pytest.raises(ValueError, match="detection needs feature maps"):
        net.enable_multi_scale()


def test_a_network_of_one_image_size_gives_its_width() -> None:
    fixed = nn.Sequential(nn.Flatten(), nn.Linear(5 * 5, 7))
    with pytest.raises(ValueError, match=r"Sequential takes no images of zeros with 1 channels.*num_features"):
        build_backbone(lambda channels: fixed, 1)
    fixed.num_features = 7  # type: ignore[assignment]
    assert build_backbone(lambda channels: fixed, 1).out_channels == 7


def test_modules_with_several_maps_have_levels() -> None:
    net = build_backbone(lambda channels: Pyramid(), 3)
    assert net.enable_multi_scale() == [Level(4, 4), Level(8, 8)]
    assert [maps.shape[1] for maps in net.pyramid_features(torch.rand(1, 3, 64, 64))] == [4, 8]
    assert net(torch.rand(1, 3, 64, 64)).shape == (1, 8)


def test_the_dry_run_changes_nothing() -> None:
    module = small_net()(3)
    module[1].eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    ModuleBackbone(module, 3)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert [child.training for child in module] == [True, False]


def test_clips() -> None:
    net = nn.Conv3d(3, 4, 3)
    net.clips = True  # type: ignore[assignment]
    backbone = build_backbone(lambda channels: net, 3)
    assert backbone.clips
    assert backbone(torch.rand(2, 3, 4, 16, 16)).shape == (2, 4)


def test_another_output_raises() -> None:
    with pytest.raises(ValueError, match=r"Flatten maps images \(2, 3, 64, 64\) to \(24576,\); a backbone returns"):
        build_backbone(lambda channels: nn.Flatten(0), 3)


def test_a_built_network_raises() -> None:
    with pytest.raises(ValueError, match=r"not the network: lambda channels: Sequential\(...\)"):
        build_backbone(small_net()(3), 3)
