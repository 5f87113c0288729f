"""ResNets of re-identification against the shapes of FastReID, the rules of the papers and timm's own models."""

import json
from pathlib import Path
from typing import Any

import pytest
import timm as timm_library
import torch
from torch import Tensor, nn

from opabinia.contracts import Backbone
from opabinia.models import norms
from opabinia.models.backbones.resnet import IBN, NonLocal, resnet
from opabinia.models.heads import linear
from opabinia.models.layers import BNNeck
from opabinia.models.weights.init import load_matching

GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parent.parent / "golden" / "fastreid" / "model_shapes.json").read_text()
)
OURS: dict[str, dict[str, Any]] = {
    "resnet50": {},
    "resnet50_ibn": {"ibn": True},
    "resnet50_se": {"se": True},
    "resnet50_nl": {"non_local": True},
}


def on_meta(**keys: Any) -> Any:
    with torch.device("meta"):
        return resnet(3, **keys).eval()


def parameters(net: nn.Module) -> int:
    return sum(one.numel() for one in net.parameters())


@pytest.mark.parametrize("name", GOLDEN["outputs"])
def test_golden(name: str) -> None:
    expected = GOLDEN["outputs"][name]
    net = on_meta(model="resnet50", **OURS[name])
    images = torch.empty(GOLDEN["inputs"]["input"], device="meta")
    assert list(net.feature_maps(images).shape) == expected["feature_map"]
    assert list(net(images).shape) == expected["feature"]
    count = expected["backbone_params"]
    if name == "resnet50_nl":  # FastReID's blocks have one inner channel by mistake; half as many as outside are meant
        count += sum(2 * width * width + 9 * width // 2 - (7 * width + 3) for width in (512, 512, 1024, 1024, 1024))
    assert parameters(net) == count
    classes, width = GOLDEN["inputs"]["NUM_CLASSES"], net.out_channels
    assert parameters(BNNeck(width)) + parameters(linear(width, classes)) == expected["head_params"]


@pytest.mark.parametrize("model", ["resnet18", "resnet10t", "resnet50d", "resnetblur50", "resnetaa50"])
def test_a_stem_for_small_images(model: str) -> None:
    for reduction in (1, 2, 4):
        net = on_meta(model=model, stem_stride=reduction, last_stride=2)
        images = torch.empty(1, 3, 64, 64, device="meta")
        assert net.feature_maps(images).shape[2:] == (8 // reduction, 8 // reduction)
        levels = net.enable_multi_scale()
        assert [level.stride for level in levels] == [stride for stride in (4, 8, 16, 32) if stride <= 8 * reduction]
        assert [64 // one.shape[2] for one in net.pyramid_features(images)] == [level.stride for level in levels]


@pytest.mark.parametrize(
    "model", ["resnet18", "resnet50d", "resnext50_32x4d", "seresnet50", "resnetblur50", "resnetaa50", "resnest14d"]
)
def test_the_last_stride(model: str) -> None:
    images = torch.empty(1, 3, 256, 128, device="meta")
    fine, coarse = on_meta(model=model), on_meta(model=model, last_stride=2)
    assert fine.feature_maps(images).shape[2:] == (16, 8)
    assert coarse.feature_maps(images).shape[2:] == (8, 4)
    assert [(name, one.shape) for name, one in fine.state_dict().items()] == [
        (name, one.shape) for name, one in coarse.state_dict().items()
    ], "weights of the one fit the other"


@torch.no_grad()
def test_with_nothing_changed_it_is_timms() -> None:
    reference = timm_library.create_model("resnet18", num_classes=0).eval()
    net = resnet(3, model="resnet18", last_stride=2).eval()
    net.load_state_dict({f"model.{name}": one for name, one in reference.state_dict().items()})
    images = torch.rand(2, 3, 64, 64)
    torch.testing.assert_close(net(images), reference(images))


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
    places = own.var((2, 3), correction=0, keepdim=True).add(norm.eps).sqrt()
    normalised = (own - own.mean((2, 3), keepdim=True)) / places
    expected = normalised * norm.weight[:3, None, None] + norm.bias[:3, None, None]
    torch.testing.assert_close(output[:, :3], expected)
    assert mixed.BN.num_batches_tracked == 3


def test_ibn_stands_first_in_the_blocks_of_three_stages() -> None:
    for model, first in (("resnet50", 64), ("resnet34", 64)):
        net = on_meta(model=model, ibn=True)
        found = [name for name, module in net.named_modules() if isinstance(module, IBN)]
        assert found == [
            f"model.layer{stage}.{block}.bn1" for stage, blocks in ((1, 3), (2, 4), (3, 6)) for block in range(blocks)
        ]
        shapes = {name: tuple(one.shape) for name, one in net.state_dict().items()}
        assert shapes["model.layer1.0.bn1.IN.weight"] == shapes["model.layer1.0.bn1.BN.running_var"] == (first // 2,)


def test_weights_of_its_authors_fit() -> None:
    """Theirs are called ``layer1.0.bn1.IN.weight`` and so on, and have a classifier."""
    given = {
        name.removeprefix("model."): one for name, one in resnet(3, model="resnet18", ibn=True).state_dict().items()
    }
    given |= {"fc.weight": torch.zeros(1000, 512), "fc.bias": torch.zeros(1000)}
    net = resnet(3, model="resnet18", ibn=True)
    report = load_matching(net, {f"module.{name}": one for name, one in given.items()})
    assert (report.missing, set(report.unexpected)) == ((), {"module.fc.weight", "module.fc.bias"})
    assert torch.equal(net.state_dict()["model.layer1.0.bn1.IN.bias"], given["layer1.0.bn1.IN.bias"])


def test_synchronised_are_the_batch_norms_of_ibn_only() -> None:
    net = resnet(3, model="test_resnet", ibn=True)
    norms.convert_sync_batch_norm(net)
    for module in net.modules():
        assert type(module) is not nn.BatchNorm2d
        if isinstance(module, IBN):
            assert (type(module.IN), type(module.BN)) == (nn.InstanceNorm2d, norms.SyncBatchNorm)


# --- attention --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "second", "third"),
    [("resnet18", 1, 1), ("resnet50", 2, 3), ("resnet101", 2, 9), ("resnet152", 2, 9)],
)
def test_where_non_local_blocks_stand(model: str, second: int, third: int) -> None:
    net = on_meta(model=model, non_local=True)
    for stage, count in ((net.model.layer1, 0), (net.model.layer2, second), (net.model.layer3, third)):
        has = [any(isinstance(module, NonLocal) for module in block.modules()) for block in stage]
        assert has == [False] * (len(stage) - count) + [True] * count
    assert parameters(net.model.layer4) == parameters(on_meta(model=model).model.layer4)


@torch.no_grad()
def test_a_non_local_block_begins_as_nothing_and_then_looks_everywhere() -> None:
    block, input = NonLocal(8).eval(), torch.randn(2, 8, 4, 3)
    assert torch.equal(block(input), input)
    block.norm.weight.fill_(1)
    query, key, value = (part(input).flatten(2) for part in (block.theta, block.phi, block.g))
    weights = torch.einsum("bcq,bck->bqk", query, key).softmax(2)
    found = torch.einsum("bqk,bck->bcq", weights, value).unflatten(2, (4, 3))
    torch.testing.assert_close(block(input), input + block.norm(block.out(found)))


@torch.no_grad()
def test_non_local_blocks_leave_a_trained_model_as_it_is() -> None:
    plain, other = resnet(3, model="resnet18").eval(), resnet(3, model="resnet18", non_local=True).eval()
    report = load_matching(other, plain.state_dict())
    assert all("non_local" in name for name in report.missing)
    images = torch.rand(2, 3, 64, 32)
    torch.testing.assert_close(other(images), plain(images))


# --- norms ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "kinds"),
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
def test_norms_are_replaced(keys: dict[str, Any], kinds: set[str]) -> None:
    net = resnet(3, model="resnet18", **keys)
    assert {type(module).__name__ for module in net.modules() if "Norm" in type(module).__name__} == kinds
    net(torch.rand(4, 3, 64, 64)).sum().backward()
    learning = [one for one in net.parameters() if one.requires_grad]
    assert learning
    assert all(one.grad is not None for one in learning)


def gradients(net: Backbone) -> list[Tensor]:
    net(torch.rand(4, 3, 64, 64, generator=torch.Generator().manual_seed(0))).square().sum().backward()
    return [one.grad for one in net.parameters() if one.grad is not None]


def test_activations_are_computed_again_with_everything_on() -> None:
    torch.manual_seed(0)
    net = resnet(3, model="test_resnet", ibn=True, se=True, non_local=True)
    other = resnet(3, model="test_resnet", ibn=True, se=True, non_local=True)
    other.load_state_dict(net.state_dict())
    other.checkpoint_activations()
    torch.testing.assert_close(gradients(other), gradients(net))
    assert net.depths().keys() == dict(net.named_parameters()).keys()


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
def test_mistakes(keys: dict[str, Any], message: str) -> None:
    with torch.device("meta"), pytest.raises(ValueError, match=message):
        resnet(3, **keys)


@torch.no_grad()
def test_a_projection_shortcut_in_the_first_block() -> None:
    """It changes nothing at first."""
    keys: Any = {"model": "resnet10t", "options": {"stem_width": 8, "channels": [16, 16, 16, 16]}}
    plain, projected = resnet(3, **keys).eval(), resnet(3, **keys, first_projection=True).eval()
    missing = projected.load_state_dict(plain.state_dict(), strict=False).missing_keys
    assert missing and all(name.startswith("model.layer1.0.downsample.") for name in missing)
    images = torch.rand(1, 3, 32, 32)
    torch.testing.assert_close(projected(images), plain(images), atol=1e-4, rtol=1e-4)
    with pytest.raises(ValueError, match="the first block of this model has a projection shortcut already"):
        on_meta(model="resnet50", first_projection=True)
