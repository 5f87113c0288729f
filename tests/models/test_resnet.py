"""ResNets for re-identification: FastReID's shapes and the formulas of the papers."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from opabinia.models.backbones.non_local import NonLocal
from opabinia.models.backbones.resnet import IBN, resnet
from opabinia.models.heads import LinearHead
from opabinia.models.layers import BNNeck

GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parent.parent / "golden" / "fastreid" / "model_shapes.json").read_text()
)
OPTIONS: dict[str, dict[str, Any]] = {
    "resnet50": {},
    "resnet50_ibn": {"ibn": True},
    "resnet50_se": {"se": True},
    "resnet50_nl": {"non_local": True},
}


def on_meta(**keys: Any) -> Any:
    with torch.device("meta"):
        return resnet(3, **keys).eval()


def count_parameters(net: nn.Module) -> int:
    return sum(param.numel() for param in net.parameters())


@pytest.mark.parametrize("name", GOLDEN["outputs"])
def test_golden(name: str) -> None:
    expected = GOLDEN["outputs"][name]
    net = on_meta(model="resnet50", **OPTIONS[name])
    images = torch.empty(GOLDEN["inputs"]["input"], device="meta")
    assert list(net.feature_maps(images).shape) == expected["feature_map"]
    assert list(net(images).shape) == expected["feature"]
    count = expected["backbone_params"]
    if name == "resnet50_nl":  # FastReID's blocks have one inner channel by mistake instead of half of the outer ones
        count += sum(2 * width * width + 9 * width // 2 - (7 * width + 3) for width in (512, 512, 1024, 1024, 1024))
    assert count_parameters(net) == count
    classes, width = GOLDEN["inputs"]["NUM_CLASSES"], net.out_channels
    assert count_parameters(BNNeck(width)) + count_parameters(LinearHead(width, classes)) == expected["head_params"]


@pytest.mark.parametrize("model", ["resnet18", "resnet10t", "resnetblur50"])
def test_a_stem_for_small_images(model: str) -> None:
    for reduction in (1, 2, 4):
        net = on_meta(model=model, stem_stride=reduction, last_stride=2)
        images = torch.empty(1, 3, 64, 64, device="meta")
        assert net.feature_maps(images).shape[2:] == (8 // reduction, 8 // reduction)
        levels = net.enable_multi_scale()
        assert [level.stride for level in levels] == [stride for stride in (4, 8, 16, 32) if stride <= 8 * reduction]
        assert [64 // level.shape[2] for level in net.pyramid_features(images)] == [level.stride for level in levels]


@pytest.mark.parametrize("model", ["resnet18", "resnet50d", "resnext50_32x4d", "resnetblur50", "resnest14d"])
def test_the_last_stride(model: str) -> None:
    images = torch.empty(1, 3, 256, 128, device="meta")
    fine, coarse = on_meta(model=model), on_meta(model=model, last_stride=2)
    assert fine.feature_maps(images).shape[2:] == (16, 8)
    assert coarse.feature_maps(images).shape[2:] == (8, 4)
    assert [(name, value.shape) for name, value in fine.state_dict().items()] == [
        (name, value.shape) for name, value in coarse.state_dict().items()
    ], "weights fit both"


# --- IBN --------------------------------------------------------------------------------------------------------------


def test_the_halves_of_ibn() -> None:
    norm = nn.BatchNorm2d(6)
    with torch.no_grad():
        for number, tensor in enumerate(norm.state_dict().values()):
            tensor.copy_(torch.arange(6) + 1 + number if tensor.ndim else torch.tensor(3))
    mixed, input = IBN(norm).eval(), 3 + 2 * torch.randn(4, 6, 5, 3)
    output = mixed(input)
    torch.testing.assert_close(output[:, 3:], norm.eval()(input)[:, 3:])
    own = input[:, :3]
    deviations = own.var((2, 3), correction=0, keepdim=True).add(norm.eps).sqrt()
    normalized = (own - own.mean((2, 3), keepdim=True)) / deviations
    expected = normalized * norm.weight[:3, None, None] + norm.bias[:3, None, None]
    torch.testing.assert_close(output[:, :3], expected)
    assert mixed.BN.num_batches_tracked == 3


def test_ibn_replaces_the_first_norm_in_blocks_of_three_stages() -> None:
    for model, first in (("resnet50", 64), ("resnet34", 64)):
        net = on_meta(model=model, ibn=True)
        names = [name for name, module in net.named_modules() if isinstance(module, IBN)]
        assert names == [
            f"model.layer{stage}.{block}.bn1" for stage, blocks in ((1, 3), (2, 4), (3, 6)) for block in range(blocks)
        ]
        shapes = {name: tuple(value.shape) for name, value in net.state_dict().items()}
        assert shapes["model.layer1.0.bn1.IN.weight"] == shapes["model.layer1.0.bn1.BN.running_var"] == (first // 2,)


# --- attention --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "second", "third"),
    [("resnet18", 1, 1), ("resnet50", 2, 3), ("resnet101", 2, 9)],
)
def test_positions_of_non_local_blocks(model: str, second: int, third: int) -> None:
    net = on_meta(model=model, non_local=True)
    for stage, count in ((net.model.layer1, 0), (net.model.layer2, second), (net.model.layer3, third)):
        has = [any(isinstance(module, NonLocal) for module in block.modules()) for block in stage]
        assert has == [False] * (len(stage) - count) + [True] * count
    assert count_parameters(net.model.layer4) == count_parameters(on_meta(model=model).model.layer4)


@torch.no_grad()
def test_a_non_local_block_starts_as_identity_and_attends_to_all_positions() -> None:
    block, input = NonLocal(8).eval(), torch.randn(2, 8, 4, 3)
    assert torch.equal(block(input), input)
    block.norm.weight.fill_(1)
    query, key, value = (part(input).flatten(2) for part in (block.theta, block.phi, block.g))
    weights = torch.einsum("bcq,bck->bqk", query, key).softmax(2)
    attended = torch.einsum("bqk,bck->bcq", weights, value).unflatten(2, (4, 3))
    torch.testing.assert_close(block(input), input + block.norm(block.out(attended)))


# --- norms ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "types"),
    [
        ({"norm": "frozen"}, {"FrozenBatchNorm"}),
        ({"norm": "frozen", "ibn": True}, {"FrozenBatchNorm", "InstanceNorm2d"}),
        ({"norm": "frozen", "non_local": True}, {"FrozenBatchNorm", "BatchNorm2d"}),
        ({"norm": "group"}, {"GroupNorm"}),
        ({"norm": "group", "ibn": True, "non_local": True}, {"GroupNorm", "InstanceNorm2d"}),
        ({"norm": "ghost", "ghost_splits": 2, "ibn": True}, {"GhostBatchNorm", "InstanceNorm2d"}),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",  # sets have no order
)
def test_norms_are_replaced(keys: dict[str, Any], types: set[str]) -> None:
    net = resnet(3, model="resnet18", **keys)
    assert {type(module).__name__ for module in net.modules() if "Norm" in type(module).__name__} == types
    net(torch.rand(4, 3, 64, 64)).sum().backward()
    trained = [param for param in net.parameters() if param.requires_grad]
    assert trained
    assert all(param.grad is not None for param in trained)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"model": "convnext_tiny"}, "^model: timm's 'convnext_tiny' is a ConvNeXt, not a ResNet"),
        ({"model": "resnet81"}, r"^model: timm [\d.]+ has no 'resnet81'"),
        ({"model": "seresnet50", "se": True}, "^se: the blocks of this model already have attention"),
        ({"model": "resnet50_gn", "ibn": True}, "^ibn: Bottleneck of this model has no batch norm"),
        ({"model": "skresnet18", "ibn": True}, "^ibn: SelectiveKernelBasic"),
        ({"model": "resnest14d", "non_local": True}, "^non_local: not for ResNestBottleneck"),
        ({"norm": "ghost"}, "^ghost_splits: it belongs to norm: ghost"),
        ({"ghost_splits": 2}, "^ghost_splits: it belongs to norm: ghost"),
    ],
)
def test_invalid_options_raise(keys: dict[str, Any], message: str) -> None:
    with torch.device("meta"), pytest.raises(ValueError, match=message):
        resnet(3, **keys)


@torch.no_grad()
def test_a_projection_shortcut_in_the_first_block() -> None:
    """It does not change the output at first."""
    keys: Any = {"model": "resnet10t", "options": {"stem_width": 8, "channels": [16, 16, 16, 16]}}
    plain, projected = resnet(3, **keys).eval(), resnet(3, **keys, first_projection=True).eval()
    missing = projected.load_state_dict(plain.state_dict(), strict=False).missing_keys
    assert missing and all(name.startswith("model.layer1.0.downsample.") for name in missing)
    images = torch.rand(1, 3, 32, 32)
    torch.testing.assert_close(projected(images), plain(images), atol=1e-4, rtol=1e-4)
    with pytest.raises(ValueError, match="the first block of this model has a projection shortcut already"):
        on_meta(model="resnet50", first_projection=True)
