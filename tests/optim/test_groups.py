"""Learning rate and weight decay of parameter groups, compared with detectron2, FastReID and VISSL."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn

from opabinia.models.backbones.timm import timm
from opabinia.optim.groups import ParamGroups, Rule, apply_factors, layer_factors, parameter_groups


def options(
    task: nn.Module, groups: ParamGroups, lr: float = 0.1, decay: float = 0.0
) -> dict[str, tuple[float, float]]:
    """Return (lr, weight decay) of each parameter by its name, as the optimizer has them."""
    optimizer = torch.optim.SGD(parameter_groups(task, groups), lr=lr, weight_decay=decay)
    apply_factors(optimizer)
    names = {param: name for name, param in task.named_parameters()}
    return {
        names[param]: (group["lr"], group["weight_decay"])
        for group in optimizer.param_groups
        for param in group["params"]
    }


def count_options(groups: ParamGroups, **optimizer: Any) -> Counter[tuple[float, float]]:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2))
    return Counter(options(net, groups, **optimizer).values())


def test_detectron2s_groups() -> None:
    """Convolution, batch norm and linear layer with biases: golden case 13."""
    norm = Rule(kind="norm", weight_decay=0.0)
    assert count_options(ParamGroups(rules=[norm]), decay=1e-4) == {(0.1, 1e-4): 4, (0.1, 0.0): 2}


def test_detectron2s_biases() -> None:
    # In detectron2 the rule for norms overrides that for biases, so it comes last.
    rules = [Rule(kind="bias", lr_factor=2, weight_decay=0.0), Rule(kind="norm", weight_decay=0.0)]
    assert count_options(ParamGroups(rules=rules), decay=1e-4) == {(0.1, 1e-4): 2, (0.2, 0.0): 3, (0.1, 0.0): 1}


class Reid(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.ModuleDict({"conv": nn.Conv2d(1, 1, 1), "bn": nn.BatchNorm2d(1)})
        self.heads = nn.ModuleDict({"fc": nn.Linear(1, 1), "bn": nn.BatchNorm1d(1)})


def test_fastreids_groups() -> None:
    rules = [
        Rule(kind="norm", weight_decay=1e-4),
        Rule(kind="bias", lr_factor=2, weight_decay=0.0),
        Rule(pattern="^heads", lr_factor=10),
    ]
    assert options(Reid(), ParamGroups(rules=rules), decay=5e-4) == {
        "backbone.conv.weight": (0.1, 5e-4),
        "backbone.conv.bias": (0.2, 0.0),
        "backbone.bn.weight": (0.1, 1e-4),
        "backbone.bn.bias": (0.2, 0.0),
        "heads.fc.weight": (1.0, 5e-4),
        "heads.fc.bias": (2.0, 0.0),
        "heads.bn.weight": (1.0, 1e-4),
        "heads.bn.bias": (2.0, 0.0),
    }


def test_biases_have_the_weight_decay_of_the_optimizer_unless_a_rule_sets_it() -> None:
    by_name = options(Reid(), ParamGroups(rules=[Rule(kind="bias", lr_factor=2)]), decay=5e-4)
    assert {decay for _, decay in by_name.values()} == {5e-4}


def test_vissls_layer_decay() -> None:
    """A ViT of 12 blocks, layer decay 0.75."""
    with torch.device("meta"):
        task = nn.ModuleDict({"trunk": timm(3, model="vit_tiny_patch16_224"), "heads": nn.Linear(192, 2)})
    factors = layer_factors(task, 0.75)
    expected = {
        "pos_embed": 0.023757264,
        "cls_token": 0.023757264,
        "patch_embed.proj.weight": 0.023757264,
        "blocks.0.attn.qkv.weight": 0.031676352,
        "blocks.11.mlp.fc1.bias": 0.75,
        "norm.weight": 0.75,
    }
    for name, factor in expected.items():
        assert next(value for key, value in factors.items() if key.endswith(name)) == pytest.approx(factor)
    groups = parameter_groups(task, ParamGroups(layer_decay=0.75))
    heads = set(task["heads"].parameters())
    assert [group["lr_factor"] for group in groups if set(group["params"]) & heads] == [1.0]
    assert len(groups) == 14, "a group for each depth, and one for the head"


def test_the_embedding_kind_includes_position_embeddings_and_class_tokens() -> None:
    with torch.device("meta"):
        task = nn.ModuleDict({"net": timm(3, model="vit_tiny_patch16_224"), "words": nn.Embedding(3, 2)})
    by_name = options(task, ParamGroups(rules=[Rule(kind="embedding", weight_decay=0.0)]), decay=0.1)
    assert {name.rsplit(".", 1)[-1] for name, (_, decay) in by_name.items() if decay == 0} >= {"pos_embed", "cls_token"}
    assert by_name["words.weight"] == (0.1, 0.0)


def test_the_1d_kind_includes_biases_and_norms() -> None:
    assert count_options(ParamGroups(rules=[Rule(kind="1d", weight_decay=0.0)]), decay=1.0) == {
        (0.1, 1.0): 2,
        (0.1, 0.0): 4,
    }


def test_equal_options_share_a_group_and_frozen_parameters_have_none() -> None:
    task = Reid()
    task.backbone.requires_grad_(False)
    rules = [Rule(pattern="fc", lr_factor=3), Rule(pattern="heads.bn", lr_factor=3)]
    (group,) = parameter_groups(task, ParamGroups(rules=rules))
    assert (len(group["params"]), group["lr_factor"]) == (4, 3.0)
    assert parameter_groups(task)[0].keys() == {"params", "lr_factor"}
    groups = parameter_groups(task, ParamGroups(rules=[*rules, Rule(pattern="fc", constant_lr=True)]))
    assert [group.get("constant_lr", False) for group in groups].count(True) == 1


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (
            ParamGroups(rules=[Rule(pattern="haeds")]),
            r"rules\.0: there is no parameter whose name matches 'haeds'; .*heads\.bn",
        ),
        (ParamGroups(rules=[Rule(), Rule(kind="embedding")]), r"rules\.1: there is no embedding parameter"),
        (ParamGroups(rules=[Rule(pattern="(")]), r"rules\.0\.pattern: '\(' is not a regular expression"),
        (ParamGroups(layer_decay=0.5), "layer_decay: the task has no backbone"),
    ],
)
def test_rules_without_effect_are_errors(groups: ParamGroups, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parameter_groups(Reid(), groups)
