"""The contract of all backbones: gradients, activation checkpointing and depths of layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from opabinia.contracts import Backbone
from opabinia.models.backbones.mgn import MultiGranularity
from opabinia.models.backbones.resnet import resnet
from opabinia.models.backbones.timm import timm
from opabinia.models.backbones.video import Mvit, SlowFast, TimeSformer, Tsn, X3d, resnet3d
from opabinia.models.backbones.vit import vit
from opabinia.models.backbones.windowed_dinov2 import WindowedDinov2

CLIPS, IMAGES = (2, 3, 4, 32, 32), (2, 3, 64, 32)
ODD = (2, 3, 5, 45, 32)
RESNET3D = partial(resnet3d, widths=[4, 8], blocks=[1, 2])
MVIT: Any = {"clip": CLIPS[2:], "width": 16, "blocks": [1, 2]}
BACKBONES: Mapping[str, tuple[Callable[[int], Backbone], tuple[int, ...]]] = {
    "timm": (partial(timm, model="test_convnext"), IMAGES),
    "transformer": (partial(timm, model="test_vit", options={"img_size": IMAGES[2:]}), IMAGES),
    "resnet": (partial(resnet, model="test_resnet", ibn=True, se=True, non_local=True), IMAGES),
    "vit": (partial(vit, model="test_vit", image_size=(64, 32), stride=8, drop_path=0.0), IMAGES),
    "resnet3d": (RESNET3D, CLIPS),
    "2+1d": (partial(RESNET3D, conv_type="2+1d", temporal_strides=[1, 2]), ODD),
    "bottlenecks": (partial(RESNET3D, block="bottleneck", temporal_kernels=[1, 3], stem_pool=True), ODD),
    "slowfast": (SlowFast, ODD),
    "x3d": (partial(X3d, size="S"), CLIPS),
    "mvit": (partial(Mvit, kv_stride=2, **MVIT), CLIPS),
    "mvit v1": (partial(Mvit, version=1, expansion="mlp", pool="mean", **MVIT), CLIPS),
    "timesformer": (
        partial(TimeSformer, model="test_vit", frames=4, options={"img_size": 32}),
        CLIPS,
    ),
    "tsm": (partial(Tsn, backbone=partial(timm, model="test_resnet"), shift="tsm"), ODD),
}


def make_backbone(name: str) -> Backbone:
    """Return a backbone without weights of 0, with which others would have no gradient."""
    torch.manual_seed(0)
    net = BACKBONES[name][0](3).train()
    with torch.no_grad():
        for param in net.parameters():
            if not param.any():
                nn.init.normal_(param, 0.5, 0.1)
    return net


@pytest.mark.parametrize("name", BACKBONES)
def test_gradients_recomputed_activations_and_depths(name: str) -> None:
    net, inputs, gradients = make_backbone(name), torch.rand(BACKBONES[name][1]), []
    calls: list[int] = []
    counts: list[int] = []
    for module in net.modules():
        module.register_forward_pre_hook(lambda *_: calls.append(1))
    for recompute in (False, True):
        if recompute:
            net.checkpoint_activations()
        net.zero_grad()
        net(inputs).square().sum().backward()
        grads = {key: param.grad for key, param in net.named_parameters()}
        zeros = name == "mvit"  # with one position its last relative positions have none
        assert [key for key, grad in grads.items() if grad is None or not (zeros or grad.any())] == []
        gradients.append(grads)
        counts.append(len(calls))
    assert counts[1] > 2 * counts[0], "layers run again in the backward pass"
    torch.testing.assert_close(*gradients)
    depths = net.depths()
    assert depths.keys() == gradients[0].keys() and {*depths.values()} == {*range(max(depths.values()) + 1)}


def test_every_branch_of_multiple_granularities_is_recomputed() -> None:
    net: Any = MultiGranularity(resnet(3, model="test_resnet", ibn=True, non_local=True))
    calls: list[int] = []
    net.thirds.layer4[0].register_forward_pre_hook(lambda *_: calls.append(1))
    gradients = []
    for recompute in (False, True):
        if recompute:
            net.backbone.checkpoint_activations()
        net.zero_grad()
        torch.stack([branch.square().mean() for branch in net(torch.ones(2, 3, 96, 64))]).sum().backward()
        gradients.append([param.grad for param in net.parameters()])
    assert len(calls) == 3 and None not in gradients[0]
    torch.testing.assert_close(*gradients)


def test_depths_of_a_network_without_activation_checkpointing() -> None:
    net = WindowedDinov2(3, width=32, depth=2, heads=2, patch_size=8, image_size=32, num_windows=2, layers=[2])
    depths = net.depths()
    assert depths.keys() == dict(net.named_parameters()).keys() and {*depths.values()} == {0, 1, 2, 3}
    assert all(depth == int(name.split("layer.")[1][0]) + 1 for name, depth in depths.items() if "layer." in name)
