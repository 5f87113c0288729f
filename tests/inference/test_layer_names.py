"""Short names of layers, and layer outputs with one row per sample."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from opabinia.config import ConfigError
from opabinia.contracts import DataMismatch, Task
from opabinia.inference.layer_names import LayerFeatures, resolve_layer_names


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer1, self.layer2 = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer2(self.layer1(x))
        return out


class Plain(Task):
    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.head = nn.Sequential(Block()), nn.Linear(2, 3)

    def predict(self, batch: dict[str, Any]) -> dict[str, Tensor]:
        return {"logits": self.head(self.backbone(batch["image"]))}

    def features(self, batch: dict[str, Any]) -> dict[str, Tensor]:
        return {"embedding": self.backbone(batch["image"])}


class Momentum(Task):
    """A teacher whose backbone, without the projector, is evaluated."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.projector = Block(), nn.Linear(2, 3)
        self.teacher = nn.ModuleDict({"backbone": Block(), "projector": nn.Linear(2, 3)})
        self.predictor = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))

    predicts_embedding_only = True

    @property
    def trunk(self) -> nn.Module:
        return self.teacher["backbone"]

    def predict(self, batch: dict[str, Any]) -> dict[str, Tensor]:
        return {"embedding": self.trunk(batch["image"])}


BATCH = {"image": torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "id": ["a", "b"]}


def test_short_names() -> None:
    names = ["trunk", "head", "layer1", "backbone.0.layer2", "backbone"]
    assert resolve_layer_names(Plain(), names) == {
        "trunk": "backbone",
        "head": "head",
        "layer1": "backbone.0.layer1",
        "backbone.0.layer2": "backbone.0.layer2",
        "backbone": "backbone",
    }


def test_short_names_of_a_momentum_method_are_layers_of_the_teacher() -> None:
    assert resolve_layer_names(Momentum(), ["trunk", "head", "layer2", "projector", "predictor"]) == {
        "trunk": "teacher.backbone",
        "head": "teacher.projector",
        "layer2": "teacher.backbone.layer2",
        "projector": "projector",
        "predictor": "predictor",
    }


class Twins(Task):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = Block(), Block()
        self.shared = self.left.layer2


@pytest.mark.parametrize(
    ("task", "name", "message"),
    [
        (Plain(), "layer3", r"--layers: there is no layer 'layer3'; similar: layer\d, layer\d"),
        (Plain(), "backbone.0.layer22", "similar: backbone.0.layer2, backbone.0.layer1"),
        (Plain(), "projector", "there is no layer 'projector'"),
        (Twins(), "layer1", "'layer1' is the end of several names; give one of: left.layer1, right.layer1"),
        (Twins(), "trunk", "there is no layer 'trunk'"),
        (Twins(), "head", "there is no layer 'head'"),
    ],
    ids=["missing", "misspelt", "projector", "several", "no trunk", "no head"],
)
def test_unknown_and_ambiguous_names_are_an_error(task: Task, name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LayerFeatures(task, {"column": name})


def test_all_mistakes_are_reported_at_once() -> None:
    with pytest.raises(ConfigError) as error:
        resolve_layer_names(Twins(), ["nothing", "left", "layer1"])
    assert len(error.value.problems) == 2


@pytest.mark.parametrize("task", [Plain(), Momentum()], ids=["plain", "momentum"])
def test_the_head_is_computed_when_predict_does_not_use_it(task: Any) -> None:
    outputs = LayerFeatures(task, {"h": "head", "t": "trunk", "e": "embedding"})(BATCH)
    trunk = task.backbone if isinstance(task, Plain) else task.trunk
    head = task.head if isinstance(task, Plain) else task.teacher["projector"]
    assert torch.equal(outputs["t"], trunk(BATCH["image"])) and torch.equal(outputs["e"], outputs["t"])
    assert torch.equal(outputs["h"], head(trunk(BATCH["image"])))
    full_name = resolve_layer_names(task, ["head"])["head"]
    output = LayerFeatures(task, {"h": full_name})(BATCH)
    assert output.keys() == {"h"} and torch.equal(output["h"], outputs["h"]), "by its full name, too"


class Parts(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Any]:
        return {"a": x, "b": (x * 2, [x[:, :1, None] * 3])}


class Nested(Task):
    def __init__(self) -> None:
        super().__init__()
        self.parts, self.idle, self.total = Parts(), Parts(), nn.Flatten(0)

    def predict(self, batch: dict[str, Any]) -> dict[str, Tensor]:
        self.parts(batch["image"] * 10)
        self.total(batch["image"])
        return {"given": self.parts(batch["image"])["a"]}


def test_outputs_of_a_layer_are_concatenated_into_one_row_per_sample() -> None:
    rows = LayerFeatures(Nested(), {"parts": "parts"})(BATCH)["parts"]
    assert rows.tolist() == [[10, 20, 20, 40, 30], [30, 40, 60, 80, 90]], "output of the first call"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("idle", "does not use layer 'idle'"),
        ("total", "'total' does not output one row per sample"),
        ("embedding", "Nested has no embedding; name its layers"),
    ],
)
def test_layers_without_one_row_per_sample_are_an_error(name: str, message: str) -> None:
    with pytest.raises(DataMismatch, match=message):
        LayerFeatures(Nested(), {"column": name})(BATCH)


def test_a_frozen_model_has_features() -> None:
    frozen = Plain()
    expected = LayerFeatures(frozen, {"h": "head"})(BATCH)["h"]
    frozen.requires_grad_(False)
    assert torch.equal(LayerFeatures(frozen, {"h": "head"})(BATCH)["h"], expected.detach())


@pytest.mark.parametrize("name", ["projector", "expander", "heads.images"])
def test_a_head_has_many_names(name: str) -> None:
    task = Plain()
    del task.head
    parent, _, child = name.partition(".")
    task.add_module(parent, nn.ModuleDict({child: nn.Linear(2, 3)}) if child else nn.Linear(2, 3))
    assert resolve_layer_names(task, ["head"]) == {"head": name}
