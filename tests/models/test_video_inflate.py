"""Inflation of image weights into video backbones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from opabinia.contracts import Backbone, Preprocessing
from opabinia.models.backbones import timm as backbones
from opabinia.models.backbones.video import inflate, resnet3d
from opabinia.models.backbones.video import slow as slow_backbone
from opabinia.models.backbones.video.inflate import Inflation, inflate_kernel, inflate_weights
from opabinia.models.backbones.video.resnet3d import ResNet3d
from opabinia.models.weights.init import Init, initialize, load_matching

LIKE_RESNET18: Any = {
    **{"widths": [64, 128, 256, 512], "blocks": [2, 2, 2, 2], "stem_kernel": (3, 7, 7), "stem_pool": True},
    "temporal_kernels": [1, 1, 3, 3],
}
RECEPTIVE_FIELD = 9
"""Frames to each side in the receptive field of the last feature map: one for the stem and for each convolution of two
stages."""


def image_model(model: str = "resnet18", channels: int = 3) -> nn.Module:
    """Return timm's network with random batch norm statistics."""
    torch.manual_seed(0)
    net: nn.Module = timm.create_model(model, num_classes=0, in_chans=channels)
    for name, tensor in net.state_dict().items():
        if name.endswith(("running_mean", "running_var")) or (name.endswith("weight") and tensor.ndim == 1):
            tensor.add_(0.1 * torch.rand_like(tensor))
    return net.eval()


def make_backbone(channels: int = 3, **options: Any) -> ResNet3d:
    net = resnet3d(channels, **{**LIKE_RESNET18, **options}).eval()
    assert isinstance(net, ResNet3d)
    return net


def shapes(net: nn.Module) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in net.state_dict().items()}


def still_clip(frames: int, size: int = 64) -> tuple[Tensor, Tensor]:
    """Return an image, and a clip that repeats it."""
    torch.manual_seed(1)
    image = torch.rand(2, 3, size, size)
    return image, image[:, :, None].expand(-1, -1, frames, -1, -1)


# --- kernels ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("frames", [1, 3, 5])
def test_inflated_kernels(frames: int) -> None:
    kernel = torch.randn(4, 3, 3, 3)
    mean, center = inflate_kernel(kernel, frames), inflate_kernel(kernel, frames, "center")
    assert mean.shape == center.shape == (4, 3, frames, 3, 3)
    for inflated in (mean, center):
        torch.testing.assert_close(inflated.sum(2), kernel)
    assert torch.equal(mean[:, :, 0], kernel / frames) and torch.equal(mean[:, :, 0], mean[:, :, -1])
    assert torch.equal(center[:, :, frames // 2], kernel)
    with pytest.raises(ValueError, match="4 dimensions, not 5"):
        inflate_kernel(mean, frames)


def test_inflated_and_missing_weights_are_reported() -> None:
    state = {"conv.weight": torch.ones(2, 3, 3, 3), "bn.weight": torch.ones(2), "fc.weight": torch.ones(4, 2)}
    target_shapes = {"conv.weight": (2, 3, 5, 3, 3), "bn.weight": (2,), "bn.bias": (2,), "fc.weight": (4, 8)}
    report = inflate_weights(state, target_shapes)
    assert {name: tuple(value.shape) for name, value in report.weights.items()} == {
        "conv.weight": (2, 3, 5, 3, 3),
        "bn.weight": (2,),
    }
    assert report.inflated == {"conv.weight": "2x3x3x3 -> 2x3x5x3x3"}
    assert report.missing == ("bn.bias",)
    assert report.other_shape == {"fc.weight": "4x2 -> 4x8"}
    assert not inflate_weights(state, {"conv.weight": (2, 3, 5, 7, 7)}).weights


# --- still clips ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("frames", [4, 7])
@torch.no_grad()
def test_center_inflation_gives_the_features_of_the_image_for_a_still_clip(frames: int) -> None:
    source, net = image_model(), make_backbone()
    net.load_state_dict(inflate_weights(source.state_dict(), shapes(net), "center").weights)
    image, clip = still_clip(frames)
    torch.testing.assert_close(net(clip), source(image), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_mean_inflation_gives_the_features_of_the_image_away_from_the_ends() -> None:
    """Clips are padded with zeros: only positions whose receptive field has no padding match the image."""
    source: Any = image_model()
    net = make_backbone()
    net.load_state_dict(inflate_weights(source.state_dict(), shapes(net)).weights)
    image, clip = still_clip(2 * RECEPTIVE_FIELD + 1)
    maps, expected = net.clip_maps(clip), source.forward_features(image)
    torch.testing.assert_close(maps[:, :, RECEPTIVE_FIELD], expected, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(maps[:, :, 0], expected, rtol=1e-2, atol=1e-2)  # the ends do not match


@torch.no_grad()
def test_a_network_without_temporal_kernels_equals_the_image_network() -> None:
    source, net = image_model(), make_backbone(temporal_kernels=[1, 1, 1, 1], stem_kernel=(1, 7, 7))
    net.load_state_dict(inflate_weights(source.state_dict(), shapes(net)).weights)
    image, clip = still_clip(4)
    torch.testing.assert_close(net(clip), source(image), rtol=1e-5, atol=1e-5)


# --- init: ------------------------------------------------------------------------------------------------------------


def test_init_inflates_weights_of_a_file(tmp_path: Path) -> None:
    backbone = make_backbone()
    source, net = image_model(), nn.ModuleDict({"backbone": backbone})
    file = tmp_path / "images.safetensors"
    save_file({f"backbone.model.{name}": value for name, value in source.state_dict().items()}, file)
    report = initialize(net, Init(weights=file, target_prefix="backbone"))
    assert report.complete
    assert report.resized["conv1.weight"] == "64x3x7x7 -> 64x3x3x7x7"
    expected = inflate_weights(source.state_dict(), shapes(backbone)).weights
    assert all(torch.equal(value, expected[name]) for name, value in backbone.state_dict().items())


@torch.no_grad()
def test_init_adapts_the_first_kernel_to_grey_clips() -> None:
    """timm sums the kernels of the colour channels, as for images."""
    source, net = image_model(), make_backbone(1)
    assert load_matching(net, source.state_dict()).complete
    torch.testing.assert_close(
        net.state_dict()["conv1.weight"].sum(2), source.state_dict()["conv1.weight"].sum(1, keepdim=True)
    )


def test_init_skips_kernels_of_other_sizes() -> None:
    net = make_backbone(stem_kernel=(3, 3, 3))
    before = net.state_dict()["conv1.weight"].clone()
    report = load_matching(net, image_model().state_dict())
    assert report.other_shape == {"conv1.weight": "64x3x7x7 -> 64x3x3x3x3"}
    assert torch.equal(net.state_dict()["conv1.weight"], before)


# --- pretrained_2d ----------------------------------------------------------------------------------------------------


@pytest.fixture
def downloaded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the models whose timm weights were requested; random weights replace the download."""
    requested: list[str] = []

    def fake_timm(channels: int, *, model: str, pretrained: bool) -> Backbone:
        assert pretrained
        requested.append(model)
        torch.manual_seed(0)
        backbone = backbones.timm(channels, model=model)
        backbone.preprocessing = Preprocessing((0.5,), (0.2,), (224, 224), "bicubic", 0.9)
        return backbone

    monkeypatch.setattr(inflate, "timm", fake_timm)
    return requested


@pytest.mark.parametrize("inflation", ["mean", "center"])
def test_a_network_starts_with_timms_weights(downloaded: list[str], inflation: Inflation) -> None:
    net = make_backbone(pretrained_2d="resnet18", inflation=inflation)
    torch.manual_seed(0)
    source = backbones.timm(3, model="resnet18").get_submodule("model").state_dict()
    expected = inflate_weights(source, shapes(net), inflation).weights
    assert all(torch.equal(value, expected[name]) for name, value in net.state_dict().items())
    assert net.preprocessing is not None and net.preprocessing.interpolation == "bicubic"
    assert downloaded == ["resnet18"]


def test_weights_that_do_not_fit_are_refused(downloaded: list[str]) -> None:
    with pytest.raises(
        ValueError, match=r"pretrained_2d: .*'resnet18' do not fill.*it has no layer1\.0\.conv3\.weight.*more"
    ):
        slow_backbone(3, pretrained_2d="resnet18")
    with pytest.raises(ValueError, match=r"conv1\.weight 64x3x7x7 -> 64x3x3x3x3"):
        make_backbone(pretrained_2d="resnet18", stem_kernel=(3, 3, 3))


def test_nothing_is_downloaded_by_default(downloaded: list[str]) -> None:
    assert make_backbone().preprocessing is None
    assert not downloaded
