"""Feature maps of several sizes: against timm's own, of images of many sizes, trained, frozen, filled and compiled."""

import copy
from pathlib import Path
from typing import Any

import pytest
import timm as timm_library
import torch
from torch import Tensor, nn

from opabinia.contracts import DataMismatch, Level
from opabinia.models import norms
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
every = pytest.mark.parametrize("model", MODELS)


def made(model: str, **options: Any) -> TimmBackbone:
    torch.manual_seed(0)
    net = timm(3, model=model, options=MODELS[model] | options)
    assert isinstance(net, TimmBackbone)
    return net


def images(height: int, width: int, seed: int = 0) -> Tensor:
    return torch.rand(2, 3, height, width, generator=torch.Generator().manual_seed(seed))


def gradients(net: nn.Module, maps: list[Tensor]) -> dict[str, Tensor | None]:
    net.zero_grad()
    torch.stack([one.square().mean() for one in maps]).sum().backward()  # type: ignore[no-untyped-call]
    return {name: one.grad for name, one in net.named_parameters()}


# --- what they are ----------------------------------------------------------------------------------------------------


@every
def test_maps_are_as_reported_and_every_parameter_is_trained_by_them(model: str) -> None:
    net = made(model)
    before = {name: one.shape for name, one in net.state_dict().items()}
    levels = net.enable_multi_scale()
    assert [level.stride for level in levels] == ([16] if "vit" in model else [4, 8, 16, 32])
    assert net.state_dict().keys() <= before.keys(), "names of weights stay"
    for size in ((64, 96), (224, 32)):
        maps = net.pyramid_features(images(*size))
        assert [tuple(one.shape) for one in maps] == [
            (2, channels, size[0] // stride, size[1] // stride) for channels, stride in levels
        ]
    assert [name for name, one in gradients(net, maps).items() if one is None] == []


def test_those_of_names_that_everyone_knows() -> None:
    with torch.device("meta"):
        levels = {model: timm(3, model=model).enable_multi_scale() for model in ("resnet50", "convnext_tiny")}
        plain = timm(3, model="vit_base_patch16_224").enable_multi_scale()
    assert levels["resnet50"] == [(256, 4), (512, 8), (1024, 16), (2048, 32)]
    assert levels["convnext_tiny"] == [(96, 4), (192, 8), (384, 16), (768, 32)]
    assert plain == [(768, 16)]


@pytest.mark.parametrize("model", ["resnet10t", "test_resnet", "test_convnext", "mobilenetv3_small_050", "regnetx_002"])
@torch.no_grad()
def test_they_are_those_of_timms_features_only(model: str) -> None:
    net = made(model).eval()
    levels = net.enable_multi_scale()
    first = -len(levels)
    reference = timm_library.create_model(model, features_only=True, out_indices=range(first, 0), **MODELS[model])
    weights = {name.removeprefix("model."): one for name, one in net.state_dict().items()}
    if "convnext" in model:  # flattened there
        weights = {name.replace("stem.", "stem_").replace("stages.", "stages_"): one for name, one in weights.items()}
    reference.load_state_dict(weights)
    expected = reference.eval()(images(96, 64))
    for one, other in zip(net.pyramid_features(images(96, 64)), expected, strict=True):
        torch.testing.assert_close(one, other)


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
def test_transformers_of_any_size_are_what_timm_makes_for_that(
    model: str, keys: dict[str, Any], size: tuple[int, int]
) -> None:
    net = made(model).eval()
    reference: Any = timm_library.create_model(model, num_classes=0, **MODELS[model], **keys).eval()
    reference.load_state_dict({name.removeprefix("model."): one for name, one in net.state_dict().items()})
    plain = len(net.enable_multi_scale()) == 1
    expected = reference.forward_intermediates(
        images(*size), indices=1 if plain else 4, norm=plain, intermediates_only=True
    )
    for one, other in zip(net.pyramid_features(images(*size)), expected, strict=True):
        torch.testing.assert_close(one, other)


@torch.no_grad()
def test_the_map_of_a_plain_transformer_is_the_one_that_is_pooled() -> None:
    net = made("test_vit").eval()
    expected = net.feature_maps(images(160, 160))
    net.enable_multi_scale()
    (found,) = net.pyramid_features(images(160, 160))
    torch.testing.assert_close(found, expected)


@pytest.mark.filterwarnings("ignore:torch.searchsorted", "ignore:Using a non-tuple sequence")  # timm's resizing
@torch.no_grad()
def test_windows_of_a_swin_made_for_small_images_are_those_of_large_ones() -> None:
    """timm makes windows as small as the maps; detection images are larger."""
    net = made("swin_tiny_patch4_window7_224", img_size=64)
    net.enable_multi_scale()
    full = made("swin_tiny_patch4_window7_224")
    full.enable_multi_scale()
    assert {name: one.shape for name, one in net.state_dict().items()} == {
        name: one.shape for name, one in full.state_dict().items()
    }


def test_they_keep_the_memory_layout() -> None:
    net = made("resnet10t").to(memory_format=torch.channels_last)
    net.enable_multi_scale()
    maps = net.pyramid_features(images(64, 64).to(memory_format=torch.channels_last))
    assert all(one.is_contiguous(memory_format=torch.channels_last) for one in maps)


def test_what_has_no_maps_is_refused() -> None:
    coarse = made("test_vit", patch_size=40)
    with pytest.raises(ValueError, match=r"VisionTransformer gives no feature maps of strides 4 to 32; ResNet, Conv"):
        coarse.enable_multi_scale()
    with pytest.raises(ValueError, match="timm's Sequential gives no feature maps"):
        MultiScaleFeatures(nn.Sequential())


def test_a_model_of_one_size_reports_it() -> None:
    net = timm(3, model="test_vit_relpos")
    assert net.enable_multi_scale() == [Level(net.out_channels, 16)]
    assert net.pyramid_features(images(160, 160))[0].shape == (2, net.out_channels, 10, 10)
    with pytest.raises(DataMismatch, match=r"does not take images of 96 x 160: .*img_size: \[height, width\]"):
        net.pyramid_features(images(96, 160))


# --- our own backbones ------------------------------------------------------------------------------------------------

TINY: dict[str, Any] = {"model": "resnet10t", "options": MODELS["resnet10t"]}


def test_a_finer_last_stage_gives_three_strides() -> None:
    """The maps of the third stage are as large as those of the fourth, which are the ones to take."""
    coarse, fine = resnet(3, last_stride=2, **TINY), resnet(3, **TINY)
    assert coarse.enable_multi_scale() == [(32, 4), (64, 8), (128, 16), (256, 32)]
    assert fine.enable_multi_scale() == [(32, 4), (64, 8), (256, 16)]
    maps = fine.pyramid_features(images(64, 96))
    assert [tuple(one.shape[1:]) for one in maps] == [(32, 16, 24), (64, 8, 12), (256, 4, 6)]
    assert all(one is not None for one in gradients(fine, maps).values())
    dilated = timm(3, model="resnet10t", options=MODELS["resnet10t"] | {"output_stride": 8})
    assert dilated.enable_multi_scale() == [(32, 4), (256, 8)]
    last = dilated.pyramid_features(images(64, 96))[-1]
    assert dilated.keep_dilated_stages() == [(32, 4), (64, 8), (128, 8), (256, 8)]
    kept = dilated.pyramid_features(images(64, 96))
    assert [tuple(one.shape[1:]) for one in kept[2:]] == [(128, 8, 12), (256, 8, 12)]
    torch.testing.assert_close(kept[-1], last)
    assert coarse.keep_dilated_stages() == [(32, 4), (64, 8), (128, 16), (256, 32)]


@pytest.mark.parametrize("last_stride", [1, 2])
@torch.no_grad()
def test_strides_in_the_first_convolution(last_stride: Any) -> None:
    """Caffe2's: of a 1 x 1 convolution with stride 2 the even places are seen."""
    keys: dict[str, Any] = {"model": "resnet26", "last_stride": last_stride}
    plain, moved = resnet(3, **keys).eval(), resnet(3, stride_in_1x1=True, **keys).eval()
    for one in plain.parameters():  # no branch is to begin with a norm of weight 0
        nn.init.uniform_(one, -0.1, 0.1)
    moved.load_state_dict(plain.state_dict())
    levels = moved.enable_multi_scale()
    assert plain.enable_multi_scale() == levels
    maps = images(64, 96)
    found, other = moved.pyramid_features(maps), plain.pyramid_features(maps)
    assert [one.shape for one in found] == [one.shape for one in other]
    torch.testing.assert_close(found[0], other[0])
    assert not torch.allclose(found[1], other[1])
    block: Any = moved.get_submodule("model.layer2.0")
    input = found[0]
    hidden = block.act1(block.bn1(block.conv1(input)))
    torch.testing.assert_close(block.conv1(input), nn.functional.conv2d(input[:, :, ::2, ::2], block.conv1.weight))
    assert block.act2(block.bn2(block.conv2(hidden))).shape == hidden.shape


@pytest.mark.parametrize("model", ["resnet18", "resnetaa50"])
def test_strides_that_cannot_move(model: str) -> None:
    with torch.device("meta"), pytest.raises(ValueError, match=r"^stride_in_1x1: this model has no bottlenecks"):
        resnet(3, model=model, stride_in_1x1=True)


def test_a_plain_transformer_with_its_own_patches() -> None:
    net = vit(3, model="test_vit", image_size=(64, 96))
    assert net.enable_multi_scale() == [Level(64, 16)]
    assert net.pyramid_features(images(64, 96))[0].shape == (2, 64, 4, 6)
    with pytest.raises(DataMismatch, match="images of 64 x 96"):
        net.pyramid_features(images(96, 96))
    assert vit(3, model="test_vit", image_size=(64, 96), stride=8).enable_multi_scale() == [Level(64, 8)]
    with pytest.raises(ValueError, match="gives no feature maps"):
        vit(3, model="test_vit", image_size=(64, 96), stride=(8, 16)).enable_multi_scale()


# --- weights of other runs --------------------------------------------------------------------------------------------


@every
def test_weights_of_a_classifier_fill_it(model: str, tmp_path: Path) -> None:
    """As a classification run saves them, and as timm's own file has them."""
    donor = made(model)
    task = nn.ModuleDict({"backbone": donor, "head": donor.make_head(7)})
    with torch.no_grad():
        for one in task.state_dict().values():
            one.copy_(torch.rand(one.shape) if one.is_floating_point() else one)
    torch.save(task.state_dict(), tmp_path / "task.pth")
    own, head = donor.state_dict(), dict(task["head"].state_dict())
    torch.save({name.removeprefix("model."): one for name, one in own.items()} | head, tmp_path / "timm.pth")
    for file, prefix, behind in (("task.pth", "backbone.model.", set()), ("timm.pth", "", set(head))):
        net = made(model)
        net.enable_multi_scale()
        detector = nn.ModuleDict({"backbone": net, "detector": nn.Linear(2, 2)})
        report = initialize(detector, Init(weights=tmp_path / file, target_prefix="backbone"))
        filled = net.state_dict()
        assert not report.missing and not report.other_shape and not report.resized
        assert all(torch.equal(one, own[name]) for name, one in filled.items())
        assert set(report.unexpected) == behind | {
            prefix + name.removeprefix("model.") for name in own.keys() - filled.keys()
        }


# --- frozen -----------------------------------------------------------------------------------------------------------

STEMS = {
    "resnet10t": ("conv1.", "bn1."),
    "test_convnext": ("stem.",),
    "test_vit": ("cls_token", "reg_token", "pos_embed", "patch_embed."),
    "swin_tiny_patch4_window7_224": ("patch_embed.",),
    "mobilenetv3_small_050": ("conv_stem.", "bn1."),
    "test_efficientnet": ("conv_stem.", "bn1."),
    "regnetx_002": ("stem.",),
}
FIRST = {
    "resnet10t": "layer1.",
    "test_convnext": "stages.0.",
    "test_vit": "blocks.0.",
    "swin_tiny_patch4_window7_224": "layers.0.",
    "mobilenetv3_small_050": "blocks.0.",
    "test_efficientnet": "blocks.0.",
    "regnetx_002": "s1.",
}


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("model", STEMS)
def test_frozen_stages(model: str, count: int) -> None:
    net = made(model)
    names = set(net.state_dict())
    net.enable_multi_scale()
    net.freeze_stages(count)
    begins = STEMS[model] if count == 1 else (*STEMS[model], FIRST[model])
    still = {name.removeprefix("model.") for name, one in net.named_parameters() if not one.requires_grad}
    assert still == {
        name.removeprefix("model.")
        for name, _ in net.named_parameters()
        if name.removeprefix("model.").startswith(begins)
    }
    assert set(net.state_dict()) <= names
    before = {name: one.clone() for name, one in net.state_dict().items()}
    found = gradients(net.train(), net.pyramid_features(images(64, 64)))
    assert {name.removeprefix("model.") for name, one in found.items() if one is None} == still
    for name, one in net.state_dict().items():
        if "running" in name:
            assert torch.equal(one, before[name]) == name.removeprefix("model.").startswith(begins), name


def test_more_stages_than_there_are() -> None:
    net = made("resnet10t")
    with pytest.raises(ValueError, match=r"^ResNet has 5 stages including the stem; 6 cannot be frozen"):
        net.freeze_stages(6)
    net.freeze_stages(5)
    assert not any(one.requires_grad for one in net.parameters())


def test_frozen_norms_and_stages_go_together() -> None:
    net = made("test_resnet")
    net.enable_multi_scale()
    norms.freeze_batch_norms(net)
    net.freeze_stages(2)
    learned = {name for name, one in net.named_parameters() if one.requires_grad}
    assert learned and not any(".bn" in name or "layer1" in name or "conv1.0" in name for name in learned)
    assert {
        name for name, one in gradients(net, net.pyramid_features(images(64, 64))).items() if one is not None
    } == learned


# --- recomputed, copied, compiled -------------------------------------------------------------------------------------


@pytest.mark.parametrize("frozen", [0, 2])
@pytest.mark.parametrize("model", ["resnet10t", "test_convnext", "test_vit", "swin_tiny_patch4_window7_224"])
def test_activations_can_be_computed_again(model: str, frozen: int) -> None:
    plain, again = made(model), made(model)
    for net in (plain, again):
        net.enable_multi_scale()
        net.freeze_stages(frozen)
    again.checkpoint_activations()
    calls: list[int] = []
    last = next(one for one in reversed(list(again.modules())) if isinstance(one, nn.Conv2d | nn.Linear))
    last.register_forward_pre_hook(lambda *_: calls.append(1))
    torch.manual_seed(1)  # timm's Swin leaves out branches
    expected = gradients(plain, plain.pyramid_features(images(64, 64)))
    torch.manual_seed(1)
    found = gradients(again, again.pyramid_features(images(64, 64)))
    assert len(calls) == 2, "once more in the backward pass"
    for name, one in expected.items():
        assert (one is None) == (found[name] is None)
        if one is not None:
            torch.testing.assert_close(found[name], one)


@every
def test_layers_still_have_depths(model: str) -> None:
    net = made(model)
    before = net.depths()
    net.enable_multi_scale()
    after = net.depths()
    assert after.keys() == dict(net.named_parameters()).keys()
    assert all(before[name] == depth for name, depth in after.items())


@torch.no_grad()
def test_a_copy_has_its_own() -> None:
    net = made("test_resnet").eval()
    net.enable_multi_scale()
    twin = copy.deepcopy(net)
    expected = [one.clone() for one in twin.pyramid_features(images(64, 64))]
    for parameter in net.parameters():
        parameter.zero_()
    for one, other in zip(twin.pyramid_features(images(64, 64)), expected, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    "model",
    [
        "test_resnet",
        pytest.param("test_vit", marks=pytest.mark.slow),
        pytest.param("swin_tiny_patch4_window7_224", marks=pytest.mark.slow),
    ],
)
@torch.no_grad()
def test_levels_are_what_is_compiled(model: str) -> None:
    runs: list[int] = []

    def counting(graph: Any, inputs: Any) -> Any:
        def run(*given: Any) -> Any:
            runs.append(1)
            return graph.forward(*given)

        return run

    torch.compiler.reset()
    net = made(model).eval()
    net.enable_multi_scale()
    names = list(net.state_dict())
    expected = net.pyramid_features(images(64, 96))
    net.compile(backend=counting, fullgraph=True)
    for one, other in zip(net.pyramid_features(images(64, 96)), expected, strict=True):
        torch.testing.assert_close(one, other)
    assert runs == [1]
    assert list(net.state_dict()) == names
    torch.compiler.reset()
