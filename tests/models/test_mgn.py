from typing import Any

import pytest
import torch
from torch import nn

from opabinia.contracts import DataMismatch
from opabinia.models.backbones.mgn import MultiGranularity
from opabinia.models.backbones.resnet import resnet
from opabinia.models.backbones.timm import timm


def network(model: str = "resnet18", **keys: Any) -> Any:
    torch.manual_seed(0)
    return MultiGranularity(resnet(3, model=model, **keys))


@pytest.mark.parametrize(
    ("model", "last_stride", "rows"), [("resnet50", 1, 16), ("resnet50", 2, 8), ("resnet34", 1, 16)]
)
def test_shapes_are_the_models(model: str, last_stride: Any, rows: int) -> None:
    with torch.device("meta"):
        net = network(model, last_stride=last_stride, ibn=True).eval()
        maps = net(torch.empty(2, 3, 256, 128))
    assert len(maps) == net.parts
    assert {one.shape[:2] for one in maps} == {(2, net.map_channels)}
    assert [tuple(one.shape[2:]) for one in maps] == [
        (rows, rows // 2),
        *[(rows_, 8) for rows_ in (16, 16, 8, 8, 6, 5, 5)],
    ]


@torch.no_grad()
def test_branches_begin_as_copies_of_the_backbone() -> None:
    net, images = network(last_stride=1).eval(), torch.rand(2, 3, 128, 64)
    whole, halves, thirds, *stripes = net(images)
    torch.testing.assert_close(whole, net.backbone.feature_maps(images))
    assert torch.equal(whole, halves)
    assert torch.equal(whole, thirds)
    assert torch.equal(torch.cat(stripes[:2], 2), halves)
    assert torch.equal(torch.cat(stripes[2:], 2), thirds)


def test_branches_learn_by_themselves() -> None:
    net = network()
    maps = net(torch.rand(2, 3, 128, 64))
    maps[-1].sum().backward()
    learning = {name for name, one in net.named_parameters() if one.grad is not None}
    assert all(name.startswith("thirds.") for name in learning if not name.startswith("backbone."))
    assert {name for name, _ in net.thirds.named_parameters(prefix="thirds")} <= learning
    of_backbone = {name.removeprefix("backbone.model.")[:8] for name in learning if name.startswith("backbone.")}
    assert of_backbone == {
        "conv1.we",
        "bn1.weig",
        "bn1.bias",
        "layer1.0",
        "layer1.1",
        "layer2.0",
        "layer2.1",
        "layer3.0",
    }


def test_every_weight_is_used() -> None:
    net = network("test_resnet", ibn=True, non_local=True)
    torch.stack([one.square().mean() for one in net(torch.rand(2, 3, 96, 64))]).sum().backward()
    assert all(one.grad is not None for one in net.parameters())


def test_activations_are_computed_again_in_every_branch() -> None:
    def gradients(again: bool) -> tuple[int, list[torch.Tensor | None]]:
        net, calls = network("test_resnet"), []
        if again:
            net.backbone.checkpoint_activations()
        net.thirds.layer4[0].register_forward_pre_hook(lambda *_: calls.append(1))
        torch.stack([one.square().mean() for one in net(torch.ones(2, 3, 96, 64))]).sum().backward()
        return len(calls), [one.grad for one in net.parameters()]

    (once, plain), (twice, computed_again) = gradients(False), gradients(True)
    assert (once, twice) == (1, 2)
    torch.testing.assert_close(plain, computed_again)


def test_mistakes() -> None:
    with pytest.raises(ValueError, match=r"backbone: multiple granularities need a ResNet.* this one is a ByobNet"):
        MultiGranularity(timm(3, model="test_byobnet"))
    with pytest.raises(DataMismatch, match=r"images of 32 rows are too small: their feature maps have 2 of 3 rows"):
        network().eval()(torch.rand(1, 3, 32, 64))
    assert isinstance(MultiGranularity(timm(3, model="test_resnet")), nn.Module), "any ResNet of timm will do"
