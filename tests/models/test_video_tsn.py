"""Temporal segment networks: image backbones over the frames of a clip."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from opabinia.contracts import Backbone
from opabinia.models import norms
from opabinia.models.backbones.timm import timm
from opabinia.models.backbones.video import Tsn, resnet3d
from opabinia.models.backbones.video.tsn import ShiftedConv2d, add_temporal_shifts, shift_channels


def timm_factory(model: str) -> Callable[[int], Backbone]:
    return lambda channels: timm(channels, model=model)


def make_backbone(model: str = "test_resnet", shift: Any = "none", channels: int = 3) -> Any:
    """Return a network with random batch norm weights; timm initializes those of residual branches to 0."""
    torch.manual_seed(0)
    net = Tsn(channels, backbone=timm_factory(model), shift=shift)
    torch.manual_seed(1)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1)
    return net.eval()


@pytest.mark.parametrize("model", ["test_resnet", "test_vit"])
@torch.no_grad()
def test_the_vector_is_the_mean_over_frames(model: str) -> None:
    net = make_backbone(model)
    size = net.frames.model.patch_embed.img_size[0] if model == "test_vit" else 32
    clips = torch.rand(2, 3, 5, size, size)
    expected = torch.stack([net.frames(clips[:, :, frame]) for frame in range(5)]).mean(0)
    torch.testing.assert_close(net(clips), expected)
    head = net.make_head(4)  # a linear classifier outputs the mean of the frames' logits
    mean_logits = torch.stack([head(net.frames(clips[:, :, frame])) for frame in range(5)]).mean(0)
    torch.testing.assert_close(head(net(clips)), mean_logits)


# --- shifts -----------------------------------------------------------------------------------------------------------


def test_an_eighth_of_the_channels_comes_from_each_neighbouring_frame() -> None:
    """By hand: B = 2 clips of 3 frames, 9 channels; values encode the clip (hundreds), frame (tens) and channel."""
    maps = torch.tensor([[[100 * b + 10 * t + c for c in range(9)] for b in (1, 2)] for t in (1, 2, 3)]).float()
    shifted = shift_channels(maps.flatten(0, 1)[:, :, None, None], 3)[:, :, 0, 0].unflatten(0, (3, 2))
    assert shifted[:, 0, 0].tolist() == [120, 130, 0]  # from the next frame
    assert shifted[:, 0, 1].tolist() == [0, 111, 121]  # from the one before
    assert shifted[:, 1, 1].tolist() == [0, 211, 221]
    assert torch.equal(shifted[:, :, 2:], maps[:, :, 2:])


def test_every_block_is_shifted_and_names_stay() -> None:
    plain, shifted = make_backbone("resnet18"), make_backbone("resnet18", "tsm")
    assert plain.state_dict().keys() == shifted.state_dict().keys()
    assert all(torch.equal(value, shifted.state_dict()[name]) for name, value in plain.state_dict().items())
    blocks = [name for name, module in shifted.named_modules() if isinstance(module, ShiftedConv2d)]
    assert blocks == [f"frames.model.layer{stage}.{block}.conv1" for stage in range(1, 5) for block in range(2)]


@torch.no_grad()
def test_the_shortcut_is_not_shifted() -> None:
    """In a residual block only the branch depends on other frames."""
    shifted = make_backbone("resnet18", "tsm")
    block = shifted.frames.model.layer1[0].eval()
    block.conv1.frames = 2
    maps = torch.rand(2, 64, 8, 8)
    expected = block.conv2(block.act1(block.bn1(torch.conv2d(shift_channels(maps, 2), block.conv1.weight, padding=1))))
    torch.testing.assert_close(block(maps), (block.bn2(expected) + maps).relu())


def test_long_stages_have_every_second_block_shifted() -> None:
    with torch.device("meta"):
        net = timm(3, model="resnet101")
        assert len(add_temporal_shifts(net)) == 2 + 2 + 12 + 2


# --- norms, weights, invalid options ----------------------------------------------------------------------------------


def test_frames_of_a_clip_are_in_the_same_split_of_the_batch() -> None:
    """With splits of two clips, four clips have the outputs of two batches of two."""
    net = make_backbone().train()
    norms.split_batch_norms(net, 2)
    clips = torch.rand(4, 3, 3, 32, 32)
    outputs = net(clips)
    norms.split_batch_norms(net, 1)
    for part in range(2):
        torch.testing.assert_close(outputs[part::2], net(clips[part::2]), rtol=1e-4, atol=1e-5)


def test_attributes_of_the_image_backbone_are_passed_on() -> None:
    net = make_backbone("resnet18")
    assert net.depths() == {f"frames.{name}": depth for name, depth in net.frames.depths().items()}
    net.checkpoint_activations()
    assert net.frames.model.grad_checkpointing
    assert net.out_channels == 512 and net.trained_classes == 0 and net.preprocessing is None


def test_inverted_residuals_with_a_shortcut_are_shifted() -> None:
    """As in PaddleVideo's PP-TSM on MobileNetV2: ten of its 17 blocks have a shortcut."""
    net = Tsn(3, backbone=timm_factory("mobilenetv2_035"), shift="tsm")
    shifted = [name for name, module in net.named_modules() if isinstance(module, ShiftedConv2d)]
    assert len(shifted) == 10 and shifted[0] == "frames.model.blocks.1.1.conv_pw"
    assert net.state_dict().keys() == Tsn(3, backbone=timm_factory("mobilenetv2_035")).state_dict().keys()


def test_unsuitable_backbones_raise() -> None:
    with pytest.raises(ValueError, match="backbone: it takes clips itself"):
        Tsn(3, backbone=lambda channels: resnet3d(channels))
    for model in ("test_vit", "test_convnext"):
        with pytest.raises(ValueError, match=r"shift: tsm is for .* such as resnet50"):
            make_backbone(model, "tsm")


@torch.no_grad()
def test_an_export_takes_any_number_of_clips() -> None:
    net, batch = make_backbone(shift="tsm"), {0: torch.export.Dim("batch", min=1)}
    exported = torch.export.export(net, (torch.rand(2, 3, 4, 32, 32),), dynamic_shapes=(batch,))
    program: Any = exported.module()
    for count in (1, 3):
        clips = torch.rand(count, 3, 4, 32, 32)
        torch.testing.assert_close(program(clips), net(clips))
