"""Video backbones: clip sizes, memory formats, gradients, published parameter and operation counts, checkpoints."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn
from torchvision import models

from opabinia.contracts import Backbone, DataMismatch
from opabinia.models.backbones.non_local import NonLocal
from opabinia.models.backbones.video import (
    Mvit,
    SlowFast,
    TimeSformer,
    TorchvisionVideo,
    X3d,
    c2d,
    i3d,
    resnet3d,
    slow,
    torchvision_video,
)
from opabinia.models.backbones.video.base import ClipBackbone, FramePool, convolution
from opabinia.models.backbones.video.slowfast import slow_frames
from opabinia.models.backbones.video.torchvision_video import MVIT_SIZE, S3D_MIN_SIZE

R2PLUS1D: Any = {"widths": [64, 128, 256, 512], "blocks": [2, 2, 2, 2], "temporal_strides": [1, 2, 2, 2]}
SMALL: dict[str, Callable[[int], Backbone]] = {
    "resnet3d": lambda channels: resnet3d(channels, widths=[4, 8], blocks=[1, 1]),
    "2+1d": lambda channels: resnet3d(
        channels, widths=[4, 8], blocks=[1, 2], conv_type="2+1d", temporal_strides=[1, 2]
    ),
    "bottlenecks": lambda channels: resnet3d(
        channels, widths=[4, 8], blocks=[1, 1], block="bottleneck", temporal_kernels=[1, 3], stem_pool=True
    ),
}
VIT: Any = {"version": 1, "patch": (2, 16, 16), "patch_stride": (2, 16, 16), "kv_stride": 1, "pool_kernel": None}
TINY_VIT: Any = {"img_size": 32, "embed_dim": 24, "depth": 2, "num_heads": 3}
TRANSFORMERS: dict[str, Callable[[int], Backbone]] = {
    "mvit": lambda channels: Mvit(channels, clip=(4, 32, 32), width=16, blocks=[1, 2], kv_stride=2),
    "mvit v1": lambda channels: Mvit(
        channels, clip=(4, 32, 32), version=1, width=16, blocks=[1, 2], expansion="mlp", pool="mean"
    ),
    "timesformer": lambda channels: TimeSformer(channels, model="vit_tiny_patch16_224", frames=4, options=TINY_VIT),
}
CSN: Any = {
    **{"widths": [64, 128, 256, 512], "blocks": [3, 4, 23, 3], "block": "depthwise", "stem_kernel": (3, 7, 7)},
    **{"temporal_strides": [1, 2, 2, 2], "stem_pool": True},
}
NON_LOCAL: Any = {"non_local": ((), (1, 3), (1, 3, 5), ())}
LARGE: dict[str, Callable[[int], Backbone]] = {
    "slow": slow,
    "slowfast": SlowFast,
    "4x16": lambda channels: SlowFast(channels, alpha=8, fusion_kernel=5),
    "x3d": lambda channels: X3d(channels, size="S"),
}
ANY_SIZE = ("r3d_18", "mc3_18", "r2plus1d_18", "swin3d_t")
FIXED_OR_MIN_SIZE = ("s3d", "mvit_v1_b", "mvit_v2_s")


def make_backbone(make: Callable[[int], Backbone], channels: int = 3, device: str = "cpu") -> ClipBackbone:
    torch.manual_seed(0)
    with torch.device(device):
        net = make(channels)
    assert isinstance(net, ClipBackbone)
    assert net.clips
    return net


def torchvision_factory(name: Any) -> Callable[[int], Backbone]:
    return lambda channels: TorchvisionVideo(channels, model=name)


# --- clip sizes, gradients, layouts -----------------------------------------------------------------------------------


SIZES = [(5, 33, 47), (32, 112, 96)]


@pytest.mark.parametrize("name", [*SMALL, *LARGE, *ANY_SIZE])
def test_clips_of_any_length_and_size(name: str) -> None:
    net = make_backbone({**SMALL, **LARGE}.get(name) or torchvision_factory(name), 1, "meta").eval()
    for size in SIZES:
        assert net(torch.zeros(2, 1, *size, device="meta")).shape == (2, net.out_channels)


@pytest.mark.parametrize("name", ["resnet3d", "2+1d", "bottlenecks", "slowfast", "x3d"])
def test_the_memory_format_changes_nothing(name: str) -> None:
    net, clips = make_backbone({**SMALL, **LARGE}[name]).eval(), torch.rand(2, 3, 4, 32, 32)
    expected = net(clips)
    actual = net.to(memory_format=torch.channels_last_3d)(clips.contiguous(memory_format=torch.channels_last_3d))
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last_3d], ids=str)
def test_frames_are_pooled_independently(layout: torch.memory_format) -> None:
    maps = torch.randn(2, 3, 4, 7, 6).contiguous(memory_format=layout)
    pooled = FramePool()(maps)
    assert torch.equal(pooled, nn.functional.max_pool3d(maps, (1, 3, 3), (1, 2, 2), (0, 1, 1)))
    assert pooled.is_contiguous(memory_format=layout)


# --- published counts -------------------------------------------------------------------------------------------------


def count_weights_and_operations(net: Backbone, size: tuple[int, ...], classes: int = 400) -> tuple[float, float]:
    """Return millions of weights with a linear classifier, and billions of multiply-adds per clip."""
    operations = 0

    def add(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal operations
        assert isinstance(layer.weight, Tensor)
        operations += output.numel() * layer.weight[0].numel()

    hooks = [module.register_forward_hook(add) for module in net.modules() if isinstance(module, nn.Conv3d | nn.Linear)]
    net.eval()(torch.zeros(1, 3, *size, device="meta"))
    for hook in hooks:
        hook.remove()
    head = net.out_channels * classes
    return (sum(param.numel() for param in net.parameters()) + head + classes) / 1e6, (operations + head) / 1e9


PUBLISHED: dict[str, tuple[Callable[[int], Backbone], tuple[int, int, int], float, float]] = {
    # PyTorchVideo's model zoo
    "slow 8x8": (slow, (8, 256, 256), 32.45, 54.52),
    "slowfast 8x8": (SlowFast, (32, 256, 256), 34.57, 65.71),
    "i3d 8x8": (i3d, (8, 256, 256), 28.04, 37.10),  # counted here; the zoo has 37.53
    "c2d 8x8": (c2d, (8, 256, 256), 24.33, 25.46),  # counted here; the zoo has 25.89
    "slowfast 16x8 101": (
        lambda channels: SlowFast(channels, depth=101, fusion_kernel=5, temporal_blocks=(3, 4, 6, 3)),
        *((64, 256, 256), 53.77, 213.02),  # counted here; the zoo has 215.61
    ),
    "slowfast 4x16": (LARGE["4x16"], (32, 256, 256), 34.48, 36.1),  # the zoo has 36.69; counted by hand here: 36.10
    # weights of XS, S and M: PyTorchVideo's model zoo; the rest: SlowFast's
    "x3d XS": (lambda channels: X3d(channels, size="XS"), (4, 160, 160), 3.79, 0.60),
    "x3d S": (lambda channels: X3d(channels, size="S"), (13, 160, 160), 3.79, 1.96),
    "x3d M": (lambda channels: X3d(channels, size="M"), (16, 224, 224), 3.79, 4.73),
    "x3d L": (lambda channels: X3d(channels, size="L"), (16, 312, 312), 6.2, 18.37),
    # torchvision's weights
    "r3d 18": (lambda channels: resnet3d(channels, **R2PLUS1D, stem_kernel=(3, 7, 7)), (16, 112, 112), 33.37, 40.70),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_weights_and_multiply_adds(name: str) -> None:
    make, size, weights, operations = PUBLISHED[name]
    assert count_weights_and_operations(make_backbone(make, device="meta"), size) == pytest.approx(
        (weights, operations), rel=0.01
    )


def test_weights_of_pyslowfasts_models() -> None:
    """The number of parameters of PySlowFast's models at 287ec00 with these configs, counted by running its code."""
    expected: dict[Callable[[int], Backbone], int] = {
        lambda channels: c2d(channels, **NON_LOCAL): 31_686_096,  # C2D_NLN_8x8_R50
        lambda channels: SlowFast(channels, fusion_kernel=5, **NON_LOCAL): 41_838_680,  # SLOWFAST_NLN_8x8_R50
        lambda channels: SlowFast(
            channels, depth=101, fusion_kernel=5, temporal_blocks=(3, 4, 6, 3), fast_temporal_blocks=(3, 4, 23, 3)
        ): 53_914_072,  # SLOWFAST_8x8_R101_50_101
        lambda channels: resnet3d(channels, **CSN): 22_213_776,  # pytorchvideo/CSN_32x2_R101
        lambda channels: Mvit(
            channels, clip=(32, 224, 224), version=1, blocks=[2, 3, 16, 3], expansion="mlp", pool_kernel=None
        ): 53_115_280,  # MVIT_B_32x3_CONV
        lambda channels: Mvit(
            channels, blocks=[1, 2, 11, 2], expansion="mlp", pool="mean"
        ): 36_475_120,  # k400_MVITv2_S_16x4_FT
        lambda channels: Mvit(
            channels, **VIT, width=768, heads=12, blocks=[12], pool="mean"
        ): 86_702_224,  # k400_VIT_B_16x4_FT
    }
    for make, count in expected.items():
        net = make_backbone(make, device="meta")
        assert sum(param.numel() for param in net.parameters()) + 400 * (net.out_channels + 1) == count


def test_the_stem_of_i3d_may_skip_frames() -> None:
    """As in mmaction2: 32 frames are 8 after the stem, and 4 after the pooling of the first stage."""
    net: Any = make_backbone(lambda channels: i3d(channels, frame_stride=4), device="meta").eval()
    assert net.clip_maps(torch.zeros(1, 3, 32, 64, 64, device="meta")).shape == (1, 2048, 4, 2, 2)


def test_factorized_convolutions_have_as_many_weights() -> None:
    """Tran et al. 2018, section 3.5."""
    layer: Any = convolution(64, 64, (3, 3, 3), conv_type="2+1d")
    shapes = [part.weight.shape for part in layer if isinstance(part, nn.Conv3d)]
    assert shapes == [(144, 64, 1, 3, 3), (64, 144, 3, 1, 1)]


@pytest.mark.parametrize("name", [*ANY_SIZE, *FIXED_OR_MIN_SIZE, "swin3d_s", "swin3d_b"])
def test_torchvision_models_have_all_weights(name: str) -> None:
    net = make_backbone(torchvision_factory(name), device="meta")
    expected = models.get_model_weights(name).DEFAULT.meta["num_params"]
    assert (
        sum(param.numel() for param in net.parameters()) + 401 * net.out_channels - net.out_channels + 400 == expected
    )


# --- frames of the slow pathway ---------------------------------------------------------------------------------------


def test_the_slow_pathway_samples_the_frames_of_slowfasts_code() -> None:
    for alpha in (1, 4, 8):
        for frames in range(alpha, 65, alpha):
            assert slow_frames(frames, alpha) == torch.linspace(0, frames - 1, frames // alpha).long().tolist()
    assert (slow_frames(9, 4), slow_frames(5, 4), slow_frames(3, 8)) == ([0, 4, 8], [0, 4], [0])


def test_both_pathways_affect_the_features() -> None:
    net, clips = make_backbone(SlowFast).eval(), torch.rand(1, 3, 8, 32, 32)
    before = net(clips)
    clips[:, :, 3] = 0  # the slow pathway samples frames 0 and 7
    changed = net(clips) != before
    assert changed[:, -256:].any()
    assert changed[:, :-256].any()  # through the connections between them


# --- names ------------------------------------------------------------------------------------------------------------


def test_parameter_names_match_image_resnets() -> None:
    image_state = timm.create_model("resnet50", num_classes=0).state_dict()
    clip_state = make_backbone(slow, device="meta").state_dict()
    assert clip_state.keys() == image_state.keys()
    assert all(
        clip_state[name].shape[:2] == value.shape[:2] and clip_state[name].numel() >= value.numel()
        for name, value in image_state.items()
    )
    small = resnet3d(3, widths=[64, 128, 256, 512], blocks=[2, 2, 2, 2])
    assert small.state_dict().keys() == timm.create_model("resnet18", num_classes=0).state_dict().keys()


NORM = {"bias", "num_batches_tracked", "running_mean", "running_var", "weight"}
BLOCK = {"conv#.weight", "downsample.#.weight"} | {f"{norm}.{key}" for norm in ("bn#", "downsample.#") for key in NORM}
PATTERNS = {
    "slowfast": {f"{pathway}.{name}" for pathway in ("slow", "fast") for name in {f"layer#.#.{key}" for key in BLOCK}}
    | {
        f"{pathway}.{name}"
        for pathway in ("slow", "fast")
        for name in {"conv#.weight", *(f"bn#.{key}" for key in NORM)}
    }
    | {"fusions.#.conv.weight", *(f"fusions.#.bn.{key}" for key in NORM)},
    "x3d": {f"stages.#.#.{key}" for key in BLOCK | {"se.fc#.weight", "se.fc#.bias"}}
    | {f"{part}.#.{key}" for part in ("stem", "conv#") for key in NORM}
    | {"fc#.weight"},
}


@pytest.mark.parametrize("name", PATTERNS)
def test_names_in_checkpoints_stay(name: str) -> None:
    state = make_backbone(LARGE[name], device="meta").state_dict()
    assert {re.sub(r"\d+", "#", key) for key in state} == PATTERNS[name]


@pytest.mark.parametrize("name", [*SMALL, *LARGE, *ANY_SIZE, *FIXED_OR_MIN_SIZE])
def test_every_weight_has_a_depth(name: str) -> None:
    net = make_backbone({**SMALL, **LARGE}.get(name) or torchvision_factory(name), device="meta")
    depths = net.depths()
    assert depths.keys() == dict(net.named_parameters()).keys()
    assert set(depths.values()) == set(range(max(depths.values()) + 1))
    first = next(key for key, module in net.named_modules() if isinstance(module, nn.Conv3d))
    assert depths[f"{first}.weight"] == 0


# --- transformers and non-local blocks --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_sizes_of_transformers(name: str) -> None:
    net, clips = make_backbone(TRANSFORMERS[name]).eval(), torch.rand(2, 3, 4, 32, 32)
    if name == "mvit v1":
        with pytest.raises(DataMismatch, match="this MViT takes clips of 4 x 32 x 32 only"):
            net(clips[:, :, :2])
    else:
        assert net(clips[:, :, :2, :16]).shape == (2, net.out_channels)


def test_timesformer_starts_as_its_image_network() -> None:
    """Without temporal attention a clip that repeats a frame has the features of the frame."""
    net = make_backbone(TRANSFORMERS["timesformer"]).eval()
    net.get_parameter("model.blocks.0.temporal_fc.weight").data.zero_()
    frame = torch.rand(1, 3, 1, 32, 32)
    torch.testing.assert_close(net(frame.expand(-1, -1, 4, -1, -1)), net(frame))
    assert not torch.allclose(net(frame), net(frame + 0.1))
    with pytest.raises(DataMismatch, match="frames of 32 x 24 do not divide into patches of 16 x 16"):
        net(frame[..., :24])


@torch.no_grad()
def test_non_local_blocks() -> None:
    block, maps = NonLocal(6, "softmax", clips=True).eval(), torch.randn(2, 6, 3, 4, 5)
    torch.testing.assert_close(block(maps), maps)  # its norm starts with weight 0
    nn.init.ones_(block.norm.weight)
    queries, pooled = block.theta(maps), nn.functional.max_pool3d(maps, (1, 2, 2))
    products = torch.einsum("bcthw,bcsyx->bthwsyx", queries, block.phi(pooled))
    for kind in ("softmax", "dot_product"):
        block.kind = kind
        count = pooled[0, 0].numel()
        weights = (products / 3**0.5).flatten(4).softmax(4) if kind == "softmax" else products.flatten(4) / count
        attended = torch.einsum("bthwp,bcp->bcthw", weights, block.g(pooled).flatten(2))
        torch.testing.assert_close(block(maps), maps + block.norm(block.out(attended)))
    assert block(maps[..., :1, :1]).shape == (2, 6, 3, 1, 1)


# --- invalid inputs and options ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["resnet3d", "slowfast", "x3d"])
def test_images_are_refused(name: str) -> None:
    net = make_backbone({**SMALL, **LARGE}[name], device="meta")
    with pytest.raises(DataMismatch, match=r"takes clips.*2 x 3 x 32 x 32"):
        net(torch.zeros(2, 3, 32, 32, device="meta"))
    with pytest.raises(ValueError, match="offset"):
        net(torch.zeros(2, 3, 4, 32, 32, device="meta"), torch.zeros(2, 8))


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (resnet3d, {"widths": [4, 8]}, "blocks: 3 numbers for 2 stages"),
        (resnet3d, {"temporal_kernels": [1, 2, 3]}, r"temporal_kernels: .* odd numbers, not \[1, 2, 3\]"),
        (resnet3d, {"stem_kernel": (2, 7, 7)}, r"stem_kernel: .* not \[2, 7, 7\]"),
        (resnet3d, {"conv_type": "2+1d", "block": "bottleneck"}, "conv_type"),
        (slow, {"non_local": ((3,), (), (), ())}, r"non_local: a stage has the blocks 0 to 2, not \[3\]"),
        (SlowFast, {"beta": 7}, "beta: it must divide"),
        (SlowFast, {"fusion_kernel": 4}, "fusion_kernel: .* not 4"),
        (TimeSformer, {"model": "resnet18"}, "resnet18 is no plain vision transformer"),
    ],
)
def test_options_that_do_not_fit_raise(make: Any, options: dict[str, Any], message: str) -> None:
    with torch.device("meta"), pytest.raises(ValueError, match=message):
        make(3, **options)


@pytest.mark.parametrize("name", ["mvit_v1_b", "mvit_v2_s"])
def test_mvits_report_the_only_size_that_they_take(name: str) -> None:
    net = make_backbone(torchvision_factory(name), device="meta").eval()
    assert net(torch.zeros(1, 3, *MVIT_SIZE, device="meta")).shape == (1, 768)
    with pytest.raises(DataMismatch, match=rf"{name} takes clips of 16 x 224 x 224 only.*not of 8 x 224 x 224"):
        net(torch.zeros(1, 3, 8, 224, 224, device="meta"))


def test_s3d_reports_its_minimum_size() -> None:
    net = make_backbone(torchvision_factory("s3d"), device="meta").eval()
    assert net(torch.zeros(1, 3, *S3D_MIN_SIZE, device="meta")).shape == (1, 1024)
    for axis in range(3):
        size = [side - (i == axis) for i, side in enumerate(S3D_MIN_SIZE)]
        with pytest.raises(DataMismatch, match="takes clips of 5 x 17 x 17 or more"):
            net(torch.zeros(1, 3, *size, device="meta"))
    with pytest.raises(ValueError, match="s3d"):
        net.checkpoint_activations()


# --- pretrained weights -----------------------------------------------------------------------------------------------


def fake_pretrained_model(monkeypatch: pytest.MonkeyPatch, name: str) -> Any:
    """Return torchvision's model; :func:`torchvision_video` gets its weights instead of a download."""
    torch.manual_seed(1)
    reference = models.get_model(name).eval()
    weights = models.get_model_weights(name).DEFAULT
    requested = []

    def get_model(model: str, weights: Any) -> nn.Module:
        requested.append(weights)
        copy: nn.Module = models.get_model(model)
        copy.load_state_dict(reference.state_dict())
        return copy

    fake = SimpleNamespace(get_model=get_model, get_model_weights=models.get_model_weights)
    monkeypatch.setattr(torchvision_video, "models", fake)
    monkeypatch.setattr(torchvision_video, "pretrained_weights", lambda *args, **kwargs: nullcontext())
    return reference, weights, requested


@pytest.mark.parametrize("name", ["mc3_18", pytest.param("s3d", marks=pytest.mark.slow), "swin3d_t"])
def test_a_pretrained_model_with_its_head_matches_torchvision(name: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    reference, weights, requested = fake_pretrained_model(monkeypatch, name)
    net = TorchvisionVideo(3, model=name, pretrained=True).eval()
    head = net.make_head(400)
    clips = torch.rand(1, 3, 16, 224, 224) if name == "s3d" else torch.rand(2, 3, 4, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(head(net(clips)), reference(clips), rtol=1e-4, atol=1e-4)
    assert requested == [weights] and net.trained_classes == 400
    assert net.preprocessing is not None
    assert net.preprocessing.mean == pytest.approx(weights.transforms().mean)
    assert net.preprocessing.size == tuple(weights.transforms().crop_size)
    second_head = net.make_head(400)  # the pretrained head is returned once
    assert isinstance(second_head, nn.Linear) and second_head is not head


def test_grey_clips_have_the_sum_of_trained_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    reference, _, _ = fake_pretrained_model(monkeypatch, "mc3_18")
    net = TorchvisionVideo(1, model="mc3_18", pretrained=True).eval()
    grey = torch.rand(1, 1, 4, 32, 32)
    reference.fc = nn.Identity()
    with torch.no_grad():
        torch.testing.assert_close(net(grey), reference(grey.expand(-1, 3, -1, -1, -1)), rtol=1e-4, atol=1e-4)
    assert net.preprocessing is not None and len(net.preprocessing.mean) == 1
