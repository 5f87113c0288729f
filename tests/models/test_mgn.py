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
def test_shapes_of_the_parts(model: str, last_stride: Any, rows: int) -> None:
    with torch.device("meta"):
        net = network(model, last_stride=last_stride, ibn=True).eval()
        maps = net(torch.empty(2, 3, 256, 128))
    assert len(maps) == net.parts
    assert {level.shape[:2] for level in maps} == {(2, net.map_channels)}
    assert [tuple(level.shape[2:]) for level in maps] == [
        (rows, rows // 2),
        *[(rows_, 8) for rows_ in (16, 16, 8, 8, 6, 5, 5)],
    ]


@torch.no_grad()
def test_branches_start_as_copies_of_the_backbone() -> None:
    net, images = network(last_stride=1).eval(), torch.rand(2, 3, 128, 64)
    global_branch, halves, thirds, *stripes = net(images)
    torch.testing.assert_close(global_branch, net.backbone.feature_maps(images))
    assert torch.equal(global_branch, halves)
    assert torch.equal(global_branch, thirds)
    assert torch.equal(torch.cat(stripes[:2], 2), halves)
    assert torch.equal(torch.cat(stripes[2:], 2), thirds)


def test_unsuitable_models_and_images_raise() -> None:
    with pytest.raises(ValueError, match=r"backbone: multiple granularities need a ResNet.* this one is a ByobNet"):
        MultiGranularity(timm(3, model="test_byobnet"))
    with pytest.raises(DataMismatch, match=r"images of 32 rows are too small: their feature maps have 2 of 3 rows"):
        network().eval()(torch.rand(1, 3, 32, 64))
    assert isinstance(MultiGranularity(timm(3, model="test_resnet")), nn.Module), "any ResNet of timm is accepted"
