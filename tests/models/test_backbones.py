from typing import Any

import pytest
import torch
from torch import nn

from opabinia.contracts import Backbone
from opabinia.models.backbones import timm

FAMILIES = ["test_resnet", "resnet10t", "convnext_atto", "test_vit", "mobilenetv3_small_050"]
"""Where their pooled width stands differs: mobilenetv3 has a layer behind the pooling, a ViT a class token."""


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("model", FAMILIES)
def test_it_gives_one_vector_an_image_as_wide_as_it_says(model: str, channels: int) -> None:
    net = timm(channels, model=model).eval()
    assert isinstance(net, Backbone)
    size = 160 if model == "test_vit" else 64  # a ViT has one size
    with torch.no_grad():
        assert net(torch.rand(2, channels, size, size)).shape == (2, net.out_channels)


def test_the_widths_of_names_that_everyone_knows() -> None:
    with torch.device("meta"):
        widths = {model: timm(3, model=model).out_channels for model in ("resnet18", "resnet50", "convnext_tiny")}
        widths["vit"] = timm(3, model="vit_small_patch16_224").out_channels
        widths["mobilenetv3"] = timm(3, model="mobilenetv3_large_100").out_channels
    assert widths == {"resnet18": 512, "resnet50": 2048, "convnext_tiny": 768, "vit": 384, "mobilenetv3": 1280}


def test_weights_are_drawn_and_not_fetched_unless_asked_for() -> None:
    """HF_HUB_OFFLINE is set in the tests, so a download would fail."""
    torch.manual_seed(0)
    first = timm(3, model="test_resnet").state_dict()
    torch.manual_seed(0)
    again = timm(3, model="test_resnet").state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    with pytest.raises(OSError, match=r"connection|offline"):
        timm(3, model="test_resnet", pretrained=True)


def test_drop_path_reaches_the_model() -> None:
    def drops(net: nn.Module) -> list[float]:
        return [one.drop_prob for one in net.modules() if type(one).__name__ == "DropPath"]

    assert max(drops(timm(3, model="test_convnext", drop_path=0.2))) == pytest.approx(0.2)
    assert not any(drops(timm(3, model="test_convnext")))


def test_options_reach_the_model() -> None:
    wide = timm(3, model="test_vit", options={"global_pool": "avg", "embed_dim": 32})
    assert wide.out_channels == 32


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
        ({"model": "test_resnet", "options": {"features_only": True}}, "one vector an image"),
        ({"model": "test_resnet", "options": {"global_pool": ""}}, "one vector an image"),
    ],
)
def test_what_timm_refuses_is_a_mistake_in_the_config(arguments: dict[str, Any], message: str) -> None:
    with torch.device("meta"), pytest.raises(ValueError, match=message):
        timm(3, **arguments)
