from pathlib import Path
from typing import Any

import pytest
import timm as timm_library
import torch
from timm.models import group_parameters
from torch import Tensor, nn

from opabinia.models.backbones.timm import Preprocessing, TimmBackbone, timm


@pytest.mark.parametrize(
    ("model", "call", "message"),
    [
        ("poolformerv2_s12", lambda net: net.depths(), "the depths of the layers of TimmBackbone are not known"),
        ("inception_v3", lambda net: net.checkpoint_activations(), "cannot compute the activations of InceptionV3"),
        ("levit_128s", lambda net: net.feature_maps(torch.zeros(1, 3, 224, 224)), r"^timm's \w+ gives no feature maps"),
        ("pit_ti_224", lambda net: net.feature_maps(torch.zeros(1, 3, 224, 224)), r"^timm's \w+ gives no feature maps"),
        ("test_resnet", lambda net: net(torch.zeros(1, 3, 64, 64), torch.zeros(1, 32)), "ResNet has no tokens"),
    ],
)
def test_what_a_model_does_not_have_raises(model: str, call: Any, message: str) -> None:
    with torch.device("meta"), pytest.raises(ValueError, match=message):
        call(timm(3, model=model).eval())


def test_weights_are_random_and_not_downloaded_by_default() -> None:
    """HF_HUB_OFFLINE is set in the tests, so a download would fail."""
    torch.manual_seed(0)
    first = timm(3, model="test_resnet").state_dict()
    torch.manual_seed(0)
    second = timm(3, model="test_resnet").state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    with pytest.raises(ValueError, match="HF_HUB_OFFLINE is set"):
        timm(3, model="test_resnet", pretrained=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": "resnet81"}, r"^model: timm [\d.]+ has no 'resnet81'; near: resnet18"),
        ({"model": "zzzzzz"}, r"near: none$"),
        ({"model": "resnet18.a1_in2k"}, "^model: .*Invalid pretrained tag"),
        ({"model": "beit3_giant_patch14_224", "pretrained": True}, "No pretrained weights exist"),
        ({"model": "test_resnet", "options": {"bloks": 1}}, "^options: timm's 'test_resnet' refuses: .*'bloks'"),
        ({"model": "test_vit", "options": {"num_heads": 7}}, "^options: .*divisible by num_heads"),
        ({"model": "test_resnet", "options": {"act_layer": "relux"}}, "^options: .*relux"),
        ({"model": "vgg11", "drop_path": 0.1}, "^drop_path: timm's 'vgg11' refuses"),
        ({"model": "test_resnet", "options": {"in_chans": 4}}, "in_chans .*: it follows from the data"),
        ({"model": "test_resnet", "options": {"num_classes": 4}}, "num_classes .*: the task brings its own head"),
        ({"model": "test_resnet", "options": {"drop_path_rate": 0.1}}, "it is called drop_path"),
        ({"model": "test_resnet", "options": {"features_only": True}}, "one vector per image"),
        ({"model": "test_resnet", "options": {"global_pool": ""}}, "one vector per image"),
    ],
)
def test_options_that_timm_refuses_raise(arguments: dict[str, Any], message: str) -> None:
    with torch.device("meta"), pytest.raises(ValueError, match=message):
        timm(3, **arguments)


# --- timm's own classifier --------------------------------------------------------------------------------------------

CLASSIFIERS = {
    "test_resnet": "fc",
    "test_vit": "head",
    "test_vit2": "head",
    "test_vit_relpos": "head",
    "test_efficientnet": "classifier",
    "test_convnext": "head.fc",
    "test_mambaout": "head.fc",
    "test_nfnet": "head.fc",
    "test_byobnet": "head.fc",
    "test_maxvit": "head.fc",
    "mobilenetv3_small_050": "classifier",
    "resnetv2_18": "head.fc",  # a 1 x 1 convolution
    "shvit_s1": "head",  # a batch norm before the linear layer
    "poolformerv2_s12": "head.fc",
}
"""Models, and timm's name of the classifier of each."""


def timm_model(model: str, classes: int, **options: Any) -> Any:
    """Return timm's model with all weights changed."""
    torch.manual_seed(0)
    net = timm_library.create_model(model, num_classes=classes, **options).eval()
    with torch.no_grad():
        for tensor in net.state_dict().values():
            if tensor.is_floating_point():
                tensor.add_(0.02 * torch.randn_like(tensor).abs())
    return net


def draw_images(net: Any, channels: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    size = net.pretrained_cfg["input_size"][1:] if net.pretrained_cfg.get("fixed_input_size") else (96, 96)
    return torch.rand(2, channels, *size, generator=generator)


@pytest.mark.parametrize(("model", "name"), CLASSIFIERS.items())
@torch.no_grad()
def test_backbone_and_head_match_timms_classifier(model: str, name: str) -> None:
    reference = timm_model(model, 7)
    net = timm(3, model=model).eval()
    assert isinstance(net, TimmBackbone)
    alone = set(net.state_dict())
    head = net.make_head(7).eval()
    assert set(net.state_dict()) == alone, "the classifier is not part of the backbone"
    assert all(key.startswith(name + ".") for key in head.state_dict())
    weights = reference.state_dict()
    net.model.load_state_dict({key: value for key, value in weights.items() if key not in head.state_dict()})
    head.load_state_dict({key: value for key, value in weights.items() if key in head.state_dict()})
    images = draw_images(reference)
    torch.testing.assert_close(head(net(images)), reference(images))


@pytest.mark.parametrize("model", ["levit_128s", "crossvit_tiny_240"])
def test_models_with_several_heads_get_a_linear_one(model: str) -> None:
    with torch.device("meta"):
        net = timm(3, model=model)
        assert isinstance(net, TimmBackbone)
        head = net.make_head(5)
    assert isinstance(head, nn.Linear)
    assert (head.in_features, head.out_features) == (net.out_channels, 5)


# --- pretrained weights -----------------------------------------------------------------------------------------------


def pretrained_file(folder: Path, model: str) -> tuple[Any, dict[str, Any]]:
    """Return timm's model of 1000 classes, whose weights are in a file, and the options with which timm reads it."""
    reference = timm_model(model, 1000)
    torch.save(reference.state_dict(), folder / "weights.pth")
    return reference, {"pretrained_cfg_overlay": {"file": str(folder / "weights.pth")}}


@torch.no_grad()
def test_a_pretrained_classifier_is_used_for_the_same_number_of_classes(tmp_path: Path) -> None:
    reference, options = pretrained_file(tmp_path, "test_vit")
    net = timm(3, model="test_vit", pretrained=True, options=options).eval()
    assert isinstance(net, TimmBackbone)
    assert net.trained_classes == 1000
    assert not [key for key in net.state_dict() if "head" in key]
    images = draw_images(reference)
    torch.testing.assert_close(net.make_head(1000)(net(images)), reference(images))
    second_head, other_head = net.make_head(1000), net.make_head(10)
    assert second_head(net(images)).shape == (2, 1000)
    assert not torch.allclose(second_head(net(images)), reference(images)), (
        "the pretrained head is returned once; this one is random"
    )
    assert other_head(net(images)).shape == (2, 10)
    net = timm(3, model="test_vit", pretrained=True, options=options).eval()
    assert isinstance(net, TimmBackbone)
    assert net.make_head(10)(net(images)).shape == (2, 10)


def test_pretrained_models_report_their_preprocessing(tmp_path: Path) -> None:
    _, options = pretrained_file(tmp_path, "test_vit")
    net = timm(3, model="test_vit", pretrained=True, options=options)
    assert isinstance(net, TimmBackbone)
    half = (0.5, 0.5, 0.5)
    assert net.preprocessing == Preprocessing(half, half, (160, 160), "bicubic", 0.95)
    _, options = pretrained_file(tmp_path, "test_resnet")
    options["pretrained_cfg_overlay"]["mean"] = [0.3, 0.4, 0.8]
    grey = timm(1, model="test_resnet", pretrained=True, options=options)
    assert isinstance(grey, TimmBackbone)
    assert grey.preprocessing is not None
    assert grey.preprocessing.mean == (pytest.approx(0.5),)
    untrained = timm(3, model="test_resnet")
    assert isinstance(untrained, TimmBackbone)
    assert untrained.preprocessing is None
    assert untrained.trained_classes == 0


def test_pretrained_weights_that_do_not_fit_are_refused_by_default(tmp_path: Path) -> None:
    _, options = pretrained_file(tmp_path, "test_vit")
    options["global_pool"] = "avg"
    with pytest.raises(ValueError, match=r"(?s)^options: .*fc_norm.weight.*\{pretrained_strict: false\} skips"):
        timm(3, model="test_vit", pretrained=True, options=options)
    net = timm(3, model="test_vit", pretrained=True, options={**options, "pretrained_strict": False})
    assert net.out_channels == 64


# --- depths, activations ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "moved"),
    [
        ("test_vit", set()),
        ("test_resnet", set()),
        ("test_efficientnet", set()),
        ("test_convnext", {"head.norm.weight", "head.norm.bias"}),  # part of timm's classifier
    ],
)
def test_depths_match_timm_and_the_classifier_is_one_deeper(model: str, moved: set[str]) -> None:
    reference = timm_library.create_model(model, num_classes=7)
    theirs = group_parameters(reference, reference.group_matcher(), reverse=True)
    net = timm(3, model=model)
    depths = net.depths()
    assert depths.keys() == dict(net.named_parameters()).keys()
    assert {key for key, depth in depths.items() if theirs[key.removeprefix("model.")] != depth} == {
        f"model.{key}" for key in moved
    }
    classifier = [depth for key, depth in theirs.items() if f"model.{key}" not in depths]
    assert set(classifier) == {max(depths.values()) + 1}
    assert min(depths.values()) == 0


# --- feature maps and offsets -----------------------------------------------------------------------------------------

IMAGE_SIZES = {
    "test_resnet": (96, 64),
    "test_convnext": (96, 64),
    "test_efficientnet": (96, 64),
    "mobilenetv3_small_050": (96, 64),
    "test_vit": (160, 160),
    "test_vit4": (160, 160),  # with register tokens
    "test_mambaout": (96, 64),  # channels last in timm, as Swin
}
"""Models, and the image size of each."""


@pytest.mark.parametrize("model", IMAGE_SIZES)
@torch.no_grad()
def test_feature_maps_are_those_before_the_pooling(model: str) -> None:
    net = timm(3, model=model).eval()
    assert isinstance(net, TimmBackbone)
    images = torch.rand(2, 3, *IMAGE_SIZES[model])
    maps = net.feature_maps(images)
    assert maps.ndim == 4
    assert maps.shape[:2] == (2, net.map_channels)
    height, width = maps.shape[2:]
    assert height / width == IMAGE_SIZES[model][0] / IMAGE_SIZES[model][1], "the height comes before the width"
    reference: Any = net.model.forward_features(images)  # type: ignore[operator]
    if maps.shape != reference.shape:
        channels_last = (
            reference if reference.ndim == 4 else reference[:, -height * width :].unflatten(1, (height, width))
        )
        reference = channels_last.movedim(3, 1)
    torch.testing.assert_close(maps, reference)


@pytest.mark.parametrize("options", [{}, {"dynamic_img_size": True}, {"global_pool": "avg"}], ids=str)
def test_an_offset_of_0_changes_nothing(options: dict[str, Any]) -> None:
    net, images = timm(3, model="test_vit", options=options).eval(), torch.rand(2, 3, 160, 160)
    offset = torch.zeros(2, net.token_channels)
    torch.testing.assert_close(net(images, offset), net(images))
    torch.testing.assert_close(net.feature_maps(images, offset), net.feature_maps(images))


def test_an_offset_is_added_to_all_tokens_before_the_blocks() -> None:
    net = timm(3, model="test_vit").eval()
    images, offset = torch.rand(2, 3, 160, 160), torch.randn(2, net.token_channels)
    inputs_of_block: list[Tensor] = []
    net.get_submodule("model.blocks.0").register_forward_pre_hook(lambda _, args: inputs_of_block.append(args[0]))
    net(images), net(images, offset), net.feature_maps(images, offset)
    plain, *moved = inputs_of_block
    assert plain.shape[1] > 100
    for tokens in moved:
        torch.testing.assert_close(tokens - plain, offset[:, None].expand_as(plain))


def test_an_offset_has_a_gradient_with_activation_checkpointing() -> None:
    def gradient(recompute: bool) -> Tensor:
        torch.manual_seed(0)
        net = timm(3, model="test_vit")
        if recompute:
            net.checkpoint_activations()
        offset = torch.zeros(2, net.token_channels, requires_grad=True)
        net(torch.ones(2, 3, 160, 160), offset).square().sum().backward()
        assert offset.grad is not None
        return offset.grad

    assert gradient(False).abs().sum() > 0
    torch.testing.assert_close(gradient(True), gradient(False))


@pytest.mark.parametrize("pool", ["token", "avg"])
def test_tokens_are_normalized(pool: str) -> None:
    """If timm averages tokens, its norm is after the pooling."""
    net = timm(3, model="test_vit", options={"img_size": 32, "global_pool": pool}).eval()
    assert net.patch_size == (16, 16)
    tokens_of_image = net.tokens(torch.rand(2, 3, 32, 32))
    for tokens in (tokens_of_image.first, tokens_of_image.patches):
        torch.testing.assert_close(tokens.mean(-1), torch.zeros(tokens.shape[:-1]), atol=1e-5, rtol=0)
        torch.testing.assert_close(tokens.var(-1, correction=0), torch.ones(tokens.shape[:-1]), atol=1e-3, rtol=0)
