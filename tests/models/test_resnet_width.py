"""ResNets with a width multiplier."""

import pytest
import torch
from torchvision.models.resnet import BasicBlock, Bottleneck
from torchvision.models.resnet import ResNet as TorchvisionResNet

from opabinia.models.backbones.resnet import resnet


def vissl_resnet(block: type[BasicBlock] | type[Bottleneck], multiplier: int) -> torch.nn.Module:
    """Build the model as in VISSL's resnext.py, with one block per stage: torchvision's layers with a larger width."""
    net = TorchvisionResNet(block, [1, 1, 1, 1])
    net.inplanes = 64 * multiplier
    net.conv1 = torch.nn.Conv2d(3, net.inplanes, 7, 2, 3, bias=False)
    net.bn1 = torch.nn.BatchNorm2d(net.inplanes)
    for number in range(1, 5):
        width = 64 * multiplier * 2 ** (number - 1)
        setattr(net, f"layer{number}", net._make_layer(block, width, 1, stride=1 if number == 1 else 2))
    net.fc = torch.nn.Identity()
    return net


@pytest.mark.parametrize(("block", "model"), [(BasicBlock, "resnet10t"), (Bottleneck, "resnet14t")])
def test_the_width_multiplier_matches_vissl(block: type[BasicBlock] | type[Bottleneck], model: str) -> None:
    plain = {"stem_type": "", "stem_width": 64, "avg_down": False, "layers": [1, 1, 1, 1]}
    options = plain if block is BasicBlock else {**plain, "cardinality": 1}
    backbone = resnet(3, model=model, last_stride=2, width_multiplier=2, options=options).eval()
    original = vissl_resnet(block, 2).eval()
    assert backbone.out_channels == 1024 * (1 if block is BasicBlock else 4)
    backbone.get_submodule("model").load_state_dict(original.state_dict())
    images = torch.rand(1, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(backbone(images), original(images))


def test_a_deep_stem_is_refused() -> None:
    with pytest.raises(ValueError, match="not for models with a stem of several convolutions"):
        resnet(3, model="resnet10t", width_multiplier=2)
