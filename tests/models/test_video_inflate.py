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
from opabinia.models.backbones.video.inflate import Inflation, inflate_kernel
from opabinia.models.backbones.video.resnet3d import ResNet3d
from opabinia.models.weights.init import Init, initialize, load_matching

LIKE_RESNET18: Any = {
    **{"widths": [64, 128, 256, 512], "blocks": [2, 2, 2, 2], "stem_kernel": (3, 7, 7), "stem_pool": True},
    "temporal_kernels": [1, 1, 3, 3],
}
RECEPTIVE_FIELD = 9
"""Frames to each side in the receptive field of the last feature map: one for the stem and for each convolution of two
stages."""


@pytest.fixture(scope="module")
def source() -> Any:
    """timm's network with random batch norm statistics."""
    torch.manual_seed(0)
    net: nn.Module = timm.create_model("resnet18", num_classes=0)
    for name, tensor in net.state_dict().items():
        if name.endswith(("running_mean", "running_var")) or (name.endswith("weight") and tensor.ndim == 1):
            tensor.add_(0.1 * torch.rand_like(tensor))
    return net.eval()


def make_backbone(channels: int = 3, **options: Any) -> ResNet3d:
    net = resnet3d(channels, **{**LIKE_RESNET18, **options}).eval()
    assert isinstance(net, ResNet3d)
    return net


def inflated(source: nn.Module, net: nn.Module, inflation: Inflation = "mean") -> dict[str, Tensor]:
    """Return the weights of an image network in the shapes of a clip network."""
    shapes = {name: tensor.shape for name, tensor in net.state_dict().items()}
    return {
        name: inflate_kernel(tensor, shapes[name][2], inflation) if len(shapes[name]) == 5 else tensor
        for name, tensor in source.state_dict().items()
        if tensor.ndim != 4 or shapes[name][3:] == tensor.shape[2:]
    }


def still_clip(frames: int) -> tuple[Tensor, Tensor]:
    """Return an image, and a clip that repeats it."""
    image = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    return image, image[:, :, None].expand(-1, -1, frames, -1, -1)


@pytest.mark.parametrize("frames", [1, 3, 5])
def test_inflated_kernels(frames: int) -> None:
    kernel = torch.randn(4, 3, 3, 3)
    mean, center = inflate_kernel(kernel, frames), inflate_kernel(kernel, frames, "center")
    assert torch.equal(mean, torch.stack([kernel / frames] * frames, 2))
    assert torch.equal(center.sum(2), kernel) and torch.equal(center[:, :, frames // 2], kernel)


@pytest.mark.parametrize(
    ("frames", "inflation", "options"),
    [
        *((frames, "center", {}) for frames in (4, 7)),
        (4, "mean", {"temporal_kernels": [1, 1, 1, 1], "stem_kernel": (1, 7, 7)}),
    ],
)
@torch.no_grad()
def test_a_still_clip_has_the_features_of_the_image(
    source: Any, frames: int, inflation: Inflation, options: dict[str, Any]
) -> None:
    net = make_backbone(**options)
    net.load_state_dict(inflated(source, net, inflation))
    image, clip = still_clip(frames)
    torch.testing.assert_close(net(clip), source(image), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_mean_inflation_gives_the_features_of_the_image_away_from_the_ends(source: Any) -> None:
    """Clips are padded with zeros: only positions whose receptive field has no padding match the image."""
    net = make_backbone()
    net.load_state_dict(inflated(source, net))
    image, clip = still_clip(2 * RECEPTIVE_FIELD + 1)
    maps, expected = net.clip_maps(clip), source.forward_features(image)
    torch.testing.assert_close(maps[:, :, RECEPTIVE_FIELD], expected, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(maps[:, :, 0], expected, rtol=1e-2, atol=1e-2)  # the ends do not match


# --- init: ------------------------------------------------------------------------------------------------------------


def test_init_inflates_weights_of_a_file(source: Any, tmp_path: Path) -> None:
    net = nn.ModuleDict({"backbone": make_backbone()})
    file = tmp_path / "images.safetensors"
    save_file({f"backbone.model.{name}": value for name, value in source.state_dict().items()}, file)
    report = initialize(net, Init(weights=file, target_prefix="backbone"))
    assert report.complete and report.resized["conv1.weight"] == "64x3x7x7 -> 64x3x3x7x7"
    expected = inflated(source, net["backbone"])
    assert all(torch.equal(value, expected[name]) for name, value in net["backbone"].state_dict().items())


@torch.no_grad()
def test_init_adapts_the_first_kernel_to_grey_clips_and_skips_other_sizes(source: Any) -> None:
    """timm sums the kernels of the color channels, as for images."""
    net, weights = make_backbone(1), source.state_dict()
    assert load_matching(net, weights).complete
    torch.testing.assert_close(net.state_dict()["conv1.weight"].sum(2), weights["conv1.weight"].sum(1, keepdim=True))
    net = make_backbone(stem_kernel=(3, 3, 3))
    before = net.state_dict()["conv1.weight"].clone()
    assert load_matching(net, weights).other_shape == {"conv1.weight": "64x3x7x7 -> 64x3x3x3x3"}
    assert torch.equal(net.state_dict()["conv1.weight"], before)


# --- pretrained_2d ----------------------------------------------------------------------------------------------------


@pytest.fixture
def downloaded(monkeypatch: pytest.MonkeyPatch) -> list[Backbone]:
    """Return the backbones whose timm weights were requested; random weights replace the download."""
    requested: list[Backbone] = []

    def fake_timm(channels: int, *, model: str, pretrained: bool) -> Backbone:
        assert pretrained
        backbone = backbones.timm(channels, model=model)
        backbone.preprocessing = Preprocessing((0.5,), (0.2,), (224, 224), "bicubic", 0.9)
        requested.append(backbone)
        return backbone

    monkeypatch.setattr(inflate, "timm", fake_timm)
    return requested


@pytest.mark.parametrize("inflation", ["mean", "center"])
def test_a_network_starts_with_timms_weights(downloaded: list[Backbone], inflation: Inflation) -> None:
    assert make_backbone().preprocessing is None and not downloaded
    net = make_backbone(pretrained_2d="resnet18", inflation=inflation)
    (backbone,) = downloaded
    expected = inflated(backbone.get_submodule("model"), net, inflation)
    assert all(torch.equal(value, expected[name]) for name, value in net.state_dict().items())
    assert net.preprocessing is backbone.preprocessing


@pytest.mark.usefixtures("downloaded")
def test_weights_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"pretrained_2d: .*'resnet18' do not fill.*Missing key.*layer1\.0.*\.\.\."):
        slow_backbone(3, pretrained_2d="resnet18")
    with pytest.raises(ValueError, match=r"size mismatch for conv1\.weight"):
        make_backbone(pretrained_2d="resnet18", stem_kernel=(3, 3, 3))
