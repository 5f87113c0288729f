"""Weights of networks for images in networks for clips."""

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
REACH = 9
"""Frames to each side that a place of the last maps sees: one for the stem and for each convolution of two stages."""


def images(name: str = "resnet18", channels: int = 3) -> nn.Module:
    """timm's network, with statistics as if it had been trained."""
    torch.manual_seed(0)
    net: nn.Module = timm.create_model(name, num_classes=0, in_chans=channels)
    for one, tensor in net.state_dict().items():
        if one.endswith(("running_mean", "running_var")) or (one.endswith("weight") and tensor.ndim == 1):
            tensor.add_(0.1 * torch.rand_like(tensor))
    return net.eval()


def small(channels: int = 3, **options: Any) -> ResNet3d:
    net = resnet3d(channels, **{**LIKE_RESNET18, **options}).eval()
    assert isinstance(net, ResNet3d)
    return net


def shapes(net: nn.Module) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in net.state_dict().items()}


def still(frames: int, size: int = 64) -> tuple[Tensor, Tensor]:
    """An image, and a clip that shows nothing else."""
    torch.manual_seed(1)
    image = torch.rand(2, 3, size, size)
    return image, image[:, :, None].expand(-1, -1, frames, -1, -1)


# --- kernels ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("frames", [1, 3, 5])
def test_kernels(frames: int) -> None:
    kernel = torch.randn(4, 3, 3, 3)
    mean, center = inflate_kernel(kernel, frames), inflate_kernel(kernel, frames, "center")
    assert mean.shape == center.shape == (4, 3, frames, 3, 3)
    for made in (mean, center):
        torch.testing.assert_close(made.sum(2), kernel)
    assert torch.equal(mean[:, :, 0], kernel / frames) and torch.equal(mean[:, :, 0], mean[:, :, -1])
    assert torch.equal(center[:, :, frames // 2], kernel)
    with pytest.raises(ValueError, match="4 dimensions, not 5"):
        inflate_kernel(mean, frames)


def test_it_reports_what_became_of_weights() -> None:
    state = {"conv.weight": torch.ones(2, 3, 3, 3), "bn.weight": torch.ones(2), "fc.weight": torch.ones(4, 2)}
    wanted = {"conv.weight": (2, 3, 5, 3, 3), "bn.weight": (2,), "bn.bias": (2,), "fc.weight": (4, 8)}
    found = inflate_weights(state, wanted)
    assert {name: tuple(one.shape) for name, one in found.weights.items()} == {
        "conv.weight": (2, 3, 5, 3, 3),
        "bn.weight": (2,),
    }
    assert found.inflated == {"conv.weight": "2x3x3x3 -> 2x3x5x3x3"}
    assert found.missing == ("bn.bias",)
    assert found.other_shape == {"fc.weight": "4x2 -> 4x8"}
    assert not inflate_weights(state, {"conv.weight": (2, 3, 5, 7, 7)}).weights


# --- a clip that stands still -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("frames", [4, 7])
@torch.no_grad()
def test_centred_a_still_clip_gives_the_features_of_the_image(frames: int) -> None:
    source, net = images(), small()
    net.load_state_dict(inflate_weights(source.state_dict(), shapes(net), "center").weights)
    image, clip = still(frames)
    torch.testing.assert_close(net(clip), source(image), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_by_the_mean_it_does_where_the_ends_are_out_of_sight() -> None:
    """Around a clip there are zeros; what sees nothing of them has what the image has."""
    source: Any = images()
    net = small()
    net.load_state_dict(inflate_weights(source.state_dict(), shapes(net)).weights)
    image, clip = still(2 * REACH + 1)
    maps, expected = net.clip_maps(clip), source.forward_features(image)
    torch.testing.assert_close(maps[:, :, REACH], expected, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(maps[:, :, 0], expected, rtol=1e-2, atol=1e-2)  # and the ends do not


@torch.no_grad()
def test_a_network_of_single_frames_is_the_one_for_images() -> None:
    source, net = images(), small(temporal_kernels=[1, 1, 1, 1], stem_kernel=(1, 7, 7))
    net.load_state_dict(inflate_weights(source.state_dict(), shapes(net)).weights)
    image, clip = still(4)
    torch.testing.assert_close(net(clip), source(image), rtol=1e-5, atol=1e-5)


# --- by init ----------------------------------------------------------------------------------------------------------


def test_init_inflates_what_a_file_has(tmp_path: Path) -> None:
    backbone = small()
    source, net = images(), nn.ModuleDict({"backbone": backbone})
    file = tmp_path / "images.safetensors"
    save_file({f"backbone.model.{name}": one for name, one in source.state_dict().items()}, file)
    report = initialize(net, Init(weights=file, target_prefix="backbone"))
    assert report.complete
    assert report.resized["conv1.weight"] == "64x3x7x7 -> 64x3x3x7x7"
    expected = inflate_weights(source.state_dict(), shapes(backbone)).weights
    assert all(torch.equal(one, expected[name]) for name, one in backbone.state_dict().items())


@torch.no_grad()
def test_init_fits_the_first_kernel_to_grey_clips() -> None:
    """timm sums the colours' kernels, as it does for images."""
    source, net = images(), small(1)
    assert load_matching(net, source.state_dict()).complete
    torch.testing.assert_close(
        net.state_dict()["conv1.weight"].sum(2), source.state_dict()["conv1.weight"].sum(1, keepdim=True)
    )


def test_init_leaves_kernels_of_other_sides() -> None:
    net = small(stem_kernel=(3, 3, 3))
    before = net.state_dict()["conv1.weight"].clone()
    report = load_matching(net, images().state_dict())
    assert report.other_shape == {"conv1.weight": "64x3x7x7 -> 64x3x3x3x3"}
    assert torch.equal(net.state_dict()["conv1.weight"], before)


# --- timm's -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def downloaded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What timm's weights were asked for; they are drawn in place of a download."""
    asked: list[str] = []

    def drawn(channels: int, *, model: str, pretrained: bool) -> Backbone:
        assert pretrained
        asked.append(model)
        torch.manual_seed(0)
        made = backbones.timm(channels, model=model)
        made.preprocessing = Preprocessing((0.5,), (0.2,), (224, 224), "bicubic", 0.9)
        return made

    monkeypatch.setattr(inflate, "timm", drawn)
    return asked


@pytest.mark.parametrize("inflation", ["mean", "center"])
def test_a_network_begins_with_timms_weights(downloaded: list[str], inflation: Inflation) -> None:
    net = small(pretrained_2d="resnet18", inflation=inflation)
    torch.manual_seed(0)
    source = backbones.timm(3, model="resnet18").get_submodule("model").state_dict()
    expected = inflate_weights(source, shapes(net), inflation).weights
    assert all(torch.equal(one, expected[name]) for name, one in net.state_dict().items())
    assert net.preprocessing is not None and net.preprocessing.interpolation == "bicubic"
    assert downloaded == ["resnet18"]


def test_weights_that_do_not_fill_it_are_refused(downloaded: list[str]) -> None:
    with pytest.raises(
        ValueError, match=r"pretrained_2d: .*'resnet18' do not fill.*it has no layer1\.0\.conv3\.weight.*more"
    ):
        slow_backbone(3, pretrained_2d="resnet18")
    with pytest.raises(ValueError, match=r"conv1\.weight 64x3x7x7 -> 64x3x3x3x3"):
        small(pretrained_2d="resnet18", stem_kernel=(3, 3, 3))


def test_nothing_is_downloaded_unasked(downloaded: list[str]) -> None:
    assert small().preprocessing is None
    assert not downloaded
