"""Backbones from checkpoints of other self-supervised learning frameworks are loaded."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm as timm_library
import torch
from torch import Tensor, nn

from opabinia.models.backbones.timm import timm
from opabinia.models.weights.init import Init, initialize

State = dict[str, Tensor]

VIT: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2}


class Net(nn.Module):
    """A backbone and a head, as every task has."""

    def __init__(self, model: str, options: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.backbone = timm(3, model=model, options=options)
        self.head = nn.Linear(self.backbone.out_channels, 2)


def state_of(model: str, **options: Any) -> State:
    torch.manual_seed(3)
    state = timm_library.create_model(model, num_classes=0, **options).state_dict()
    return {name: torch.rand_like(value) if value.is_floating_point() else value for name, value in state.items()}


def under(prefix: str) -> Callable[[State], State]:
    return lambda state: {f"{prefix}{name}": tensor for name, tensor in state.items()}


def student_and_teacher(first: str, second: str) -> Callable[[State], State]:
    return lambda state: {**under(first)(state), **under(second)({name: tensor + 1 for name, tensor in state.items()})}


def as_sequential(state: State) -> State:
    """Rename the weights as in ``nn.Sequential(*list(resnet.children())[:-1])``."""
    positions = {"conv1": 0, "bn1": 1, "layer1": 4, "layer2": 5, "layer3": 6, "layer4": 7}
    split = ((name.split(".", 1), tensor) for name, tensor in state.items())
    return {f"backbone.{positions[first]}.{rest}": tensor for (first, rest), tensor in split}


RESNETS: dict[str, tuple[Callable[[State], Any], str]] = {
    "vissl": (
        lambda state: {
            "classy_state_dict": {"base_model": {"model": {"trunk": under("_feature_blocks.")(state), "heads": {}}}}
        },
        "VISSL's",
    ),
    "moco": (
        lambda state: {"state_dict": student_and_teacher("module.encoder_q.", "module.encoder_k.")(state)},
        "MoCo's",
    ),
    "moco_v3": (
        lambda state: {"state_dict": student_and_teacher("module.base_encoder.", "module.momentum_encoder.")(state)},
        "MoCo's",
    ),
    "swav": (lambda state: under("module.")({**state, "projection_head.0.weight": torch.rand(4, 512)}), "SwAV's"),
    "dino": (
        lambda state: {
            "student": under("module.backbone.")(state),
            "teacher": under("backbone.")({name: tensor + 1 for name, tensor in state.items()}),
        },
        "DINO's",
    ),
    "lightly": (as_sequential, "lightly's"),
    "lightly_simclr": (
        lambda state: {"state_dict": {**as_sequential(state), "projection_head.layers.0.weight": torch.rand(512, 512)}},
        "lightly's",
    ),
    "lightly_moco": (
        lambda state: {
            **as_sequential(state),
            **under("backbone_momentum.")({name: tensor + 1 for name, tensor in state.items()}),
            "projection_head_momentum.layers.0.weight": torch.rand(512, 512),
        },
        "lightly's",
    ),
    "lightly_dino": (
        lambda state: (
            student_and_teacher("student_backbone.", "teacher_backbone.")(state)
            | {"student_head.last_layer.weight_v": torch.rand(64, 256)}
        ),
        "lightly's",
    ),
    "ours": (student_and_teacher("backbone.model.", "teacher.backbone.model."), ""),
}


@pytest.mark.parametrize("system", RESNETS)
def test_a_resnet_of_another_framework(system: str, tmp_path: Path) -> None:
    state = state_of("resnet18")
    wrap, format_name = RESNETS[system]
    torch.save(wrap(state), tmp_path / "file.pth")
    net = Net("resnet18")
    report = initialize(net, Init(weights=tmp_path / "file.pth"))
    assert report.translated.startswith(format_name) and not [
        name for name in report.missing if name.startswith("backbone")
    ]
    loaded = net.backbone.model.state_dict()  # type: ignore[union-attr]
    assert all(torch.equal(loaded[name], tensor) for name, tensor in state.items())


@pytest.mark.parametrize("system", ["moco", "moco_v3", "dino", "lightly_moco", "lightly_dino", "ours"])
def test_the_teacher_is_loaded_with_source_prefix(system: str, tmp_path: Path) -> None:
    state = state_of("resnet18")
    torch.save(RESNETS[system][0](state), tmp_path / "file.pth")
    net = Net("resnet18")
    initialize(net, Init(weights=tmp_path / "file.pth", target_prefix="backbone", source_prefix="teacher.backbone"))
    loaded = net.backbone.model.state_dict()  # type: ignore[union-attr]
    assert all(torch.equal(loaded[name], tensor + 1) for name, tensor in state.items())


def test_transformers_of_dino_and_mae_have_timms_names(tmp_path: Path) -> None:
    state = state_of("vit_tiny_patch16_224", **VIT)
    decoder = {"decoder_embed.weight": torch.rand(8, 24), "mask_token": torch.rand(1, 1, 8)}
    torch.save({"model": {**state, **decoder}}, tmp_path / "mae.pth")
    net = Net("vit_tiny_patch16_224", VIT)
    report = initialize(net, Init(weights=tmp_path / "mae.pth"))
    assert set(report.unexpected) == set(decoder)
    loaded = net.backbone.model.state_dict()  # type: ignore[union-attr]
    assert all(torch.equal(loaded[name], tensor) for name, tensor in state.items())


def test_position_embeddings_of_dinov2_with_registers_are_those_of_patches(tmp_path: Path) -> None:
    """The file's position embedding of the class token is added to the token itself, as in timm."""
    options = {**VIT, "reg_tokens": 4, "no_embed_class": True, "init_values": 1e-5}
    state = state_of("vit_tiny_patch16_224", **options)
    first = torch.rand(1, 1, 24)
    file = {name: tensor for name, tensor in state.items() if name not in ("reg_token", "cls_token", "pos_embed")}
    file |= {"register_tokens": state["reg_token"], "mask_token": torch.rand(1, 24)}
    file |= {"cls_token": state["cls_token"] - first, "pos_embed": torch.cat([first, state["pos_embed"]], 1)}
    torch.save(file, tmp_path / "dinov2.pth")
    net = Net("vit_tiny_patch16_224", options)
    report = initialize(net, Init(weights=tmp_path / "dinov2.pth"))
    assert report.translated == "DINOv2's names" and not report.unexpected
    loaded = net.backbone.model.state_dict()  # type: ignore[union-attr]
    assert all(torch.allclose(loaded[name], tensor) for name, tensor in state.items())
