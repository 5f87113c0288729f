"""Weights of PySlowFast and mmaction2 under the names and shapes of their sources, written by hand."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import opabinia.migration.weights  # noqa: F401
from opabinia.contracts import Backbone
from opabinia.models.backbones.timm import timm
from opabinia.models.backbones.video import Mvit, SlowFast, TimeSformer, TorchvisionVideo, Tsn, X3d, c2d, i3d, slow
from opabinia.models.weights.init import LoadReport, load_matching
from opabinia.models.weights.translation import translate_weights

Shapes = dict[str, tuple[int, ...]]


class Net(nn.Module):
    """A backbone with the head that the task video gives it."""

    def __init__(self, make: Callable[..., Any], classes: int = 400, **options: Any) -> None:
        super().__init__()
        with torch.device("meta"):  # names and shapes alone
            self.backbone: Backbone = make(3, **options)
            self.head = nn.Sequential(nn.Dropout(0.5), self.backbone.make_head(classes))


def norm(name: str, width: int) -> Shapes:
    kinds = ("weight", "bias", "running_mean", "running_var")
    return {f"{name}.{kind}": (width,) for kind in kinds} | {f"{name}.num_batches_tracked": ()}


def with_norm(conv: str, bn: str, *shape: int) -> Shapes:
    return {f"{conv}.weight": shape, **norm(bn, shape[0])}


def of_pyslowfast(
    pathways: Sequence[tuple[int, Sequence[Sequence[int]]]], fusion: int = 0, classes: int = 400
) -> Shapes:
    """ResNets of 50 layers: the width of the stem and the temporal kernels of stem and stages of each pathway."""
    shapes: Shapes = {}
    for number, (width, kernels) in enumerate(pathways):
        stem = f"s1.pathway{number}_stem"
        shapes |= with_norm(f"{stem}.conv", f"{stem}.bn", width, 3, kernels[0][0], 7, 7)
        inputs, fused = (
            width,
            [2 * pathways[1][0], *(8 * pathways[1][0] * 2**i for i in range(3))] if fusion else [0] * 4,
        )
        for stage, blocks in enumerate((3, 4, 6, 3)):
            inner = width * 2**stage
            for block in range(blocks):
                at, kernel = (
                    f"s{stage + 2}.pathway{number}_res{block}",
                    kernels[stage + 1][block % len(kernels[stage + 1])],
                )
                given = inputs + (fused[stage] if number == 0 and block == 0 else 0)
                if block == 0:
                    shapes |= with_norm(f"{at}.branch1", f"{at}.branch1_bn", 4 * inner, given, 1, 1, 1)
                branch = f"{at}.branch2"
                shapes |= with_norm(f"{branch}.a", f"{branch}.a_bn", inner, given, kernel, 1, 1)
                shapes |= with_norm(f"{branch}.b", f"{branch}.b_bn", inner, inner, 1, 3, 3)
                shapes |= with_norm(f"{branch}.c", f"{branch}.c_bn", 4 * inner, inner, 1, 1, 1)
                inputs = 4 * inner
            if number == 1 and stage < 3:
                fuse = f"s{stage + 2}_fuse"
                shapes |= with_norm(f"{fuse}.conv_f2s", f"{fuse}.bn", 2 * inputs, inputs, fusion, 1, 1)
        if number == 1:
            shapes |= with_norm("s1_fuse.conv_f2s", "s1_fuse.bn", 2 * width, width, fusion, 1, 1)
    width = sum(32 * width for width, _ in pathways)
    return shapes | {"head.projection.weight": (classes, width), "head.projection.bias": (classes,)}


SLOW, FAST = [[1], [1], [1], [3], [3]], [[5], [3], [3], [3], [3]]


def load(net: Net, shapes: Mapping[str, Sequence[int]]) -> tuple[LoadReport, dict[str, Tensor], str]:
    device = next(net.parameters()).device
    weights = {
        name: torch.full(tuple(shape), float(number), device=device)
        for number, (name, shape) in enumerate(shapes.items())
    }
    translated, description = translate_weights(weights)
    report = load_matching(net, translated, required="backbone.")
    assert report.complete, str(report)
    return report, weights, description


def same(net: Net, ours: str, weights: Mapping[str, Tensor], theirs: str) -> bool:
    return torch.equal(net.state_dict()[ours].flatten(), weights[theirs].flatten())


def test_slowfast_8x8_r50_of_pyslowfast() -> None:
    shapes = of_pyslowfast([(64, SLOW), (8, FAST)], fusion=7)
    parameters = [shape for name, shape in shapes.items() if not re.search(r"running_|num_batches", name)]
    assert sum(torch.Size(shape).numel() for shape in parameters) == 34_566_488
    net = Net(SlowFast).to_empty(device="cpu")
    _, weights, description = load(net, shapes)
    assert description == "PySlowFast's names"
    assert same(net, "backbone.slow.layer3.5.conv2.weight", weights, "s4.pathway0_res5.branch2.b.weight")
    assert same(net, "backbone.fast.layer1.0.downsample.1.bias", weights, "s2.pathway1_res0.branch1_bn.bias")
    assert same(net, "backbone.fusions.3.conv.weight", weights, "s4_fuse.conv_f2s.weight")
    assert same(net, "backbone.fast.conv1.weight", weights, "s1.pathway1_stem.conv.weight")
    assert same(net, "head.1.weight", weights, "head.projection.weight")


@pytest.mark.parametrize(
    ("make", "kernels"),
    [(slow, SLOW), (i3d, [[5], [3], [3, 1], [3, 1], [1, 3]]), (c2d, [[1]] * 5)],
    ids=["slow", "i3d", "c2d"],
)
def test_resnets_of_pyslowfast(make: Callable[..., Any], kernels: list[list[int]]) -> None:
    load(Net(make), of_pyslowfast([(64, kernels)]))


def test_non_local_blocks_of_pyslowfast() -> None:
    names = {
        f"{layer}.{kind}": None
        for layer in ("conv_theta", "conv_phi", "conv_g", "conv_out")
        for kind in ("weight", "bias")
    }
    net, shapes = Net(slow, non_local=((), (1,), (0,), ())), of_pyslowfast([(64, SLOW)])
    for block, channels in (("s3.pathway0_nonlocal1", 512), ("s4.pathway0_nonlocal0", 1024)):
        for name in names:
            wide = name.startswith("conv_out")
            sizes = (channels, channels // 2) if wide else (channels // 2, channels)
            shapes[f"{block}.{name}"] = (*sizes, 1, 1, 1) if name.endswith("weight") else sizes[:1]
        shapes |= norm(f"{block}.bn", channels)
    _, weights, _ = load(net.to_empty(device="cpu"), shapes)
    assert same(net, "backbone.layer2.1.non_local.theta.weight", weights, "s3.pathway0_nonlocal1.conv_theta.weight")
    assert same(net, "backbone.layer3.0.non_local.norm.bias", weights, "s4.pathway0_nonlocal0.bn.bias")


def renamed(net: Net, rules: Sequence[tuple[str, str]], linear: Sequence[str] = ()) -> Shapes:
    """The shapes of our own tensors under other names; ``linear`` ones as convolutions of one position."""
    shapes: Shapes = {}
    for name, tensor in net.state_dict().items():
        shape = (*tensor.shape, 1, 1, 1) if name in linear else tuple(tensor.shape)
        for pattern, replacement in rules:
            name = re.sub(pattern, replacement, name)
        if re.search("cls_token|pos_embed", name):
            shape = (1,) * (3 - len(shape)) + shape
        shapes[name] = shape
    return shapes


def letters(pattern: str, replacement: str) -> Iterator[tuple[str, str]]:
    return ((pattern.format(i + 1), replacement.format("abc"[i])) for i in range(3))


X3D_PYSLOWFAST = [
    (r"^backbone\.stem\.0\.", "s1.pathway0_stem.conv_xy."),
    (r"^backbone\.stem\.1\.", "s1.pathway0_stem.conv."),
    (r"^backbone\.stem\.2\.", "s1.pathway0_stem.bn."),
    (r"^backbone\.stages\.0\.(\d+)", r"s2.pathway0_res\1"),
    (r"^backbone\.stages\.1\.(\d+)", r"s3.pathway0_res\1"),
    (r"^backbone\.stages\.2\.(\d+)", r"s4.pathway0_res\1"),
    (r"^backbone\.stages\.3\.(\d+)", r"s5.pathway0_res\1"),
    (r"\.downsample\.0", ".branch1"),
    (r"\.downsample\.1", ".branch1_bn"),
    *letters(r"\.conv{}\.", ".branch2.{}."),
    *letters(r"\.bn{}\.", ".branch2.{}_bn."),
    (r"\.se\.", ".branch2.se."),
    (r"^backbone\.conv5\.0", "head.conv_5"),
    (r"^backbone\.conv5\.1", "head.conv_5_bn"),
    (r"^backbone\.fc1", "head.lin_5"),
    (r"^head\.1", "head.projection"),
]
X3D_MMACTION = [
    (r"\.stem\.0\.", ".conv1_s.conv."),
    (r"\.stem\.1\.", ".conv1_t.conv."),
    (r"\.stem\.2\.", ".conv1_t.bn."),
    (r"stages\.0", "layer1"),
    (r"stages\.1", "layer2"),
    (r"stages\.2", "layer3"),
    (r"stages\.3", "layer4"),
    (r"(layer.*\.conv\d)\.", r"\1.conv."),
    (r"(layer.*)\.bn(\d)\.", r"\1.conv\2.bn."),
    (r"\.se\.", ".se_module."),
    (r"\.downsample\.0", ".downsample.conv"),
    (r"\.downsample\.1", ".downsample.bn"),
    (r"conv5\.0", "conv5.conv"),
    (r"conv5\.1", "conv5.bn"),
    (r"^backbone\.fc1", "cls_head.fc1"),
    (r"^head\.1", "cls_head.fc2"),
]
MVIT_PYSLOWFAST = [
    (r"backbone\.model\.", ""),
    (r"conv_proj", "patch_embed.proj"),
    (r"pos_encoding\.class_token", "cls_token"),
    (r"pos_encoding\.(\w+)_pos", r"pos_embed_\1"),
    (r"project\.0", "proj"),
    (r"pool_(.)\.pool", r"pool_\1"),
    (r"pool_(.)\.norm_act\.0", r"norm_\1"),
    (r"mlp\.0", "mlp.fc1"),
    (r"mlp\.3", "mlp.fc2"),
    (r"(\d)\.project", r"\1.proj"),
    (r"^head\.1", "head.projection"),
]
MVIT_MMACTION = [
    *MVIT_PYSLOWFAST[:1],
    (r"^", "backbone."),
    *MVIT_PYSLOWFAST[1:-1],
    (r"patch_embed\.proj", "patch_embed.projection"),
    (r"^backbone\.norm\.", "backbone.norm3."),
    (r"^backbone\.head\.1", "cls_head.fc_cls"),
]
TIMESFORMER = [(r"^backbone\.model\.", "model."), (r"^head\.1", "model.head")]
VIT = {"version": 1, "width": 48, "heads": 3, "blocks": [2], "patch": (2, 16, 16), "patch_stride": (2, 16, 16)}
SWIN_MMACTION = [
    (r"backbone\.model\.", "backbone."),
    (r"features\.0\.", "layers.0.blocks."),
    (r"features\.2\.", "layers.1.blocks."),
    (r"features\.4\.", "layers.2.blocks."),
    (r"features\.6\.", "layers.3.blocks."),
    (r"features\.1", "layers.0.downsample"),
    (r"features\.3", "layers.1.downsample"),
    (r"features\.5", "layers.2.downsample"),
    (r"mlp\.0", "mlp.fc1"),
    (r"mlp\.3", "mlp.fc2"),
    (r"^backbone\.norm\.", "backbone.norm3."),
    (r"^head\.1", "cls_head.fc_cls"),
]
CONV_MODULES = [
    (r"^backbone\.(slow|fast)\.", r"backbone.\1_path."),
    (r"fusions\.0\.", "slow_path.conv1_lateral."),
    (r"fusions\.(\d)\.", r"slow_path.layer\1_lateral."),
    (r"\.frames\.model", ""),
    (r"\.conv(\d)\.weight", r".conv\1.conv.weight"),
    (r"\.bn(\d)\.", r".conv\1.bn."),
    (r"\.downsample\.0", ".downsample.conv"),
    (r"\.downsample\.1", ".downsample.bn"),
    (r"^head\.1\.(fc\.)?", "cls_head.fc_cls."),
]
TSM = [*CONV_MODULES, (r"(layer.*\.conv1\.conv)\.", r"\1.net.")]


def frames_of(shift: str) -> Callable[..., Any]:
    return lambda channels: Tsn(channels, backbone=lambda count: timm(count, model="resnet50"), shift=shift)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "options", "rules"),
    [
        (X3d, {}, X3D_PYSLOWFAST),
        (X3d, {}, X3D_MMACTION),
        (TorchvisionVideo, {"model": "mvit_v2_s"}, MVIT_PYSLOWFAST),
        (TorchvisionVideo, {"model": "mvit_v1_b"}, MVIT_PYSLOWFAST),
        (TorchvisionVideo, {"model": "mvit_v2_s"}, MVIT_MMACTION),
        (Mvit, {**VIT, "kv_stride": 1, "pool_kernel": None}, MVIT_PYSLOWFAST),
        (TimeSformer, {"model": "vit_tiny_patch16_224", "options": {"depth": 2}}, TIMESFORMER),
        (TorchvisionVideo, {"model": "swin3d_t"}, SWIN_MMACTION),
        (slow, {}, CONV_MODULES),
        (SlowFast, {"fusion_norm": False, "slow_frames": "strided"}, CONV_MODULES),
        (frames_of("none"), {}, CONV_MODULES),
        (frames_of("tsm"), {}, TSM),
    ],
    ids=[
        "x3d",
        "x3d mm",
        "mvit",
        "mvit v1",
        "mvit mm",
        "vit",
        "timesformer",
        "swin mm",
        "slowonly mm",
        "slowfast mm",
        "tsn mm",
        "tsm mm",
    ],
)
def test_others(make: Callable[..., Any], options: dict[str, Any], rules: Sequence[tuple[str, str]]) -> None:
    net = Net(make, **options)
    _, _, description = load(
        net, renamed(net, rules, linear=("backbone.fc1.weight",) if rules is X3D_PYSLOWFAST else ())
    )
    assert description.endswith("names")


def test_the_classifier_of_mmaction_begins_with_the_fast_pathway() -> None:
    net = Net(SlowFast, 5, fusion_norm=False).to_empty(device="cpu")
    weights = {name: torch.zeros(shape) for name, shape in renamed(net, CONV_MODULES).items()}
    weights["cls_head.fc_cls.weight"][:, :256] = 1
    load_matching(net, translate_weights(weights).weights, required="backbone.")
    assert net.state_dict()["head.1.weight"].mean(0).tolist() == [0.0] * 2048 + [1.0] * 256
