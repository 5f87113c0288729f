"""Multi-scale feature maps: comparison with timm, image sizes, gradients, freezing, pretrained weights, compilation."""

from pathlib import Path
from typing import Any

import pytest
import timm as timm_library
import torch
from torch import Tensor, nn

from opabinia.contracts import DataMismatch, Level
from opabinia.models.backbones.multi_scale import MultiScaleFeatures
from opabinia.models.backbones.resnet import resnet
from opabinia.models.backbones.timm import TimmBackbone, timm
from opabinia.models.backbones.vit import vit
from opabinia.models.weights.init import Init, initialize

SMALL_SWIN: dict[str, Any] = {"embed_dim": 12, "depths": (1, 2, 2, 2), "num_heads": (1, 2, 2, 2)}
MODELS: dict[str, dict[str, Any]] = {
    "resnet10t": {"stem_width": 16, "channels": [32, 64, 128, 256]},
    "test_resnet": {},
    "test_convnext": {},
    "test_vit": {},
    "test_vit3": {},  # pools by attention
    "swin_tiny_patch4_window7_224": SMALL_SWIN,
    "swinv2_tiny_window8_256": SMALL_SWIN,
    "mobilenetv3_small_050": {},
    "test_efficientnet": {},
    "regnetx_002": {},
}
every_model = pytest.mark.parametrize("model", MODELS)


def make_backbone(model: str, **options: Any) -> TimmBackbone:
    torch.manual_seed(0)
    net = timm(3, model=model, options=MODELS[model] | options)
    assert isinstance(net, TimmBackbone)
    return net


def images(height: int, width: int, seed: int = 0) -> Tensor:
    return torch.rand(2, 3, height, width, generator=torch.Generator().manual_seed(seed))


def gradients(net: nn.Module, maps: list[Tensor]) -> dict[str, Tensor | None]:
    net.zero_grad()
    torch.stack([level.square().mean() for level in maps]).sum().backward()  # type: ignore[no-untyped-call]
    return {name: param.grad for name, param in net.named_parameters()}


# --- shapes and values ------------------------------------------------------------------------------------------------


@every_model
def test_maps_have_the_reported_shapes_and_train_every_parameter(model: str) -> None:
    net = make_backbone(model)
    before = {name: value.shape for name, value in net.state_dict().items()}
    levels = net.enable_multi_scale()
    assert [level.stride for level in levels] == ([16] if "vit" in model else [4, 8, 16, 32])
    assert net.state_dict().keys() <= before.keys(), "parameter names stay"
    for size in ((64, 96), (224, 32)):
        maps = net.pyramid_features(images(*size))
        assert [tuple(level.shape) for level in maps] == [
            (2, channels, size[0] // stride, size[1] // stride) for channels, stride in levels
        ]
    assert [name for name, grad in gradients(net, maps).items() if grad is None] == []


@pytest.mark.parametrize("model", ["resnet10t", "test_resnet", "test_convnext", "mobilenetv3_small_050", "regnetx_002"])
@torch.no_grad()
def test_maps_match_timms_features_only(model: str) -> None:
    net = make_backbone(model).eval()
    levels = net.enable_multi_scale()
    first = -len(levels)
    reference = timm_library.create_model(model, features_only=True, out_indices=range(first, 0), **MODELS[model])
    weights = {name.removeprefix("model."): value for name, value in net.state_dict().items()}
    if "convnext" in model:  # flattened there
        weights = {
            name.replace("stem.", "stem_").replace("stages.", "stages_"): value for name, value in weights.items()
        }
    reference.load_state_dict(weights)
    expected = reference.eval()(images(96, 64))
    for level, expected_level in zip(net.pyramid_features(images(96, 64)), expected, strict=True):
        torch.testing.assert_close(level, expected_level)


@pytest.mark.parametrize(
    ("model", "keys"),
    [
        ("test_vit", {"dynamic_img_size": True}),
        ("swin_tiny_patch4_window7_224", {"strict_img_size": False, "always_partition": True}),
        ("swinv2_tiny_window8_256", {"strict_img_size": False, "always_partition": True}),
    ],
)
@pytest.mark.parametrize("size", [(64, 224), (160, 160)], ids=str)
@torch.no_grad()
def test_transformers_with_other_image_sizes_match_timm(
    model: str, keys: dict[str, Any], size: tuple[int, int]
) -> None:
    net = make_backbone(model).eval()
    reference: Any = timm_library.create_model(model, num_classes=0, **MODELS[model], **keys).eval()
    reference.load_state_dict({name.removeprefix("model."): value for name, value in net.state_dict().items()})
    plain = len(net.enable_multi_scale()) == 1
    expected = reference.forward_intermediates(
        images(*size), indices=1 if plain else 4, norm=plain, intermediates_only=True
    )
    for level, expected_level in zip(net.pyramid_features(images(*size)), expected, strict=True):
        torch.testing.assert_close(level, expected_level)


@pytest.mark.filterwarnings("ignore:torch.searchsorted", "ignore:Using a non-tuple sequence")  # timm's resizing
@torch.no_grad()
def test_a_swin_for_small_images_has_windows_of_full_size() -> None:
    """timm limits windows to the size of the feature maps, but detection images are larger."""
    net = make_backbone("swin_tiny_patch4_window7_224", img_size=64)
    net.enable_multi_scale()
    full = make_backbone("swin_tiny_patch4_window7_224")
    full.enable_multi_scale()
    assert {name: value.shape for name, value in net.state_dict().items()} == {
        name: value.shape for name, value in full.state_dict().items()
    }


def test_models_without_multi_scale_maps_are_refused() -> None:
    net = make_backbone("resnet10t")
    with pytest.raises(ValueError, match=r"^ResNet has 5 stages including the stem; 6 cannot be frozen"):
        net.freeze_stages(6)
    coarse = make_backbone("test_vit", patch_size=40)
    with pytest.raises(ValueError, match=r"VisionTransformer gives no feature maps of strides 4 to 32; ResNet, Conv"):
        coarse.enable_multi_scale()
    with pytest.raises(ValueError, match="timm's Sequential gives no feature maps"):
        MultiScaleFeatures(nn.Sequential())


def test_a_model_of_a_fixed_image_size_reports_it() -> None:
    net = timm(3, model="test_vit_relpos")
    assert net.enable_multi_scale() == [Level(net.out_channels, 16)]
    assert net.pyramid_features(images(160, 160))[0].shape == (2, net.out_channels, 10, 10)
    with pytest.raises(DataMismatch, match=r"does not take images of 96 x 160: .*img_size: \[height, width\]"):
        net.pyramid_features(images(96, 160))


# --- our own backbones ------------------------------------------------------------------------------------------------

TINY: dict[str, Any] = {"model": "resnet10t", "options": MODELS["resnet10t"]}


def test_a_finer_last_stage_gives_three_strides() -> None:
    """If two stages have maps of the same size, those of the later stage are used."""
    coarse, fine = resnet(3, last_stride=2, **TINY), resnet(3, **TINY)
    assert coarse.enable_multi_scale() == [(32, 4), (64, 8), (128, 16), (256, 32)]
    assert fine.enable_multi_scale() == [(32, 4), (64, 8), (256, 16)]
    maps = fine.pyramid_features(images(64, 96))
    assert [tuple(level.shape[1:]) for level in maps] == [(32, 16, 24), (64, 8, 12), (256, 4, 6)]
    assert all(grad is not None for grad in gradients(fine, maps).values())
    dilated = timm(3, model="resnet10t", options=MODELS["resnet10t"] | {"output_stride": 8})
    assert dilated.enable_multi_scale() == [(32, 4), (256, 8)]
    last = dilated.pyramid_features(images(64, 96))[-1]
    assert dilated.keep_dilated_stages() == [(32, 4), (64, 8), (128, 8), (256, 8)]
    maps_of_all_stages = dilated.pyramid_features(images(64, 96))
    assert [tuple(level.shape[1:]) for level in maps_of_all_stages[2:]] == [(128, 8, 12), (256, 8, 12)]
    torch.testing.assert_close(maps_of_all_stages[-1], last)
    assert coarse.keep_dilated_stages() == [(32, 4), (64, 8), (128, 16), (256, 32)]


@pytest.mark.parametrize("last_stride", [1, 2])
@torch.no_grad()
def test_strides_in_the_first_convolution(last_stride: Any) -> None:
    """As in Caffe2: a 1 x 1 convolution with stride 2 reads the even positions."""
    keys: dict[str, Any] = {"model": "resnet26", "last_stride": last_stride}
    plain, moved = resnet(3, **keys).eval(), resnet(3, stride_in_1x1=True, **keys).eval()
    for param in plain.parameters():  # the last norm of a branch starts with weight 0
        nn.init.uniform_(param, -0.1, 0.1)
    moved.load_state_dict(plain.state_dict())
    levels = moved.enable_multi_scale()
    assert plain.enable_multi_scale() == levels
    maps = images(64, 96)
    levels_moved, levels_plain = moved.pyramid_features(maps), plain.pyramid_features(maps)
    assert [level.shape for level in levels_moved] == [level.shape for level in levels_plain]
    torch.testing.assert_close(levels_moved[0], levels_plain[0])
    assert not torch.allclose(levels_moved[1], levels_plain[1])
    block: Any = moved.get_submodule("model.layer2.0")
    input = levels_moved[0]
    hidden = block.act1(block.bn1(block.conv1(input)))
    torch.testing.assert_close(block.conv1(input), nn.functional.conv2d(input[:, :, ::2, ::2], block.conv1.weight))
    assert block.act2(block.bn2(block.conv2(hidden))).shape == hidden.shape


@pytest.mark.parametrize("model", ["resnet18", "resnetaa50"])
def test_strides_that_cannot_move(model: str) -> None:
    with torch.device("meta"), pytest.raises(ValueError, match=r"^stride_in_1x1: this model has no bottlenecks"):
        resnet(3, model=model, stride_in_1x1=True)


def test_a_vit_with_a_given_image_size_and_stride() -> None:
    net = vit(3, model="test_vit", image_size=(64, 96))
    assert net.enable_multi_scale() == [Level(64, 16)]
    assert net.pyramid_features(images(64, 96))[0].shape == (2, 64, 4, 6)
    with pytest.raises(DataMismatch, match="images of 64 x 96"):
        net.pyramid_features(images(96, 96))
    assert vit(3, model="test_vit", image_size=(64, 96), stride=8).enable_multi_scale() == [Level(64, 8)]
    with pytest.raises(ValueError, match="gives no feature maps"):
        vit(3, model="test_vit", image_size=(64, 96), stride=(8, 16)).enable_multi_scale()


# --- weights of other runs --------------------------------------------------------------------------------------------


@every_model
def test_weights_of_a_classifier_are_loaded(model: str, tmp_path: Path) -> None:
    """From the checkpoint of a classification run, and from a file in timm's format."""
    donor = make_backbone(model)
    task = nn.ModuleDict({"backbone": donor, "head": donor.make_head(7)})
    with torch.no_grad():
        for value in task.state_dict().values():
            value.copy_(torch.rand(value.shape) if value.is_floating_point() else value)
    torch.save(task.state_dict(), tmp_path / "task.pth")
    own, head = donor.state_dict(), dict(task["head"].state_dict())
    torch.save({name.removeprefix("model."): value for name, value in own.items()} | head, tmp_path / "timm.pth")
    for file, prefix, expected_unexpected in (("task.pth", "backbone.model.", set()), ("timm.pth", "", set(head))):
        net = make_backbone(model)
        net.enable_multi_scale()
        detector = nn.ModuleDict({"backbone": net, "detector": nn.Linear(2, 2)})
        report = initialize(detector, Init(weights=tmp_path / file, target_prefix="backbone"))
        filled = net.state_dict()
        assert not report.missing and not report.other_shape and not report.resized
        assert all(torch.equal(value, own[name]) for name, value in filled.items())
        assert set(report.unexpected) == expected_unexpected | {
            prefix + name.removeprefix("model.") for name in own.keys() - filled.keys()
        }


# --- frozen -----------------------------------------------------------------------------------------------------------

STEMS: dict[str, tuple[tuple[str, ...], str]] = {
    "resnet10t": (("conv1.", "bn1."), "layer1."),
    "test_convnext": (("stem.",), "stages.0."),
    "test_vit": (("cls_token", "reg_token", "pos_embed", "patch_embed."), "blocks.0."),
    "swin_tiny_patch4_window7_224": (("patch_embed.",), "layers.0."),
    "test_efficientnet": (("conv_stem.", "bn1."), "blocks.0."),
}
"""Prefixes of the parameters of the stem, and of the first stage."""


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("model", STEMS)
def test_frozen_stages(model: str, count: int) -> None:
    net = make_backbone(model)
    names = set(net.state_dict())
    net.enable_multi_scale()
    net.freeze_stages(count)
    stem, first = STEMS[model]
    prefixes = stem if count == 1 else (*stem, first)
    frozen = {name.removeprefix("model.") for name, param in net.named_parameters() if not param.requires_grad}
    assert frozen == {
        name.removeprefix("model.")
        for name, _ in net.named_parameters()
        if name.removeprefix("model.").startswith(prefixes)
    }
    assert set(net.state_dict()) <= names
    before = {name: value.clone() for name, value in net.state_dict().items()}
    grads = gradients(net.train(), net.pyramid_features(images(64, 64)))
    assert {name.removeprefix("model.") for name, grad in grads.items() if grad is None} == frozen
    for name, value in net.state_dict().items():
        if "running" in name:
            assert torch.equal(value, before[name]) == name.removeprefix("model.").startswith(prefixes), name


# --- recomputed, copied, compiled -------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["resnet10t", "test_convnext", "test_vit", "swin_tiny_patch4_window7_224"])
def test_activation_checkpointing_after_frozen_stages(model: str) -> None:
    plain, checkpointed = make_backbone(model), make_backbone(model)
    for net in (plain, checkpointed):
        net.enable_multi_scale()
        net.freeze_stages(2)
    checkpointed.checkpoint_activations()
    calls: list[int] = []
    last = next(
        module for module in reversed(list(checkpointed.modules())) if isinstance(module, nn.Conv2d | nn.Linear)
    )
    last.register_forward_pre_hook(lambda *_: calls.append(1))
    torch.manual_seed(1)  # timm's Swin has stochastic depth
    expected = gradients(plain, plain.pyramid_features(images(64, 64)))
    torch.manual_seed(1)
    actual = gradients(checkpointed, checkpointed.pyramid_features(images(64, 64)))
    assert len(calls) == 2, "once more in the backward pass"
    for name, grad in expected.items():
        assert (grad is None) == (actual[name] is None)
        if grad is not None:
            torch.testing.assert_close(actual[name], grad)


@every_model
def test_layers_keep_their_depths(model: str) -> None:
    net = make_backbone(model)
    before = net.depths()
    net.enable_multi_scale()
    after = net.depths()
    assert after.keys() == dict(net.named_parameters()).keys()
    assert all(before[name] == depth for name, depth in after.items())
