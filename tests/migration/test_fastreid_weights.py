"""Models with FastReID's weights compute FastReID's features, which scripts/fastreid_features.py recorded."""

import json
from typing import Any

import pytest
import torch

from opabinia.models.backbones.resnet import resnet
from opabinia.models.weights.translation import translate_weights
from tests.migration.fastreid_models import FIXTURE, draw_weights, features

CASES: dict[str, Any] = json.loads(FIXTURE.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if "mgn" in name or "iresnet" in name else ()) for name in CASES]
)
def test_features_are_those_of_fastreid(name: str) -> None:
    case = CASES[name]
    expected = torch.tensor(case["features"])
    actual = features(case["task"], draw_weights(case["shapes"]))[:, ::97]
    torch.testing.assert_close(actual, expected, atol=1e-5 * expected.abs().max().item(), rtol=0)


def test_names_of_a_multiple_granularity_network() -> None:
    weights = {
        "backbone.6.conv1.weight": torch.zeros(1),
        "b1.0.0.conv1.weight": torch.zeros(1),
        "b3.1.2.bn1.bias": torch.zeros(1),
        "b22_head.bottleneck.0.weight": torch.zeros(2, 3, 1, 1),
        "b22_head.bottleneck.1.running_mean": torch.zeros(1),
        "b1_head.weight": torch.zeros(1, 1),
    }
    translated = translate_weights(weights).weights
    assert list(translated) == [
        "backbone.backbone.model.layer3.0.conv1.weight",
        "backbone.backbone.model.layer3.1.conv1.weight",
        "backbone.thirds.layer4.2.bn1.bias",
        "branches.4.embedding.weight",
        "branches.4.neck.running_mean",
        "branches.0.head.weight",
    ]
    assert translated["branches.4.embedding.weight"].shape == (2, 3)


def test_names_of_earlier_versions_of_fastreid() -> None:
    weights = {"heads.bnneck.bias": torch.zeros(1), "heads.classifier.weight": torch.zeros(1, 1)}
    assert list(translate_weights(weights).weights) == ["neck.bias", "head.weight"]


def test_the_convention_of_fastreid_changes_no_parameters() -> None:
    """It changes only the inner width of non-local blocks; networks without them share weights."""
    fastreid_net, net = resnet(3, model="resnet18", convention="fastreid"), resnet(3, model="resnet18")
    fastreid_net.load_state_dict(net.state_dict())
    assert resnet(3, model="resnest14d", convention="fastreid").state_dict().keys()
